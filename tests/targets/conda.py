"""The conda channel that the mirror serves: where its builder (conda_channel.py) is called."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.targets.engine import docker
from tests.targets.host import as_root, cache_dir, lock, run, say
from tests.targets.image import ensure_tarball, target_tag
from tests.targets.wheelhouse import pip_words, target_words

BUILDER = Path(__file__).with_name("conda_channel.py")
#: conda's name of a platform -> the image whose Python its package is made from; linux-64 is the builder's own.
FOREIGN = {"linux-aarch64": "arm64", "linux-ppc64le": "ppc64el"}
RATTLER = "py-rattler>=0.28,<0.29"


def ensure_channel(image: str, subdirs: Sequence[str]) -> Path:
    """The channel's folder with a lock file for each of these platforms, built once per content of the builder.

    It's built in a container of `image`: the linux-64 package is made from Python 3.11 and its shared libraries as the targets
    have them, and this machine may be an Ubuntu with another Python. The others' files are taken out of their images.
    """
    foreign = {subdir: kind for subdir, kind in FOREIGN.items() if subdir in subdirs}
    parts = [BUILDER.read_text(), RATTLER, image, *(target_tag(kind) for kind in foreign.values())]
    channel = cache_dir() / "conda" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    if not channel.is_dir():
        with lock("conda"):
            if not channel.is_dir():
                _build(channel, image, _rattler(), foreign)
    return channel


def _build(channel: Path, image: str, rattler: Path, foreign: dict[str, str]) -> None:
    say("building the conda channel")
    work = channel.with_name(f".{channel.name}.{os.getpid()}")
    roots = channel.with_name(f".{channel.name}.{os.getpid()}.roots")
    work.mkdir(parents=True)
    try:
        for subdir, kind in foreign.items():
            root = roots / subdir
            root.mkdir(parents=True)
            run(["tar", "-xf", ensure_tarball(kind), "-C", root, "./usr/bin/python3.11", "./usr/lib/python3.11"])
        mounts = ["-v", f"{rattler}:/rattler:ro", "-v", f"{BUILDER}:/conda_channel.py:ro"]
        roots.mkdir(exist_ok=True)
        mounts += ["-v", f"{work}:/channel", "-v", f"{roots}:/roots:ro", "-e", "PYTHONPATH=/rattler"]
        docker("run", "--rm", *mounts, image, "python3", "/conda_channel.py", "/channel", "/roots")
        if os.geteuid() != 0:  # the container's root wrote it
            run([*as_root(), "chown", "-R", f"{os.getuid()}:{os.getgid()}", work])
        work.rename(channel)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(roots, ignore_errors=True)


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
