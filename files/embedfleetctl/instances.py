"""The instances of a host as systemd and /proc have them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from embedfleetctl.common import ROOT, read_json, run

UNIT = "embedfleet-vllm@{}.service"
CANDIDATE = "embedfleet-candidate@{}.service"


@dataclass(frozen=True)
class Instance:
    """One unit: its systemd state and the release that its process runs (None: no process, or not from a release)."""

    port: int
    active: str
    sub: str
    enabled: bool
    needs_reload: bool
    release: str | None

    @property
    def up(self) -> bool:
        """Started and proven: ExecStartPost has seen right embeddings."""
        return self.active == "active"


def states(ports: list[int]) -> list[Instance]:
    """Return the state of the instances on `ports`, in that order, with one systemctl call."""
    if not ports:
        return []
    shown = run(
        [
            "systemctl",
            "show",
            "-p",
            "ActiveState,SubState,UnitFileState,NeedDaemonReload,MainPID",
            *(UNIT.format(port) for port in ports),
        ]
    ).stdout
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in shown.strip().split("\n\n")]
    return [
        Instance(
            port,
            block.get("ActiveState", ""),
            block.get("SubState", ""),
            block.get("UnitFileState") == "enabled",
            block.get("NeedDaemonReload") == "yes",
            running_release(block.get("MainPID", "0")),
        )
        for port, block in zip(ports, blocks)
    ]


def running_release(pid: str) -> str | None:
    """Return the release a process runs: its working directory, which systemd resolved when it started it."""
    try:
        where = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None
    found = re.fullmatch(re.escape(str(ROOT / "releases")) + r"/([^/ ]+)(?: \(deleted\))?", where)
    return found[1] if found else None


def present_ports() -> list[int]:
    """Return the ports of all our instances that systemd knows: enabled, running or failed."""
    listed = run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "embedfleet-vllm@*.service"]).stdout
    linked = run(["systemctl", "list-unit-files", "--no-legend", "embedfleet-vllm@*.service"]).stdout
    return sorted({int(p) for p in re.findall(r"embedfleet-vllm@(\d+)\.service", listed + linked)})


def probe_spec(release: str | None) -> dict[str, Any]:
    """Return how right embeddings of a release look; empty where there is no such release."""
    return read_json(ROOT / "releases" / release / "probe.json") if release else {}
