"""What a host's processors are: read from /proc and /sys, without lscpu, which minimal images lack."""

from __future__ import annotations

import re
from dataclasses import dataclass

# High halves of the processor version register (Linux arch/powerpc/kernel/cpu_specs_book3s_64.h).
_PVR = {"004b": 8, "004c": 8, "004d": 8, "004e": 9, "0080": 10, "0082": 11, "0083": 12}


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node: its CPUs as the kernel writes them ("" for a node of memory alone) and its memory, MiB."""

    id: int
    cpus: str
    memory_mib: int | None


@dataclass(frozen=True)
class Cpu:
    """The processors. Empty and None mean unknown.

    :param name: as /proc/cpuinfo gives it, on x86_64 and Power ("" on Arm, which names none)
    :param arm: implementer/part of each kind of core, hex, e.g. "41/d4f"
    :param power: level of the silicon (8, 9, 10, 11), from the version register
    :param power_mode: level that the kernel runs in: a partition may be in an older mode than its silicon
    :param threads: hardware threads a core
    :param smt: /sys/devices/system/cpu/smt/control: on, off, notsupported, or a number of threads
    """

    name: str = ""
    arm: tuple[str, ...] = ()
    power: int | None = None
    power_mode: int | None = None
    count: int | None = None
    threads: int | None = None
    smt: str = ""
    nodes: tuple[NumaNode, ...] = ()

    @property
    def cpu_nodes(self) -> tuple[NumaNode, ...]:
        """The nodes that have CPUs: Grace and AC922 show GPU memory as nodes without (numactl refuses to bind to them)."""
        return tuple(node for node in self.nodes if node.cpus)


def integer(text: str) -> int | None:
    """Return a whole number, None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text.strip()) else None


def width(cpus: str) -> int | None:
    """Return how many CPUs a list such as "0-3,8" holds; None for what is no such list."""
    total = 0
    for part in cpus.strip().split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if not match:
            return None
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total if total > 0 else None


def parse_cpu(cpuinfo: list[str], count: str, siblings: str, smt: str, numa: list[str]) -> Cpu:
    """Parse unique lines of /proc/cpuinfo, the number of CPUs, core 0's siblings, the SMT control and the NUMA nodes."""
    values: dict[str, list[str]] = {}
    for line in cpuinfo:
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip().lower(), []).append(value.strip())
    name = (values.get("model name") or values.get("cpu") or [""])[0]
    mode = re.match(r"power(\d{1,3})", name, re.IGNORECASE)
    pvr = re.search(r"\(pvr ([0-9a-f]{4}) ", (values.get("revision") or [""])[0] + " ")
    power_mode = int(mode[1]) if mode else None
    implementers, parts = values.get("cpu implementer", []), values.get("cpu part", [])
    arm = tuple(f"{i}/{p}" for i in _hexes(implementers[:1]) for p in _hexes(parts))
    return Cpu(
        name=name,
        arm=arm,
        power=(_PVR.get(pvr[1]) if pvr else None) or power_mode,
        power_mode=power_mode,
        count=integer(count),
        threads=width(siblings),
        smt=smt.strip()[:20],
        nodes=tuple(node for node in map(_node, numa) if node),
    )


def _hexes(values: list[str]) -> list[str]:
    return sorted({v.lower().removeprefix("0x") for v in values if re.fullmatch(r"(?i)0x[0-9a-f]{1,4}", v)})


def _node(line: str) -> NumaNode | None:
    cells = line.split("|")
    number = integer(cells[0].removeprefix("node")) if len(cells) == 3 else None
    if number is None:
        return None
    size = re.search(r"MemTotal:\s+(\d{1,18}) kB", cells[2])
    return NumaNode(number, cells[1].strip(), int(size[1]) // 1024 if size else None)
