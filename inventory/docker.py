"""The test targets of this checkout: systemd containers, x86_64 and emulated. `make targets` starts them.

x86 serves with real vLLM, the others with its stand-in (tests/targets/standin), by the same tasks.

EMBEDFLEET_TRANSPORT=ssh reaches the same hosts over ssh, as production does; so does a user who may not use Docker's
socket without sudo, since pyinfra's connector calls plain `docker`.
"""

import os as _os

from tests.targets.host import RigError as _RigError
from tests.targets.info import host_data as _host_data
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
    data = _host_data(_info, name)
    if _transport == "docker":
        return (f"@docker/{entry['container']}", data)
    reach = {
        "ssh_hostname": entry["ip"],
        "ssh_user": _ssh["user"],
        "ssh_key": _ssh["key"],
        "ssh_known_hosts_file": _ssh["known_hosts"],
        "ssh_strict_host_key_checking": "yes",
    }
    return (name, {**reach, **data})


def _group(group):
    return [_host(name) for name, target in _TARGETS.items() if target.group == group and name in _info["hosts"]]


x86 = _group("x86")
grace = _group("grace")
power = _group("power")
