"""Make a part: a directory named by what goes into it, finished when its manifest.json is there, never changed after.

Each kind of part is a module with `make(part, spec)`: `spec` is the JSON that the deploy uploaded.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

from embedfleetctl.common import BUILD_USER, KINDS, ROOT, SPECS, WORK, Failure, lock, read_json, say, write_atomic


def part_dir(kind: str, part: str) -> Path:
    """Return where a part lives."""
    return ROOT / kind / part


def manifest(kind: str, part: str) -> dict[str, Any]:
    """Return a finished part's manifest; empty for one that is not finished."""
    return read_json(part_dir(kind, part) / "manifest.json")


def make(kind: str, part: str) -> None:
    """Make one part from its spec, unless it is finished.

    :raises Failure: with the setting at odds
    """
    from embedfleetctl.make import conda, engine, model, release, tools

    if kind not in KINDS:
        raise Failure("spec", f"{kind!r} is no kind of part", f"one of {', '.join(KINDS)}")
    spec = read_json(SPECS / f"{kind}-{part}.json")
    if not spec:
        raise Failure("spec", f"no spec for {kind}/{part} in {SPECS}", "run the deploy, which uploads it")
    makers = {
        "tools": tools.make,
        "conda": conda.make,
        "engines": engine.make,
        "models": model.make,
        "releases": release.make,
    }
    with lock(f"{kind}-{part}", limit=5):
        if manifest(kind, part):
            return say(f"{kind}/{part} is finished already")
        say(f"making {kind}/{part}")
        try:
            details = makers[kind](part, spec)
        except OSError as error:
            raise Failure(
                "host", f"{type(error).__name__}: {error}", "make room or repair the disk, then deploy again"
            ) from error
        finish_part(kind, part, spec, details)


def finish_part(kind: str, part: str, spec: dict[str, Any], details: dict[str, Any]) -> None:
    """Give a made part to root, read-only to everybody else, and write its manifest last."""
    where = part_dir(kind, part)
    uid = pwd.getpwnam(BUILD_USER).pw_uid
    for top, folders, files in os.walk(where):
        for name in [".", *folders, *files]:
            path = os.path.join(top, name)
            if os.lstat(path).st_uid == uid:
                os.lchown(path, 0, 0)
    os.sync()  # a manifest that survives a power cut must not stand over files that did not
    visible = {key: value for key, value in spec.items() if not key.startswith(("content", "serve"))}
    write_atomic(where / "manifest.json", json.dumps({"kind": kind, "id": part, "spec": visible, **details}, indent=1))
    say(f"{kind}/{part} is finished")


def fresh(path: Path, owner: str = "root") -> Path:
    """Return `path` as a new empty directory of `owner`: what an interrupted run left there is removed."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    if owner != "root":
        shutil.chown(path, owner, owner)
    return path


def as_builder(argv: list[str], *, cwd: Path, env: dict[str, str] | None = None, limit: float = 3600) -> None:
    """Run a step as the unprivileged build account, with a small environment of our own; its output goes to the log.

    :raises subprocess.CalledProcessError: when it fails
    """
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(WORK / "home"),
        "TMPDIR": str(WORK / "home" / "tmp"),
        "LANG": "C.UTF-8",
        "UV_NO_PROGRESS": "1",
        "TQDM_DISABLE": "1",
        "UV_NO_CONFIG": "1",
        "PIP_NO_INPUT": "1",
        "PIP_CONFIG_FILE": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        **_site_ca(),
        **(env or {}),
    }
    print("$", " ".join(argv), flush=True)
    account = pwd.getpwnam(BUILD_USER)
    temporary = WORK / "home" / "tmp"  # not /tmp: what a killed step leaves there would stay
    if not temporary.exists():
        temporary.mkdir(mode=0o700, parents=True)
        os.chown(temporary, account.pw_uid, account.pw_gid)
    subprocess.run(
        argv,
        cwd=cwd,
        env=base,
        check=True,
        timeout=limit,
        stdin=subprocess.DEVNULL,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        umask=0o022,
    )


def _site_ca() -> dict[str, str]:
    """Point every client at the system's certificates: site authorities are there, bundled lists lack them."""
    bundle = next(
        (p for p in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt") if os.path.exists(p)), ""
    )
    names = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
    return dict.fromkeys(names, bundle) if bundle else {}
