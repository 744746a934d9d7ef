"""Which hosts may be changed and rebooted, when another one did not come through."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from pyinfra.api.state import StateStage

from embedfleet.operations import reboot
from embedfleet.operations.reboot import Reboots


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The host that a run is at."""
    found = SimpleNamespace(name="one", state=SimpleNamespace(current_stage=StateStage.Execute))
    monkeypatch.setattr(reboot, "host", found)
    reboot._begun.clear()
    yield found
    reboot._begun.clear()


def one(**more: object) -> Reboots:
    return Reboots(**{"when": "if_needed", "serving": True, "local": False, "timeout": 60} | more)  # type: ignore[arg-type]


def test_after_one_that_did_not_come_through_the_next_ones_are_left_alone(at: SimpleNamespace) -> None:
    one().began()
    at.name = "two"
    assert "one did not come through" in one().held_back()
    assert one(serving=False).held_back() == "", "a host that serves nothing holds nobody up and is held up by nobody"
    at.name = "one"
    one().done()
    at.name = "two"
    assert one().held_back() == ""


def test_asking_what_would_change_begins_nothing(at: SimpleNamespace) -> None:
    at.state.current_stage = StateStage.Prepare
    one().began()
    at.name = "two"
    assert one().held_back() == ""


def test_who_is_never_rebooted() -> None:
    assert one().refused() == ""
    assert "never" in one(when="never").refused()
    assert "controller itself" in one(local=True, when="always").refused()
