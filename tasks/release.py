"""The release that the instances run."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Release")
def release(plan: Plan) -> None:
    """Put together from engine, model and flags; proven beside the running one; switched to instance by instance."""
    control.part(name="Put together", part=plan.release_part, there=plan.there)
    control.activate(
        name="Activate", release=plan.release, ports=plan.settings.instance_ports, limit=plan.activation_limit
    )
