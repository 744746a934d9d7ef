"""The driver's packages: the whole family in one transaction, and nothing else gone."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from pyinfra import host
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.state import StateStage

from embedfleet.driver import FAMILY, Driver
from embedfleet.facts.packages import STREAM, AvailablePackages, Offer, Packages
from embedfleet.operations.shell import failing, locked
from embedfleet.operations.system import installed, settled, updated
from embedfleet.problems import Problem
from embedfleet.systems import System
from embedfleet.versions import NoVersion, choose, driver_version, in_the_way

# Only the family may go in such a transaction. Vendors' systems hang more on their driver (Olares#3512: a purge by glob took
# containerd and ssh along), so what else would be removed is asked before.
_GUARD = {
    "apt": "apt-get -s {options} install {specs} | sed -n 's/^Remv \\([^ ]*\\).*/\\1/p'",
    "dnf": "{{ dnf --assumeno {options} install {specs} 2>&1 || :; }}"
    " | awk '/^Removing.*:$/ {{on=1; next}} /^[^ ]/ {{on=0}} on && /^ [^ ]/ {{print $1}}'",
}


def _available(driver: Driver, system: System, fresh: bool = False) -> dict[str, list[Offer]]:
    names = [*driver.packages, *driver.kernel_packages]
    found: dict[str, list[Offer]] = host.get_fact(AvailablePackages, manager=system.manager, names=names, fresh=fresh)
    return found


def outdated(driver: Driver, system: System, have: Packages) -> list[str]:
    """Why "newest" is not there, in words; empty where it is. Only a run that changes things asks the sources anew."""
    fresh = host.state.current_stage >= StateStage.Execute
    try:
        newest = choose(driver, have, _available(driver, system, fresh)).driver
    except NoVersion:
        return []  # what is there is right as it is
    there = driver_version(have.found[driver.packages[0]].version)
    return [] if there == newest else [f"{there} is installed, {newest} is there"]


def put_in(
    driver: Driver, system: System, have: Packages, before: Iterable[PyinfraCommand] = ()
) -> Generator[PyinfraCommand, None, None]:
    """The whole family in one transaction: of the version that all its packages have, what is of another flavour gone.

    :param before: what is done right before it, when nothing but the transaction itself can fail any more
    """
    yield from settled(system)
    options = ""
    if system.manager == "apt":
        yield updated(setting="driver", cure="see whether apt-get update works on the host")
    else:
        options = "--disableexcludes=all --allowerasing"
        if driver.module and have.stream != driver.module.partition(":")[2]:
            # dnf.module would do for the enabling; a stream that is changed has to be reset before, in the same breath.
            ours = f"[ -n '{have.stream}' ] || touch {STREAM}"
            command = f"{ours}; dnf -q -y module reset nvidia-driver && dnf -q -y module enable {driver.module}"
            yield locked(command, setting="driver", cure="see `dnf module list nvidia-driver` on the host")
    try:
        choice = choose(driver, have, _available(driver, system))
    except NoVersion as error:
        cure = "set driver_version or driver_branch to what there is, or add a repository that has it (docs/driver.md)"
        yield failing(Problem(host.name, "driver", str(error), cure))
        return
    host.log(f"install driver {choice.driver} ({driver.flavour} modules, from {driver.source})")
    gone = in_the_way(driver, have, choice.driver)
    joint = "=" if system.manager == "apt" else "-"
    specs = [f"{name}{joint}{version}" for name, version in choice.packages.items()]
    specs += [name for name in driver.kernel_packages if name not in choice.packages]
    if system.manager == "apt":
        specs += [f"{name}-" for name in gone]
        # fix-broken: a transaction that failed half-way left dependencies open, which this one closes or is refused
        options = "--fix-broken --allow-downgrades --allow-change-held-packages"
    guard = _GUARD[system.manager].format(specs=" ".join(specs), options=options)
    family = "|".join(FAMILY)
    yield locked(
        f"export LC_ALL=C; gone=$({guard} | grep -vE '^({family})' || :); [ -z \"$gone\" ] ||"
        ' { echo "it would remove:" $gone; exit 1; }',
        setting="driver",
        cure="remove these by hand if they may go, or set driver_source to the origin of the driver that is there",
    )
    # dnf's devel packages of kernels are asked for by version and architecture, and known by their name alone
    plain = [re.sub(r"-\d.*", "", name) if system.manager == "dnf" else name for name in driver.kernel_packages]
    names = [*driver.packages, *plain]
    yield from before
    yield from installed(
        system, names, specs, options, cure="read the lines above; docs/driver-troubleshooting.md has the usual causes"
    )
