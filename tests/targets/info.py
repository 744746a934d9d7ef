"""What a running rig is: rig.json. Apart from the rig's command line, since every pyinfra run on the targets reads it."""

from __future__ import annotations

import json
from typing import Any

from tests.targets.host import RigError
from tests.targets.naming import Names


def read_info(rig: Names) -> dict[str, Any]:
    """rig.json as `up` or `mirror` left it."""
    try:
        info: dict[str, Any] = json.loads((rig.state / "rig.json").read_text())
    except FileNotFoundError as error:
        raise RigError(f"rig {rig.rig} isn't up", "run `python -m tests.targets.rig up`") from error
    return info
