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
from tests.unit.hosts import HOSTS, UNDECIDED, lines

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


def pyinfra(path: Path, hosts: dict[str, dict[str, str]], *arguments: str, **more: Any) -> Run:
    """Run pyinfra against fake hosts that print these surveys."""
    inventory = []
    for name, sections in hosts.items():
        # Substrings of the commands, tried in this order.
        responses: dict[str, Any] = {"@@$1": lines(sections)}
        if "current" in sections:
            responses["state --probe"] = json.dumps(STATE)
        inventory.append((f"@fake/{name}", {**DATA, **more, "fake_responses": responses}))
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
        "FAILED @fake/bare-gh200 driver",
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
    assert run.err.count("is not pinned: the server's own checksums are trusted") == 1, "a warning is told once"


def test_one_refused_host_can_stop_all(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {name: FLEET[name] for name in ("fit", "graviton")}, "deploy.py", "-y", on_refused="stop")
    assert run.code == 1
    assert "Starting operation" not in run.err
    assert "nothing was changed" in run.err
    assert "@fake/graviton" in run.err[run.err.rindex("FAILED") :]


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


def test_a_host_that_is_well_is_no_failure(tmp_path: Path) -> None:
    run = pyinfra(tmp_path, {"deployed": FIT | {"current": "releases/0.32.0-bge-m3-old"}}, "status.py")
    assert run.code == 0, run.err + run.out
