"""What a host has, so that two moments can be compared: packages, accounts, units, files."""

from __future__ import annotations

import json
import re

from tests.e2e.fleet import Fleet
from tests.targets.engine import docker
from tests.targets.host import as_root, run

#: What may differ although nothing of ours is left, each with its reason.
EXPECTED = {
    r"/var/log/": "logs tell what was done",
    r"/var/cache/": "caches of apt, dnf, fontconfig and ldconfig",
    r"/var/lib/(apt|dnf|dpkg|rpm)/": "package managers' own books; the packages themselves are compared",
    r"/root/\.rpmdb(/|$)": "rpm's own books, where Debian's rpm has them",
    r"/var/lib/systemd/": "timers' stamps and the random seed",
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$": "backups that the account tools leave",
    r"/etc/(passwd|group|shadow|gshadow)$": "compared by getent; their date moves",
    r"/etc/\.pwd\.lock$": "lock of the account tools",
    r"/etc/ld\.so\.cache$": "the loader's cache",
    r"/__pycache__(/|$)": "bytecode of the system's Python",
    r"/var/tmp/systemd-private-": "private temporary folders of services, named anew at each boot",
    r"/etc/machine-id$": "written once, at the first boot",
    r"/etc/ssl/certs(/|$)|/etc/pki/ca-trust/extracted/": "built again from the same authorities; compared by content",
}

_SCRIPT = r"""
set -e
export LC_ALL=C
{ command -v dpkg-query >/dev/null && dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' || rpm -qa; } | sort | sed 's/^/package /'
getent passwd | sed 's/^/account /'; getent group | sed 's/^/group /'
systemctl --root=/ list-unit-files --no-legend --no-pager | awk '{print "unit", $1, $2}' | sort
n=0; until systemctl list-units --all --plain --no-legend --no-pager 'embedfleet*' 'nginx*' >/run/listed; do n=$((n+1)); [ $n -lt 5 ]; done
awk '{print "loaded", $1, $3}' /run/listed
cat /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt 2>/dev/null | sha256sum | sed 's/^/trusted /'
"""
_FORMAT = "file %P %y %m %U:%G %s %l\\n"
_NOT_OURS = ("proc", "sys", "run", "tmp", "rig", "dev")  # mounts: not of the container's own file system


def snapshot(fleet: Fleet) -> set[str]:
    """What the target has now, as lines."""
    lines = fleet.on_target(_SCRIPT, limit=300).splitlines() + _files(fleet)
    return {line.rstrip() for line in lines if not _expected(line)}


def _files(fleet: Fleet) -> list[str]:
    """Every file: type, mode, owner, size (not of folders), where a link leads. Looked at from outside, since `find` under emulation
    takes a minute; the engine keeps the file system of a running container mounted."""
    driver = json.loads(docker("inspect", "-f", "{{json .GraphDriver.Data}}", fleet.container))
    root = driver["MergedDir"]
    prune = [word for name in _NOT_OURS for word in ("-path", f"{root}/{name}", "-o")][:-1]
    listed = run([*as_root(), "find", root, "(", *prune, ")", "-prune", "-o", "-printf", _FORMAT])
    return [
        re.sub(r"^(file /?\S* d \d+ \S+) \d+", r"\1", line.replace("file ", "file /", 1))
        for line in listed.splitlines()
    ]


def _expected(line: str) -> bool:
    if not line.startswith("file "):
        return False
    path = line.split(" ")[1]
    return any(re.search(pattern, path) for pattern in EXPECTED)


def difference(before: set[str], after: set[str]) -> list[str]:
    """Lines that came and went."""
    return sorted([f"- {line}" for line in before - after] + [f"+ {line}" for line in after - before])
