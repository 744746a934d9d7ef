"""The host's own tools (py-rattler, modelscope, uv): a virtual environment of the system's Python, from a lock."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from embedfleetctl.common import BUILD_USER, Failure, run
from embedfleetctl.make import as_builder, fresh, part_dir


def index_args(spec: dict[str, Any], index: str = "--index-url", extra: str = "--extra-index-url") -> list[str]:
    """Return the command-line form of the package indexes of a spec, for pip and uv alike."""
    args = [index, spec["index_url"]] if spec.get("index_url") else []
    for url in spec.get("extra_index_urls", []):
        args += [extra, url]
    hosts = {url.split("/")[2].split(":")[0] for url in args if url.startswith("http://")}
    for host in sorted(hosts):  # a plain-http mirror is the operator's choice; hashes guard the content
        args += ["--trusted-host" if index == "--index-url" else "--allow-insecure-host", host]
    return args


def make(part: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Make the environment; only wheels, each with the hash that the lock file gives.

    pip brings uv, and uv the rest: pip alone takes three times as long, and minutes under emulation.
    """
    where = fresh(part_dir("tools", part), BUILD_USER)
    lock, first = where / "requirements.lock", where / "uv.lock"
    lock.write_text(spec["content_lock"], encoding="utf-8")
    first.write_text("".join(re.findall(r"(?m)^uv==.*(?:\\\n.*)*\n?", spec["content_lock"])), encoding="utf-8")
    only = ["--require-hashes", "--only-binary=:all:"]
    try:
        as_builder([spec["python"], "-m", "venv", "--without-pip", str(where / "venv")], cwd=where)
        as_builder(
            [
                f"{where}/venv/bin/python",
                str(pip(spec["python"])),
                "install",
                "--quiet",
                "--no-cache-dir",
                "--no-compile",
                "--disable-pip-version-check",
                *only,
                *index_args(spec),
                "-r",
                str(first),
            ],
            cwd=where,
        )
        # no bytecode either: used once a deploy, compiling takes longer than it ever saves
        uv = [f"{where}/venv/bin/uv", "pip", "install", "--quiet", "--no-cache", "--link-mode", "copy"]
        uv += ["--python", f"{where}/venv/bin/python", "--no-deps", *only]
        as_builder([*uv, *index_args(spec, "--default-index", "--index"), "-r", str(lock)], cwd=where)
    except subprocess.CalledProcessError as error:
        raise Failure(
            "python_index_url",
            f"the host's tools could not be installed (exit {error.returncode})",
            "check that the index can be reached from the host and holds the locked packages",
        ) from None
    return {"python": str(Path(where / "venv/bin/python"))}


def pip(python: str) -> Path:
    """Return the system's own pip, to be run out of its wheel: installing it first costs more than all it installs.

    :raises Failure: where the system's Python brings no pip for virtual environments
    """
    ask = "import ensurepip as e, sysconfig as s; print(s.get_config_var('WHEEL_PKG_DIR') or '', e.__path__[0] + '/_bundled')"
    for folder in run([python, "-I", "-c", ask]).stdout.split():
        for wheel in sorted(Path(folder).glob("pip-*.whl")):
            return wheel / "pip"
    raise Failure(
        "host", f"{python} brings no pip (ensurepip)", "install python3-venv, or the distribution's pip wheel"
    )
