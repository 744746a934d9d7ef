"""The parts of what proves (or disproves) NVIDIA's driver on a host, and how each is read. Never raises."""

from __future__ import annotations

import re
from dataclasses import dataclass

from embedfleet.gpus import VFIO

_VERSION = re.compile(r"(?<![\d.])(\d{3}\.\d{1,6}(?:\.\d{1,6})?)(?![\d.])")

#: Packages that bring the driver; the toolkit, tools, pins and Canonical's kernels of the same name are not among them.
_DRIVER = re.compile(
    r"(nvidia-(driver(?!-(pinning|assistant))|open|kernel|dkms|utils|compute|headless|smi|persistenced|modprobe|gl\b|legacy)"
    r"|libnvidia-(compute|ml|cfg)|linux-(modules|objects|signatures)-nvidia-\d|cuda-drivers|(kmod|dkms|akmod)-nvidia"
    r"|xorg-x11-drv-nvidia)"
)
_FABRIC_MANAGER = re.compile(r"nvidia-fabric-?manager")


@dataclass(frozen=True)
class KernelModule:
    """NVIDIA's module on disk for one kernel.

    :param kernel: as `uname -r` writes it
    :param asked: whether modinfo could be asked; where it could not, all but `path` and `headers` is unknown
    :param path: the module's file; "" where there is none (or, with `asked` False, none was found)
    :param indexed: whether modprobe would find it, i.e. depmod has run; None where modinfo could not be asked
    :param version: e.g. 580.126.20
    :param open: by its licence: "Dual MIT/GPL" is open, "NVIDIA" is not; None for unknown
    :param signed: whether it carries a signature; None for unknown
    :param signer: the common name in the signature; "" for none or unknown
    :param vermagic: the kernel that it was built for
    :param headers: whether that kernel's headers are there (/lib/modules/KERNEL/build)
    :param dkms: what dkms says of it for this kernel: installed, built, added; "" for nothing
    """

    kernel: str
    asked: bool = False
    path: str = ""
    indexed: bool | None = None
    version: str = ""
    open: bool | None = None
    signed: bool | None = None
    signer: str = ""
    vermagic: str = ""
    headers: bool | None = None
    dkms: str = ""


@dataclass(frozen=True)
class PciFunction:
    """A device of NVIDIA's on the PCI bus.

    :param kind: "gpu" (class 0300, 0302) or "nvswitch" (class 0680)
    :param driver: kernel driver that is bound to it, "" for none
    """

    address: str
    device: str
    kind: str
    driver: str = ""

    @property
    def passed_through(self) -> bool:
        """Whether it belongs to a guest."""
        return self.driver in VFIO


@dataclass(frozen=True)
class SmiGpu:
    """A GPU that nvidia-smi lists; state and status of its NVLink fabric, "" where it has none."""

    address: str
    fabric_state: str = ""
    fabric_status: str = ""


@dataclass(frozen=True)
class Package:
    """An installed package of NVIDIA's.

    :param broken: what is wrong with its installation, e.g. "half-configured"; "" for nothing
    """

    name: str
    version: str
    broken: str = ""

    @property
    def driver(self) -> bool:
        """Whether it brings the driver."""
        return bool(_DRIVER.match(self.name))

    @property
    def upstream(self) -> str:
        """NVIDIA's own version in the package's, e.g. 580.126.20 of 580.126.20-0ubuntu0.24.04.1; "" where there is none."""
        return version_in(self.version)

    @property
    def fabric_manager(self) -> bool:
        """Whether it brings the Fabric Manager."""
        return bool(_FABRIC_MANAGER.match(self.name))


@dataclass(frozen=True)
class Service:
    """A systemd unit.

    :param active: its ActiveState (active, inactive, failed, activating), or "absent"
    :param enabled: its UnitFileState (enabled, disabled, static, masked), "" for none
    """

    name: str
    active: str
    enabled: str = ""


@dataclass(frozen=True)
class MokKey:
    """A key that DKMS signs modules with: enrolled, requested (waits for the console), not enrolled, blocked, or unknown."""

    path: str
    state: str


@dataclass(frozen=True)
class Holder:
    """A process that has /dev/nvidia* open."""

    pid: int
    name: str


def version_in(text: str) -> str:
    """Return the driver version that a text holds, "" for none."""
    found = _VERSION.search(text)
    return found[1] if found else ""


def kernel_in_path(path: str) -> str:
    """Return the kernel that a module's file belongs to: /lib/modules/KERNEL/..., "" for another path."""
    found = re.search(r"/lib/modules/([^/\s]+)/", path)
    return found[1] if found else ""
