"""The test targets of this checkout: systemd containers with real vLLM. `make targets` starts them.

EMBEDFLEET_TRANSPORT=ssh reaches the same hosts over ssh, as production does.
"""

import os as _os

from tests.targets.naming import TARGETS as _TARGETS
from tests.targets.naming import names as _names
from tests.targets.rig import read_info as _read_info

_info = _read_info(_names())
_ssh = _info["ssh"]


def _host(name):
    entry = _info["hosts"][name]
    if _os.environ.get("EMBEDFLEET_TRANSPORT") != "ssh":
        return f"@docker/{entry['container']}"
    reach = {
        "ssh_hostname": entry["ip"],
        "ssh_user": _ssh["user"],
        "ssh_key": _ssh["key"],
        "ssh_known_hosts_file": _ssh["known_hosts"],
        "ssh_strict_host_key_checking": "yes",
    }
    return (name, reach)


x86 = [_host(name) for name in _TARGETS if name == "x86"]
