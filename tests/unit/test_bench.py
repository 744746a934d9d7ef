"""The comparison's pure parts: statistics, the playbook's inputs, and what its output says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import compare
from bench.compare import Run
from embedfleet.facts.cpu import Cpu
from embedfleet.facts.survey import Survey
from embedfleet.plan import Plan, make_plan
from embedfleet.platforms import PLATFORMS
from embedfleet.settings import Settings
from embedfleet.sources import read

ROOT = Path(__file__).parents[2]
SURVEY = Survey(machine="x86_64", os_id="debian", os_version="12", cpu=Cpu(count=2), available_mib=20000, pci=())
PLAY = """
PLAY [Make a host an embedding server] *****************************************

TASK [Accounts] ****************************************************************
ok: [x86] => (item=embedfleet)

TASK [Files] *******************************************************************
ok: [x86] => (item=/etc/embedfleet/host.json)
changed: [x86] => (item=/etc/embedfleet/nginx.conf)
changed: [x86] => (item=/etc/sysusers.d/embedfleet.conf) => {"changed": true}

TASK [Apply the gateway's configuration] ***************************************
changed: [x86]

PLAY RECAP *********************************************************************
x86                        : ok=3    changed=2    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
""".splitlines()


@pytest.fixture(scope="module")
def plan() -> Plan:
    platform = PLATFORMS["x86-cpu"]
    settings = Settings(conda_lock="pyproject.toml", model_id="sentence-transformers/all-MiniLM-L6-v2")
    return make_plan("h1", settings, platform, SURVEY, read("h1", settings, platform, ROOT))


def ran(tool: str, seconds: float, **more: Any) -> Run:
    return Run(tool, more.pop("code", 0), 8, more.pop("changed", ()), seconds, **more)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([2.0], (2.0, 2.0, 2.0)), ([3.0, 1.0, 2.0], (1.0, 2.0, 3.0)), ([4.0, 1.0, 2.0, 2.5], (1.0, 2.25, 4.0))],
)
def test_summary(seconds: list[float], expected: tuple[float, float, float]) -> None:
    assert tuple(compare.summary(seconds).values()) == expected


def test_ratio_is_of_the_medians() -> None:
    runs = [ran("embedfleet", 2.0), ran("Ansible", 20.0), ran("embedfleet", 2.2), ran("Ansible", 90.0)]
    runs += [ran("embedfleet", 1.0), ran("Ansible", 10.0)]
    assert compare.ratio(runs) == 10.0
    assert "10.0 times" in compare.text(runs)


@pytest.mark.parametrize(("more", "good"), [({}, True), ({"code": 2}, False), ({"changed": ("Files",)}, False)])
def test_a_run_is_good_when_it_ended_well_and_changed_nothing(more: dict[str, Any], good: bool) -> None:
    assert ran("Ansible", 1.0, **more).good is good


def test_what_a_playbook_says() -> None:
    counts = compare.recap(PLAY)
    assert counts is not None
    assert (counts["ok"], counts["changed"], counts["failed"]) == (3, 2, 0)
    assert compare.changes(PLAY) == (
        "Files: /etc/embedfleet/nginx.conf",
        "Files: /etc/sysusers.d/embedfleet.conf",
        "Apply the gateway's configuration",
    )
    assert compare.recap(["ERROR! the playbook could not be found"]) is None


def test_seconds_of_tasks() -> None:
    stamped = [(float(at), line) for at, line in enumerate(PLAY)]
    assert compare.durations(stamped) == (("Accounts", 3.0), ("Files", 5.0), ("Apply the gateway's configuration", 3.0))


def test_accounts_are_those_that_the_deploy_declares(plan: Plan, tmp_path: Path) -> None:
    home = {"home": "/nonexistent", "shell": "/usr/sbin/nologin"}
    assert compare.variables(plan, tmp_path)["accounts"] == [
        {"name": "embedfleet", "comment": "embedfleet service", **home},
        {"name": "embedfleet-build", "comment": "embedfleet builds", **home},
    ]


def test_the_playbook_gets_the_whole_plan(plan: Plan, tmp_path: Path) -> None:
    compare.write_inputs(plan, tmp_path)
    given = json.loads((tmp_path / "vars.json").read_text())
    assert [(f["path"], f["mode"], f["owner"], f["group"]) for f in given["managed_files"]] == [
        (f.path, f.mode, f.owner, f.group) for f in plan.files
    ]
    for file in plan.files:
        assert (tmp_path / f"files{file.path}").read_text() == file.content
    for part in plan.parts:
        assert json.loads((tmp_path / f"specs/{part.kind}-{part.id}.json").read_text()) == part.spec
    assert [f"{part['kind']}/{part['id']}" for part in given["parts"]] == [repr(part) for part in plan.parts]
    assert (given["packages"], given["release"]) == (list(plan.system.packages), plan.release)
    folders = [folder["path"] for folder in given["directories"]]
    assert set(plan.directories) <= set(folders)
    for file in given["managed_files"]:
        parent = str(Path(file["path"]).parent)
        assert parent in folders or parent in compare.STANDARD
    assert all(folders.index(path) < folders.index(f"{path}/make") for path in folders if f"{path}/make" in folders)


def test_the_inventory_is_what_pyinfra_gets() -> None:
    info = {
        "hosts": {"x86": {"container": "c", "ip": "192.0.2.7", "arch": "amd64"}},
        "ssh": {"user": "root", "key": "/a b/key", "known_hosts": "/a b/known_hosts"},
    }
    host = compare.inventory(info)["all"]["hosts"]["x86"]
    assert (host["ansible_host"], host["ansible_user"]) == ("192.0.2.7", "root")
    words = shlex.split(host["ansible_ssh_common_args"])
    assert words == ["-o", 'UserKnownHostsFile="/a b/known_hosts"', "-o", "StrictHostKeyChecking=yes"]


def test_the_playbook_uses_only_what_it_is_given(plan: Plan, tmp_path: Path) -> None:
    [play] = yaml.safe_load((compare.HERE / "playbook.yml").read_text())
    modules = {key for task in play["tasks"] for key in task if "." in key}
    assert all(module.startswith("ansible.builtin.") for module in modules)
    given = set(compare.variables(plan, tmp_path)) | set(play["vars"])
    registered = {task["register"] for task in play["tasks"] if "register" in task}
    loops = {task["loop"].strip("{} ") for task in play["tasks"] if "loop" in task}
    assert loops <= given | registered
