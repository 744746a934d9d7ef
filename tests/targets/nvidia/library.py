"""Shared libraries without code: ELF files with a SONAME, which ldconfig lists."""

from __future__ import annotations

import struct

from tests.targets.nvidia.kernelmodule import MACHINES


def library(soname: str, machine: str) -> bytes:
    """An ELF shared object whose only content is its name."""
    strings = b"\0" + soname.encode() + b"\0"
    at_dynamic = 64 + 2 * 56
    at_strings = at_dynamic + 4 * 16
    size = at_strings + len(strings)
    # DT_STRTAB, DT_STRSZ, DT_SONAME, DT_NULL
    dynamic = struct.pack("<8Q", 5, at_strings, 10, len(strings), 14, 1, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 0x10000)
    found = struct.pack("<IIQQQQQQ", 2, 4, at_dynamic, at_dynamic, at_dynamic, len(dynamic), len(dynamic), 8)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    return header + load + found + dynamic + strings
