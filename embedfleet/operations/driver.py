"""NVIDIA's driver on a host: its packages in one transaction, loaded or rebooted into, and proven before and after."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import StringCommand, operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.diagnose import Finding, before_reboot, ladder, working
from embedfleet.driver import Driver
from embedfleet.facts.evidence import DriverEvidence, Evidence
from embedfleet.facts.packages import INITRAMFS_STALE, DriverPackages
from embedfleet.operations.driver_packages import outdated, put_in
from embedfleet.operations.reboot import Reboots, drained, rebooted, serving_again
from embedfleet.operations.shell import Told, failing
from embedfleet.operations.system import settled
from embedfleet.problems import Problem
from embedfleet.systems import System
from embedfleet.versions import amiss, fits

# update-initramfs and dracut do nothing where their result would be the same, but they take minutes to find out: a mark tells
# that a file which goes into the image was written since.
INITRAMFS = f"""set -e
if [ -d /boot ] && command -v update-initramfs >/dev/null; then update-initramfs -u -k all
elif [ -d /boot ] && command -v dracut >/dev/null; then dracut --force --regenerate-all; fi
rm -f {INITRAMFS_STALE}"""

# nvidia-modprobe makes the device files, which udev does not; without CUDA's (uvm) every CUDA call fails (llama.cpp#27923).
_LOAD = """modprobe nvidia && { modprobe nvidia-uvm || :; }
! command -v nvidia-modprobe >/dev/null || nvidia-modprobe -c 0 -u"""

_cure = "see docs/driver-troubleshooting.md, then deploy again"


@operation()
def current(driver: Driver, system: System, reboots: Reboots) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that the driver is installed, loaded, and proven to work; reboots where nothing else helps and the settings allow it.

    + driver: what it is to be
    + system: the host's
    + reboots: whether, and how
    """
    evidence = host.get_fact(DriverEvidence)
    if driver.action == "keep":
        yield from _kept(driver, evidence)
        return
    have = host.get_fact(DriverPackages, manager=system.manager)
    wrong = amiss(driver, have)
    if not wrong and driver.version == "newest":
        wrong = outdated(driver, system, have)
    idle = [name for name in driver.services if _idle(evidence, name)]
    if (
        not (wrong or have.initramfs_stale or idle)
        and not _findings(evidence, driver)
        and not _wants_reboot(evidence, reboots)
    ):
        host.noop(f"driver {evidence.loaded} is installed, loaded and works")
        return
    if evidence.smi == "hung" and not wrong:
        # Each further look would hang as long; what it takes is a person (a GPU off the bus, mostly).
        yield failing(_told(evidence, driver, _findings(evidence, driver)))
        return
    if reason := reboots.held_back():
        yield failing(Problem(host.name, "driver", reason, "cure that host, then deploy again"))
        return
    if wrong and _changes(evidence, driver) and (stop := _no_way(evidence, driver)):
        yield failing(
            _told(evidence, driver, stop, "nothing was changed, since the reboot that it takes cannot be done: ")
        )
        return
    reboots.began()
    # A change of its packages stops the running Fabric Manager, and with it every CUDA program on the switches.
    first = bool(wrong and driver.fabric and evidence.loaded and reboots.serving)
    if first and (reason := reboots.refused()):
        yield failing(Problem(host.name, "reboot", f"{wrong[0]}; {reason}, and this host's driver cannot be changed under what serves", "allow a reboot when it suits, then deploy again"))  # fmt: skip
        return
    if wrong:
        host.log(f"driver: {'; '.join(wrong[:4])}{f' and {len(wrong) - 4} more' if len(wrong) > 4 else ''}")
        yield from put_in(driver, system, have, drained(reboots) if first else ())
    if have.initramfs_stale:
        host.log("rebuild the initramfs, so that nouveau stays out of it")
        yield Told(INITRAMFS, setting="driver", cure="see why the initramfs cannot be built (room in /boot?)")
    evidence = host.get_fact(DriverEvidence)
    for kernel in _unbuilt(driver, evidence):
        host.log(f"build the modules for {kernel}")
        yield Told(f"dkms autoinstall -k {kernel} || :", setting="driver", cure=_cure)
    if not evidence.loaded:
        # Whatever it says, the proof below tells the cause.
        yield Told(f"{{ {_LOAD}; }} || :", setting="driver", cure=_cure)
    if driver.services:
        yield from _services(driver)
    evidence = host.get_fact(DriverEvidence)
    if _findings(evidence, driver) or _wants_reboot(evidence, reboots):
        yield from _reboot(driver, system, evidence, reboots)
        evidence = host.get_fact(DriverEvidence)
    findings = _findings(evidence, driver)
    if findings:
        yield failing(_told(evidence, driver, findings))
        return
    yield from serving_again(reboots, stopped=first)
    reboots.done()


def _changes(evidence: Evidence, driver: Driver) -> bool:
    """Whether another module than the loaded one is to come."""
    if not evidence.loaded:
        return False
    return driver.version == "newest" or not fits(driver, evidence.loaded) or evidence.loaded_open != driver.open


def _no_way(evidence: Evidence, driver: Driver) -> tuple[Finding, ...]:
    """What stands in the way of a reboot and no package can cure: found before the driver under a running module is changed."""
    causes = ("next-kernel-unknown", "module-disabled")
    return tuple(each for each in before_reboot(evidence, flavour=driver.flavour) if each.cause in causes)


def _kept(driver: Driver, evidence: Evidence) -> Generator[PyinfraCommand, None, None]:
    """The vendor's system brings this driver: it is looked at and never touched."""
    findings = _findings(evidence, driver)
    if findings:
        yield failing(_told(evidence, driver, findings))
    else:
        host.noop(f"driver {evidence.loaded} is kept, and works")


def _findings(evidence: Evidence, driver: Driver) -> tuple[Finding, ...]:
    """What of the driver does not work now."""
    return working(evidence, flavour=driver.flavour, fabric=driver.fabric)


def _unbuilt(driver: Driver, evidence: Evidence) -> list[str]:
    """Kernels for which DKMS has built nothing: on RHEL it tries in the same transaction that brings the headers, which may come
    after it, and its failure is no failure of the package (compute-gpu-installation#18)."""
    kernels = dict.fromkeys(kernel for kernel in (evidence.kernel, evidence.next_kernel) if kernel)
    return [kernel for kernel in kernels if driver.dkms and not evidence.module(kernel).path]


def _idle(evidence: Evidence, name: str) -> bool:
    unit = evidence.service(name)
    return unit is not None and unit.active != "active"


def _wants_reboot(evidence: Evidence, reboots: Reboots) -> bool:
    """Whether the settings ask for a reboot that the driver itself does not need."""
    if reboots.when != "always":
        return False
    return bool(evidence.reboot_required) or evidence.next_kernel not in ("", evidence.kernel)


def _services(driver: Driver) -> Generator[PyinfraCommand, None, None]:
    """Daemons, running and enabled. Ubuntu's nvidia-persistenced is static: udev starts it at boot, nobody enables it."""
    for name in driver.services:
        changed = "/etc/nvidia-imex/nodes_config.cfg"
        yield Told(
            f"u={name}.service; systemctl cat $u >/dev/null 2>&1 || exit 0; systemctl enable -q $u 2>/dev/null || :;"
            f" p=$(systemctl show -P MainPID $u); verb=start; [ {name} != nvidia-imex ] || [ \"$p\" = 0 ] ||"
            f" [ ! {changed} -nt /proc/$p ] || verb=restart; systemctl reset-failed $u 2>/dev/null || :; systemctl $verb $u || :",
            setting="driver", cure=f"journalctl -u {name}",
        )  # fmt: skip


def _reboot(
    driver: Driver, system: System, evidence: Evidence, reboots: Reboots
) -> Generator[PyinfraCommand, None, None]:
    """Reboot, where that is the cure, the settings allow it, and the driver is proven for the kernel that comes next."""
    findings = _findings(evidence, driver)
    why = [finding.reason for finding in findings if finding.reboot]
    if not why and evidence.nouveau:
        why = ["nouveau holds the GPU"]
    if not why and _wants_reboot(evidence, reboots):
        why = [evidence.reboot_required or f"kernel {evidence.next_kernel} is installed, {evidence.kernel} runs"]
    if not why:
        return
    if reason := reboots.refused():
        yield failing(
            Problem(host.name, "reboot", f"{why[0]}; {reason}", "reboot the host when it suits, then deploy again")
        )
        return
    blockers = before_reboot(evidence, flavour=driver.flavour)
    if blockers:
        yield failing(_told(evidence, driver, blockers, "no reboot, since the driver would not work after it: "))
        return
    host.log(f"reboot: {'; '.join(why)}")
    if evidence.holders:
        host.log(f"it ends {', '.join(f'{each.name} ({each.pid})' for each in evidence.holders[:5])}")
    yield from settled(system)  # not under somebody's apt
    yield from drained(reboots)
    yield from rebooted(evidence.boot, reboots)
    if not host.get_fact(DriverEvidence).loaded:
        yield StringCommand(f"{{ {_LOAD}; }} || :")
    if driver.services:
        yield from _services(driver)


def _told(evidence: Evidence, driver: Driver, findings: tuple[Finding, ...], before: str = "") -> Problem:
    """The findings as one problem; where nvidia-smi itself fails, the one cause that the ladder ends in."""
    first = findings[0] if before or evidence.smi == "ok" else ladder(evidence, flavour=driver.flavour)
    rest = "; ".join(finding.reason for finding in findings if finding.reason != first.reason)
    return Problem(
        host.name, "driver", f"{before}{first.reason}", first.cure, matters=f"also: {rest}" if rest else "",
        source=f"{first.source} [{first.cause}]".strip(),
    )  # fmt: skip
