"""embedfleet on a machine that boots: its units come up by themselves, in order, and a deploy afterwards has nothing to do.

vLLM is the stand-in (docs/testing.md); the mirror has to be up for arm64, which the fixture sees to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.targets.naming import CHECKOUT
from tests.targets.vm.machine import Machine
from tests.targets.vm.state import POWER_CUT, REBOOT
from tests.vm.conftest import Deploys
from tests.vm.test_vm import causes, changed

pytestmark = pytest.mark.vm

LIMIT = 2400  # seconds; all of it is emulated


@pytest.fixture(scope="module")
def serving(machine: Machine) -> Deploys:
    """The deploy of embedfleet, against a mirror that has what an arm64 host fetches."""
    command = [sys.executable, "-m", "tests.targets.rig", "mirror", "grace"]
    subprocess.run(command, cwd=CHECKOUT, check=True, timeout=1800, stdin=subprocess.DEVNULL)
    machine.up()  # again, if it was stopped; it learns the mirror's name
    return replace(Deploys(machine), script="deploy.py")


def right(machine: Machine) -> bool:
    """Whether the machine serves right embeddings, with nobody's help since it booted."""
    machine.ssh(
        "timeout 600 sh -c 'until systemctl is-active -q embedfleet-vllm@8000 embedfleet-vllm@8001 embedfleet-gateway;"
        " do sleep 2; done'",
        limit=660,
    )
    found: dict[str, object] = json.loads(machine.ssh("/opt/embedfleet/bin/embedfleetctl verify --json", limit=120))
    return bool(found["right"])


def test_deploy(machine: Machine, serving: Deploys) -> None:
    before = causes(machine)
    run = serving.run(limit=LIMIT)
    assert run.code == 0, run.text
    assert right(machine)
    assert causes(machine) == before, "a deploy without a driver needs no reboot"


@pytest.mark.parametrize("cause", [REBOOT, POWER_CUT])
def test_it_serves_again_after_a_boot_and_a_deploy_changes_nothing(
    machine: Machine, serving: Deploys, cause: str
) -> None:
    before = causes(machine)
    machine.reboot() if cause == REBOOT else machine.cut()
    assert right(machine)
    run = serving.run(limit=LIMIT)
    assert (run.code, changed(run.text)) == (0, 0), run.text
    assert causes(machine) == [*before, cause]


def test_uninstall_and_a_boot_without_it(machine: Machine, serving: Deploys) -> None:
    run = replace(serving, script="uninstall.py").run(limit=LIMIT)
    assert run.code == 0, run.text
    machine.reboot()
    assert machine.ssh("systemctl is-system-running", check=False) == "running", machine.ssh("systemctl --failed")
    assert machine.ssh("ls -d /opt/embedfleet /var/lib/embedfleet 2>/dev/null; systemctl list-units --plain --no-legend 'embedfleet*'", check=False) == ""  # fmt: skip
