"""An engine: vLLM built from source on this host, in a virtual environment of its own.

Sources of a pinned tag, patches, the locked packages, the wheel, its installation; each stage is finished by a
rename or a marker, so that an interrupted build goes on from the last finished one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from embedfleetctl.common import BUILD_USER, ROOT, WORK, Failure, say, write_atomic
from embedfleetctl.make import as_builder, fresh, part_dir
from embedfleetctl.make.model import digest
from embedfleetctl.make.tools import index_args


def make(part: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Build and install vLLM; return what the manifest records of it."""
    work = WORK / f"engines-{part}"
    work.mkdir(parents=True, exist_ok=True)
    shutil.chown(work, BUILD_USER, BUILD_USER)
    where = part_dir("engines", part)
    source = sources(work, spec)
    python = environment(work, where, spec)
    wheel = build(work, source, python, spec)
    install(work, where, python, wheel, spec)
    kept = where / wheel.name
    shutil.copyfile(wheel, kept)
    shutil.rmtree(work)
    return {"wheel": kept.name, "wheel_sha256": digest(kept), "wheel_size": kept.stat().st_size}


def _uv(work: Path, spec: dict[str, Any], *words: str) -> list[str]:
    """Return a uv command. Its cache lives in the work directory, so that an interrupted installation goes on.

    Hard links into it, as it is removed with the work directory: an engine must share no file with what the build
    account may write to. A cache for the next engine would hold as much again as an engine (10 GB with CUDA).
    """
    return [f"{ROOT}/tools/{spec['tools']}/venv/bin/uv", "--cache-dir", str(work / "uv"), *words]


def sources(work: Path, spec: dict[str, Any]) -> Path:
    """Return the patched sources: the tag, checked against the pinned commit."""
    done = work / "src"
    if (done / ".embedfleet-ok").exists():
        say("sources: there already")
        return done
    say(f"sources: {spec['git_ref']} from {spec['git_url']}")
    new = fresh(work / "src.new", BUILD_USER)
    try:
        as_builder(["git", "init", "-q", "."], cwd=new)
        as_builder(
            [
                "git",
                "fetch",
                "-q",
                "--depth",
                "1",
                spec["git_url"],
                f"refs/tags/{spec['git_ref']}:refs/tags/{spec['git_ref']}",
            ],
            cwd=new,
            limit=1800,
        )
        as_builder(["git", "-c", "advice.detachedHead=false", "checkout", "-q", spec["git_ref"]], cwd=new)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise Failure(
            "vllm_git_url",
            f"tag {spec['git_ref']} could not be fetched from {spec['git_url']}",
            "check the URL from the host and that the tag exists (vllm_version, vllm_git_ref)",
        ) from None
    git = ["git", "-c", f"safe.directory={new}", "-C", str(new)]
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    if spec.get("commit") and head != spec["commit"]:
        raise Failure(
            "vllm_commit",
            f"tag {spec['git_ref']} is commit {head}, pinned is {spec['commit']}: the tag was moved",
            "find out why; then pin the commit that is wanted",
        )
    for patch in spec["patches"]:
        apply_patch(work, new, patch, spec)
    (new / ".embedfleet-ok").write_text(head + "\n", encoding="ascii")
    if done.exists():
        shutil.rmtree(done)
    os.replace(new, done)
    return done


def apply_patch(work: Path, tree: Path, patch: dict[str, str], spec: dict[str, Any]) -> None:
    """Apply one patch, whole or not at all. :raises Failure: when it does not apply."""
    if hashlib.sha256(patch["text"].encode()).hexdigest() != patch["sha256"]:
        raise Failure("vllm_patches", f"{patch['name']} arrived damaged", "run the deploy again")
    file = work / "applying.patch"
    write_atomic(file, patch["text"])
    try:
        as_builder(["git", "apply", "--verbose", str(file)], cwd=tree)
    except subprocess.CalledProcessError:
        raise Failure(
            "vllm_patches",
            f"{patch['name']} does not apply to vLLM {spec['version']}",
            "make the patch again for this version, or take it out if upstream has it",
        ) from None
    say(f"patch applied: {patch['name']}")


def environment(work: Path, where: Path, spec: dict[str, Any]) -> str:
    """Return the Python of the engine's environment with the locked packages in it."""
    python, marker = f"{where}/venv/bin/python", where / ".packages-ok"
    if marker.exists():
        say("packages: there already")
        shutil.chown(where, BUILD_USER, BUILD_USER)
        return python
    say("packages: installing the locked set")
    fresh(where, BUILD_USER)
    lock = where / "requirements.lock"
    lock.write_text(spec["content_lock"], encoding="utf-8")
    base = f"{ROOT}/conda/{spec['conda']}/prefix/bin/python"
    try:
        as_builder([base, "-m", "venv", "--without-pip", str(where / "venv")], cwd=where)
        as_builder(
            _uv(
                work,
                spec,
                "pip",
                "install",
                "--link-mode",
                "hardlink",
                "--python",
                python,
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--no-deps",
                *index_args(spec, "--default-index", "--index"),
                "-r",
                str(lock),
            ),
            cwd=where,
        )
    except subprocess.CalledProcessError as error:
        raise Failure(
            "vllm_requirements",
            f"the locked packages could not be installed (exit {error.returncode})",
            "check that python_index_url can be reached from the host and holds them with these hashes",
        ) from None
    marker.write_text("", encoding="ascii")
    return python


def build(work: Path, source: Path, python: str, spec: dict[str, Any]) -> Path:
    """Return the wheel, built with the platform row's variables."""
    out = work / "wheel"
    found = sorted(out.glob("vllm-*.whl"))
    if found:
        say(f"wheel: there already, {found[0].name}")
        return found[0]
    env = {
        "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin",
        "SETUPTOOLS_SCM_PRETEND_VERSION": spec["version"],
        **spec["build_env"],
    }
    if spec.get("compilers"):  # newer than the system's own, beside it (RHEL's gcc-toolset)
        env["PATH"] = f"{spec['compilers']}:{env['PATH']}"
    if env.get("CUDA_HOME"):
        env["PATH"] = f"{env['CUDA_HOME']}/bin:{env['PATH']}"
    if spec.get("precompiled"):
        wheel = precompiled(work, spec["precompiled"])
        env |= {"VLLM_USE_PRECOMPILED": "1", "VLLM_PRECOMPILED_WHEEL_LOCATION": str(wheel)}
    shown = " ".join(f"{key}={env[key]}" for key in sorted(spec["build_env"]))
    say(f"wheel: building vLLM {spec['version']} ({shown})")
    new = fresh(work / "wheel.new", BUILD_USER)
    try:
        as_builder(
            _uv(
                work,
                spec,
                "build",
                "--wheel",
                "--no-build-isolation",
                "--no-index",
                "--python",
                python,
                "--out-dir",
                str(new),
                ".",
            ),
            cwd=source,
            env=env,
            limit=spec["limit"],
        )
    except subprocess.TimeoutExpired:
        raise Failure(
            "build_timeout", f"the build took over {spec['limit']} s", "raise build_timeout or build_jobs"
        ) from None
    except subprocess.CalledProcessError as error:
        raise Failure(
            "vllm_version",
            f"the build of vLLM {spec['version']} failed (exit {error.returncode})",
            "read the log; a lower build_jobs helps against 'Killed' (out of memory)",
        ) from None
    if not sorted(new.glob("vllm-*.whl")):
        raise Failure("vllm_version", "the build left no vllm wheel", "read the log")
    if out.exists():
        shutil.rmtree(out)
    os.replace(new, out)
    return sorted(out.glob("vllm-*.whl"))[0]


def precompiled(work: Path, wheel: dict[str, str]) -> Path:
    """Return the downloaded wheel whose kernels are reused, checked."""
    path = work / wheel["url"].rpartition("/")[2]
    if path.exists() and digest(path) == wheel["sha256"]:
        return path
    say(f"kernels: {wheel['url']}")
    new = path.with_suffix(".part")
    try:
        with urllib.request.urlopen(wheel["url"], timeout=60) as answer, open(new, "wb") as out:
            shutil.copyfileobj(answer, out)
    except (urllib.error.URLError, OSError) as error:
        raise Failure("vllm_precompiled", f"{wheel['url']}: {error}", "check the URL from the host") from None
    have = digest(new)
    if have != wheel["sha256"]:
        raise Failure(
            "vllm_precompiled",
            f"{wheel['url']} has sha256 {have}, expected {wheel['sha256']}",
            "correct the pin or the URL",
        )
    os.replace(new, path)
    return path


def install(work: Path, where: Path, python: str, wheel: Path, spec: dict[str, Any]) -> None:
    """Install the wheel and have a server's modules imported (that they embed right is proven on the side port).

    The import also leaves their bytecode, which nobody may write later: without it every process of vLLM compiles for
    12 s as it starts (seen on 2 cores). All bytecode of all packages would be a minute of work, and most is never used.
    """
    say(f"installing {wheel.name}")
    try:
        as_builder(
            _uv(
                work,
                spec,
                "pip",
                "install",
                "--link-mode",
                "hardlink",
                "--python",
                python,
                "--no-deps",
                "--no-index",
                "--reinstall",
                str(wheel),
            ),
            cwd=where,
        )
        device = spec["build_env"]["VLLM_TARGET_DEVICE"]
        check = [python, "-I", f"{ROOT}/lib/embedfleetctl/make/engine_check.py", device]
        as_builder(
            check, cwd=where, env={"VLLM_TARGET_DEVICE": device, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        )
    except subprocess.CalledProcessError as error:
        raise Failure(
            "vllm_version", f"the built wheel does not install or load (exit {error.returncode})", "read the log"
        ) from None
