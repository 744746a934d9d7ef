"""The deploy: killed while it builds and while it fetches, cut off by the model server, and converged all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, Load, wait
from tests.e2e.snapshot import difference, snapshot
from tests.targets.info import host_data

pytestmark = pytest.mark.target

_WEIGHTS = "FilePath=model.safetensors"


def test_uninstall_of_a_deploy_that_was_killed(fleet: Fleet) -> None:
    """Half of it is there and its job at work: all of it goes. What follows is the deploy again."""
    if fleet.bare is None:
        pytest.skip("the target was not seen bare (EMBEDFLEET_KEEP_TARGET)")
    with fleet.deploying():
        fleet.until("systemctl -q is-active 'embedfleet-job-engines-*'", 300)
    run = fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    assert difference(fleet.bare, snapshot(fleet)) == []


def test_killed_while_building(fleet: Fleet) -> None:
    """Controller and build both end by SIGKILL; what is finished stays, what is half done is not taken for finished."""
    with fleet.deploying() as deploy:
        fleet.until('grep -qs "wheel: building" /var/log/embedfleet/engines-*.log', 400)
        assert deploy.poll() is None, "the deploy ended before it built"
    assert fleet.active("embedfleet-job-engines-*"), "a build outlives its controller"
    fleet.kill_job("engines-*")
    assert fleet.on_target("ls /opt/embedfleet/engines/*/manifest.json", check=False) == ""


def test_model_server_goes_away_half_way(fleet: Fleet) -> None:
    """The run fails with a cure, nothing half-fetched is served, and the next run resumes where this one stopped."""
    fleet.heal()
    fleet.fault(_WEIGHTS, "cut", after_bytes=30_000_000, count=1)
    fleet.fault(_WEIGHTS, "503")
    run = fleet.deploy(model_retries=1)
    assert run.code == 1
    told = run.err[run.err.rindex("FAILED") :]
    for word in ("model_endpoint", "why:", "cure:", "it resumes"):
        assert word in told
    assert fleet.on_target("ls /opt/embedfleet/models", check=False) == ""
    assert fleet.on_target("ls /opt/embedfleet/engines/*/manifest.json"), (
        "the build of the killed run went on and is finished"
    )


def test_killed_while_fetching(fleet: Fleet) -> None:
    fleet.heal()
    fleet.fault(_WEIGHTS, "slow", rate=2_000_000)
    with fleet.deploying() as deploy:
        fleet.until('systemctl -q is-active "embedfleet-job-models-*"', 60)
        assert deploy.poll() is None
    fleet.kill_job("models-*")
    assert fleet.on_target("ls /opt/embedfleet/models", check=False) == ""


def test_converges_and_resumes(fleet: Fleet) -> None:
    fleet.heal()
    run = fleet.deploy()
    assert run.code == 0, run.err
    assert run.err.count(" right") >= 3
    ranges = [entry for entry in fleet.mirror_log() if _WEIGHTS in entry["path"] and entry.get("range")]
    assert ranges, "the download went on where it had stopped"


def test_revision_that_is_not_there(fleet: Fleet) -> None:
    run = fleet.deploy(model_revision="v9")
    assert run.code == 1
    assert "there is no such model or revision" in " ".join(run.err.split())
    assert " model_revision" in run.err[run.err.rindex("FAILED") :]


def test_second_run_changes_nothing(fleet: Fleet) -> None:
    dry = fleet.pyinfra("deploy.py", "--dry", "--json")
    assert (dry.code, dry.changed) == (0, []), dry.err
    run = fleet.pyinfra("deploy.py", "-y", "--json")
    assert (run.code, run.changed, run.json["results"]["failed_hosts"]) == (0, [], []), run.err
    assert "embedfleet: 0 changes" in run.err


def test_over_ssh_nothing_changes_and_little_is_asked(fleet: Fleet) -> None:
    from bench.noop import run

    found = run(["inventory/docker.py", "--limit", "*x86", "deploy.py"], env={"EMBEDFLEET_TRANSPORT": "ssh"})
    assert (found["code"], found["changed"], found["uploads"]) == (0, [], 0), found["stderr"]
    assert found["commands"] <= 20


def test_drift_is_repaired_by_an_operator_with_sudo(fleet: Fleet, tmp_path: Path) -> None:
    """Over ssh, as a user who may only sudo: what others changed is put right, and only that."""
    key = Path(fleet.info["ssh"]["key"]).with_suffix(".pub").read_text().strip()
    fleet.on_target(
        "id ops 2>/dev/null || useradd -m -s /bin/bash ops; install -d -m 700 -o ops ~ops/.ssh;"
        f" echo '{key}' > ~ops/.ssh/authorized_keys; chown ops ~ops/.ssh/authorized_keys;"
        " echo 'ops ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops"
    )
    reach = {
        "ssh_hostname": fleet.info["hosts"]["x86"]["ip"],
        "ssh_user": "ops",
        "ssh_key": fleet.info["ssh"]["key"],
        "ssh_known_hosts_file": fleet.info["ssh"]["known_hosts"],
        "_sudo": True,
        **host_data(fleet.info, "x86"),
    }
    (tmp_path / "docker.py").write_text(f"x86 = [('x86', {reach!r})]\n")  # the name chooses group_data/docker.py
    ops = Fleet(fleet.info, fleet.logs, str(tmp_path / "docker.py"), runs=50)
    fleet.on_target(
        "echo '# by hand' >> /etc/embedfleet/nginx.conf; chmod 600 /etc/embedfleet/host.json;"
        " chmod 777 /opt/embedfleet/models; systemctl stop embedfleet-gateway;"
        " DEBIAN_FRONTEND=noninteractive apt-get remove -qq -y numactl"
    )
    run = ops.pyinfra("deploy.py", "-y", "--json")
    assert run.code == 0, run.err
    assert run.changed == [
        "Site | Files",
        "Site | Accounts and directories",
        "Site | Packages",
        "Gateway | Apply the configuration",
    ]
    again = ops.pyinfra("deploy.py", "-y", "--json")
    assert (again.code, again.changed) == (0, []), again.err
    assert fleet.on_target("ls /var/tmp | grep pyinfra", check=False) == ""
    fleet.on_target("userdel -r ops 2>/dev/null; rm /etc/sudoers.d/ops")


def test_verify_for_programs(fleet: Fleet) -> None:
    run = fleet.pyinfra("verify.py", "-y", format="json")
    assert run.code == 0, run.err
    told = json.loads(run.out)
    [host] = told["hosts"].values()
    assert [row["name"] for row in host["rows"]] == ["instance 8000", "instance 8001", "gateway 8080"]
    assert all(row["right"] and row["dimension"] == 384 and row["near"] > row["far"] for row in host["rows"])


def test_status_for_programs(fleet: Fleet) -> None:
    run = fleet.pyinfra("status.py", format="json")
    [host] = json.loads(run.out)["hosts"].values()
    assert (run.code, host["platform"], host["health"], host["drift"], host["refused"]) == (
        0,
        "x86-cpu",
        "right",
        [],
        [],
    )
    assert host["well"]


def test_least_exposure(fleet: Fleet) -> None:
    """Hardened units, localhost only, only the embedding routes, nothing writable by who serves."""
    scores = dict(
        line.split()[:2]
        for line in fleet.on_target("systemd-analyze security --no-pager").splitlines()
        if line.startswith("embedfleet")
    )
    assert {name: float(score) <= 2.5 for name, score in scores.items()} == dict.fromkeys(
        ["embedfleet-gateway.service", "embedfleet-vllm@8000.service", "embedfleet-vllm@8001.service"], True
    )
    uid = fleet.on_target("id -u embedfleet")
    listens = [line.split() for line in fleet.on_target("ss -Hltne").splitlines() if f"uid:{uid} " in line]
    assert {cells[3] for cells in listens if not cells[3].startswith("127.0.0.1:")} == {"0.0.0.0:8080"}
    for path, status in (
        ("/metrics", "404"),
        ("/tokenize", "404"),
        ("/docs", "404"),
        ("/health", "200"),
        ("/v1/models", "200"),
    ):
        assert fleet.on_target(f"curl -s -o /dev/null -w '%{{http_code}}' http://127.0.0.1:8080{path}") == status
    assert (
        fleet.on_target(
            "find /opt/embedfleet/releases /opt/embedfleet/engines /opt/embedfleet/models -not -user root | head"
        )
        == ""
    )


def test_site_certificates_are_trusted(fleet: Fleet) -> None:
    for path in fleet.info["site_ca"]:
        fleet.on_target(f"openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt <<'E'\n{Path(path).read_text()}\nE")


def test_what_was_changed_and_loaded_by_hand_is_put_right(fleet: Fleet) -> None:
    """Not on disk alone: nginx is told to read again what it had read wrong."""
    fleet.on_target(
        "sed -i 's|location / { return 404; }|location = /metrics { proxy_pass http://instances; }|' /etc/embedfleet/nginx.conf"
        " && systemctl reload embedfleet-gateway"
    )
    asked = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/metrics"
    wait("the wrong configuration", lambda: fleet.on_target(asked) == "200", 20)
    run = fleet.pyinfra("deploy.py", "-y", "--json")
    assert (run.code, run.changed) == (0, ["Site | Files", "Gateway | Apply the configuration"]), run.err
    assert fleet.on_target(asked) == "404"


def test_a_person_takes_an_instance_out_and_puts_it_back(fleet: Fleet) -> None:
    ctl = "/opt/embedfleet/bin/embedfleetctl gateway"
    with Load(fleet.gateway, "minilm") as load:
        fleet.on_target(f"{ctl} out 8000 --by anna --reason 'a look'")
        status = json.loads(fleet.on_target(f"{ctl} status"))
        assert (status["8000"]["in"], status["8000"]["by"], status["8000"]["load"]) == (False, "anna", 0)
        assert "is the last instance" in fleet.on_target(f"{ctl} out 8001 2>&1; true")
        run = fleet.pyinfra("deploy.py", "-y", "--json")
        assert (run.code, run.changed) == (0, []), "what a person took out is no drift"
        fleet.on_target(f"{ctl} in 8000")
        before = load.done
        wait("requests", lambda: load.done > before + 5, 60)
    assert load.failures == []
