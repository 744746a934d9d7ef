"""Upgrades under load: one that is right, one that is killed half-way, and those that must not go through."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.e2e.fleet import ROOT, Fleet, Load, wait

pytestmark = pytest.mark.target


def still_serves(fleet: Fleet, release: str) -> None:
    """What ran before runs on: right, current, with nothing left over of the attempt."""
    state = fleet.state()
    assert state["current"] == release
    assert state["rollout"] is None
    assert {i["release"] for i in state["instances"]} == {release}
    assert state["gateway"] == {"applied": True, "out": {}}
    assert not fleet.active("embedfleet-candidate@*")
    found = json.loads(fleet.on_target("/opt/embedfleet/bin/embedfleetctl verify --json"))
    assert found["right"], found


def failed(fleet: Fleet, *words: str, **data: object) -> str:
    """Deploy, which must fail with these words in its last report, and leave what ran before."""
    before = fleet.state()["current"]
    run = fleet.deploy(**data)
    assert run.code == 1, run.err
    told = " ".join(run.err[run.err.rindex("FAILED") :].split())  # as wrapped lines break phrases anywhere
    for word in (fleet.host, "why:", "cure:", *words):
        assert word in told, told
    still_serves(fleet, before)
    return told


def _patches(fleet: Fleet, tmp_path: Path, text: str) -> list[dict[str, str]]:
    ours = ROOT / "files/patches/vllm-0.32.0-cpu-extra-kernels.patch"
    extra = tmp_path / "extra.patch"
    extra.write_text(text)
    return [{"file": str(p), "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in (ours, extra)]


def test_patch_that_does_not_apply(fleet: Fleet, tmp_path: Path) -> None:
    patch = "--- a/setup.py\n+++ b/setup.py\n@@ -1,3 +1,3 @@\n never\n-was\n+is\n here\n"
    failed(
        fleet,
        "vllm_patches",
        "extra.patch does not apply to vLLM 0.32.0",
        vllm_patches=_patches(fleet, tmp_path, patch),
    )


def test_build_that_fails(fleet: Fleet) -> None:
    """Its last lines are shown, the full log is named, and what runs goes on running."""
    wish = {"vllm_build_env": {"VLLM_REQUIRE_RUST_FRONTEND": "1"}}
    coming = re.search(r"make (engines/\S+)", fleet.pyinfra("deploy.py", "--dry", **wish).err)
    assert coming
    # As an interrupted run leaves it: the packages are there. (To install them again takes longer than all the rest.)
    fleet.on_target(f"cd /opt/embedfleet && mkdir {coming[1]} && cp -al current/env/. {coming[1]}/venv && touch {coming[1]}/.packages-ok")  # fmt: skip
    told = failed(fleet, "the build of vLLM 0.32.0 failed", "rust", **wish)
    log = told[told.index("/var/log/embedfleet/engines-") :].split()[0].rstrip(".")
    assert "ust" in fleet.on_target(f"cat {log}")


def test_moved_tag(fleet: Fleet) -> None:
    failed(fleet, "vllm_commit", "the tag was moved", vllm_commit="f" * 40)


def test_model_file_with_another_checksum(fleet: Fleet) -> None:
    told = failed(fleet, "model_sha256", "config.json", model_sha256={"config.json": "0" * 64})
    assert "expected " + "0" * 64 in told


def test_model_damaged_on_its_way(fleet: Fleet) -> None:
    fleet.fault("FilePath=model.safetensors", "corrupt", after_bytes=1_000_000)
    try:
        failed(fleet, "model_endpoint", "checksum differs", model_revision="v2", model_retries=1)
    finally:
        fleet.heal()


def test_wrong_vectors_never_take_traffic(fleet: Fleet) -> None:
    """The release starts and answers, but wrong: proven wrong on the side port, under load, nobody noticed."""
    with Load(fleet.gateway, "minilm") as load:
        told = failed(fleet, "side port 8900", model_revision="wrong", model_sha256={})
    assert "similarit" in told
    assert load.failures == []
    assert load.done > 20


def test_upgrade_while_a_person_holds_an_instance_out(fleet: Fleet) -> None:
    """With one of two out, a rollout would answer nobody: it is refused, and tells who holds it."""
    ctl = "/opt/embedfleet/bin/embedfleetctl gateway"
    before = fleet.state()["current"]
    fleet.on_target(f"{ctl} out 8001 --by anna --reason 'a look'")
    with Load(fleet.gateway, "minilm") as load:
        run = fleet.deploy(max_num_seqs=64)
        seen = load.done
        wait("answers", lambda: load.done > seen + 3, 60)
    fleet.on_target(f"{ctl} in 8001")
    assert run.code == 1
    assert "8001 by anna (a look); switching 8000 would leave nobody to answer" in " ".join(run.err.split())
    assert load.failures == []
    still_serves(fleet, before)


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
