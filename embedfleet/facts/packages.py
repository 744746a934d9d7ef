"""Which packages of NVIDIA's driver a host has, and which its sources offer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyinfra.api import FactBase, QuoteString, StringCommand

#: Touched when a file that goes into the initramfs changes, gone when it is rebuilt.
INITRAMFS_STALE = "/var/lib/embedfleet/initramfs.stale"
#: There where a deploy enabled a dnf module stream of the driver, which uninstall.py takes back.
STREAM = "/var/lib/embedfleet/module.ours"


@dataclass(frozen=True)
class Package:
    """An installed package.

    :param version: as the manager writes it, without epoch
    :param whole: False where it is half-installed or waits to be configured
    """

    version: str
    whole: bool = True


@dataclass(frozen=True)
class Packages:
    """What is installed.

    :param found: name -> package; on rpm hosts also NAME-VERSION-RELEASE.ARCH, since several kernels' devel packages share a name
    :param stream: dnf module stream of nvidia-driver that is enabled, "" for none
    :param initramfs_stale: whether a file that goes into the initramfs was written since it was built
    """

    found: dict[str, Package] = field(default_factory=dict)
    stream: str = ""
    initramfs_stale: bool = False


# dpkg's patterns; rpm lists all, since its own patterns cost a query each.
_PATTERNS = (
    "nvidia-*",
    "libnvidia-*",
    "linux-modules-nvidia-*",
    "libcuda1",
    "firmware-nvidia*",
    "cuda-*",
    "linux-headers-*",
)
_APT = f"""dpkg-query -W -f '${{db:Status-Abbrev}}|${{Package}}|${{Version}}\\n' {" ".join(f"'{each}'" for each in _PATTERNS)} 2>/dev/null"""
_DNF = r"""
rpm -qa --qf 'ii |%{NAME}|%{VERSION}-%{RELEASE}|%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\n' 2>/dev/null | grep -E '^ii .(kmod-|lib)?(nvidia|cuda|kernel|dkms)'
sed -n 's/^stream *= */@stream|/p; s/^state *= */@state|/p' /etc/dnf/modules.d/nvidia-driver.module 2>/dev/null
"""


class DriverPackages(FactBase[Packages]):
    """The installed packages of driver, CUDA and container toolkit."""

    default = Packages

    def command(self, manager: str) -> StringCommand:
        listed = {"apt": _APT, "dnf": _DNF}[manager].strip()
        return StringCommand(f"{listed}; [ ! -e {INITRAMFS_STALE} ] || echo '@initramfs|stale'")

    def process(self, output: list[str]) -> Packages:
        return parse_installed(list(output))


_GONE = ("n", "c")  # dpkg's second letter of a package that is not installed, or of which only configuration is left


def parse_installed(output: list[str]) -> Packages:
    """Parse `status|name|version[|nevra]` lines."""
    found: dict[str, Package] = {}
    stream, enabled, stale = "", True, False
    for line in output:
        cells = line.strip().split("|")
        if cells[0] == "@stream" and len(cells) == 2:
            stream = cells[1].strip()
        elif cells[0] == "@state" and len(cells) == 2:
            enabled = cells[1].strip() == "enabled"
        elif cells[0] == "@initramfs":
            stale = True
        elif len(cells) >= 3 and cells[2] and cells[0][1:2] not in _GONE:
            package = Package(cells[2].partition(":")[2] or cells[2], cells[0].strip() in ("ii", "hi"))
            for name in (cells[1], *cells[3:]):
                found[name] = package
    return Packages(found, stream if enabled else "", stale)


@dataclass(frozen=True)
class Offer:
    """A version of a package that the host's sources offer, or that it has.

    :param version: whole, with its epoch
    :param needs: the driver that it asks for at least, where it names one: kernel modules have the kernel's version, not the driver's
    """

    version: str
    needs: str = ""


class AvailablePackages(FactBase[dict[str, list[Offer]]]):
    """name -> what there is of it, newest first."""

    default = dict

    def command(self, manager: str, names: list[str], fresh: bool) -> StringCommand:
        """:param fresh: whether the sources are asked before; else what the host's lists have"""
        quoted = [QuoteString(name) for name in names]
        if manager == "apt":
            update = "DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null 2>&1;" if fresh else ""
            wanted = "2>/dev/null | grep -E '^(Package|Version|Depends):'; true"
            return StringCommand(update, "apt-cache show", *quoted, wanted)
        # by both names, as kernels' devel packages are asked for by version and architecture
        whole = "%{name}-%{version}-%{release}.%{arch}"
        form = f"--qf 'Package: %{{name}}\\nVersion: %{{evr}}\\nPackage: {whole}\\nVersion: %{{evr}}\\n'"
        return StringCommand(
            f"dnf -q {'--refresh' if fresh else ''} --disableexcludes=all repoquery --available {form}",
            *quoted,
            "2>/dev/null; true",
        )

    def process(self, output: list[str]) -> dict[str, list[Offer]]:
        return parse_available(list(output))


def parse_available(output: list[str]) -> dict[str, list[Offer]]:
    """Parse `Package:`, `Version:` and `Depends:` lines, a package beginning with its name."""
    found: dict[str, dict[str, str]] = {}
    name = version = ""
    for line in output:
        key, _, value = line.strip().partition(": ")
        if key == "Package":
            name, version = value.strip(), ""
        elif key == "Version" and name:
            version = value.strip()
            found.setdefault(name, {}).setdefault(version, "")
        elif key == "Depends" and version:
            needs = re.search(r"nvidia-kernel-common\S* \([>=]+ (\d{3}[\d.]*)", value)
            found[name][version] = needs[1] if needs else ""
    return {
        name: [
            Offer(each, needs)
            for each, needs in sorted(versions.items(), key=lambda item: order(item[0]), reverse=True)
        ]
        for name, versions in found.items()
    }


def order(version: str) -> list[int]:
    """Return what versions of one package are compared by: their numbers. Enough for the driver's, which have no letters but "ubuntu"."""
    plain = version.partition(":")[2] or version
    return [int(number) for number in re.findall(r"\d{1,9}", plain)]
