"""nginx in front of the instances."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Gateway")
def gateway(plan: Plan) -> None:
    """Runs with what is on disk: tested, then started or reloaded only when something differs."""
    control.gateway(name="Apply the configuration", inputs=plan.gateway_files)
