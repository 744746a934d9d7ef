"""The last word: real embeddings."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Verify")
def verify(plan: Plan) -> None:
    """From every instance and through the gateway; changes nothing."""
    control.verified(name="Right embeddings", release=plan.release)
