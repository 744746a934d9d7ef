"""What serves: the gateway, and the release that its instances run."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Gateway")
def gateway(plan: Plan) -> None:
    """nginx in front of the instances."""
    control.gateway(name="Apply the gateway's configuration")


@deploy("Release")
def release(plan: Plan) -> None:
    """The release: put together, proven beside the running one, switched to instance by instance."""
    control.part(name="Put the release together", part=plan.release_part)
    limit = (plan.settings.start_timeout + plan.settings.drain_timeout + 120) * (len(plan.settings.instance_ports) + 1)
    control.activate(name="Activate the release", release=plan.release, limit=2 * limit)


@deploy("Verify")
def verify(plan: Plan) -> None:
    """Real embeddings from every instance and through the gateway."""
    control.verified(name="Right embeddings", release=plan.release)
