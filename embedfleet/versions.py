"""Which version of the driver a host is to have, and what is amiss with the one it has. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedfleet.driver import Driver
from embedfleet.facts.packages import Offer, Package, Packages, order


class NoVersion(Exception):
    """No version fits what the settings ask for; says which ones there are."""


@dataclass(frozen=True)
class Choice:
    """A version, and the packages that bring it.

    :param driver: e.g. 580.159.03
    :param packages: name -> the manager's version of it
    """

    driver: str
    packages: dict[str, str]


def driver_version(version: str) -> str:
    """Return the driver's version in a package's: 3:580.159.03-0ubuntu0.24.04.1 -> 580.159.03; "" for another kind."""
    found = re.match(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?:-|$)", version)
    return found[1] if found else ""


def amiss(driver: Driver, have: Packages) -> list[str]:
    """Return what of the family is not as it should be, in words; empty where nothing has to be done."""
    found = []
    versions = set()
    for name in driver.packages:
        package = have.found.get(name)
        if package is None:
            found.append(f"{name} is not installed")
        elif not package.whole:
            found.append(f"{name} is half-installed")
        else:
            versions.add(driver_version(package.version))
            if not fits(driver, driver_version(package.version)):
                found.append(f"{name} is {package.version}")
    if len(versions) > 1:
        found.append(f"versions are mixed: {', '.join(sorted(versions))}")
    for name in driver.kernel_packages:
        package = have.found.get(name)
        if package is None or not package.whole:
            found.append(f"{name} is not installed")
    if driver.module and have.stream != driver.module.partition(":")[2]:
        found.append(f"the module stream is {have.stream or 'none'}, not {driver.module.partition(':')[2]}")
    other = sorted(name for name in have.found if other_flavour(driver, name) and have.found[name].whole)
    if other:
        found.append(f"{', '.join(other)} {'is' if len(other) == 1 else 'are'} of another flavour or branch")
    return found


def fits(driver: Driver, version: str) -> bool:
    """Whether a driver version is what the settings ask for; "newest" is judged by `choose`."""
    if not version:
        return False
    if re.match(r"\d", driver.version):
        return version == driver.version
    return version.partition(".")[0] == str(driver.branch)


def other_flavour(driver: Driver, name: str) -> bool:
    """Whether a package brings kernel modules of another branch or flavour, or builds them where ready ones are wanted."""
    if name in driver.packages or name in driver.kernel_packages:
        return False
    modules = re.fullmatch(r"linux-modules-nvidia-(\d+)(-server)?(-open)?-.*", name)
    if modules:
        if driver.source != "distribution":
            return True
        return (modules[1], bool(modules[2]), bool(modules[3])) != (str(driver.branch), True, driver.open)
    built = re.fullmatch(r"nvidia-dkms-.*|nvidia-dkms|nvidia-kernel-(open-)?dkms|kmod-nvidia-(open|latest)-dkms", name)
    return built is not None


def in_the_way(driver: Driver, have: Packages, version: str) -> list[str]:
    """Return installed packages that must go with the transaction: modules of another flavour or branch, and the firmware of the same
    driver from the other origin, which is in the same files (dpkg: "trying to overwrite")."""
    found = [name for name in have.found if other_flavour(driver, name)]
    for name in have.found:
        firmware = re.fullmatch(r"nvidia-firmware-\d+(-server)?-([\d.]+)", name)
        if firmware and firmware[2] == version and bool(firmware[1]) != (driver.source == "distribution"):
            found.append(name)
    return sorted(found)


def choose(driver: Driver, have: Packages, available: Mapping[str, Sequence[Offer]]) -> Choice:
    """Return the version to install: one that every package of the family has.

    Without a wish it is the one that is there, if it is of the branch, so that a deploy changes no driver by itself.

    :raises NoVersion: where there is none
    """
    by_package = {
        name: {driver_version(offer.version): offer.version for offer in reversed(available.get(name, ()))}
        for name in driver.packages
    }
    unknown = [name for name, versions in by_package.items() if not versions]
    unknown += [name for name in driver.kernel_packages if name not in available and name not in have.found]
    if unknown:
        raise NoVersion(f"the host's package sources have no {', '.join(unknown)}")
    common = set.intersection(*(set(versions) for versions in by_package.values()))
    fitting = sorted((version for version in common if fits(driver, version)), key=order)
    if not fitting:
        there = ", ".join(sorted(filter(None, common), key=order)) or "none that all of its packages have"
        raise NoVersion(f"no driver {driver.version or driver.branch} in the package sources; there is: {there}")
    chosen = fitting[-1]
    installed = _installed(driver, have.found)
    if not driver.version and installed in fitting:
        chosen = installed
    elif not driver.version and fits(driver, installed):
        raise NoVersion(
            f"driver {installed} is there, and the package sources no longer have all of its packages; there is: {', '.join(fitting)}"
        )
    packages = {name: versions[chosen] for name, versions in by_package.items()}
    for name in driver.kernel_packages:
        fit = [offer for offer in available.get(name, ()) if order(offer.needs) <= order(chosen)]
        if not fit and available.get(name):
            needs = available[name][-1].needs
            raise NoVersion(f"{name} is there for driver {needs} and newer, not for {chosen}")
        if fit and any(offer.needs for offer in fit):
            packages[name] = fit[0].version  # newest first
    return Choice(chosen, packages)


def _installed(driver: Driver, found: Mapping[str, Package]) -> str:
    versions = [driver_version(found[name].version) for name in driver.packages if name in found]
    return max(versions, key=versions.count) if versions else ""
