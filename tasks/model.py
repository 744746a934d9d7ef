"""The model, through ModelScope."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Model")
def model(plan: Plan) -> None:
    """Fetched with resume, checksummed file by file, switched in whole."""
    control.part(name="Fetch the model", part=plan.model, there=plan.there)
