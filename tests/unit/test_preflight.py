"""Preflight, dry run and status over an inventory of hosts that the project does not have: the real pyinfra, fake connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.noop import _CHILD, ROOT
from embedfleet.status import status
from tests.unit.hosts import HOSTS, UNDECIDED, lines, survey

FIT = HOSTS["x86-cpu"] | {
    "os": HOSTS["x86-cpu"]["os"].replace("debian", "ubuntu").replace('"12"', '"24.04"'),
    "glibc": "glibc 2.39",
}
DATA = {"conda_lock": "pyproject.toml", "_sudo": False, "fake_delay": 0, "fake_delay_jitter": 0}
STATE = {
    "current": "0.32.0-bge-m3-old",
    "instances": [{"port": 8000, "active": "active", "release": "0.32.0-bge-m3-old"}],
    "gateway": {"applied": True, "out": {"8001": {"by": "anna"}}},
    "verify": {"rows": [{"name": "instance 8000", "right": True}]},
}


@dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        return " ".join(self.err.split())

    @property
    def commands(self) -> int:
        return int(json.loads(self.err.partition("COUNTS ")[2].splitlines()[0])["commands"])


def pyinfra(
    path: Path, hosts: dict[str, dict[str, str]], *arguments: str, cut: str = "", lost: bool = False, **more: Any
) -> Run:
    """Run pyinfra against fake hosts that print these surveys; that of `cut` fails, and one host cannot be reached."""
    inventory = []
    for name, sections in hosts.items():
        # Substrings of the commands, tried in this order.
        responses: dict[str, Any] = {"@@%s": lines(sections)}
        if "current" in sections:
            responses["state --probe"] = json.dumps(STATE)
        if name == cut:
            responses = {"@@%s": {"success": False, "stderr": "sudo: a password is required"}}
        inventory.append((f"@fake/{name}", {**DATA, **more, "fake_responses": responses}))
    if lost:
        inventory.append(("lost", {**DATA, "ssh_hostname": "127.0.0.1", "ssh_port": 9}))
    (path / "fakes.py").write_text(f"hosts = {inventory!r}\n")
    done = subprocess.run([sys.executable, "-c", _CHILD, str(path / "fakes.py"), *arguments], cwd=ROOT, env={**os.environ, "EMBEDFLEET_CACHE": str(path)}, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)  # fmt: skip
    return Run(done.returncode, done.stdout, done.stderr)


FLEET = {
    "fit": FIT,
    "graviton": UNDECIDED["Graviton4"][0],
    "bare-gh200": HOSTS["gh200 without a driver"],
    "ac922": HOSTS["power9"],
    "sick": FIT | {"uid": "1000", "glibc": "glibc 2.17", "disk": ""},
}


def test_a_dry_run_lists_all_problems_of_all_hosts_and_what_would_come(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, FLEET, "deploy.py", "--dry")
    assert run.code == 1
    for words in (
        "FAILED @fake/graviton platform what: undecided: Neoverse V2",
        "FAILED @fake/sick _sudo",
        "glibc 2.17 is older than 2.28",
        "warning @fake/ac922 platform why: 2 x V100 SXM2 16GB stays unused",
        "free space of /opt is unknown",
    ):
        assert words in run.words
    assert "@fake/fit  x86-cpu (x86_64, no NVIDIA GPU on the PCI bus)\n    release:   none -> 0.32.0-bge-m3-" in run.err
    assert "engine:    build vllm-0.32.0-cpu-" in run.err
    assert "restarts:  8000, 8001; reboot: no" in run.err


def test_what_is_refused_is_told_before_the_first_change_and_last(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {name: FLEET[name] for name in ("fit", "graviton")}, "deploy.py", "-y")
    assert run.code == 1
    first, last = run.err.index("FAILED   @fake/graviton"), run.err.rindex("FAILED   @fake/graviton")
    assert first < run.err.index("Starting operation") < last, "the others go on"
    assert run.err.count("is not pinned: ") == 1, "a warning is told once"


def test_one_refused_host_can_stop_all(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {name: FLEET[name] for name in ("fit", "graviton")}, "deploy.py", "-y", on_refused="stop")
    assert run.code == 1
    assert "Starting operation" not in run.err
    assert "nothing was changed" in run.err
    assert "@fake/graviton" in run.err[run.err.rindex("FAILED") :]


def test_stop_holds_when_hosts_do_not_wait_for_each_other(tmp_path: Path) -> None:
    fleet = {"ok": FIT, "ok2": FIT, "graviton": FLEET["graviton"]}
    run = pyinfra(tmp_path, fleet, "deploy.py", "-y", "--no-wait", on_refused="stop")
    assert run.code == 1
    assert "] Success" not in run.err


def test_a_survey_that_does_not_come_back_is_told_as_that(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {"cut": FIT, "fit": FIT}, "status.py", "--data", "format=json", cut="cut")
    found = json.loads(run.out)["hosts"]["@fake/cut"]
    assert "did not come back whole" in found["refused"][0]
    assert (found["platform"], found["driver"], found["health"]) == ("", "unknown", "unknown")


def test_what_many_hosts_share_is_told_once(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {f"h{n}": FIT | {"uid": "5"} for n in range(7)}, "deploy.py", "--dry")
    assert run.err.count("commands do not run as root") == 1
    assert "@fake/h0, @fake/h1, @fake/h2, @fake/h3, @fake/h4 and 2 more  _sudo" in run.err


@pytest.mark.parametrize("verb", [("deploy.py", "--dry", "--data", "max_num_seqs=x"), ("status.py",)])
def test_preflight_costs_few_remote_commands(tmp_path: Path, verb: tuple[str, ...]) -> None:
    assert pyinfra(tmp_path, {"fit": FIT}, *verb).commands <= 3


def test_status_for_people_and_programs(tmp_path: Path) -> None:
    deployed = FIT | {"current": "releases/0.32.0-bge-m3-old", "reboot": "linux-base"}
    hosts = {"deployed": deployed, "fit": FIT, "graviton": FLEET["graviton"], "gb10": HOSTS["gb10"]}
    told = pyinfra(tmp_path, hosts, "status.py")
    assert told.code == 1, "somebody has to look at it"
    assert "@fake/deployed  x86-cpu" in told.out
    assert "drift: release: the settings give 0.32.0-bge-m3-" in told.out
    assert "drift: instance 8001 is out of the gateway, by anna" in told.out
    assert "580.126.20 open" in told.out
    run = pyinfra(tmp_path, hosts, "status.py", "--data", "format=json")
    found = json.loads(run.out)["hosts"]
    assert found["@fake/deployed"]["health"] == "right"
    assert found["@fake/deployed"]["reboot"] == ["the system asks for it (linux-base)"]
    assert found["@fake/fit"]["health"] == "not deployed"
    assert found["@fake/graviton"]["refused"]
    assert found["@fake/graviton"]["platform"] == ""
    assert found["@fake/gb10"]["driver"] == "580.126.20 open"


@pytest.mark.parametrize("verb", [("status.py",), ("status.py", "-y", "--data", "format=json")])
def test_status_tells_hosts_that_cannot_be_reached(tmp_path: Path, verb: tuple[str, ...]) -> None:
    run = pyinfra(tmp_path, {"fit": FIT}, *verb, lost=True)
    assert run.code == 1
    assert "@fake/fit" in run.out
    if "-y" in verb:
        assert json.loads(run.out)["problems"][0]["host"] == "lost"
    else:
        assert "FAILED   lost  ssh_hostname" in run.err


@pytest.mark.parametrize("verb", ["status.py", "deploy.py"])
def test_programs_get_one_document_though_nobody_is_reached(tmp_path: Path, verb: str) -> None:
    run = pyinfra(tmp_path, {}, verb, "-y", "--data", "format=json", lost=True)
    assert run.code == 1
    assert json.loads(run.out)["problems"][0]["setting"] == "ssh_hostname"


def test_a_host_that_is_well_is_no_failure(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {"deployed": FIT | {"current": "releases/0.32.0-bge-m3-old"}}, "status.py")
    assert run.code == 0, run.err + run.out


@pytest.mark.parametrize(
    "control",
    [
        {"current": "x", "verify": {"rows": [{}]}},
        {"current": "x", "gateway": None},
        {"current": "x", "verify": [1]},
        {"current": "x", "instances": [{}]},
        {"current": "x", "instances": None},
        {"current": "x", "gateway": {"out": {"1": "bob"}}},
    ],
)
def test_an_odd_answer_of_the_host_is_unknown_health(control: dict[str, Any]) -> None:
    found = status("h1", "x86-cpu", survey("x86-cpu"), None, {}, control, [])
    assert "unknown" in found.health or "gateway" in found.health
    assert not found.well


def test_what_cannot_be_asked_is_not_called_not_deployed() -> None:
    deployed = survey("x86-cpu", current="releases/x")
    assert status("h1", "x86-cpu", deployed, None, {}, {}, []).health == "unknown"
    assert status("h1", "x86-cpu", survey("x86-cpu"), None, {}, {}, []).health == "not deployed"


def test_uninstall_wants_root_and_finds_nothing_to_do_on_a_clean_host(tmp_path: Path) -> None:
    fleet = {"clean": FIT, "sick": FIT | {"uid": "1000"}}
    run = pyinfra(tmp_path, fleet, "uninstall.py", "-y", vllm_verison="misspelt settings do not matter here")
    assert run.code == 1
    assert "FAILED @fake/sick _sudo why: commands do not run as root" in run.words
    assert "embedfleet: 0 changes" in run.err


@pytest.mark.parametrize("verb", ["status.py", "deploy.py", "uninstall.py"])
def test_a_run_that_means_no_host_does_not_end_well(tmp_path: Path, verb: str) -> None:
    run = pyinfra(tmp_path, {"fit": FIT}, verb, "-y", "--limit", "*nobody")
    assert run.code == 1
    assert "no host of this inventory is meant, so nothing was done" in run.words


def test_an_answer_that_is_not_enter_changes_nothing_and_does_not_end_well(tmp_path: Path) -> None:
    (tmp_path / "fakes.py").write_text(
        f"hosts = [('@fake/fit', { ({**DATA, 'fake_responses': {'@@%s': lines(FIT)}})!r})]\n"
    )
    done = subprocess.run([sys.executable, "-c", _CHILD, str(tmp_path / "fakes.py"), "deploy.py"], cwd=ROOT, input="y\n", env={**os.environ, "EMBEDFLEET_CACHE": str(tmp_path)}, capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 1
    assert "nothing was changed, as the answer was not Enter" in done.stderr
