"""Uninstall on hosts where others live too: what is theirs stays, and what cannot be told stops it before anything goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.snapshot import difference, snapshot

pytestmark = [pytest.mark.target, pytest.mark.fault]


@pytest.fixture(scope="module")
def rhel(fleet: Fleet) -> Fleet:
    """The host with dnf, on which nothing of ours is."""
    return replace(fleet, target="rhel", runs=400)


@pytest.fixture(scope="module")
def half(rhel: Fleet) -> Iterator[Fleet]:
    """A deploy that was killed, on a host with a group of our account's name and a disk at our folder; then a package that needs ours."""
    before = snapshot(rhel)
    rhel.on_target(
        "groupadd -g 4711 embedfleet; mkdir /opt/embedfleet; mount -t tmpfs -o size=9g tmpfs /opt/embedfleet"
    )
    with rhel.deploying():
        rhel.until("systemctl -q is-active 'embedfleet-job-tools-*'", 300)
    rhel.on_target("dnf -q -y install site-web")
    yield rhel
    rhel.on_target("dnf -q -y remove site-web; umount /opt/embedfleet; rmdir /opt/embedfleet; groupdel embedfleet")
    assert difference(before, snapshot(rhel)) == []


def test_a_package_manager_that_does_not_answer_stops_it(half: Fleet) -> None:
    half.on_target("mv /usr/bin/rpm /usr/bin/rpm.gone")
    try:
        run = half.pyinfra("uninstall.py", "-y")
    finally:
        half.on_target("mv /usr/bin/rpm.gone /usr/bin/rpm")
    assert run.code == 1
    assert "does not tell what is installed; nothing was removed" in " ".join(run.err.split())
    assert half.on_target("cat /var/lib/embedfleet/packages.ours | wc -l") != "0", "the record stays"


def test_what_others_have_stays(half: Fleet) -> None:
    run = half.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    assert "kept, as others need them: nginx nginx-filesystem" in run.err
    assert "nginx" in half.on_target("rpm -q nginx site-web")
    assert half.on_target("rpm -q numactl", check=False) == "package numactl is not installed"
    assert half.on_target("getent group embedfleet") == "embedfleet:x:4711:"
    assert half.on_target("getent passwd embedfleet", check=False) == ""
    assert half.on_target("mountpoint -q /opt/embedfleet && ls -A /opt/embedfleet") == ""
    again = half.pyinfra("uninstall.py", "-y", "--json")
    assert (again.code, again.changed) == (0, []), again.err
