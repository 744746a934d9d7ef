"""How a host's failures are told, what counts as converged, and the table."""

from __future__ import annotations

from typing import Any

import pytest

from embedfleet import report
from embedfleet.operations.control import converged, failure_of
from embedfleet.problems import Problem, render


def test_failure_of_embedfleetctl_is_read_back() -> None:
    lines = [
        "noise",
        "embedfleetctl failed: vllm_patches",
        "x.patch does not apply",
        "  | error",
        "cure: make it again",
    ]
    problem = failure_of("h1", lines)
    assert problem == Problem("h1", "vllm_patches", "x.patch does not apply\n  | error", "make it again")


def test_other_failures_show_what_was_said() -> None:
    assert "Traceback" in failure_of("h1", ["Traceback", "ValueError"]).reason
    assert failure_of("h1", []).reason


STATE: dict[str, Any] = {
    "current": "r1",
    "rollout": None,
    "instances": [{"port": 8000, "active": "active", "enabled": True, "unit_current": True, "release": "r1"}],
    "gateway": {"applied": True, "out": {}},
}


def test_converged() -> None:
    assert converged(STATE, "r1", [8000])


@pytest.mark.parametrize(
    "change",
    [
        {"current": "r0"},
        {"rollout": {"from": "r0", "to": "r1"}},
        {"candidate": "r2"},
        {"instances": []},
        {"instances": [{**STATE["instances"][0], "release": "r0"}]},
        {"instances": [{**STATE["instances"][0], "active": "failed"}]},
        {"instances": [{**STATE["instances"][0], "enabled": False}]},
        {"instances": [{**STATE["instances"][0], "unit_current": False}]},
        {"instances": [*STATE["instances"], {**STATE["instances"][0], "port": 8001}]},
        {"gateway": {"applied": True, "out": {"8000": {"by": "rollout"}}}},
    ],
)
def test_not_converged(change: dict[str, Any]) -> None:
    assert not converged({**STATE, **change}, "r1", [8000])


def test_a_bare_host_is_not_converged() -> None:
    assert not converged({}, "r1", [8000])


def test_an_instance_that_a_person_took_out_stays_out() -> None:
    assert converged({**STATE, "gateway": {"applied": True, "out": {"8000": {"by": "anna"}}}}, "r1", [8000])


def test_table_shows_right_and_wrong() -> None:
    right = {"name": "instance 8000", "release": "r1", "right": True, "model": "m", "dimension": 3, "norm": 1.0,
             "near": 0.8, "far": 0.6, "seconds": 0.1}  # fmt: skip
    wrong = {"name": "gateway 8080", "release": "r1", "right": False, "error": "HTTP 502"}
    text = report.table({"h1": {"rows": [right, wrong]}}, {"h1": "x86-cpu"})
    assert "0.8000" in text
    assert "WRONG: HTTP 502" in text
    assert all(line.startswith(("host", "h1")) for line in text.splitlines())


def test_problems_end_with_the_fatal_ones() -> None:
    text = render([Problem("a", "s", "bad", "do x"), Problem("b", "t", "odd", "look", fatal=False)])
    assert text.index("warning") < text.index("FAILED")
    assert "do x" in text
