"""vLLM, built from source with the platform's flags."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Engine")
def engine(plan: Plan) -> None:
    """Pinned tag, patches, locked packages, wheel: made beside what runs."""
    control.part(name="Build vLLM", part=plan.engine, there=plan.there)
