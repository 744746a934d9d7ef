"""Names of everything a rig creates, so that two checkouts on one machine never meet."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.targets.host import RigError, cache_dir

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """One target: its image (image.py), its group in inventory/docker.py, and what it presents itself as (hardware.py).

    :param kmod: its image has the programs for kernel modules, since it presents a driver
    :param on_demand: it is started only when asked for by name; it reboots as a server does, and its image has kmod
    """

    image: str
    group: str
    hardware: str = ""
    on_demand: bool = False
    kmod: bool = False

    @property
    def machine(self) -> str:
        """`uname -m`."""
        return {"arm64": "aarch64", "ppc64el": "ppc64le"}.get(self.image, "x86_64")


#: Host name in rig.json -> what it is. x86 serves with real vLLM, the others with the stand-in. The gpu ones have no driver.
TARGETS = {
    "x86": Target("amd64", "x86"),
    "rhel": Target("rhel9", "x86"),
    "grace": Target("arm64", "grace", "gh200", kmod=True),
    "power9": Target("ppc64el", "power", "power9"),
    "power10": Target("ppc64el", "power", "power10"),
    "gpu": Target("amd64", "x86", "h100", on_demand=True),
    "gpu-rhel": Target("rhel9", "x86", "h100-rhel", on_demand=True),
    "gpu-grace": Target("arm64", "grace", "gh200-bare", on_demand=True),
}

MIRROR_PORT = 8080
GIT_PORT = 9418


@dataclass(frozen=True)
class Names:
    """The names of one rig; `rig` is a hash of the checkout's path, or EMBEDFLEET_RIG."""

    rig: str

    @property
    def network(self) -> str:
        return f"embedfleet-{self.rig}"

    @property
    def mirror(self) -> str:
        return f"embedfleet-{self.rig}-mirror"

    def target(self, host: str) -> str:
        return f"embedfleet-{self.rig}-{host}"

    def hardware(self, host: str) -> Path:
        """What a target presents itself as, mounted at /rig in it."""
        return self.state / "hardware" / host

    @property
    def state(self) -> Path:
        """This rig's own folder in the cache: rig.json, the ssh key, known_hosts."""
        return cache_dir() / "rigs" / self.rig


def names() -> Names:
    """The names for this checkout (or for EMBEDFLEET_RIG)."""
    rig = os.environ.get("EMBEDFLEET_RIG") or hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:10]
    if not rig.replace("-", "").isalnum() or not rig.isascii() or rig != rig.lower() or rig.startswith("-"):
        raise RigError(f"EMBEDFLEET_RIG={rig!r} can't be part of a host name", "use a-z, 0-9 and inner dashes")
    return Names(rig)
