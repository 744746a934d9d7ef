"""NVIDIA's GPUs by PCI device id: name, compute capability, and the platform row that an id proves.

Sources: OGKM is the table of supported GPUs in the README of NVIDIA/open-gpu-kernel-modules (releases 550 and 615);
PCIIDS is pci.ids of pciutils/pciids (commit 006181e2); KERN is drivers/vfio/pci/nvgrace-gpu/main.c of Linux, which lists
Grace's GPUs. Capabilities: NVIDIA's list of CUDA GPUs, as mirrored publicly; "*" where the chip's is taken for a variant.
All read (2026-11-30); on hardware the project saw 2335 alone (H200: id, name, capability).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuModel:
    """One PCI device id.

    :param capability: compute capability, None where no source gives it
    :param row: the platform row that this id alone proves (Grace), "" for a discrete card, which fits any host
    :param refused: why hosts with it are refused; "" for those that are not
    """

    name: str
    capability: str | None
    source: str
    row: str = ""
    refused: str = ""


_N1X = "it is an N1x, a client system on a chip that is not in the platform table"
_THOR = "it is a Jetson Thor: not a server platform of the table"

GPUS: dict[str, GpuModel] = {
    # Grace: the GPU is soldered beside the CPU, so its id proves the platform.
    "2342": GpuModel("GH200 120GB / 480GB", "9.0", "OGKM, PCIIDS, KERN", "gh200"),
    "2345": GpuModel("GH200", "9.0", "PCIIDS (GH100-88K-A1), KERN", "gh200"),
    "2348": GpuModel("GH200 144G HBM3e", "9.0", "OGKM, PCIIDS, KERN", "gh200"),
    "2941": GpuModel("GB200", "10.0", "OGKM, PCIIDS, KERN", "gb200"),
    "31c2": GpuModel("GB300", "10.3", "OGKM, PCIIDS, KERN", "gb300"),
    "31c3": GpuModel("GB300", "10.3", "OGKM, PCIIDS", "gb300"),
    "2e12": GpuModel("GB10", "12.1", "OGKM, PCIIDS", "gb10"),
    # Neighbours that must not be taken for the above.
    "2e2a": GpuModel("N1X", None, "PCIIDS", refused=_N1X),
    "2e03": GpuModel("N1X", None, "public driver notes of 2026", refused=_N1X),
    "2e06": GpuModel("N1X", None, "public driver notes of 2026", refused=_N1X),
    "2b00": GpuModel("Jetson AGX Thor (GB10B)", "11.0", "PCIIDS", refused=_THOR),
    # Discrete cards.
    "2321": GpuModel("H100 NVL", "9.0", "OGKM"),
    "2322": GpuModel("H800 PCIe", "9.0", "OGKM"),
    "2324": GpuModel("H800", "9.0", "OGKM"),
    "2329": GpuModel("H20", "9.0", "OGKM*"),
    "2330": GpuModel("H100 80GB HBM3", "9.0", "OGKM"),
    "2331": GpuModel("H100 PCIe", "9.0", "OGKM"),
    "2335": GpuModel("H200", "9.0", "OGKM; seen on the card 2026-11-30"),
    "233b": GpuModel("H200 NVL", "9.0", "OGKM"),
    "2339": GpuModel("H100 94GB", "9.0", "OGKM"),
    "2901": GpuModel("B200", "10.0", "OGKM"),
    "2909": GpuModel("B200", "10.0", "OGKM"),
    "3182": GpuModel("B300 SXM6 AC", "10.3", "OGKM"),
    "2b85": GpuModel("GeForce RTX 5090", "12.0", "OGKM"),
    "2bb1": GpuModel("RTX PRO 6000 Blackwell Workstation", "12.0", "OGKM"),
    "2bb4": GpuModel("RTX PRO 6000 Blackwell Max-Q", "12.0", "OGKM"),
    "2bb5": GpuModel("RTX PRO 6000 Blackwell Server", "12.0", "OGKM"),
    "26b1": GpuModel("RTX 6000 Ada", "8.9", "OGKM"),
    "26b5": GpuModel("L40", "8.9", "OGKM"),
    "26b9": GpuModel("L40S", "8.9", "OGKM"),
    "26ba": GpuModel("L20", "8.9", "OGKM"),
    "27b8": GpuModel("L4", "8.9", "OGKM"),
    "2235": GpuModel("A40", "8.6", "OGKM"),
    "2236": GpuModel("A10", "8.6", "OGKM"),
    "2237": GpuModel("A10G", "8.6", "OGKM"),
    "25b6": GpuModel("A16 / A2", "8.6", "OGKM"),
    "20b0": GpuModel("A100 SXM4 40GB", "8.0", "PCIIDS"),
    "20b1": GpuModel("A100 PCIe 40GB", "8.0", "PCIIDS"),
    "20b2": GpuModel("A100 SXM4 80GB", "8.0", "PCIIDS"),
    "20b3": GpuModel("A100 SXM 64GB", "8.0", "PCIIDS"),
    "20b5": GpuModel("A100 PCIe 80GB", "8.0", "PCIIDS"),
    "20f1": GpuModel("A100 PCIe 40GB", "8.0", "PCIIDS"),
    "20b7": GpuModel("A30", "8.0", "PCIIDS"),
    "1eb8": GpuModel("T4", "7.5", "PCIIDS"),
    "1eb4": GpuModel("T4G", "7.5", "PCIIDS"),
    "1db1": GpuModel("V100 SXM2 16GB", "7.0", "PCIIDS"),
    "1db4": GpuModel("V100 PCIe 16GB", "7.0", "PCIIDS"),
    "1db5": GpuModel("V100 SXM2 32GB", "7.0", "PCIIDS"),
    "1db6": GpuModel("V100 PCIe 32GB", "7.0", "PCIIDS"),
    "1df6": GpuModel("V100S PCIe 32GB", "7.0", "PCIIDS"),
}

# Drivers that mean "this GPU belongs to a guest" (Linux: drivers/vfio/pci).
VFIO = ("vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci")

# The driver's own names of Grace's GPUs (OGKM); GB10 must not match GB100.
_NAMES = (("GH200", "gh200"), ("GB200", "gb200"), ("GB300", "gb300"), ("GB10", "gb10"))


def row_of_name(name: str) -> str:
    """Return the Grace row that a GPU's name proves, e.g. "NVIDIA GH200 480GB" -> gh200; "" for another GPU."""
    return next((row for word, row in _NAMES if re.search(rf"\b{word}\b", name)), "")


def blackwell(capability: str) -> bool:
    """Whether a compute capability is Blackwell's or newer, for which only the open kernel modules exist."""
    return float(capability) >= 10
