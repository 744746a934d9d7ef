"""Bad input and damage on a host that serves (v2, since the upgrade): told with a cure, and what serves goes on.

Not in `make test`, which these would make half as long again: `make test-all`.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.e2e.fleet import ROOT, Fleet, Load, failed, still_serves, wait

pytestmark = [pytest.mark.target, pytest.mark.fault]


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
    fleet.on_target(f"cd /opt/embedfleet && rm -rf {coming[1]} && mkdir {coming[1]} && cp -al current/env/. {coming[1]}/venv && touch {coming[1]}/.packages-ok")  # fmt: skip
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
        failed(fleet, "model_endpoint", "checksum differs", model_revision="master", model_retries=1)
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


def test_gateway_on_another_address_and_back(fleet: Fleet) -> None:
    """A reload cannot take such an address: nginx would go on with the old one and say nothing. The deploy sees it."""
    address = fleet.info["hosts"]["x86"]["ip"]
    dry = fleet.pyinfra("deploy.py", "--dry", "--json", gateway_host=address, model_revision="v2")
    assert dry.changed == ["Site | Files", "Gateway | Apply the configuration"], dry.err
    moved = fleet.pyinfra("deploy.py", "-y", "--json", gateway_host=address, model_revision="v2")
    assert (moved.code, moved.changed) == (0, dry.changed), moved.err
    assert f" {address}:8080 " in fleet.on_target("ss -Hltn")
    nowhere = fleet.deploy(gateway_host="192.0.2.1", model_revision="v2")
    assert nowhere.code == 1
    assert "192.0.2.1: Cannot assign requested address" in " ".join(nowhere.err.split())
    back = fleet.pyinfra("deploy.py", "-y", "--json", model_revision="v2")
    assert (back.code, back.changed) == (0, dry.changed), back.err
    assert " 0.0.0.0:8080 " in fleet.on_target("ss -Hltn")
