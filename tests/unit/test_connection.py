"""What is told of hosts that do not answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyinfra.api.state import StateStage

from embedfleet import report
from embedfleet.connection import Words


@pytest.mark.parametrize(("stage", "told"), [(StateStage.Connect, 1), (StateStage.Execute, 0)])
def test_a_host_that_reboots_is_no_problem(monkeypatch: pytest.MonkeyPatch, stage: StateStage, told: int) -> None:
    problems: list[object] = []
    monkeypatch.setattr(report, "add", problems.append)
    host = SimpleNamespace(name="a.example", data={})
    Words.host_connect_error(SimpleNamespace(current_stage=stage), host, "no answer")  # type: ignore[arg-type]
    assert len(problems) == told
