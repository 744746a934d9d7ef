"""An upgrade under load that is killed half-way and finished by the next run; and one that finds no room."""

from __future__ import annotations

import pytest

from tests.e2e.fleet import Fleet, Load, failed, still_serves

pytestmark = pytest.mark.target


def test_upgrade_killed_half_way_then_finished(fleet: Fleet) -> None:
    """Controller and rollout end by SIGKILL with one instance switched; no request fails then, nor in the next run."""
    old = fleet.state()["current"]
    with Load(fleet.gateway, "minilm") as load:
        with fleet.deploying(model_revision="v2") as deploy:
            fleet.until(f"systemctl is-active -q embedfleet-vllm@8000 && ! grep -q {old} /run/embedfleet-vllm/8000/release", 400)  # fmt: skip
            assert deploy.poll() is None
        fleet.kill_job("activate*")
        half = fleet.state()
        assert half["current"] != old
        assert half["rollout"]["from"] == old
        run = fleet.deploy(model_revision="v2")
        assert run.code == 0, run.err
    assert load.failures == [], load.failures[:3]
    state = fleet.state()
    still_serves(fleet, half["current"])
    assert state["previous"] == old
    again = fleet.pyinfra("deploy.py", "-y", "--json", model_revision="v2")
    assert (again.code, again.changed) == (0, []), again.err


def test_full_disk(fleet: Fleet) -> None:
    """A model that finds no room is an error with a cure, and the next run with room goes through."""
    fleet.on_target("mkdir -p /opt/embedfleet/work && mount -t tmpfs -o size=20m tmpfs /opt/embedfleet/work && install -d -o embedfleet-build /opt/embedfleet/work/home")  # fmt: skip
    try:
        failed(fleet, "no room on the disk", "make room", model_revision="master")
    finally:
        fleet.on_target("umount /opt/embedfleet/work")
