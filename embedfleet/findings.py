"""One thing that is wrong with NVIDIA's driver, and the closed list of what can be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Flavour = Literal["open", "proprietary"]

_DEEPOPS = "ansible-role-nvidia-driver"
_FLAVOUR = "Start9Labs/start-technologies PR#3693, NVIDIA/cloud-native-docs PR#6"
_SIGNING = "Linux kernel/module/signing.c"
_MOK = "mokutil's --test-key; start-technologies PR#3693"
_FABRIC = "leptonai/gpud#1106, NVIDIA/gpu-operator#2781"
_XID = "NVIDIA's Xid catalogue"

#: Cause -> the report or document behind its rule; docs/driver-troubleshooting.md has every one of them.
CAUSES: dict[str, str] = {
    "evidence-incomplete": "",
    # the hardware, and who has it
    "no-gpu": "pciutils; Linux drivers/pci",
    "passthrough": "Linux drivers/vfio/pci/nvgrace-gpu",
    "pci-unknown": "",
    "gpu-unsupported": "NVIDIA's open-gpu-kernel-modules, nv.c",
    "pci-region": "NVIDIA's driver README, 64-bit BARs",
    "gpu-fell-off": _XID,
    "gsp-timeout": _XID,
    "gpu-init-failed": "NVIDIA/open-gpu-kernel-modules#911",
    "gpu-not-listed": "start-technologies PR#3693",
    "gpu-missing": "NVIDIA/deepops skills/diagnose-driver-install",
    # packages and the module on disk
    "no-driver": f"{_DEEPOPS}#20",
    "packages-broken": f"{_DEEPOPS}#11, #33",
    "packages-unknown": "",
    "next-kernel-unknown": "embedfleet/facts/next_kernel.py",
    "dkms-build-failed": f"{_DEEPOPS}#20, GoogleCloudPlatform/compute-gpu-installation#18",
    "headers-missing": f"{_DEEPOPS}#20, NVIDIA/gpu-operator#85, openshift/driver-toolkit#140",
    "module-other-kernel": f"{_DEEPOPS}#6, openshift/driver-toolkit#140",
    "module-missing": f"{_DEEPOPS}#20",
    "module-not-indexed": "depmod(8)",
    "module-unknown": "",
    "module-version": "Nobara-Project/rpm-sources#525",
    "module-vermagic": f"{_DEEPOPS}#6",
    "userspace-missing": "nvidia-smi(1), return code 12",
    "wrong-flavour": _FLAVOUR,
    # what keeps the module from loading
    "module-disabled": "modprobe.d(5); Linux kernel-parameters.txt, module_blacklist",
    "nouveau": "NVIDIA's driver installation guide, Disabling nouveau",
    "other-driver": "NVIDIA's open-gpu-kernel-modules, nv-pci.c: already bound to",
    "initramfs-missing": "",
    "nouveau-not-off": "NVIDIA's driver installation guide, Disabling nouveau",
    "secure-boot-unknown": _SIGNING,
    "secure-boot-unsigned": _SIGNING,
    "secure-boot-key-requested": _MOK,
    "secure-boot-key-not-enrolled": _MOK,
    "secure-boot-key-unknown": _MOK,
    "not-loaded": f"{_DEEPOPS}#20; nvidia-smi(1), return code 9",
    # what is loaded
    "version-mismatch": "pando85/homelab PR#4110, oddmario/NVIDIA-Ubuntu-Driver-Guide#4, NVIDIA/gpu-operator#2509",
    "flavour-unknown": _FLAVOUR,
    "fabric-manager-missing": _FABRIC,
    "fabric-manager-version": "NVIDIA/gpu-operator#121",
    "fabric-manager-stopped": "NVIDIA/gpu-operator#2781, gpu-driver-container#908",
    "fabric-in-progress": "leptonai/gpud#1106",
    "fabric-failed": "leptonai/gpud#1106",
    "fabric-unknown": "leptonai/gpud#1106, Azure/aks-gpu#170",
    "smi-hangs": "start-technologies PR#3693",
    "device-nodes": "nvidia-modprobe(1); nvidia-smi(1), return code 4",
    "persistence": "NVIDIA's driver persistence documentation",
    "unknown": "",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    :param cause: stable id, one of `CAUSES`
    :param reason: what is wrong, one sentence, with the versions and kernels in question; then lines of a log, if any
    :param cure: the command or step that cures it
    :param source: the report or document behind the rule
    :param reboot: whether a reboot is the cure, and is safe: the module that the next boot needs is proven on disk
    """

    cause: str
    reason: str
    cure: str
    source: str = ""
    reboot: bool = False


def found(cause: str, reason: str, cure: str, *, reboot: bool = False) -> Finding:
    """Return a finding with its cause's source."""
    return Finding(cause, reason, cure, CAUSES[cause], reboot)


def incomplete() -> Finding:
    """The host did not answer to the end."""
    return found(
        "evidence-incomplete",
        "the host did not answer to the end, so nothing is known of its driver",
        "see that the connection holds and that commands run as root, then run it again",
    )


def install(flavour: Flavour) -> str:
    """How to get the module of a flavour."""
    if flavour == "open":
        return "install the open module in place of the other (Ubuntu: nvidia-driver-BRANCH-server-open; CUDA repository: nvidia-open), then reboot"
    return "install the proprietary module in place of the other (Ubuntu: nvidia-driver-BRANCH-server; CUDA repository: cuda-drivers), then reboot"


def quoted(lines: tuple[str, ...], count: int) -> str:
    """Return the last lines of a log, each on a line of its own."""
    return "".join(f"\n{line}" for line in lines[-count:])
