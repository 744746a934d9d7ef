"""The host's own tools, and the interpreter of engines: a conda environment, exactly as locked."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Conda")
def conda(plan: Plan) -> None:
    """py-rattler, modelscope and uv from their lock; then the conda environment from its own."""
    control.part(name="Tools: py-rattler, modelscope, uv", part=plan.tools, there=plan.there)
    control.part(name="Environment from the lock", part=plan.conda, there=plan.there)
