"""The test targets of this checkout: systemd containers with real vLLM. `make targets` starts them.

EMBEDFLEET_TRANSPORT=ssh reaches the same hosts over ssh, as production does; so does a user who may not use Docker's
socket without sudo, since pyinfra's connector calls plain `docker`.
"""

import os as _os

from tests.targets.host import RigError as _RigError
from tests.targets.info import read_info as _read_info
from tests.targets.naming import TARGETS as _TARGETS
from tests.targets.naming import names as _names

try:
    _info = _read_info(_names())
except _RigError as _error:
    raise SystemExit(f"the test targets are not up: make targets ({_error})") from None
_ssh = _info["ssh"]
_transport = _os.environ.get("EMBEDFLEET_TRANSPORT") or (
    "docker" if _os.access("/var/run/docker.sock", _os.W_OK) else "ssh"
)


def _host(name):
    entry = _info["hosts"][name]
    if _transport == "docker":
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
