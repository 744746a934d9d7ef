"""THE table of operating systems: what the same things are called on each, as data.

A system is recognised by ID and ID_LIKE of /etc/os-release, so that rebuilds (Rocky, Alma, Oracle) are found too. Debian 12 was
run by the project; RHEL 9 was run as a stand-in (dnf and rpm on Debian's programs, packages of the real names), Ubuntu and
RHEL 10 were read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from embedfleet.facts.survey import Survey


@dataclass(frozen=True)
class System:
    """One family of operating systems.

    :param known: how it is known that a deploy works there
    :param manager: its package manager
    :param packages: what a deploy needs of the distribution on every platform
    :param masked: package -> the unit that it would start at installation; ours runs in a unit of its own
    :param python: interpreter of the host's tools; py-rattler needs 3.10 or newer
    :param anchors: folder of the site's own certificate authorities
    :param suffix: of the files in it; others are not looked at
    :param trust: command that takes a new authority on, and the one after which a removed one is gone
    :param bundle: the file in which programs find all trusted authorities
    :param gpg: package of GnuPG, which checks the keys of repositories; "" where the package manager itself needs it
    :param compilers: folder of the compilers when they are not in /usr/bin; "" where they are
    """

    name: str
    known: str
    manager: Literal["apt", "dnf"]
    packages: tuple[str, ...]
    python: str
    anchors: str
    suffix: str
    trust: tuple[str, str]
    bundle: str
    masked: tuple[tuple[str, str], ...] = ()
    gpg: str = ""
    compilers: str = ""


# A compiler for the kernels and for torch.compile at run time, git for the sources, libnuma for vLLM's CPU worker, the OpenMP
# runtime that torch loads; ca-certificates and curl for whoever looks into a problem on the host.
DEBIAN = System(
    name="Debian 12 or newer, Ubuntu 22.04 or newer",
    known="*run* 2026-11-30: Debian 12 in systemd containers, x86_64 and emulated aarch64 and ppc64le; Ubuntu is *read*",
    manager="apt",
    packages=(
        "ca-certificates", "curl", "g++", "git", "libgomp1", "libnuma-dev", "nginx", "numactl", "python3", "python3-venv",
    ),
    masked=(("nginx", "nginx.service"),),  # Debian's unit would open port 80 on every host
    gpg="gpg",
    python="/usr/bin/python3",
    anchors="/usr/local/share/ca-certificates",
    suffix=".crt",
    trust=("update-ca-certificates", "update-ca-certificates --fresh"),
    bundle="/etc/ssl/certs/ca-certificates.crt",
)  # fmt: skip

_RHEL_PACKAGES = ("ca-certificates", "git-core", "libgomp", "nginx", "numactl", "numactl-devel")

# Python 3.9 is too old for py-rattler and gcc 11 for vLLM's kernels (12.3), so both come beside the system's own. 3.12 is the
# Python of RHEL 9 that is kept up longest; numactl-devel is in CodeReady Builder (UBI 9 has it too).
RHEL9 = System(
    name="RHEL 9 and its rebuilds",
    known="*run* 2026-11-30 on a stand-in: real dnf and rpm, packages of the real names; neither its Python nor its compilers were used",
    manager="dnf",
    packages=(*_RHEL_PACKAGES, "gcc-toolset-14-gcc-c++", "python3.12"),
    python="/usr/bin/python3.12",
    anchors="/etc/pki/ca-trust/source/anchors",
    suffix=".crt",
    trust=("update-ca-trust extract", "update-ca-trust extract"),
    bundle="/etc/pki/tls/certs/ca-bundle.crt",
    compilers="/opt/rh/gcc-toolset-14/root/usr/bin",
)

RHEL10 = replace(
    RHEL9,
    name="RHEL 10 and its rebuilds",
    known="*read* 2026-11-30",
    packages=(*_RHEL_PACKAGES, "gcc-c++", "python3"),
    python="/usr/bin/python3",
    compilers="",
)

SYSTEMS = (DEBIAN, RHEL9, RHEL10)


def system_of(survey: Survey) -> System | None:
    """Return the family of a host's system; None for one that is not in the table."""
    family = {survey.os_id, *survey.os_like}
    if family & {"rhel", "ol"}:  # Oracle says it is like Fedora
        return {"9": RHEL9, "10": RHEL10}.get(survey.os_version.partition(".")[0])
    # Debian's family, and whatever else brings apt: it was so before there was this table.
    return DEBIAN if "debian" in family or "apt-get" in survey.managers else None
