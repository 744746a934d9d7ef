"""A machine as the image has it, once for all tests, and the pyinfra command against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.targets.host import lock
from tests.targets.naming import CHECKOUT, names
from tests.targets.vm.machine import Machine

PYINFRA = str(Path(sys.executable).parent / "pyinfra")
SETTINGS = "tests/vm/deploy_settings.py"


@dataclass
class Run:
    """How a pyinfra run ended."""

    code: int
    text: str


@dataclass
class Deploys:
    """pyinfra runs on the machine."""

    machine: Machine
    script: str = SETTINGS

    def words(self, *data: str) -> list[str]:
        more = [word for pair in data for word in ("--data", pair)]
        return [PYINFRA, "inventory/vm.py", self.script, "-y", *more]

    def run(self, *data: str, limit: float = 900) -> Run:
        """One run, to its end."""
        done = subprocess.run(
            self.words(*data),
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
        return Run(done.returncode, done.stdout)


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A new machine, which goes with the tests; with EMBEDFLEET_KEEP_TARGET the one that is there, which stays."""
    machine, keep = Machine(names()), bool(os.environ.get("EMBEDFLEET_KEEP_TARGET"))
    with lock(f"vm-{machine.rig.rig}"):
        if not keep:
            machine.down()
        machine.up()
    yield machine
    if not keep:
        machine.down()


@pytest.fixture(scope="session")
def deploys(machine: Machine) -> Deploys:
    return Deploys(machine)
