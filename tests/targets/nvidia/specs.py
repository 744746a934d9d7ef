"""The table: which stand-ins there are, in which versions, with which dependencies.

Sources. UBUNTU: packages.ubuntu.com (linux-modules-nvidia-580-server-open-generic, nvidia-utils-580-server ...): names,
versions, the dependencies of modules and of nvidia-utils. GUIDE: docs.nvidia.com/datacenter/tesla/driver-installation-guide
("Recent updates": names without a branch from 590 on; "Version locking"; modules of RHEL). KEYRING and YUM: the public
repositories NVIDIA/apt-packaging-cuda-keyring, yum-packaging-nvidia-driver and yum-packaging-dkms-nvidia. TOOLKIT:
NVIDIA/nvidia-container-toolkit packaging/ and NVIDIA/cloud-native-docs. MEM: from memory, not confirmed.
No 620.x release could be looked up: its minor version here is made up.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Two minor versions of the long-term branch (both published), and one of the next (made up).
OLDER, NEWER, NEXT = "580.159.03", "580.173.02", "620.57.02"

#: What the stale generation of every index lists; no pool has it.
GONE = "580.142"

TOOLKITS = ("1.18.1-1", "1.19.1-1")
TOOLKIT_GONE = "1.17.8-1"

#: CUDA 13.0 as NVIDIA packs it: package versions, and what nvcc says (public transcripts of nvcc --version).
CUDA_VERSION, NVCC_VERSION = "13.0.2-1", "13.0.88-1"
NVCC_BUILT, NVCC_BUILD = "Wed_Aug_20_01:58:59_PM_PDT_2025", "36424714_0"

#: Debian architecture -> NVIDIA's name of it in repository paths.
NVIDIA_ARCH = {"amd64": "x86_64", "arm64": "sbsa"}

#: Distributions of NVIDIA's apt repositories.
CUDA_DISTROS = ("ubuntu2204", "ubuntu2404", "debian12")


@dataclass(frozen=True)
class Pocket:
    """A suite of Ubuntu's archive at one moment: its drivers, and the kernels that modules are built for.

    `abi` and `nvidia_abi` are the newest kernels' numbers; the one before each is there as well.
    """

    suite: str
    series: str
    kernel: str
    abi: int
    nvidia_abi: int
    drivers: tuple[str, ...]

    def kernels(self, arch: str) -> list[tuple[str, str, int]]:
        """(release, flavour, ABI) of every kernel (UBUNTU: 64K pages are arm64's only)."""
        flavours = {"generic": self.abi}
        if arch == "arm64":
            flavours |= {"generic-64k": self.abi, "nvidia": self.nvidia_abi, "nvidia-64k": self.nvidia_abi}
        return [
            (f"{self.kernel}-{number}-{flavour}", flavour, number)
            for flavour, newest in flavours.items()
            for number in (newest - 1, newest)
        ]


#: As the archive moves: what came with a release, what -updates has now, and (stale) what it had before.
POCKETS = (
    Pocket("jammy", "22.04", "5.15.0", 160, 1083, (OLDER,)),
    Pocket("jammy-updates", "22.04", "5.15.0", 161, 1084, (NEWER, NEXT)),
    Pocket("noble", "24.04", "6.8.0", 138, 1057, (OLDER,)),
    Pocket("noble-updates", "24.04", "6.8.0", 139, 1058, (NEWER, NEXT)),
)


def gone(pocket: Pocket) -> Pocket:
    """The same suite some months ago."""
    return Pocket(pocket.suite, pocket.series, pocket.kernel, pocket.abi - 20, pocket.nvidia_abi - 20, (GONE,))


#: RHEL 9's kernels (the first is seen in public transcripts) and their 64K variant, whose uname -r ends in +64k.
EL_KERNEL = "5.14.0-687.51.1.el9_8"
EL_RELEASE = "1.el9"

#: dnf module streams (GUIDE): stream -> driver versions in it.
STREAMS = {"580-open": (OLDER, NEWER), "620-open": (NEXT,), "open-dkms": (OLDER, NEWER, NEXT)}
