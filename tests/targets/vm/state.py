"""What the supervisor writes down and everybody else reads: vm.json, and where the files of a machine are."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.targets.naming import Names

#: Causes of a boot.
POWER_ON, REBOOT, POWER_CUT = "power on", "reboot", "power cut"


@dataclass
class Boot:
    """One start of the machine."""

    cause: str
    at: float
    kernel: str
    cmdline: str


@dataclass
class State:
    """The machine, as its supervisor sees it."""

    supervisor: int
    started: str  # the supervisor's start time in /proc: its number may be somebody else's by now
    port: int
    running: bool = False
    qemu: int = 0
    error: str = ""
    boots: list[Boot] = field(default_factory=list)


@dataclass(frozen=True)
class Files:
    """The files of one rig's machine, in that rig's own folder."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "vm.json"

    @property
    def disk(self) -> Path:
        return self.folder / "disk.raw"

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    @property
    def log(self) -> Path:
        return self.folder / "supervisor.log"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def base(self) -> Path:
        """The path of the image that the disk was copied from."""
        return self.folder / "base"


def files(rig: Names) -> Files:
    """Where this rig's machine lives."""
    return Files(rig.state / "vm")


def save(path: Path, state: State) -> None:
    """Replace vm.json in one step."""
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(state), indent=2) + "\n")
    partial.replace(path)


def load(path: Path) -> State | None:
    """vm.json, or None where no machine was started."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return State(**{**raw, "boots": [Boot(**boot) for boot in raw["boots"]]})


def start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none (a zombie counts as none)."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if words[0] == "Z" else words[19]


def alive(state: State | None) -> bool:
    """Whether the supervisor that wrote this is still there."""
    return state is not None and bool(state.started) and start_time(state.supervisor) == state.started
