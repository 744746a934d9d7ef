"""Everything that a release is made of: tools, Python, vLLM, model. Each is made once and never changed."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import control
from embedfleet.plan import Plan


@deploy("Python")
def python(plan: Plan) -> None:
    """The host's own tools, and the conda environment from its lock."""
    control.part(name="Tools: py-rattler, modelscope, uv", part=plan.tools)
    control.part(name="Conda environment", part=plan.conda)


@deploy("Engine")
def engine(plan: Plan) -> None:
    """vLLM, built from source with the platform's flags."""
    control.part(name="Build vLLM", part=plan.engine)


@deploy("Model")
def model(plan: Plan) -> None:
    """The model, through ModelScope."""
    control.part(name="Fetch the model", part=plan.model)
