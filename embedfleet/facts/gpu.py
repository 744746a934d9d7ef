"""What NVIDIA devices and driver a host has, with and without a driver that works.

Formats: PCI from /sys; the driver's banner, module licence and nvidia-smi's exit codes as NVIDIA's man page and public
reports give them (docs/platform-matrix.md says where). Nothing here was read on such hardware by the project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embedfleet.facts.cpu import integer

# What nvidia-smi prints instead of a value; GB10 has no memory of its own and says so in two ways.
_NO_VALUE = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions|GPU requires reset)\]?|ERR!|")


@dataclass(frozen=True)
class PciGpu:
    """A display or 3D controller of NVIDIA's on the PCI bus.

    :param address: e.g. 0009:01:00.0
    :param device: PCI device id, four hex digits
    :param driver: kernel driver that is bound to it, "" for none
    """

    address: str
    device: str
    driver: str


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi sees it. None means that it has no such value, which is never zero.

    :param capability: compute capability, e.g. "9.0"
    :param memory_mib: None on GB10, whose memory is the host's
    :param temperature: degrees Celsius
    :param ecc: True for enabled
    """

    address: str
    name: str
    capability: str | None = None
    memory_mib: int | None = None
    temperature: int | None = None
    ecc: bool | None = None


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: what is loaded, what is on disk, what user space has. Empty means none, or unknown.

    :param loaded: version of the loaded module
    :param loaded_open: whether the loaded module is the open one; None where none is loaded
    :param on_disk: version of the module that `modprobe` would load for the running kernel
    :param on_disk_open: by its licence: "Dual MIT/GPL" is open, "NVIDIA" is not
    :param userspace: version of libnvidia-ml
    :param smi: how nvidia-smi ended: "ok", "absent", "hung", or its message
    """

    loaded: str = ""
    loaded_open: bool | None = None
    on_disk: str = ""
    on_disk_open: bool | None = None
    userspace: str = ""
    smi: str = "absent"
    nouveau: bool = False

    @property
    def version(self) -> str:
        """The version that counts for CUDA: the loaded one, else what user space has."""
        return self.loaded or self.userspace or self.on_disk

    @property
    def branch(self) -> int | None:
        """Driver branch, e.g. 580."""
        return integer(self.version.partition(".")[0])


def parse_pci(lines: list[str]) -> tuple[PciGpu, ...] | None:
    """Parse `address vendor device class driver`; None where the host shows no PCI bus at all."""
    if not lines or lines[0].strip() != "bus":
        return None
    found = []
    for line in lines[1:]:
        cells = line.split()
        ours = len(cells) >= 4 and cells[1] == "0x10de" and re.fullmatch(r"0x[0-9a-f]{4}", cells[2])
        if ours and cells[3].startswith(("0x0300", "0x0302")):  # VGA or 3D; else audio, bridges, NVSwitches
            found.append(PciGpu(cells[0], cells[2][2:], cells[4] if len(cells) > 4 else ""))
    return tuple(found)


def parse_smi(lines: list[str]) -> tuple[tuple[Gpu, ...], str]:
    """Parse nvidia-smi's CSV, with the words around it that tell how it ended: the GPUs, and `Driver.smi`."""
    if not lines:
        return (), "absent"
    if any(line.strip() == "@hung" for line in lines):
        return (), "hung"
    ended = next((m[1] for m in (re.fullmatch(r"@rc=(\d{1,3})", line.strip()) for line in lines) if m), "")
    text = [line for line in lines if line.strip() and not line.startswith("@")]
    if ended != "0":
        return (), (" ".join(text)[:300] or "no message") + (f" (exit {ended})" if ended else " (cut off)")
    gpus = tuple(gpu for gpu in (_gpu(line.split(",")) for line in text) if gpu)
    return gpus, "ok" if gpus else (" ".join(text)[:300] or "no GPU listed")


def _gpu(cells: list[str]) -> Gpu | None:
    if len(cells) != 6:
        return None
    address, name, capability, memory, temperature, ecc = (_value(cell) for cell in cells)
    if not address or not name or not re.fullmatch(r"(?i)[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", address):
        return None
    return Gpu(
        address=address.lower()[-12:],  # nvidia-smi writes the domain with eight digits, /sys with four
        name=name,
        capability=capability if capability and re.fullmatch(r"\d{1,2}\.\d", capability) else None,
        memory_mib=_positive(memory),
        temperature=_positive(temperature),
        ecc={"Enabled": True, "Disabled": False}.get(ecc or ""),
    )


def _value(cell: str) -> str | None:
    text = cell.strip()
    return None if _NO_VALUE.fullmatch(text) else text


def _positive(cell: str | None) -> int | None:
    return integer(cell or "") or None  # a GPU of 0 degrees or 0 MiB is a sensor that is not there


def parse_driver(
    banner: str, module: str, disk: str, licence: str, libraries: list[str], smi: str, nouveau: bool
) -> Driver:
    """Parse /proc/driver/nvidia/version, /sys/module/nvidia/version, modinfo's answers, and libnvidia-ml's file names."""
    told = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", banner)
    versions = [
        m[1] for m in (re.search(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)$", name.strip()) for name in libraries) if m
    ]
    return Driver(
        loaded=told[1] if told else _version(module),
        loaded_open="Open Kernel Module" in banner if told else None,
        on_disk=_version(disk),
        on_disk_open={"Dual MIT/GPL": True, "NVIDIA": False}.get(licence.strip()),
        userspace=max(versions, key=_numbers) if versions else "",
        smi=smi,
        nouveau=nouveau,
    )


def _version(text: str) -> str:
    return text.strip() if re.fullmatch(r"\d{1,6}(\.\d{1,6})+", text.strip()) else ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
