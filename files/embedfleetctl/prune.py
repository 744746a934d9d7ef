"""Make room: releases beyond those kept, parts that no release uses, and what failed attempts left half done."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from embedfleetctl.common import KINDS, LOCKS, ROOT, SPECS, WORK, release_of, say
from embedfleetctl.instances import present_ports, states
from embedfleetctl.make import manifest


def prune(keep: int) -> None:
    """Remove old releases beyond `keep`, then parts that no release uses. Never what runs or what links point at."""
    spared = {release_of(name) for name in ("current", "previous", "candidate")}
    spared |= {instance.release for instance in states(present_ports())}
    releases = sorted((ROOT / "releases").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    kept = [path.parent.name for path in releases]
    for name in [name for name in kept if name not in spared][max(0, keep - len(spared & set(kept))) :]:
        say(f"pruning release {name}")
        discard(ROOT / "releases" / name)
        kept.remove(name)
    specs = [manifest("releases", name).get("spec", {}) for name in kept]
    engines, models = {spec.get("engines") for spec in specs}, {spec.get("models") for spec in specs}
    conda = {manifest("engines", str(engine)).get("spec", {}).get("conda") for engine in engines}
    for kind, used in (("engines", engines), ("models", models), ("conda", conda)):
        for path in (ROOT / kind).glob("*/manifest.json"):
            if path.parent.name not in used and _old(path):
                say(f"pruning {kind}/{path.parent.name}")
                discard(path.parent)
    leftovers()


def discard(path: Path) -> None:
    """Remove a part: its manifest first, so that an interruption leaves an unfinished part, never a damaged one."""
    (path / "manifest.json").unlink(missing_ok=True)
    gone = path.with_name(f".{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)  # of an interrupted discard; mostly there is none
    os.replace(path, gone)
    shutil.rmtree(gone)


def leftovers() -> None:
    """Remove unfinished parts, work directories and specs that no running job holds: a failed build leaves gigabytes."""
    for path in [*(p for kind in KINDS for p in (ROOT / kind).glob("*")), *WORK.glob("*-*")]:
        kind, part = (path.parent.name, path.name) if path.parent != WORK else path.name.split("-", 1)
        if (path / "manifest.json").exists() or not path.is_dir() or not _old(path) or _busy(kind, part):
            continue
        say(f"removing what was left of {kind}/{part}")
        shutil.rmtree(path)
    for spec in SPECS.glob("*.json"):
        kind, part = spec.stem.split("-", 1)
        if not manifest(kind, part) and _old(spec) and not _busy(kind, part):
            spec.unlink()


def _old(path: Path) -> bool:
    """Say whether a thing is over a day old: younger, it may be a part that another deploy has yet to make use of."""
    return time.time() - path.stat().st_mtime > 86400


def _busy(kind: str, part: str) -> bool:
    """Say whether a job is making the part now: it holds the part's lock."""
    path = LOCKS / f"{kind}-{part}.lock"
    try:
        with open(path, "w", encoding="ascii") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
