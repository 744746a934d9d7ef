"""A GPU host that serves, and gets another driver: drained, rebooted, serving again. vLLM by its stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import on_demand
from tests.e2e.fleet import Load
from tests.e2e.server import Server
from tests.e2e.test_8_driver import KERNEL
from tests.targets.nvidia.specs import NEWER, OLDER

pytestmark = [pytest.mark.target, pytest.mark.fault]

#: How a request ends that was never taken on: nobody listens, or the host is away. Anything else was taken on and lost.
NOT_TAKEN = ("Connection refused", "No route to host", "timed out")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two H100, driver, CUDA and the stand-in for vLLM: the whole deploy."""
    with on_demand("gpu", Path(tmp_path_factory.mktemp("serving"))) as fleet:
        server = Server(fleet)
        server.prepare(KERNEL)
        server.archive("noble")
        run = fleet.deploy()
        assert run.code == 0, run.err
        assert server.loaded == OLDER
        server.archive("noble", "noble-updates")
        yield server


def test_never_changes_nothing_under_what_serves_on_nvswitches(serving: Server) -> None:
    fleet, boot = serving.fleet, serving.boot
    with Load(fleet.gateway, "standin") as load:
        run = fleet.deploy(driver_version="newest", reboot="never")
    assert run.code == 1
    assert "reboot is set to never" in " ".join(run.err.split())
    assert (load.failures, serving.boot, serving.loaded) == ([], boot, OLDER)
    # its packages would stop the Fabric Manager, and with it what runs on the GPUs
    assert OLDER in fleet.on_target("dpkg-query -W -f '${Version}' nvidia-utils-580-server")
    assert "right" in fleet.pyinfra("status.py", limit=120).out


def test_no_request_that_was_taken_on_is_lost(serving: Server) -> None:
    fleet, boot = serving.fleet, serving.boot
    with Load(fleet.gateway, "standin", clients=4) as load:
        run = fleet.deploy(driver_version="newest")
    assert run.code == 0, run.err
    assert serving.boot != boot
    assert (serving.loaded, serving.gpus) == (NEWER, 2)
    lost = [told for told in load.failures if not any(word in told for word in NOT_TAKEN)]
    assert lost == []
    assert load.done > 10
    again = fleet.pyinfra("deploy.py", "-y", "--json", driver_version="newest")
    assert (again.code, again.changed) == (0, []), again.err


def test_a_job_at_work_is_not_killed_by_a_reboot(serving: Server) -> None:
    fleet, boot = serving.fleet, serving.boot
    fleet.on_target("systemd-run -q --unit embedfleet-job-test sleep 600")
    try:
        told = serving.refused("embedfleet-job-test", "is at work", driver_branch=620)
    finally:
        fleet.on_target("systemctl stop embedfleet-job-test")
    assert "reboot" in told
    assert serving.boot == boot
    assert fleet.on_target("systemctl is-active embedfleet-gateway embedfleet-vllm@8000") == "active\nactive"
    run = fleet.deploy(driver_branch=620)
    assert run.code == 0, run.err
    assert serving.boot != boot
