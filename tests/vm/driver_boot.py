"""What the driver's component does to a machine's boot: nouveau kept out of the initramfs, and one reboot that is waited for.

There is no GPU and no NVIDIA package in the machine: these are the component's own steps, without the packages between them.
"""

from __future__ import annotations

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.driver import Driver
from embedfleet.facts.evidence import DriverEvidence
from embedfleet.facts.packages import DriverPackages
from embedfleet.operations import files
from embedfleet.operations.driver import INITRAMFS
from embedfleet.operations.reboot import Reboots, rebooted
from embedfleet.operations.shell import Told
from embedfleet.render import driver_files
from embedfleet.systems import DEBIAN


@operation()
def booted(reboots: Reboots) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure an initramfs with our files, booted.

    + reboots: how
    """
    if not host.get_fact(DriverPackages, manager="apt").initramfs_stale:
        host.noop("the initramfs has our files")
        return
    yield Told(INITRAMFS, setting="driver", cure="see the lines above")
    yield from rebooted(host.get_fact(DriverEvidence).boot, reboots)


files.managed(name="Files", files=driver_files(Driver("install", source="distribution"), DEBIAN))
booted(name="Boot", reboots=Reboots("if_needed", serving=False, local=False, timeout=600))
