"""Names of everything a rig creates, so that two checkouts on one machine never meet."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.targets.host import RigError, cache_dir

CHECKOUT = Path(__file__).resolve().parents[2]

#: Host name in rig.json -> Debian architecture of its image.
TARGETS = {"x86": "amd64"}

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
