"""Kernel modules without code: real ELF files whose .modinfo the real modinfo and depmod read.

The section with .modinfo is the last thing in the file and has room at its end, so that the stand-in for a DKMS build
can put the kernel's name there with a shell's printf (see `template`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

#: uname -m -> ELF machine number.
MACHINES = {"x86_64": 62, "aarch64": 183}

#: Module -> modules that it needs (driver 580's five modules).
MODULES = {
    "nvidia": "",
    "nvidia-modeset": "nvidia",
    "nvidia-drm": "nvidia-modeset",
    "nvidia-uvm": "nvidia",
    "nvidia-peermem": "nvidia",
}

#: What `modinfo -F license nvidia` says (recognise.md section 3: fixtures of public repositories).
OPEN, PROPRIETARY = "Dual MIT/GPL", "NVIDIA"

#: `modinfo -F signer` of what Canonical signs (public captures).
CANONICAL = "Canonical Ltd. Kernel Module Signing"

_ROOM = 160
_HEADER = 64


def _fields(module: str, version: str, licence: str) -> list[str]:
    fields = [f"version={version}", f"license={licence}", "supported=external"]
    if module == "nvidia":
        fields += [f"firmware=nvidia/{version}/gsp_tu10x.bin", f"firmware=nvidia/{version}/gsp_ga10x.bin"]
        fields += ["alias=char-major-195-*", "alias=pci:v000010DEd*sv*sd*bc03sc02i00*"]
        fields += ["alias=pci:v000010DEd*sv*sd*bc03sc00i00*"]
    name = module.replace("-", "_")
    return [*fields, f"depends={MODULES[module].replace('-', '_')}", f"name={name}"]


def vermagic(kernel: str, machine: str) -> str:
    """The kernel that a module is for, as modinfo prints it."""
    return f"{kernel} SMP preempt mod_unload modversions" + (" aarch64" if machine == "aarch64" else "")


def _elf(machine: str, modinfo: bytes) -> bytes:
    """An ELF object with .modinfo as its last section."""
    names = b"\0.shstrtab\0.strtab\0.symtab\0.modinfo\0"
    parts: Sequence[tuple[bytes, int, int, bytes, int, int]] = (  # name, type, flags, content, link, entry size
        (b".shstrtab", 3, 0, names, 0, 0),
        (b".strtab", 3, 0, b"\0", 0, 0),
        (b".symtab", 2, 0, bytes(24), 2, 24),
        (b".modinfo", 1, 2, modinfo, 0, 0),
    )
    table = bytes(64)
    offset = _HEADER + 64 * (len(parts) + 1)
    bodies = b""
    for name, kind, flags, content, link, entry in parts:
        padding = -(offset + len(bodies)) % 8
        bodies += bytes(padding)
        where = offset + len(bodies)
        bodies += content
        # sh_info of a symbol table: the first symbol that is not local
        info = 1 if kind == 2 else 0
        table += struct.pack(
            "<IIQQQQIIQQ", names.index(name + b"\0"), kind, flags, 0, where, len(content), link, info, 8, entry
        )
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 1, MACHINES[machine], 1, 0, 0, _HEADER, 0, _HEADER, 0, 0, 64, len(parts) + 1, 1
    )
    return header + table + bodies


def _strings(fields: Sequence[str]) -> bytes:
    return b"".join(field.encode() + b"\0" for field in fields)


def template(module: str, version: str, licence: str, machine: str) -> tuple[bytes, int]:
    """A module up to its vermagic, and the size that it must be filled up to with zeros after it."""
    fields = _strings(_fields(module, version, licence))
    whole = _elf(machine, fields + bytes(_ROOM))
    return whole[:-_ROOM], len(whole)


def module(name: str, version: str, licence: str, kernel: str, machine: str, signer: str = "") -> bytes:
    """A whole module for a kernel; `signer`: whose signature it carries."""
    head, size = template(name, version, licence, machine)
    return (head + f"vermagic={vermagic(kernel, machine)}\0".encode()).ljust(size, b"\0") + _signature(signer)


def _signature(signer: str) -> bytes:
    """What sign-file appends (struct module_signature): of the old kind, which names the signer, as nothing verifies it."""
    if not signer:
        return b""
    key, signature = b"rig!", bytes(64)
    rsa, sha512, x509 = 1, 6, 1
    tail = struct.pack(">5B3xI", rsa, sha512, x509, len(signer), len(key), len(signature))
    return signer.encode() + key + signature + tail + b"~Module signature appended~\n"
