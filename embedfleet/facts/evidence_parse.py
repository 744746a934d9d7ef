"""Reads the sections of the driver's evidence. Pure, never raises; what is garbled is unknown."""

from __future__ import annotations

import re

from embedfleet.facts.driver_state import (
    Holder,
    KernelModule,
    MokKey,
    Package,
    PciFunction,
    Service,
    SmiGpu,
    kernel_in_path,
    version_in,
)

_LICENCES = {"Dual MIT/GPL": True, "NVIDIA": False}
_ADDRESS = re.compile(r"(?i)[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_NO_FABRIC = ("", "N/A", "[N/A]", "Not Supported", "[Not Supported]")
# `dkms status`: "nvidia/580.126.20, 6.8.0-60-generic, x86_64: installed", before dkms 3 "nvidia, 535.54, 5.15...: installed".
_DKMS = re.compile(r"nvidia[\w.-]*(?:/|, )[^,:\s]+, ([^,:\s]+), [^:,]+: (\w+)")
# dpkg's second letter: H half-installed, U unpacked, F half-configured; the third is R where it must be installed again.
_BROKEN = {"H": "half-installed", "U": "unpacked, not configured", "F": "half-configured"}
# What a module option file may say to keep a module away; a Debian `install nvidia modprobe -i nvidia-current` is none.
_OFF = re.compile(
    r"(?:blacklist\s+{0}|install\s+{0}\s+\S*\b(?:true|false|nologin)\b.*|install\s+{0}\s+:|alias\s+{0}\s+off)\s*".replace(
        "{0}", r"(nvidia(?:[-_]current)?|nouveau|nova[-_]core)"
    )
)
_ARGUMENT = re.compile(r"(?:module_blacklist|modprobe\.blacklist|rd\.driver\.blacklist)=(\S*)")


def modules(lines: list[str], files: list[str], dkms: list[str]) -> tuple[KernelModule, ...]:
    """Parse `kernel NAME` and, after each, `headers yes|no` and what modinfo says; `files` are the modules on disk."""
    built = {m[1]: m[2] for m in map(_DKMS.match, map(str.strip, dkms)) if m}
    paths: dict[str, str] = {}
    for path in files:
        paths.setdefault(kernel_in_path(path), path.strip())
    blocks: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        if line.startswith("kernel "):
            current = blocks.setdefault(line[7:].strip(), [])
        else:
            current.append(line)
    for kernel in paths:  # more kernels than modinfo was asked about
        blocks.setdefault(kernel, [])
    return tuple(_module(k, block, paths.get(k, ""), built.get(k, "")) for k, block in blocks.items() if k)


def _module(kernel: str, lines: list[str], file: str, dkms: str) -> KernelModule:
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    headers = {"headers yes": True, "headers no": False}
    found = bool(told.get("filename", "").startswith("/"))
    vermagic = told.get("vermagic", "").split()
    return KernelModule(
        kernel,
        asked=found or any("not found" in line for line in lines),
        path=told["filename"] if found else file,
        indexed=True if found else (False if any("not found" in line for line in lines) else None),
        version=version_in(told.get("version", "")),
        open=_LICENCES.get(told.get("license", "")) if found else None,
        signed=any(told.get(key) for key in ("signer", "sig_id", "sig_key")) if found else None,
        signer=told.get("signer", "")[:200] if found else "",
        vermagic=vermagic[0] if vermagic else "",
        headers=next((headers[line.strip()] for line in lines if line.strip() in headers), None),
        dkms=dkms,
    )


def pci(lines: list[str]) -> tuple[PciFunction, ...] | None:
    """Parse `address vendor device class driver`; None where the host shows no PCI bus."""
    if not lines or lines[0].strip() != "bus":
        return None
    kinds = {"0x0300": "gpu", "0x0302": "gpu", "0x0680": "nvswitch"}
    found = []
    for cells in (line.split() for line in lines[1:]):
        if len(cells) >= 4 and cells[1] == "0x10de" and re.fullmatch(r"0x[0-9a-f]{4}", cells[2]):
            kind = kinds.get(cells[3][:6])
            if kind:
                driver = cells[4] if len(cells) > 4 else ""
                found.append(PciFunction(cells[0].lower(), cells[2][2:], kind, driver))
    return tuple(found)


def smi_gpus(lines: list[str]) -> tuple[tuple[SmiGpu, ...], str]:
    """Parse nvidia-smi's `address, state, status` and the words around it that tell how it ended."""
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        return (), "absent"
    if "@hung" in lines:
        return (), "hung"
    ended = next((m[1] for m in (re.fullmatch(r"@rc=(\d{1,3})", line) for line in lines) if m), "")
    text = [line for line in lines if not line.startswith("@")]
    if ended != "0":
        return (), (" ".join(text)[:300] or "no message") + (f" (exit {ended})" if ended else " (cut off)")
    found = []
    for cells in ([cell.strip() for cell in line.split(",")] for line in text):
        if _ADDRESS.fullmatch(cells[0]):
            state, status = ("" if cell in _NO_FABRIC else cell[:100] for cell in (*cells[1:], "", "")[:2])
            found.append(SmiGpu(cells[0].lower()[-12:], state, status))  # a domain of eight digits, /sys writes four
    return tuple(found), "ok" if found else (" ".join(text)[:300] or "no GPU listed")


def userspace(linked: list[str], libraries: list[str]) -> str:
    """Return libnvidia-ml's version: of the one that the loader takes, else the newest that is there."""
    for names in (linked[:1], linked, libraries):
        found = [v for v in (version_in(n.rpartition("libnvidia-ml.so.")[2]) for n in names if "/i386" not in n) if v]
        if found:
            return max(found, key=lambda version: [int(part) for part in version.split(".")])
    return ""


def disabled(lines: list[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Parse `FILE:LINE` of modprobe.d: the lines that keep nvidia from loading, and which of nouveau, nova_core are kept."""
    nvidia, off = [], set()
    for line in lines:
        file, _, text = line.partition(":")
        rule = _OFF.fullmatch(text.strip())
        names = re.findall(r"nouveau|nova.core", rule[0]) if rule else []
        if names:
            off.add(names[0].replace("-", "_"))
        elif rule:
            nvidia.append(f"{file.strip()}: {text.strip()}")
    return tuple(nvidia), frozenset(off)


def cmdline(text: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Parse the kernel's arguments: those that keep nvidia from loading, and which of nouveau, nova_core are kept.

    `nomodeset` is none of them: it keeps nouveau and nvidia-drm from driving a display, not CUDA from working.
    """
    nvidia, off = [], {"nouveau"} if {"nomodeset", "nouveau.modeset=0"} & set(text.split()) else set()
    for word in text.split():
        rule = _ARGUMENT.fullmatch(word)
        names = rule[1].replace("-", "_").split(",") if rule else []
        if "nvidia" in names:
            nvidia.append(word[:200])
        off.update({"nouveau", "nova_core"} & set(names))
    return tuple(nvidia), frozenset(off)


def trusted(lines: list[str]) -> tuple[str, ...] | None:
    """Parse the asymmetric keys of /proc/keys; None where it shows none, which no signed kernel does."""
    names = (re.match(r"(.+?): [0-9a-f]{6,}: ", line.strip() + " ") for line in lines)
    return tuple(dict.fromkeys(m[1] for m in names if m)) or None


def mok(lines: list[str]) -> tuple[MokKey, ...]:
    """Parse `key PATH` and, after each, what `mokutil --test-key` says (texts: mokutil.c)."""
    states = (
        ("already enrolled", "enrolled"),
        ("already in db", "enrolled"),
        ("in the enrollment request", "requested"),
        ("not enrolled", "not enrolled"),
        ("blocked", "blocked"),
    )
    found: dict[str, str] = {}
    path = ""
    for line in lines:
        if line.startswith("key "):
            path = line[4:].strip()
            found[path] = "unknown"
        elif path:
            found[path] = next((state for text, state in states if text in line), found[path])
    return tuple(MokKey(path, state) for path, state in found.items())


def packages(lines: list[str]) -> tuple[Package, ...] | None:
    """Parse the package manager's list; of the kernel's packages, only those whose installation is broken are kept."""
    if not lines or lines[0].strip() not in ("dpkg", "rpm"):
        return None
    dpkg = lines[0].strip() == "dpkg"
    found: dict[tuple[str, str], Package] = {}
    for line in lines[1:]:
        cells = [cell.rstrip() for cell in line.split("|")]
        if len(cells) != (3 if dpkg else 2):
            continue
        *state, name, version = cells
        broken = ""
        if dpkg:
            letters = state[0].ljust(3)
            if letters[1] in "nc":
                continue  # not installed, or only its settings are left
            broken = "must be installed again" if letters[2] == "R" else _BROKEN.get(letters[1], "")
            if not broken and "nvidia" not in name and not name.startswith("cuda-drivers"):
                continue
        elif not name.startswith(("kmod-", "kernel")):  # those may be there once for each kernel
            others = [package.version for (other, _), package in found.items() if other == name]
            broken = f"installed twice, also as {others[0]}" if others else ""
        found[name, version] = Package(name, version, broken)
    return tuple(found.values())


def services(lines: list[str]) -> tuple[Service, ...] | None:
    """Parse `systemctl show`; None where there is no systemd."""
    if not lines or lines[0].strip() != "systemd":
        return None
    found: list[Service] = []
    block: dict[str, str] = {}
    for line in [*lines[1:], "--"]:
        key, equals, value = line.strip().partition("=")
        if equals:
            block[key] = value
        elif block.get("Id"):
            gone = block.get("LoadState") == "not-found"
            name = block["Id"].removesuffix(".service")
            active = "absent" if gone else block.get("ActiveState", "unknown")
            found.append(Service(name, active, "" if gone else block.get("UnitFileState", "")))
            block = {}
    return tuple(found)


def holders(lines: list[str]) -> tuple[Holder, ...]:
    """Parse `pid name`."""
    rows = (re.fullmatch(r"(\d{1,9})\s*(.*)", line.strip()) for line in lines)
    return tuple(dict.fromkeys(Holder(int(row[1]), row[2][:50]) for row in rows if row))
