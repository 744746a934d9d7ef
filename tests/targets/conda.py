"""The conda channel that the mirror serves: where its builder (conda_channel.py) is called."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tests.targets.engine import docker
from tests.targets.host import as_root, cache_dir, lock, run, say
from tests.targets.wheelhouse import pip_words, target_words

BUILDER = Path(__file__).with_name("conda_channel.py")
LOCK_NAME = "conda-linux-64.lock"
RATTLER = "py-rattler>=0.28,<0.29"


def ensure_channel(image: str) -> tuple[Path, Path | None]:
    """(channel folder, its lock file), built once per content of the builder; empty and None without one.

    It's built in a container of `image`: the package is made from Python 3.11 and its shared libraries as the targets
    have them, and this machine may be an Ubuntu with another Python.
    """
    if not BUILDER.exists():
        empty = cache_dir() / "conda" / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        return empty, None
    digest = hashlib.sha256("\n".join([BUILDER.read_text(), RATTLER, image]).encode()).hexdigest()[:12]
    channel = cache_dir() / "conda" / digest
    if channel.is_dir():
        return channel, channel / LOCK_NAME
    with lock("conda"):
        if not channel.is_dir():
            _build(channel, image, _rattler())
    return channel, channel / LOCK_NAME


def _build(channel: Path, image: str, rattler: Path) -> None:
    say("building the conda channel")
    work = channel.with_name(f".{channel.name}.{os.getpid()}")
    work.mkdir(parents=True)
    mounts = ["-v", f"{rattler}:/rattler:ro", "-v", f"{BUILDER}:/conda_channel.py:ro", "-v", f"{work}:/channel"]
    try:
        docker("run", "--rm", *mounts, "-e", "PYTHONPATH=/rattler", image, "python3", "/conda_channel.py", "/channel")
        if os.geteuid() != 0:  # the container's root wrote it
            run([*as_root(), "chown", "-R", f"{os.getuid()}:{os.getgid()}", work])
        work.rename(channel)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _rattler() -> Path:
    """py-rattler and what it needs, unpacked for the targets' Python."""
    folder = cache_dir() / f"rattler-{hashlib.sha256(RATTLER.encode()).hexdigest()[:8]}"
    if not folder.is_dir():
        say("fetching py-rattler (once)")
        work = folder.with_name(f".{folder.name}.{os.getpid()}")
        words = [word for word in target_words() if word != "--no-deps"]
        try:
            run(
                [*pip_words(), "install", "--quiet", *words, "--target", work, RATTLER],
                cure="check that pip reaches its index",
            )
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder
