"""NVIDIA's driver and CUDA toolkit on one host, planned: which packages of which origin, held how. Pure.

A driver is a family of packages of one version from one origin, put in by one transaction: mixing Canonical's with NVIDIA's
ends in "held broken packages" (ansible-role-nvidia-driver#11, #33). Names and versions are data here; what of them is there is
asked on the host (embedfleet/facts/packages.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from embedfleet.facts.survey import Survey
from embedfleet.facts.system import newest_kernel
from embedfleet.gpus import blackwell
from embedfleet.platforms import Platform
from embedfleet.recognise import capabilities
from embedfleet.repositories import Repository
from embedfleet.settings import Settings
from embedfleet.systems import RHEL9, System

#: From this branch on, NVIDIA's own packages for Ubuntu have no branch in their names (driver installation guide, R590).
UNBRANCHED = 590
#: The last branch with proprietary kernel modules ("Proprietary Kernel Modules Removed", notes of R620).
LAST_PROPRIETARY = 610

#: Folders of NVIDIA's repository, the key file in each, and the fingerprint of that key. Fingerprints are from public
#: repositories that pin them (read 2026-11-30); Debian 13 and RHEL 10 are signed by the newer key.
_OLD = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
_RPM = ("D42D0685.pub", "610C7B14E068A878070DA4E99CD0A493D42D0685")
_NEW = ("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200")
DISTRIBUTIONS = {
    ("ubuntu", "22.04"): ("ubuntu2204", *_OLD),
    ("ubuntu", "24.04"): ("ubuntu2404", *_OLD),
    ("debian", "12"): ("debian12", *_OLD),
    ("debian", "13"): ("debian13", *_NEW),
    ("rhel", "9"): ("rhel9", *_RPM),
    ("rhel", "10"): ("rhel10", *_NEW),
}
#: `uname -m` -> NVIDIA's name of it in paths: Grace is "sbsa", not arm64 (Azure/aks-gpu#170).
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}

#: Names of the whole family, as regular expressions that dpkg's and rpm's names match from their beginning: what is held, what
#: may be removed when a branch changes, and what nobody else may bring. grep -E reads them too; libnvidia-container is not among
#: them.
FAMILY = (
    r"linux-modules-nvidia-", r"linux-objects-nvidia-", r"linux-signatures-nvidia-", r"nvidia-driver", r"nvidia-headless",
    r"nvidia-dkms", r"nvidia-kernel", r"nvidia-firmware", r"nvidia-utils", r"nvidia-compute-utils", r"nvidia-open",
    r"nvidia-persistenced", r"nvidia-modprobe", r"nvidia-smi", r"nvidia-fabric", r"nvidia-imex", r"nvidia-kmod",
    r"kmod-nvidia", r"libnvidia-([^c]|c[^o]|co[^n]|con[^t])", r"libcuda1", r"firmware-nvidia", r"xserver-xorg-video-nvidia", r"cuda-drivers",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Driver:
    """What a host's driver is to be.

    :param action: install, keep (checked, never touched) or none
    :param source: whose packages: the distribution's signed modules, or NVIDIA's repository with DKMS
    :param branch: driver branch, e.g. 580
    :param version: "" (any of the branch that is there; the newest where there is none), "newest", or an exact one
    :param open: the open kernel modules, else the proprietary ones
    :param packages: names that have the driver's version
    :param kernel_packages: names that have the kernel's: modules or headers for the running and the next kernel
    :param module: dnf module stream, "" for none
    :param services: units that are to run
    :param fabric: whether GPUs are joined by NVSwitches, so that CUDA waits for the Fabric Manager
    :param imex_nodes: addresses of the nodes of one NVLink domain
    """

    action: Literal["install", "keep", "none"] = "none"
    source: Literal["distribution", "nvidia"] = "nvidia"
    branch: int = 580
    version: str = ""
    open: bool = True
    packages: tuple[str, ...] = ()
    kernel_packages: tuple[str, ...] = ()
    module: str = ""
    services: tuple[str, ...] = ()
    fabric: bool = False
    imex_nodes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Short: pyinfra prints an operation's arguments."""
        return f"{self.version or self.branch} from {self.source}" if self.action == "install" else self.action

    @property
    def flavour(self) -> Literal["open", "proprietary"]:
        """The word for the kernel modules' flavour."""
        return "open" if self.open else "proprietary"

    @property
    def dkms(self) -> bool:
        """Whether the kernel modules are built on the host."""
        return any("dkms" in name for name in self.packages)


def driver_action(settings: Settings, platform: Platform, survey: Survey) -> Literal["install", "keep", "none"]:
    """Return what the deploy does about the driver."""
    if platform.device != "cuda":
        return "none"
    if survey.dgx and settings.dgx_os_driver == "keep":
        return "keep"
    if settings.driver != "platform":
        return settings.driver
    return "keep" if foreign(survey) else platform.driver.action


def foreign(survey: Survey) -> bool:
    """Whether a driver works that came by none of the packages that a deploy installs: an image's, or NVIDIA's installer's.

    Such a one is kept unless `driver = "install"` says otherwise by name: what works is not replaced on the way.
    """
    modules = ("linux-modules-nvidia-", "nvidia-dkms", "nvidia-kernel-", "kmod-nvidia-")
    return survey.driver.smi == "ok" and not any(name.startswith(modules) for name in survey.packages)


def plan_driver(settings: Settings, platform: Platform, system: System, survey: Survey) -> Driver:
    """Return what `settings` and the host ask of the driver."""
    action = driver_action(settings, platform, survey)
    if action == "none":
        return Driver()
    branch = settings.driver_branch or platform.driver.branch
    modern = any(blackwell(value) for value in (*capabilities(survey), *platform.capability))
    open_modules = settings.kernel_modules == "open" or platform.driver.open_only or modern
    fabric = survey.machine == "x86_64" and survey.nvswitches > 0
    if action == "keep":
        return Driver("keep", branch=branch, open=open_modules, fabric=fabric)
    source = _source(settings, system, survey)
    packages, kernel = _names(source, system, survey, branch, open_modules)
    services = ["nvidia-persistenced"]
    if fabric:
        packages.append(_fabric(system, source, branch))
        services.append("nvidia-fabricmanager")
    if settings.imex_nodes:
        packages.append("nvidia-imex" if branch >= UNBRANCHED or survey.os_id != "ubuntu" else f"nvidia-imex-{branch}")
        services.append("nvidia-imex")
    return Driver(
        action="install",
        source=source,
        branch=branch,
        version=settings.driver_version or "",
        open=open_modules,
        packages=tuple(packages),
        kernel_packages=tuple(dict.fromkeys(kernel)),
        module=f"nvidia-driver:{branch}{'-open' if open_modules else ''}" if system is RHEL9 else "",
        services=tuple(services),
        fabric=fabric,
        imex_nodes=tuple(settings.imex_nodes),
    )


def _source(settings: Settings, system: System, survey: Survey) -> Literal["distribution", "nvidia"]:
    """Canonical signs modules for its kernels, so Secure Boot takes them and nothing is built on the host; others have none."""
    if settings.driver_source != "platform":
        return settings.driver_source
    return "distribution" if survey.os_id == "ubuntu" else "nvidia"


def _kernels(survey: Survey) -> list[str]:
    """The running kernel, and the newest installed one of its flavour, which is what boots next."""
    return list(dict.fromkeys([survey.kernel, newest_kernel(survey.kernel, list(survey.kernels))]))


def _names(source: str, system: System, survey: Survey, branch: int, open_modules: bool) -> tuple[list[str], list[str]]:
    kernels = _kernels(survey)
    if system.manager == "dnf":
        # NVIDIA's names on RHEL (yum-packaging-nvidia-driver); -64k kernels have a devel package of their own (driver-toolkit#140).
        kind = "kmod-nvidia-open-dkms" if open_modules else "kmod-nvidia-latest-dkms"
        names = [
            "nvidia-driver-cuda",
            "nvidia-driver-cuda-libs",
            "libnvidia-ml",
            "nvidia-kmod-common",
            "nvidia-persistenced",
            kind,
        ]
        return names, [_devel(kernel) for kernel in kernels]
    if source == "distribution":
        suffix = f"{branch}-server"
        flavoured = f"{suffix}-open" if open_modules else suffix
        names = [f"{base}-{suffix}" for base in ("nvidia-kernel-common", "libnvidia-compute", "libnvidia-cfg1", "nvidia-compute-utils", "nvidia-utils")]  # fmt: skip
        # By kernel; and by flavour where the host follows a kernel metapackage, so that later kernels bring theirs along. A host
        # without one has its kernel pinned, and a metapackage would pull another kernel in (techno-tim.github.io#371).
        metas = [name.removeprefix("linux-image-") for name in survey.kernel_metas]
        return names, [f"linux-modules-nvidia-{flavoured}-{each}" for each in (*kernels, *metas)]
    headers = [f"linux-headers-{each}" for each in kernels]
    headers += [name.replace("linux-image-", "linux-headers-") for name in survey.kernel_metas]
    if survey.os_id != "ubuntu":
        kind = "nvidia-kernel-open-dkms" if open_modules else "nvidia-kernel-dkms"
        return [
            "nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-kernel-support", "firmware-nvidia-gsp",
            "nvidia-persistenced", kind,
        ], headers  # fmt: skip
    end = "" if branch >= UNBRANCHED else f"-{branch}"
    names = [f"{base}{end}" for base in ("nvidia-kernel-common", "libnvidia-compute", "libnvidia-cfg1", "nvidia-utils")]
    names.append(f"nvidia-compute-utils{end}" if end else "nvidia-persistenced")
    return [*names, f"nvidia-dkms{end}{'-open' if open_modules else ''}"], headers


def _devel(kernel: str) -> str:
    plain, _, variant = kernel.partition("+")
    return f"kernel-{variant}-devel-{plain}" if variant else f"kernel-devel-{plain}"


def _fabric(system: System, source: str, branch: int) -> str:
    """It refuses to run with a driver of another version (gpu-operator#121), so it is of the family."""
    if system.manager == "dnf":
        return "nvidia-fabric-manager"
    return f"nvidia-fabricmanager-{branch}" if source == "distribution" else "nvidia-fabricmanager"


def cuda_toolkit(settings: Settings, platform: Platform) -> str:
    """Return the package of the CUDA toolkit that the host is to have; "" for none."""
    if settings.cuda_toolkit is not None:
        return "" if settings.cuda_toolkit == "none" else settings.cuda_toolkit
    return platform.toolkit


def toolkit_version(package: str) -> str:
    """Return the CUDA version of a toolkit's package: cuda-toolkit-13-0 -> 13.0."""
    found = re.search(r"-(\d+)-(\d+)$", package)
    return f"{found[1]}.{found[2]}" if found else ""


def cuda_home(package: str) -> str:
    """Return the one folder that builds use. Not /usr/local/cuda: that link goes wherever the last toolkit pointed it."""
    return f"/usr/local/cuda-{toolkit_version(package)}"


def repository(settings: Settings, system: System, survey: Survey) -> Repository | None:
    """Return NVIDIA's repository for the host; None where it is in no table."""
    family = "rhel" if system.manager == "dnf" else survey.os_id
    version = survey.os_version.partition(".")[0] if family == "rhel" else survey.os_version
    known = DISTRIBUTIONS.get((family, version))
    architecture = ARCHITECTURES.get(survey.machine)
    if not known or not architecture:
        return None
    folder, key, fingerprint = known
    uri = f"{settings.nvidia_repository_url.rstrip('/')}/{folder}/{architecture}"
    return Repository(
        name="nvidia",
        title="NVIDIA's driver and CUDA packages",
        uri=f"{uri}/",
        key_url=settings.nvidia_key_url or f"{uri}/{key}",
        fingerprints=tuple(settings.nvidia_key_fingerprints or [fingerprint]),
        held=("nvidia-*", "kmod-nvidia*", "libnvidia-ml", "cuda-drivers*") if system.manager == "dnf" else (),
    )
