"""NVIDIA's container toolkit on one host, planned: which packages, for which container runtimes, with which files. Pure.

Containers see GPUs by CDI: a file that lists device nodes and libraries, which docker (25 and newer), podman, containerd and CRI-O
read. The `nvidia` runtime is configured beside it, for clients that ask for GPUs the older way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from embedfleet.facts.packages import Packages, order
from embedfleet.facts.survey import Survey
from embedfleet.platforms import Platform
from embedfleet.render import ManagedFile
from embedfleet.repositories import DPKG_ARCH, Repository
from embedfleet.settings import Settings
from embedfleet.stack import numbers
from embedfleet.systems import System

#: All of one version, named one by one: nvidia-container-toolkit asks for exactly its own of the others, and apt-get takes the
#: newest of what is not named (seen: "unmet dependencies").
PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)

#: Architectures of the repository; ppc64le's packages were removed from it.
ARCHITECTURES = ("x86_64", "aarch64")

#: The key that signs the repository. From public repositories that pin it (read 2026-11-30).
FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

#: The first version whose packages bring nvidia-cdi-refresh and whose nvidia-ctk writes drop-ins for containerd.
REFRESHES = (1, 18)
#: Below this a container can take the host over (CVE-2025-23266, NVIDIA's security bulletin of July 2025).
SAFE = (1, 17, 8)

RUNTIME = "/usr/bin/nvidia-container-runtime"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
#: nvidia-ctk 1.18 and 1.19.0 write to /etc/crio/conf.d, which CRI-O does not read (nvidia-container-toolkit#1829).
CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-embedfleet-nvidia.conf"
UDEV_RULE = "/etc/udev/rules.d/71-embedfleet-nvidia-dev-char.rules"
REFRESH_DROP_IN = "/etc/systemd/system/nvidia-cdi-refresh.service.d/embedfleet.conf"


@dataclass(frozen=True)
class Toolkit:
    """What a host's container toolkit is to be.

    :param version: e.g. 1.19.1; a newer one that is installed is kept
    :param runtimes: what it is configured for, of docker, containerd, crio, podman
    :param image: in which nvidia-smi proves that containers see the GPUs; "" for no such proof
    """

    version: str
    runtimes: tuple[str, ...] = ()
    image: str = ""


def wants_toolkit(settings: Settings, platform: Platform, survey: Survey) -> bool:
    """Whether the host is to have the toolkit.

    DGX OS brings one, with its own configuration of docker, that breaks by others' (deepops#1076, #351): it is touched only where
    that is asked for.
    """
    if settings.container_toolkit != "auto":
        return settings.container_toolkit == "install"
    return platform.device == "cuda" and bool(survey.runtimes) and not survey.dgx


def plan_toolkit(settings: Settings, platform: Platform, survey: Survey) -> Toolkit | None:
    """Return what `settings` and the host ask of the container toolkit; None for nothing."""
    if not wants_toolkit(settings, platform, survey):
        return None
    runtimes: Sequence[str] | None = settings.container_runtimes
    if runtimes is None:
        # Docker brings containerd along for itself alone: there it serves nobody's pods, and docker tells it what to run.
        runtimes = [each for each in survey.runtimes if each != "containerd" or "docker" not in survey.runtimes]
    return Toolkit(settings.container_toolkit_version, tuple(runtimes), settings.container_toolkit_image or "")


def toolkit_repository(settings: Settings, system: System, survey: Survey) -> Repository | None:
    """Return the toolkit's repository for the host; None where it has no packages for the architecture."""
    if survey.machine not in ARCHITECTURES:
        return None
    url = settings.container_toolkit_url.rstrip("/")
    # NVIDIA's own list has $(ARCH) in its place; a plain name says the same, and `switched_off` knows both.
    folder = f"deb/{DPKG_ARCH[survey.machine]}" if system.manager == "apt" else f"rpm/{survey.machine}"
    return Repository(
        name="container-toolkit",
        title="NVIDIA's container toolkit",
        uri=f"{url}/stable/{folder}/",
        key_url=settings.container_toolkit_key_url or f"{url}/gpgkey",
        fingerprints=tuple(settings.container_toolkit_key_fingerprints or [FINGERPRINT]),
        signed=("metadata",),  # its rpms are not signed, the list of them is
    )


def target(toolkit: Toolkit, have: Packages) -> str:
    """Return the packages' version that the host is to have: the wanted one, or the newest of what is installed above it."""
    wanted = f"{toolkit.version}-1"
    installed = [have.found[name].version for name in PACKAGES if name in have.found]
    return max([wanted, *installed], key=order)


def amiss(toolkit: Toolkit, have: Packages) -> list[str]:
    """Return what of the packages is not as it should be, in words; empty where nothing has to be done."""
    wanted, found = target(toolkit, have), []
    for name in PACKAGES:
        package = have.found.get(name)
        if package is None:
            found.append(f"{name} is not installed")
        elif not package.whole:
            found.append(f"{name} is half-installed")
        elif order(package.version) < order(wanted):
            found.append(f"{name} is {package.version}")
    return found


def toolkit_files(toolkit: Toolkit | None) -> tuple[ManagedFile, ...]:
    """Return the files of ours beside the packages' own."""
    if toolkit is None:
        return ()
    files = [ManagedFile(UDEV_RULE, _UDEV), ManagedFile(REFRESH_DROP_IN, _REFRESH)]
    if "crio" in toolkit.runtimes:
        files.append(ManagedFile(CRIO_DROP_IN, _CRIO))
    return tuple(files)


# A daemon-reload has systemd set the cgroups' device rules again, from names below /dev/char, where the driver, unlike others, puts
# none; a container that had a GPU then has it no more (nvidia-container-toolkit#48). CDI alone does not cure that: it makes runc tell
# systemd of the devices, and these links make systemd find them. Both are needed, and neither changes the toolkit's config.toml: its
# mode "auto" takes CDI from 1.18 on.
_LINKS = "/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"
_UDEV = f"""\
# embedfleet: links in /dev/char, so that `systemctl daemon-reload` takes no GPU from a container (nvidia-container-toolkit#48)
ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="{_LINKS}"
"""

# The rule runs when the driver registers, maybe before nvidia-uvm is there (nvidia-container-toolkit#932), so the links are made a
# second time after the devices were listed. The order is for the socket of nvidia-persistenced, which the list has only where it is
# there already (#1611). Others order it the other way round (akmods#565), as their persistenced waits for device files; the
# distributions' own is started by udev when those are there.
_REFRESH = f"""\
# embedfleet
[Unit]
After=nvidia-persistenced.service

[Service]
ExecStartPost=-{_LINKS}
"""

_CRIO = f"""\
# embedfleet
[crio.runtime.runtimes.nvidia]
runtime_path = "{RUNTIME}"
runtime_type = "oci"
"""


def docker_cdi(version: str) -> Literal["none", "flag", "always"]:
    """Return how a docker of this version takes CDI: not at all, with `features.cdi`, or without being told."""
    have = numbers(version)
    if have < (25,):
        return "none"
    return "flag" if have < (28, 2) else "always"


def sets_runtimes(arguments: str) -> str:
    """Return the argument of dockerd that daemon.json may not name as well; "" for none.

    Of what stands in both, dockerd says "specified both as a flag and in the configuration file" and does not start
    (DGX's drop-in: deepops#351, #709; nvidia-docker#787).
    """
    words = arguments.replace("=", " ").split()
    return next((word for word in words if word in ("--add-runtime", "--feature")), "")


def spec_is_current(specs: Mapping[str, frozenset[str]], loaded: str) -> bool:
    """Whether a CDI file names libraries of the driver that is loaded.

    :param specs: path -> versions of the driver's libraries that it names
    """
    # Of two files with the same devices the one in /run counts, for docker, podman and the others alike.
    later = {path: versions for path, versions in specs.items() if "/run/" in path} or specs
    return any(loaded in versions for versions in later.values())
