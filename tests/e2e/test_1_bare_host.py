"""On a bare host: a dry run that tells the truth and changes nothing, and every refusal before any change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, wait

pytestmark = pytest.mark.target

_SNAPSHOT = (
    "dpkg-query -W -f '${Package} ${Version}\n' | sort | sha256sum;"
    " find / -xdev -path /proc -prune -o -path /sys -prune -o -path /var/log -prune -o -type f -printf '%p %s %T@\n'"
    " | grep -v -e '^/var/lib/systemd/' -e '^/var/cache/' | sort | sha256sum;"
    " getent passwd | sha256sum; systemctl list-unit-files --no-legend | sha256sum"
)


@pytest.fixture(scope="module")
def bare(fleet: Fleet) -> str:
    """What the bare host looks like."""
    return fleet.on_target(_SNAPSHOT)


def test_dry_run_tells_every_change_and_makes_none(fleet: Fleet, bare: str) -> None:
    dry = fleet.pyinfra("deploy.py", "--dry", "--json")
    assert dry.code == 0, dry.err
    assert fleet.on_target(_SNAPSHOT) == bare
    assert len(dry.changed) == len(dry.json["plan"]) == 12
    for words in (
        "x86-cpu (x86_64, no NVIDIA GPU",
        "none -> 0.32.0-minilm-",
        "engine:    build vllm-0.32.0-cpu-",
        "nginx",
    ):
        assert words in dry.err


def refused(fleet: Fleet, bare: str, *words: str, **data: object) -> None:
    run = fleet.deploy(**data)
    assert run.code == 1, run.err
    told = " ".join(run.err[run.err.rindex("FAILED") :].split())
    for word in (fleet.host, "why:", "cure:", *words):
        assert word in told
    assert "Starting operation" not in run.err
    assert fleet.on_target(_SNAPSHOT) == bare


def test_misspelt_setting(fleet: Fleet, bare: str) -> None:
    refused(fleet, bare, "vllm_verison", "did you mean 'vllm_version'?", vllm_verison="0.32.0")


def test_wrong_type(fleet: Fleet, bare: str) -> None:
    refused(fleet, bare, "drain_timeout", "'soon'", drain_timeout="soon")


def test_unknown_platform(fleet: Fleet, bare: str) -> None:
    refused(fleet, bare, "platform", "'gh300' is no platform", "gh200", platform="gh300")


def test_port_of_another_program(fleet: Fleet) -> None:
    fleet.on_target("systemd-run --unit=squatter python3 -m http.server 8001 --bind 127.0.0.1 --directory /run")
    try:
        wait("the other program", lambda: "1F41" in fleet.on_target("cat /proc/net/tcp"), 20)
        run = fleet.deploy()
    finally:
        fleet.on_target("systemctl stop squatter")
    assert run.code == 1
    assert "instance_ports" in run.err
    assert "port 8001 is in use by" in run.err
    assert "Starting operation" not in run.err


def test_too_little_disk(fleet: Fleet) -> None:
    fleet.on_target("mount -t tmpfs -o size=64m tmpfs /opt")
    try:
        run = fleet.deploy()
    finally:
        fleet.on_target("umount /opt")
    assert run.code == 1
    assert "/opt has 0.1 GiB free, this deploy needs" in run.err
    assert "Starting operation" not in run.err


def test_host_that_cannot_be_reached(fleet: Fleet, tmp_path: Path) -> None:
    inventory = tmp_path / "lost.py"
    inventory.write_text('x86 = [("lost", {"ssh_hostname": "127.0.0.1", "ssh_port": 9})]\n')
    other = Fleet(fleet.info, fleet.logs, str(inventory))
    run = other.deploy()
    assert run.code == 1
    for word in ("lost", "ssh_hostname", "the host cannot be reached", "cure:"):
        assert word in run.err
