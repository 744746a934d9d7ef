"""The instances of a host as systemd has them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedfleetctl.common import ROOT, read_json, run

UNIT = "embedfleet-vllm@{}.service"
RUNTIME = Path("/run/embedfleet-vllm")
CANDIDATE = "embedfleet-candidate@{}.service"


@dataclass(frozen=True)
class Instance:
    """One unit: its systemd state, whether it was started with the unit on disk, and its release."""

    port: int
    active: str
    sub: str
    enabled: bool
    unit_current: bool
    release: str | None

    @property
    def up(self) -> bool:
        """Started and proven: ExecStartPost has seen right embeddings."""
        return self.active == "active"


def states(ports: list[int]) -> list[Instance]:
    """Return the state of the instances on `ports`, in that order."""
    known = survey(ports)[0]
    return [known[port] for port in ports]


def survey(ports: list[int]) -> tuple[dict[int, Instance], bool]:
    """Return all instances that systemd has, those on `ports` in any case, and whether the gateway is active.

    One systemctl call: a no-op deploy asks this, and each call costs some 15 ms.
    """
    shown = run(
        [
            "systemctl", "show", "-p", "Id,ActiveState,SubState,UnitFileState",
            *(UNIT.format(port) for port in {*ports, *enabled_ports()}), UNIT.format("*"), "embedfleet-gateway.service",
        ]
    ).stdout  # fmt: skip
    found: dict[int, Instance] = {}
    gateway = False
    for text in shown.strip().split("\n\n"):
        block = dict(line.partition("=")[::2] for line in text.splitlines())
        match = re.fullmatch(UNIT.format(r"(\d+)").replace(".", r"\."), block.get("Id", ""))
        if match:
            port = int(match[1])
            found[port] = Instance(
                port,
                block.get("ActiveState", ""),
                block.get("SubState", ""),
                block.get("UnitFileState") == "enabled",
                recorded(port, "unit") == unit_hash(),
                recorded(port, "release") or None,
            )
        elif block.get("Id") == "embedfleet-gateway.service":
            gateway = block.get("ActiveState") == "active"
    return found, gateway


def enabled_ports() -> set[int]:
    """Return the ports of the instances that start at boot."""
    links = Path("/etc/systemd/system/multi-user.target.wants").glob(UNIT.format("*"))
    return {int(port) for link in links for port in re.findall(r"@(\d+)\.service$", link.name)}


def recorded(port: int, what: str) -> str:
    """Return what the instance on `port` was started with: its release, or its unit's hash; empty when it is not up.

    `serve` wrote it into the unit's runtime directory, which systemd removes when the unit stops. /proc/PID/cwd would
    tell the release as well, but not to a root without the ptrace capability, as in a container.
    """
    try:
        return (RUNTIME / str(port) / what).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def unit_hash() -> str:
    """Return the hash of the instances' unit file as it is on disk."""
    path = Path("/etc/systemd/system/embedfleet-vllm@.service")
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def present_ports() -> list[int]:
    """Return the ports of all our instances that systemd has: enabled, running or failed."""
    return sorted(survey([])[0])


def probe_spec(release: str | None) -> dict[str, Any]:
    """Return how right embeddings of a release look; empty where there is no such release."""
    return read_json(ROOT / "releases" / release / "probe.json") if release else {}
