"""The container toolkit on a host with Debian's real docker: the mirror's stand-ins for packages, real apt, dockerd and systemd."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet, Run
from tests.e2e.snapshot import difference, snapshot

pytestmark = [pytest.mark.target, pytest.mark.fault]

NAME = "Container toolkit | Container toolkit"
NVIDIA = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
#: The target may not make networks and overlays; as flags, so that there is no daemon.json to begin with.
FLAGS = "--iptables=false --bridge=none --storage-driver=vfs"
PROGRAMS = "nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1"
DAEMON = "/etc/docker/daemon.json"
LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"

# A docker client that answers as version 27.5 does, of the real daemon: CDI is on once the daemon was started with it. Containers
# cannot be run in a target, so `run` tells what it was asked for, and ends as /run/fake/rc says.
CLIENT = r"""#!/bin/sh
real=/usr/bin/docker; pid=$(systemctl show -p MainPID --value docker.service)
case "$1 $2 $4" in
  "info --format "*)
    dirs='[]'; grep -qs '"cdi": true' /etc/docker/daemon.json && [ "$pid" != "$(cat /run/fake/pid)" ] && dirs='["/etc/cdi","/var/run/cdi"]'
    $real "$@" | sed "s|\"ServerVersion\":\"[^\"]*\"|\"ServerVersion\":\"27.5.1\",\"CDISpecDirs\":$dirs|" ;;
  "ps "*) cat /run/fake/running ;;
  "image inspect "*) exit 0 ;;
  "rm "*) ;;
  "run "*) echo "$@" >/run/fake/asked; [ -e /run/fake/rc ] && { echo "unresolvable CDI devices nvidia.com/gpu=all"; exit 125; }
    echo "GPU 0: NVIDIA H200 (UUID: GPU-0)" ;;
  *) exec $real "$@" ;;
esac
"""


class Host:
    """The target, with the settings of a host that has GPUs."""

    def __init__(self, fleet: Fleet, kind: str = "apt") -> None:
        self.fleet = fleet
        repos = fleet.info["repos"]
        self.containerd = ""  # checksum of its configuration
        self.settings = {
            "container_toolkit": "install",
            "container_toolkit_url": repos[kind]["libnvidia-container"],
            "container_toolkit_key_fingerprints": [repos["keys"]["fingerprints"]["good"]],
            "allow_http_repositories": True,
            "vllm_requirements": "files/locks/engine-0.32.0-cpu-x86_64.lock",
        }

    def deploy(self, **settings: object) -> Run:
        return self.fleet.pyinfra("tests/e2e/toolkit_deploy.py", "-y", "--json", **(self.settings | settings))

    def ok(self, **settings: object) -> Run:
        run = self.deploy(**settings)
        assert run.code == 0, run.err
        return run

    def unchanged(self, **settings: object) -> Run:
        run = self.ok(**settings)
        assert run.changed == [], run.err
        return run

    def refused(self, *words: str, **settings: object) -> str:
        run = self.deploy(**settings)
        assert run.code == 1, run.err
        told = " ".join(run.err[run.err.rindex("FAILED") :].split())
        for word in (*words, "why:", "cure:"):
            assert word in told, told
        return told

    def on(self, command: str, check: bool = True) -> str:
        return self.fleet.on_target(command, check=check)

    def write(self, path: str, text: str, mode: str = "644") -> None:
        folder = path.rpartition("/")[0]
        self.on(f"mkdir -p {folder}; printf %s {shlex.quote(text)} >{path}; chmod {mode} {path}")

    def versions(self) -> set[str]:
        return set(self.on(f"dpkg-query -W -f '${{db:Status-Abbrev}}${{Version}}\\n' {PROGRAMS}").splitlines())

    def pid(self) -> str:
        return self.on("systemctl show -p MainPID --value docker.service")

    def runtimes(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.on("/usr/bin/docker info --format '{{json .Runtimes}}'"))
        return found


@pytest.fixture(scope="module")
def host(fleet: Fleet) -> Iterator[Host]:
    """A target with docker and without anything of ours; in the end it is what it was, docker apart."""
    host = Host(fleet)
    fleet.heal()
    run = fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    host.on(
        "ls /etc/default >/dev/null; printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d"
    )
    fleet.on_target("apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends docker.io", limit=600)  # fmt: skip
    host.on("rm /usr/sbin/policy-rc.d")
    host.write("/etc/default/docker", f'DOCKER_OPTS="{FLAGS}"\n')
    host.on(
        "systemctl reset-failed docker.service docker.socket; systemctl start docker.service && docker info >/dev/null"
    )
    host.write(LIST, f"deb [trusted=yes] {host.settings['container_toolkit_url']}/stable/deb/$(ARCH) /\n")
    host.containerd = host.on("sha256sum /etc/containerd/config.toml")
    before = snapshot(fleet)
    yield host
    host.on("rm -rf /run/fake /usr/local/bin/docker /etc/systemd/system/docker.service.d; umount /proc/driver; rm -f /dev/nvidia0; systemctl daemon-reload", check=False)  # fmt: skip
    run = fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    assert difference(before, snapshot(fleet)) == []
    assert fleet.pyinfra("uninstall.py", "-y", "--json").changed == []
    host.on(f"rm -f {LIST} /etc/default/docker; DEBIAN_FRONTEND=noninteractive apt-get -qq -y purge docker.io; apt-get -qq -y autoremove --purge", check=False)  # fmt: skip


def test_fresh_install_and_a_second_run(host: Host) -> None:
    pid = host.pid()
    run = host.ok(container_toolkit_version="1.18.1")
    assert NAME in run.changed
    assert host.versions() == {"ii 1.18.1-1"}
    assert json.loads(host.on(f"cat {DAEMON}")) == {"runtimes": NVIDIA}
    assert host.on(f"stat -c '%a %U' {DAEMON}") == "644 root"
    assert "nvidia" in host.runtimes(), "docker knows it"
    assert host.pid() == pid, "by a reload"
    assert host.on(f"cat {LIST}").startswith("# switched off by embedfleet")
    assert "After=nvidia-persistenced.service" in host.on("systemctl show -p After --value nvidia-cdi-refresh.service && systemctl cat nvidia-cdi-refresh.service")  # fmt: skip
    assert "no driver is loaded" in run.err
    host.unchanged(container_toolkit_version="1.18.1")


def test_upgrade_and_a_newer_one_is_kept(host: Host) -> None:
    before = host.on(f"stat -c '%i %Y' {DAEMON}")
    run = host.ok()
    assert run.changed == [NAME], run.err
    assert host.versions() == {"ii 1.19.1-1"}
    assert host.on(f"stat -c '%i %Y' {DAEMON}") == before
    run = host.unchanged(container_toolkit_version="1.18.1")
    assert "1.19.1-1 is newer than 1.18.1, and kept" in run.err
    assert host.versions() == {"ii 1.19.1-1"}


def test_a_version_that_nobody_has(host: Host) -> None:
    told = host.refused("container_toolkit_version", "1.99.0-1", container_toolkit_version="1.99.0")
    assert "was not found" in told
    assert host.versions() == {"ii 1.19.1-1"}


def test_devices_are_listed_linked_and_listed_again_for_another_driver(host: Host) -> None:
    banner = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build"
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
    host.on(f"mkdir -p /rig/gpu/0; mount -t tmpfs tmpfs /proc/driver; mkdir /proc/driver/nvidia; echo '{banner.format('580.95.05')}' >/proc/driver/nvidia/version")  # fmt: skip
    host.on(f"mknod /dev/nvidia0 c 195 0; : >{library}.580.95.05")
    try:
        assert host.ok().changed == [NAME]
        assert f"{library}.580.95.05" in host.on("cat /var/run/cdi/nvidia.yaml")
        assert host.on("readlink /dev/char/195:0") == "/dev/nvidia0"
        host.unchanged()
        # another driver, and a unit that skips itself, as where the module is in no modules.dep
        host.on(
            f"mv {library}.580.95.05 {library}.580.126.20; echo '{banner.format('580.126.20')}' >/proc/driver/nvidia/version"
        )
        host.write(
            "/etc/systemd/system/nvidia-cdi-refresh.service.d/z.conf",
            "[Service]\nExecCondition=\nExecCondition=/bin/false\n",
        )
        host.on("systemctl daemon-reload")
        assert host.ok().changed == [NAME]
        assert f"{library}.580.126.20" in host.on("cat /var/run/cdi/nvidia.yaml")
        host.unchanged()
        # the library of the loaded driver is not there: a reboot is pending
        host.on(
            f"mv {library}.580.126.20 {library}.580.999.99; echo '{banner.format('580.142.00')}' >/proc/driver/nvidia/version"
        )
        host.refused("driver 580.142.00 is loaded", "names libraries of 580.999.99")
    finally:
        host.on(f"umount /proc/driver; rm -rf {library}.* /rig/gpu /dev/nvidia0 /dev/char/195:0 /etc/systemd/system/nvidia-cdi-refresh.service.d/z.conf; systemctl daemon-reload")  # fmt: skip


THEIRS = '{\n\t"log-driver": "journald",\n\t"labels": ["größe=1"],\n\t"runtimes": {"kata": {"path": "/bin/true"}}\n}\n'


def test_what_is_in_daemon_json_survives(host: Host) -> None:
    host.write(DAEMON, THEIRS, "640")
    host.on(f"chgrp docker {DAEMON}")
    pid = host.pid()
    assert host.ok().changed == [NAME]
    new = host.on(f"cat {DAEMON}")
    assert json.loads(new) == {**json.loads(THEIRS), "runtimes": {"kata": {"path": "/bin/true"}, **NVIDIA}}
    assert new.startswith('{\n\t"log-driver": "journald",')
    assert host.on(f"stat -c '%a %U:%G' {DAEMON}") == "640 root:docker"
    assert "nvidia" in host.runtimes()
    assert host.pid() == pid
    host.unchanged()


def test_a_link_stays_a_link(host: Host) -> None:
    host.on(f"mkdir -p /srv/site; mv {DAEMON} /srv/site/daemon.json; ln -s /srv/site/daemon.json {DAEMON}")
    host.unchanged()
    host.write(DAEMON, THEIRS)
    assert host.ok().changed == [NAME]
    assert host.on(f"readlink {DAEMON}") == "/srv/site/daemon.json"
    assert "nvidia" in json.loads(host.on("cat /srv/site/daemon.json"))["runtimes"]
    host.on(f"mv -f /srv/site/daemon.json {DAEMON}; rmdir /srv/site")


@pytest.mark.parametrize(
    "text",
    [
        '{"log-driver": "journald",}',
        *("", '{"runtimes": "kata"}', "\udcff"),
    ],
)
def test_what_is_no_object_is_refused_and_stays(host: Host, text: str) -> None:
    kept = host.on(f"base64 -w0 {DAEMON}")
    raw = shlex.quote(text) if text != "\udcff" else "'\\377'"
    host.on(f"printf {raw} >{DAEMON}")
    before = host.on(f"stat -c '%i %Y %a' {DAEMON}; base64 -w0 {DAEMON}")
    if text:
        host.refused("docker", "it was not touched", "container_runtimes")
        assert host.on(f"stat -c '%i %Y %a' {DAEMON}; base64 -w0 {DAEMON}") == before
        host.unchanged(container_runtimes=[])
    else:  # an empty file is an empty object, as for docker
        assert host.ok().changed == [NAME]
        assert json.loads(host.on(f"cat {DAEMON}")) == {"runtimes": NVIDIA}
    host.on(f"echo {kept} | base64 -d >{DAEMON}")
    host.unchanged()


def test_flags_of_a_vendor_keep_daemon_json_as_it_is(host: Host) -> None:
    kept = host.on(f"base64 -w0 {DAEMON}")
    host.write(DAEMON, '{"log-driver": "journald"}')
    flags = f"ExecStart=/usr/sbin/dockerd -H fd:// {FLAGS} --add-runtime=nvidia=/usr/bin/nvidia-container-runtime"
    host.write("/etc/systemd/system/docker.service.d/docker-override.conf", f"[Service]\nExecStart=\n{flags}\n")
    host.on("systemctl daemon-reload; systemctl restart docker.service")
    try:
        run = host.unchanged()
        assert "--add-runtime" in run.err
        assert host.on(f"cat {DAEMON}") == '{"log-driver": "journald"}'
    finally:
        host.on("rm -r /etc/systemd/system/docker.service.d; systemctl daemon-reload")
        host.on(f"echo {kept} | base64 -d >{DAEMON}; systemctl restart docker.service")


@pytest.fixture
def newer(host: Host) -> Iterator[Host]:
    """A docker that needs a restart to take CDI, with containers that run."""
    host.write("/usr/local/bin/docker", CLIENT, "755")
    host.on(
        "mkdir -p /run/fake; systemctl show -p MainPID --value docker.service >/run/fake/pid; printf 'web\\nqueue\\n' >/run/fake/running"
    )
    yield host
    host.on("rm -rf /usr/local/bin/docker /run/fake /etc/systemd/system/docker.service.d; systemctl daemon-reload")


def test_cdi_needs_a_restart_which_says_what_it_ends(newer: Host) -> None:
    pid = newer.pid()
    run = newer.ok()
    assert "restart docker, which ends web, queue (live-restore is off)" in run.err
    assert newer.pid() != pid
    assert json.loads(newer.on(f"cat {DAEMON}"))["features"] == {"cdi": True}
    pid = newer.pid()
    newer.unchanged()
    assert newer.pid() == pid
    # cut off between file and restart: made good by the next run
    newer.on("systemctl show -p MainPID --value docker.service >/run/fake/pid")
    assert newer.ok().changed == [NAME]
    assert newer.pid() != pid


def test_a_docker_that_does_not_start_gets_its_old_file_back(newer: Host) -> None:
    newer.write(DAEMON, THEIRS)
    newer.write(
        "/etc/systemd/system/docker.service.d/x.conf",
        "[Service]\nExecStartPre=/bin/sh -c '! grep -q cdi /etc/docker/daemon.json'\n",
    )
    newer.on(
        "systemctl daemon-reload; systemctl restart docker.service; systemctl show -p MainPID --value docker.service >/run/fake/pid"
    )
    newer.refused("docker", "daemon.json was put back, and docker runs again")
    assert newer.on(f"cat {DAEMON}") == THEIRS.strip()
    assert newer.on("systemctl is-active docker.service") == "active"


def test_a_container_proves_it_after_changes_alone(newer: Host) -> None:
    banner = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"
    newer.on(f"mkdir -p /rig/gpu/0; mount -t tmpfs tmpfs /proc/driver; mkdir /proc/driver/nvidia; echo '{banner}' >/proc/driver/nvidia/version; : >{library}; touch /run/fake/rc")  # fmt: skip
    try:
        newer.refused("unresolvable CDI devices", "container_toolkit_image", container_toolkit_image="site/base:1")
        newer.on("rm /run/fake/rc")
        run = newer.ok(container_toolkit_image="site/base:1")
        assert "a container sees GPU 0: NVIDIA H200" in run.err
        assert "--network none --device=nvidia.com/gpu=all site/base:1 nvidia-smi -L" in newer.on("cat /run/fake/asked")
        newer.on("rm /run/fake/asked")
        newer.unchanged(container_toolkit_image="site/base:1")
        newer.on("[ ! -e /run/fake/asked ]")
    finally:
        newer.on(f"umount /proc/driver; rm -rf {library} /rig/gpu")


def test_containerd_gets_a_drop_in(host: Host) -> None:
    """Real containerd 1.6: told to take it on, since docker is there, too."""
    since = "systemctl show -p ActiveEnterTimestampMonotonic --value containerd.service"
    started = host.on(since)
    assert host.ok(container_runtimes=["containerd"]).changed == [NAME]
    assert "io.containerd.grpc.v1.cri" in host.on("cat /etc/containerd/conf.d/99-nvidia.toml")
    assert "nvidia-container-runtime" in host.on("containerd config dump"), "containerd reads it"
    assert host.on(since) != started
    started = host.on(since)
    host.unchanged(container_runtimes=["containerd"])
    # cut off between file and restart: made good by the next run
    host.on("sleep 1.1; touch /etc/containerd/conf.d/99-nvidia.toml")
    assert host.ok(container_runtimes=["containerd"]).changed == [NAME]
    assert host.on(since) != started


def test_uninstall_puts_back_the_very_files(host: Host) -> None:
    host.write(DAEMON, THEIRS, "640")
    look = f"stat -c '%a %Y %s' {DAEMON}; base64 -w0 {DAEMON}"
    before = host.on(look)
    host.ok()
    assert "nvidia" in host.on(f"cat {DAEMON}")
    run = host.fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    assert host.on(look) == before
    assert host.on("sha256sum /etc/containerd/config.toml") == host.containerd
    assert "nvidia" not in host.on("containerd config dump")
    assert host.on(f"dpkg-query -W -f '${{db:Status-Status}} ' {PROGRAMS}", check=False).replace("not-installed", "").strip() == ""  # fmt: skip
    host.on("[ ! -e /var/run/cdi/nvidia.yaml ] && [ ! -e /var/lib/embedfleet ]")
    host.on(f"rm {DAEMON}; systemctl restart docker.service")


def test_what_was_changed_since_stays(host: Host) -> None:
    host.ok()
    host.write(DAEMON, json.dumps({**json.loads(host.on(f"cat {DAEMON}")), "debug": True}))
    assert host.fleet.pyinfra("uninstall.py", "-y").code == 0
    assert json.loads(host.on(f"cat {DAEMON}")) == {"debug": True}
    # a reload takes other runtimes over, but not that there are none
    host.on(f"rm {DAEMON}; systemctl restart docker.service")
    assert "nvidia" not in host.runtimes()


def test_dnf_installs_upgrades_keeps_and_removes(fleet: Fleet) -> None:
    host = Host(replace(fleet, target="rhel", runs=500), "rpm")
    base = f"[base]\nname=base\nbaseurl={fleet.info['repos']['rpm']['rhel']}/9/x86_64\ngpgcheck=0\n"
    host.write("/etc/yum.repos.d/base.repo", base)  # of a shell, which the packages' scripts need
    query = f"rpm -q --qf '%{{VERSION}}-%{{RELEASE}}\\n' {PROGRAMS} | sort -u"
    try:
        assert NAME in host.ok(container_toolkit_version="1.18.1").changed
        host.unchanged(container_toolkit_version="1.18.1")
        assert host.ok().changed == [NAME]
        host.unchanged(container_toolkit_version="1.18.1")
        assert host.on(query) == "1.19.1-1"
    finally:
        run = host.fleet.pyinfra("uninstall.py", "-y")
        host.on("rm -f /etc/yum.repos.d/base.repo")
    assert run.code == 0, run.err
    assert "is not installed" in host.on(f"rpm -q {PROGRAMS}", check=False)
    assert (
        host.on("ls -d /etc/udev/rules.d /etc/systemd/system/nvidia-cdi-refresh.service.d 2>/dev/null", check=False)
        == ""
    )
