"""Hosts of every platform at once, by the tasks of production: Grace, POWER9, POWER10, RHEL; emulated, with the stand-in for vLLM.

The gates: a dry run on bare hosts; a deploy that is killed, uninstalled; the deploy again, a second one that changes nothing, verify;
uninstall. The hardware is presented (tests/targets/hardware.py), so what is proven is the way of the deploy, not a platform's speed.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.e2e.conftest import rig
from tests.e2e.fleet import Fleet, Load
from tests.e2e.snapshot import difference, snapshot

pytestmark = pytest.mark.target

ROWS = {"grace": "gh200", "power9": "power9", "power10": "power10", "rhel": "x86-cpu"}
NOTHING: dict[str, list[str]] = {name: [] for name in ROWS}
LIMIT = 1500  # seconds for a deploy of four hosts, three of them emulated


@pytest.fixture(scope="module")
def all_hosts(fleet: Fleet) -> Fleet:
    """The command, limited to these hosts."""
    return replace(fleet, others=tuple(ROWS), runs=200)


@pytest.fixture(scope="module")
def hosts(fleet: Fleet) -> dict[str, Fleet]:
    """Each of them."""
    return {name: replace(fleet, target=name) for name in ROWS}


def snapshots(hosts: dict[str, Fleet]) -> dict[str, set[str]]:
    with ThreadPoolExecutor() as pool:
        return dict(zip(hosts, pool.map(snapshot, hosts.values()), strict=True))


def test_a_target_can_present_another_machine(fleet: Fleet) -> None:
    """DGX Spark's GPU has neither memory nor ECC of its own; its row installs wheels, which is refused so far, and told."""
    rig("present", "grace", "gb10")
    try:
        spark = replace(fleet, target="grace", runs=190)
        run = spark.pyinfra("status.py", format="json", limit=120)
        [told] = json.loads(run.out)["hosts"].values()
        assert (told["platform"], told["health"]) == ("gb10", "not deployed")
        assert any("wheels are not installed" in reason for reason in told["refused"])
        query = "nvidia-smi --query-gpu=memory.total,ecc.mode.current,temperature.gpu --format=csv,noheader"
        assert spark.on_target(query) == "[N/A], [N/A], 41"
        rig("drive", "grace", "gpu/0/temperature.gpu", "91")
        assert spark.on_target(query) == "[N/A], [N/A], 91"
        rig("drive", "grace", "gpu/mode", "failed")
        run = spark.pyinfra("status.py", format="json", limit=120)
        [told] = json.loads(run.out)["hosts"].values()
        assert any("couldn't communicate with the NVIDIA driver" in reason for reason in told["refused"]), told
    finally:
        rig("present", "grace", "gh200")


@pytest.fixture(scope="module")
def bare(hosts: dict[str, Fleet]) -> dict[str, set[str]]:
    """What the hosts have before anything of ours comes."""
    return snapshots(hosts)


def test_dry_run_on_bare_hosts(all_hosts: Fleet, hosts: dict[str, Fleet], bare: dict[str, set[str]]) -> None:
    dry = all_hosts.pyinfra("deploy.py", "--dry", "--json", limit=300)
    assert dry.code == 0, dry.err
    assert len(dry.json["plan"]) == 13
    for name, row in ROWS.items():
        assert f"{hosts[name].host}  {row} (" in dry.err, dry.err
    assert {name: difference(bare[name], now) for name, now in snapshots(hosts).items()} == NOTHING


def test_uninstall_of_a_deploy_that_was_killed(
    all_hosts: Fleet, hosts: dict[str, Fleet], bare: dict[str, set[str]]
) -> None:
    """The controller is gone and its jobs are at work: all of it goes, and the deploy after that starts as on the first day."""
    with all_hosts.deploying():
        for host in hosts.values():
            host.until("systemctl -q is-active 'embedfleet-job-tools-*'", 300)
    uninstalled(all_hosts, hosts, bare)


def uninstalled(command: Fleet, hosts: dict[str, Fleet], before: dict[str, set[str]]) -> None:
    """Uninstall, and see that nothing is left."""
    run = command.pyinfra("uninstall.py", "-y", limit=600)
    assert run.code == 0, run.err
    left = {name: difference(before[name], now) for name, now in snapshots(hosts).items()}
    assert left == {name: [] for name in hosts}, json.dumps(left, indent=1)


def test_deploy(all_hosts: Fleet) -> None:
    run = all_hosts.pyinfra("deploy.py", "-y", limit=LIMIT)
    assert run.code == 0, run.err
    assert run.err.count(" right") >= 3 * len(ROWS)


def test_second_deploy_changes_nothing(all_hosts: Fleet) -> None:
    run = all_hosts.pyinfra("deploy.py", "-y", "--json", limit=300)
    assert (run.code, run.changed, run.json["results"]["failed_hosts"]) == (0, [], []), run.err


def test_verify(all_hosts: Fleet) -> None:
    run = all_hosts.pyinfra("verify.py", "-y", limit=300, format="json")
    assert run.code == 0, run.err
    told = json.loads(run.out)["hosts"]
    assert len(told) == len(ROWS)
    for host in told.values():
        assert [row["name"] for row in host["rows"]] == ["instance 8000", "instance 8001", "gateway 8080"]
        assert all(row["right"] for row in host["rows"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grace", {"VLLM_TARGET_DEVICE": "cuda", "TORCH_CUDA_ARCH_LIST": "9.0", "CUDA_HOME": "/usr/local/cuda-13.0"}),
        ("power9", {"VLLM_TARGET_DEVICE": "cpu", "CXXFLAGS": "-mcpu=power9 -mtune=power9", "kernels": "kernels of the stand-in"}),
        ("power10", {"VLLM_TARGET_DEVICE": "cpu", "CXXFLAGS": "-mcpu=power10 -mtune=power10"}),
        ("rhel", {"VLLM_TARGET_DEVICE": "cpu", "kernels": "kernels of the stand-in"}),
    ],
)  # fmt: skip
def test_each_platform_s_flags_reach_its_build(hosts: dict[str, Fleet], name: str, expected: dict[str, str]) -> None:
    built = json.loads(
        hosts[name].on_target("cat /opt/embedfleet/current/env/lib/python3.*/site-packages/vllm/_build.json")
    )
    assert expected.items() <= built.items()
    assert int(built["MAX_JOBS"]) >= 1


def test_instances_serve_under_the_production_unit(hosts: dict[str, Fleet]) -> None:
    """The kept flags of vLLM itself: the stand-in refuses what the pinned vLLM refuses, and took these."""
    for name, dtype in (("grace", "float16"), ("power9", "float32"), ("power10", "bfloat16")):
        line = hosts[name].on_target(
            "tr '\\0' ' ' </proc/$(systemctl show -p MainPID --value embedfleet-vllm@8000)/cmdline"
        )
        assert f"--runner pooling --dtype {dtype} " in line


def test_a_host_is_upgraded_under_load(fleet: Fleet, hosts: dict[str, Fleet]) -> None:
    """A rolling change on dnf's host: no request fails."""
    rhel = hosts["rhel"]
    with Load(rhel.gateway, "standin") as load:
        run = rhel.pyinfra("deploy.py", "-y", max_num_seqs=64, limit=LIMIT)
    assert run.code == 0, run.err
    assert load.failures == []
    assert load.done > 3


def test_uninstall_leaves_hosts_as_they_were(
    fleet: Fleet, all_hosts: Fleet, hosts: dict[str, Fleet], bare: dict[str, set[str]]
) -> None:
    """All of them, and the one that served with real vLLM in the tests before, if it was seen bare."""
    there = {**hosts, "x86": fleet} if fleet.bare else hosts
    command = replace(all_hosts, others=tuple(there), runs=300)
    uninstalled(command, there, {**bare, "x86": fleet.bare or set()})
    again = command.pyinfra("uninstall.py", "-y", "--json", limit=300)
    assert (again.code, again.changed) == (0, []), again.err
