"""How pyinfra reaches the machine. Apart from the rest, since it is read in every pyinfra run on it."""

from __future__ import annotations

import shlex
from typing import Any

from tests.targets.host import RigError
from tests.targets.naming import Names
from tests.targets.vm.state import alive, files, load

HOST = "grace-vm"

#: An emulated machine on a busy one: its sshd needs more than paramiko's 15 seconds for a first word at times.
PATIENCE = {"banner_timeout": 120, "auth_timeout": 120}

Host = tuple[str, dict[str, Any]]


def reach(rig: Names) -> Host:
    """The rig's machine as an inventory entry."""
    there = files(rig)
    state = load(there.state)
    if state is None or not alive(state):
        raise RigError(f"rig {rig.rig} has no running machine", "run `python -m tests.targets.vm up`")
    return HOST, {
        "ssh_hostname": "127.0.0.1",
        "ssh_port": state.port,
        "ssh_user": "root",
        "ssh_key": str(rig.state / "id_ed25519"),
        "ssh_known_hosts_file": str(there.known_hosts),
        "ssh_strict_host_key_checking": "yes",
        "ssh_paramiko_connect_kwargs": PATIENCE,
    }


def from_ssh_config(text: str) -> list[Host]:
    """The hosts of an ssh configuration, as `vagrant ssh-config` prints it."""
    hosts: list[Host] = []
    for line in text.splitlines():
        words = shlex.split(line)
        if len(words) < 2:
            continue
        if words[0] == "Host":
            # a box's host key is made anew with each machine, and vagrant itself does not look at it
            hosts.append((words[1], {"ssh_strict_host_key_checking": "no", "ssh_known_hosts_file": "/dev/null"}))
        elif hosts and (
            name := {"HostName": "ssh_hostname", "User": "ssh_user", "IdentityFile": "ssh_key"}.get(words[0])
        ):
            hosts[-1][1].setdefault(name, words[1])
        elif hosts and words[0] == "Port":
            hosts[-1][1]["ssh_port"] = int(words[1])
    return hosts
