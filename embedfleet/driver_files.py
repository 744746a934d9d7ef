"""The files that keep a driver to one origin, out of unattended upgrades' hands, and nouveau away from the GPU: as text. Pure."""

from __future__ import annotations

import re

from embedfleet.driver import FAMILY, Driver

#: The same for apt's preferences, which know shell patterns; libnvidia-container is no part of the driver.
_GLOBS = (
    "linux-modules-nvidia-*", "nvidia-driver*", "nvidia-headless*", "nvidia-dkms*", "nvidia-kernel*", "nvidia-firmware*", "nvidia-utils*",
    "nvidia-compute-utils*", "nvidia-open*", "nvidia-persistenced*", "nvidia-modprobe*", "nvidia-smi*", "nvidia-fabric*",
    "nvidia-imex*", "libnvidia-cfg1*", "libnvidia-common*", "libnvidia-compute*", "libnvidia-decode*", "libnvidia-encode*",
    "libnvidia-extra*", "libnvidia-fbc*", "libnvidia-gl*", "libnvidia-gpucomp*", "libnvidia-ml*", "libnvidia-nscq*", "libcuda1",
    "firmware-nvidia*", "xserver-xorg-video-nvidia*", "cuda-drivers*",
)  # fmt: skip


def preferences(driver: Driver) -> str:
    """Return apt's preferences: the family from one origin alone, and of the pinned version where one is named."""
    names = " ".join(_GLOBS)
    # Only the record that fits a version first counts, so the other origin is shut out before versions are pinned.
    other = "release l=NVIDIA CUDA" if driver.source == "distribution" else "release o=Ubuntu"
    others = [other] if driver.source == "distribution" else [other, "release o=Debian"]
    stanzas = [f"Package: {names}\nPin: {pin}\nPin-Priority: -1\n" for pin in others]
    if driver.source == "nvidia":
        wanted = driver.version if re.match(r"\d", driver.version) else f"{driver.branch}"
        end = "-*" if "." in wanted else ".*"
        stanzas.append(f"Package: {names}\nPin: version {wanted}{end}\nPin-Priority: 1001\n")
        stanzas.append(f"Package: {names}\nPin: release l=NVIDIA CUDA\nPin-Priority: -1\n")
    return "\n".join(["# embedfleet: the driver comes from one origin, in one branch", *stanzas])


def unattended(driver: Driver) -> str:
    """Return apt's configuration that keeps unattended-upgrades off the driver (homelab#4110: 269 restarts after it came).

    Canonical's modules are made for one kernel each, so the kernel waits for the driver too (Azure/batch-shipyard#174).
    """
    kernels = (
        ()
        if driver.dkms
        else (r"linux-image-", r"linux-headers-", r"linux-generic", r"linux-nvidia", r"linux-modules-")
    )
    lines = "".join(f'    "^{pattern}";\n' for pattern in (*FAMILY, *kernels))
    return f"// embedfleet: the driver is upgraded by a deploy alone\nUnattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"


NOUVEAU = "# embedfleet: NVIDIA's driver and nouveau cannot share a GPU\nblacklist nouveau\noptions nouveau modeset=0\n"
