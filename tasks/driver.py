"""NVIDIA's driver and CUDA's compiler."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from embedfleet.operations import cuda, repositories
from embedfleet.operations import driver as operations
from embedfleet.operations.reboot import Reboots
from embedfleet.plan import Plan


@deploy("Driver")
def driver(plan: Plan) -> None:
    """Repositories with checked keys; the driver in one transaction, proven; the toolkit that builds need."""
    settings = plan.settings
    reboots = Reboots(settings.reboot, plan.serving, host.name.startswith("@local"), settings.reboot_timeout)
    if plan.repositories:
        repositories.configured(
            name="Repositories", repositories=plan.repositories, system=plan.system, machine=plan.machine
        )
    if plan.driver.action != "none" and plan.serving:
        # A host that serves is drained and comes back before the next one is touched.
        operations.current(
            name="Driver, one host at a time", driver=plan.driver, system=plan.system, reboots=reboots, _serial=True
        )
    elif plan.driver.action != "none":
        operations.current(name="Driver", driver=plan.driver, system=plan.system, reboots=reboots)
    if plan.toolkit:
        cuda.toolkit(name="CUDA toolkit", package=plan.toolkit, system=plan.system)
