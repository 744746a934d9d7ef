"""The rig, once for all end-to-end tests, with a bare target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.fleet import ROOT, Fleet
from tests.e2e.snapshot import snapshot


def rig(*arguments: str) -> str:
    """A command of the rig; its output."""
    done = subprocess.run([sys.executable, "-m", "tests.targets.rig", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1800)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A running rig whose target is bare: nothing of ours was ever on it."""
    rig("up")
    if not os.environ.get("EMBEDFLEET_KEEP_TARGET"):  # for whoever works on one test: go on with what is there
        rig("reset")
    logs = Path(tmp_path_factory.mktemp("runs"))
    fleet = Fleet(json.loads(rig("info", "--json")), logs)
    fleet.heal()
    if not os.environ.get("EMBEDFLEET_KEEP_TARGET"):
        fleet.bare = snapshot(fleet)
    return fleet


@contextmanager
def on_demand(host: str, logs: Path) -> Iterator[Fleet]:
    """A bare target that runs while it is needed, and the mirror; other targets stay as they are."""
    rig("reset", host)
    try:
        fleet = Fleet(json.loads(rig("info", "--json")), logs, target=host)
        fleet.heal()
        yield fleet
    finally:
        rig("down", host)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server with two H100 and no driver."""
    with on_demand("gpu", Path(tmp_path_factory.mktemp("gpu"))) as fleet:
        yield fleet
