"""What container runtimes a host has, how they are configured, and whether they see the GPUs: one round trip."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any

from pyinfra.api import FactBase, StringCommand

from embedfleet.containers import CONTAINERD_DROP_IN, CRIO_DROP_IN, REFRESH_DROP_IN, UDEV_RULE
from embedfleet.facts.installed import RECORD
from embedfleet.facts.script import PRELUDE, sections

#: What we changed of others' files, as it was before; what the last proof was made of.
KEPT = f"{RECORD}/containers"
DAEMON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
UNITS = ("docker.service", "containerd.service", "crio.service", "nvidia-cdi-refresh.service")

# base64, since a file that is not UTF-8 would end the fact. Links below /dev/char: one for each device file of the driver's.
_SCRIPT = (
    PRELUDE
    + rf"""
b() {{ [ -e "$1" ] && {{ n=$(wc -c <"$1"); echo "${{n:-folder}}"; [ "${{n:-1000000}}" -lt 1000000 ] && base64 <"$1"; }}; }} 2>/dev/null
s programs; for c in docker dockerd containerd crio podman nvidia-ctk; do command -v $c >/dev/null && echo $c; done
s path; readlink -f {DAEMON}; s daemon; b {DAEMON}; s before; b {KEPT}/daemon.json
s units; systemctl show --timestamp=unix -p Id,LoadState,ActiveState,ActiveEnterTimestamp,NeedDaemonReload {" ".join(UNITS)} 2>/dev/null
s exec; systemctl show -p ExecStart --value docker.service 2>/dev/null
  p=$(systemctl show -p MainPID --value docker.service 2>/dev/null); [ "${{p:-0}}" -gt 0 ] && tr '\000' '\n' <"/proc/$p/cmdline" 2>/dev/null
if command -v dockerd >/dev/null && [ -n "$p" ] && [ "$p" -gt 0 ]; then
  s info; limited docker info --format '{{{{json .}}}}'
  s running; limited docker ps --format '{{{{.Names}}}}'
fi
s times; stat -c '%Z %n' {CONTAINERD_DROP_IN} {CRIO_DROP_IN} {CONTAINERD} 2>/dev/null
s nvidia; grep -l nvidia-container-runtime {CONTAINERD} {CONTAINERD_DROP_IN} 2>/dev/null
s specs; for d in /etc/cdi /var/run/cdi; do for f in $d/*.yaml $d/*.json; do [ -e "$f" ] || continue; echo "$f"
  grep -oE 'lib(cuda|nvidia-ml)\.so\.[0-9]+\.[0-9.]+' "$f" | sed "s|.*\.so\.|$f |" | sort -u; done; done
s loaded; f /sys/module/nvidia/version; s banner; f /proc/driver/nvidia/version
s links; for n in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset /dev/nvidia-caps/*; do
  [ -c "$n" ] || continue; set -- $(stat -c '0x%t 0x%T' "$n"); [ -e "/dev/char/$(($1)):$(($2))" ] || echo "$n"; done
s ours; for x in {KEPT}/* {UDEV_RULE} {REFRESH_DROP_IN} {CRIO_DROP_IN}; do [ -e "$x" ] && echo "$x"; done
s proof; f {KEPT}/proven
s end
"""
)


@dataclass(frozen=True)
class Unit:
    """A unit of systemd.

    :param there: whether systemd knows it
    :param since: when it became active, seconds
    :param stale: whether its file changed since systemd read it
    """

    there: bool = False
    active: bool = False
    since: int = 0
    stale: bool = False


@dataclass(frozen=True)
class Containers:
    """What there is.

    :param complete: whether the answer came back whole
    :param programs: of the runtimes, and nvidia-ctk
    :param daemon_path: where daemon.json is, links followed
    :param daemon: its text; None for no file
    :param unreadable: why daemon.json cannot be read; "" where it can
    :param before: its text before we changed it; None for no file, or where we did not change it
    :param arguments: dockerd's, as systemd has them and as it runs
    :param info: what `docker info` says; empty where docker does not run or answer
    :param running: names of docker's running containers
    :param times: file -> when it changed last, seconds
    :param nvidia: containerd's files that name the NVIDIA runtime
    :param specs: CDI file -> versions of the driver's libraries in it
    :param loaded: the loaded driver's version
    :param linkless: device files without a link below /dev/char
    :param ours: files that we wrote
    :param proof: what the last proof was made of
    """

    complete: bool = False
    programs: frozenset[str] = frozenset()
    daemon_path: str = DAEMON
    daemon: str | None = None
    unreadable: str = ""
    before: str | None = None
    arguments: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    running: tuple[str, ...] = ()
    units: dict[str, Unit] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    nvidia: frozenset[str] = frozenset()
    specs: dict[str, frozenset[str]] = field(default_factory=dict)
    loaded: str = ""
    linkless: tuple[str, ...] = ()
    ours: frozenset[str] = frozenset()
    proof: str = ""

    def unit(self, name: str) -> Unit:
        """The unit of that name."""
        return self.units.get(f"{name}.service", Unit())

    @property
    def docker(self) -> bool:
        """Whether docker is there; podman brings a program of that name, too."""
        return "dockerd" in self.programs or self.unit("docker").there

    @property
    def docker_version(self) -> str:
        """The running docker's version."""
        return str(self.info.get("ServerVersion") or "")


class ContainerState(FactBase[Containers]):
    """Container runtimes and their configuration."""

    default = Containers

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT)

    def process(self, output: list[str]) -> Containers:
        return parse(list(output))


def parse(output: list[str]) -> Containers:
    """Parse the script's lines."""
    told = sections(output)

    def lines(name: str) -> list[str]:
        return [line.strip() for line in told.get(name, [])]

    def first(name: str) -> str:
        return next(iter(lines(name)), "")

    daemon, unreadable = _text(lines("daemon"))
    before, _ = _text(lines("before"))
    specs: dict[str, set[str]] = {}
    for line in lines("specs"):
        path, _, version = line.partition(" ")
        specs.setdefault(path, set()).update({version} - {""})
    times = [line.partition(" ") for line in lines("times")]
    banner = re.search(r"\s(\d{3}\.\d+(?:\.\d+)?)\s", first("banner"))
    return Containers(
        complete="end" in told,
        programs=frozenset(lines("programs")),
        daemon_path=first("path") or DAEMON,
        daemon=daemon,
        unreadable=unreadable,
        before=before,
        arguments=" ".join(lines("exec")),
        info=_info(lines("info")),
        running=tuple(line for line in lines("running") if not line.startswith("@")),
        units=_units(told.get("units", [])),
        times={path: int(seconds) for seconds, _, path in times if seconds.isdigit()},
        nvidia=frozenset(lines("nvidia")),
        specs={path: frozenset(versions) for path, versions in specs.items()},
        loaded=first("loaded") or (banner[1] if banner else ""),
        linkless=tuple(lines("links")),
        ours=frozenset(lines("ours")),
        proof=first("proof"),
    )


def _text(lines: list[str]) -> tuple[str | None, str]:
    """A file's text (None for no file), and why it cannot be read."""
    if not lines:
        return None, ""
    try:
        data = base64.b64decode("".join(lines[1:]))
        if str(len(data)) != lines[0]:
            return "", f"it is no file that docker could read (size: {lines[0]})"
        return data.decode(), ""
    except ValueError as error:
        return "", f"it is not UTF-8: {error}"


def _info(lines: list[str]) -> dict[str, Any]:
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("ServerVersion"):
            return found
    return {}


def _units(lines: list[str]) -> dict[str, Unit]:
    blocks: list[dict[str, str]] = [{}]
    for line in lines:  # the order of properties is systemd's own, and the empty lines between units are gone
        key, _, value = line.strip().partition("=")
        if key in blocks[-1]:
            blocks.append({})
        blocks[-1][key] = value
    return {
        each.get("Id", ""): Unit(
            there=each.get("LoadState") == "loaded",
            active=each.get("ActiveState") == "active",
            since=int(re.sub(r"\D", "", each.get("ActiveEnterTimestamp", "")) or 0),
            stale=each.get("NeedDaemonReload") == "yes",
        )
        for each in blocks
    }
