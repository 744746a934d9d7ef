"""One survey of a host: hardware, system, disk, ports. Never raises: on a bare host "absent" is an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyinfra.api import FactBase, StringCommand

# Section by section, each followed by what its command prints; a missing command leaves its section empty.
# Only POSIX sh and /proc are taken for granted, since minimal images have no lscpu, ss or python3.
_SCRIPT = r"""
s() { echo "@@$1"; }
s machine; uname -m; s kernel; uname -r
s os; cat /etc/os-release 2>/dev/null
s cpu; grep -m1 -E '^(model name|cpu)[[:space:]]*:' /proc/cpuinfo 2>/dev/null
s cores; grep -c -E '^processor[[:space:]]*:' /proc/cpuinfo 2>/dev/null
s memory; cat /proc/meminfo 2>/dev/null
s glibc; getconf GNU_LIBC_VERSION 2>/dev/null
s product; cat /sys/class/dmi/id/product_name 2>/dev/null
s pci; for d in /sys/bus/pci/devices/*; do [ -r "$d/vendor" ] && echo "$(cat "$d/vendor") $(cat "$d/class")"; done 2>/dev/null
s init; cat /proc/1/comm 2>/dev/null
s uid; id -u
s apt; command -v apt-get 2>/dev/null
s disk; df -Pk /opt /var /tmp 2>/dev/null
s parts; find /opt/embedfleet -mindepth 3 -maxdepth 3 -name manifest.json -size +0 2>/dev/null
s tcp; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
s listeners; ss -Hltnpe 2>/dev/null
s end
"""


@dataclass(frozen=True)
class Listener:
    """A TCP port in use: by which program, in which systemd unit ('' where that could not be told)."""

    port: int
    program: str
    unit: str


@dataclass(frozen=True)
class Survey:
    """What a host is. `None` means *unknown*, which is never zero and never "there is none".

    :param machine: `uname -m`
    :param memory_mib, available_mib: MemTotal and MemAvailable, MiB
    :param nvidia_devices: NVIDIA display or 3D controllers on the PCI bus, driver or not
    :param free_mib: MiB free for a path (/opt, /var, /tmp)
    :param listeners: TCP ports in use
    :param parts: finished parts of ours, as kind/id
    """

    machine: str = ""
    kernel: str = ""
    os_id: str = ""
    os_name: str = ""
    os_version: str = ""
    cpu: str = ""
    cores: int | None = None
    memory_mib: int | None = None
    available_mib: int | None = None
    glibc: str = ""
    product: str = ""
    nvidia_devices: int | None = None
    init: str = ""
    root: bool = False
    apt: bool = False
    free_mib: dict[str, int] = field(default_factory=dict)
    listeners: tuple[Listener, ...] = ()
    parts: frozenset[str] = frozenset()


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def parse(output: list[str]) -> Survey:
    """Parse the survey script's output; unknown or garbled sections become unknown values."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in output:
        if line.startswith("@@"):
            current = sections.setdefault(line[2:].strip(), [])
        else:
            current.append(line)

    def first(name: str) -> str:
        lines = sections.get(name) or [""]
        return lines[0].strip()

    os_release = {
        key: value.strip().strip("\"'") for key, _, value in (line.partition("=") for line in sections.get("os", []))
    }
    memory = {
        key: _integer(value.split()[0])
        for key, value in (line.split(":", 1) for line in sections.get("memory", []) if ":" in line)
        if value.split()
    }

    def mib(key: str) -> int | None:
        kib = memory.get(key)
        return None if kib is None else kib // 1024

    pci = [line.split() for line in sections.get("pci", [])]
    nvidia = [p for p in pci if len(p) == 2 and p[0] == "0x10de" and p[1].startswith("0x03")]
    return Survey(
        machine=first("machine"),
        kernel=first("kernel"),
        os_id=os_release.get("ID", ""),
        os_name=os_release.get("PRETTY_NAME", ""),
        os_version=os_release.get("VERSION_ID", ""),
        cpu=first("cpu").partition(":")[2].strip(),
        cores=_integer(first("cores")),
        memory_mib=mib("MemTotal"),
        available_mib=mib("MemAvailable"),
        glibc=first("glibc").removeprefix("glibc").strip(),
        product=first("product"),
        nvidia_devices=len(nvidia) if "pci" in sections else None,
        init=first("init"),
        root=first("uid") == "0",
        apt=bool(first("apt")),
        free_mib=_free(sections.get("disk", [])),
        listeners=_listeners(sections),
        parts=frozenset("/".join(line.strip().split("/")[-3:-1]) for line in sections.get("parts", [])),
    )


def _free(lines: list[str]) -> dict[str, int]:
    """Map the asked paths to MiB free: `df` answers in their order, after its heading."""
    rows = [line.split() for line in lines[1:]]
    sizes = [int(row[3]) // 1024 for row in rows if len(row) >= 6 and row[3].isdigit()]
    return dict(zip(("/opt", "/var", "/tmp"), sizes, strict=False)) if len(sizes) == 3 else {}


def _listeners(sections: dict[str, list[str]]) -> tuple[Listener, ...]:
    ports: dict[int, Listener] = {}
    for line in sections.get("tcp", []):  # state 0A is LISTEN; owners are not here, so these come first
        cells = line.split()
        if len(cells) > 3 and cells[3] == "0A" and re.fullmatch(r"[0-9A-F]+:[0-9A-F]{4}", cells[1]):
            port = int(cells[1].rpartition(":")[2], 16)
            ports[port] = Listener(port, "", "")
    for line in sections.get("listeners", []):
        cells = line.split()
        if len(cells) < 4 or not cells[3].rpartition(":")[2].isdigit():
            continue
        port = int(cells[3].rpartition(":")[2])
        # The socket's cgroup tells its unit even where processes of other users cannot be looked into.
        unit = re.search(r" cgroup:\S*/([^/\s]+\.(?:service|scope|socket))", line)
        program = re.search(r'\(\("([^"]*)"', line)
        known = ports.get(port)
        if not (known and known.unit):
            ports[port] = Listener(port, program[1] if program else "", unit[1] if unit else "")
    return tuple(ports[port] for port in sorted(ports))


class HostSurvey(FactBase[Survey]):
    """The survey, in one round trip."""

    default = Survey

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT)

    def process(self, output: list[str]) -> Survey:
        return parse(list(output))
