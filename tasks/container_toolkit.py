"""GPUs in containers, for whoever runs some beside the embedding servers; those need none."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import containers
from embedfleet.plan import Plan


@deploy("Container toolkit")
def container_toolkit(plan: Plan) -> None:
    """Packages of one version; runtimes that know it; devices that containers find, and keep."""
    if plan.containers:
        containers.current(name="Container toolkit", toolkit=plan.containers, system=plan.system)
