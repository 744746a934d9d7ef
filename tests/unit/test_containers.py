"""The container toolkit: who gets it, what of it is amiss, its repository and files, and what the fact reads."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import pytest

from embedfleet.containers import (
    CRIO_DROP_IN,
    PACKAGES,
    REFRESH_DROP_IN,
    UDEV_RULE,
    Toolkit,
    amiss,
    docker_cdi,
    sets_runtimes,
    spec_is_current,
    target,
    toolkit_files,
    toolkit_repository,
)
from embedfleet.facts.containers import ContainerState, parse
from embedfleet.facts.packages import DriverPackages, Package, Packages
from embedfleet.forecast import forecast
from embedfleet.plan import Plan
from embedfleet.repositories import OFF, switched_off
from embedfleet.settings import Settings
from embedfleet.systems import DEBIAN, RHEL9
from tests.unit.hosts import survey
from tests.unit.test_refusals import plan, problems, refused

DOCKER = "docker there\ncontainerd there"


def _plan(host: str, runtimes: str = DOCKER, **settings: Any) -> Plan:
    return plan(survey(host, runtimes=runtimes), **settings)


# ---- who gets it, and what


def test_a_host_with_gpus_and_a_runtime_gets_it() -> None:
    made = _plan("gh200")
    assert made.containers == Toolkit("1.19.1", ("docker",))
    assert [each.name for each in made.repositories] == ["nvidia", "container-toolkit"]
    assert {UDEV_RULE, REFRESH_DROP_IN} <= {file.path for file in made.files}
    assert "container toolkit none -> 1.19.1, for docker" in forecast(made, survey("gh200", runtimes=DOCKER)).packages


@pytest.mark.parametrize("host", ["grace-cpu", "power9", "power10", "x86-cpu"])
def test_a_host_without_gpus_gets_none(host: str) -> None:
    made = _plan(host)
    assert made.containers is None
    assert not {UDEV_RULE, REFRESH_DROP_IN} & {file.path for file in made.files}


def test_without_a_runtime_it_is_not_installed_unless_asked_for() -> None:
    assert _plan("gh200", "").containers is None
    assert _plan("gh200", "", container_toolkit="install").containers == Toolkit("1.19.1")
    assert _plan("gh200", container_toolkit="none").containers is None


def test_dgx_os_is_left_alone_unless_asked() -> None:
    assert _plan("gb10").containers is None
    assert _plan("gb10", container_toolkit="install").containers == Toolkit("1.19.1", ("docker",))


def test_containerd_is_docker_s_where_docker_is() -> None:
    assert _plan("gh200", "containerd there\ncrio there").containers == Toolkit("1.19.1", ("containerd", "crio"))
    chosen = _plan("gh200", container_runtimes=["containerd"], container_toolkit_image="x/y:1")
    assert chosen.containers == Toolkit("1.19.1", ("containerd",), "x/y:1")


def test_the_forecast_says_what_is_kept() -> None:
    there = survey("gh200", runtimes=DOCKER, packages="nvidia-container-toolkit 1.20.0-1")
    told = forecast(plan(there), there).packages
    assert "container toolkit 1.20.0-1: kept, as it is newer than 1.19.1" in told
    there = survey("gh200", runtimes=DOCKER, packages="nvidia-container-toolkit 1.19.1-1")
    assert not [line for line in forecast(plan(there), there).packages if "toolkit" in line and "container" in line]


# ---- refusals


def test_power_has_no_container_toolkit() -> None:
    problem = refused("power9", container_toolkit="install")["container_toolkit"]
    assert "ppc64le" in problem.reason
    assert "1339" in problem.source


def test_no_gpu_no_toolkit() -> None:
    assert "no GPU" in refused("grace-cpu", container_toolkit="install")["container_toolkit"].reason
    assert refused("gh200", container_toolkit="install") == {}


@pytest.mark.parametrize("name", ["container_toolkit_url", "container_toolkit_key_url"])
def test_plain_http_is_refused_unless_it_is_allowed(name: str) -> None:
    found = survey("gh200", runtimes=DOCKER)
    assert "http://m/x" in refused(found, **{name: "http://m/x"})["container_toolkit_url"].reason
    assert refused(found, **{name: "http://m/x"}, allow_http_repositories=True) == {}
    assert refused("gh200", **{name: "http://m/x"}) == {}, "no runtime, no toolkit"


def test_a_version_with_a_hole_is_warned_of() -> None:
    found = survey("gh200", runtimes=DOCKER)
    told = [
        each
        for each in problems(found, container_toolkit_version="1.17.7")
        if each.setting == "container_toolkit_version"
    ]
    assert [each.fatal for each in told] == [False]
    assert not [
        each
        for each in problems(found, container_toolkit_version="1.17.8")
        if each.setting == "container_toolkit_version"
    ]


# ---- repository


def test_repositories_of_both_managers() -> None:
    apt = toolkit_repository(Settings(), DEBIAN, survey("gh200"))
    assert apt
    assert apt.uri == "https://nvidia.github.io/libnvidia-container/stable/deb/arm64/"
    assert apt.key_url == "https://nvidia.github.io/libnvidia-container/gpgkey"
    dnf = toolkit_repository(Settings(container_toolkit_url="https://m/c/"), RHEL9, survey("x86-gpu"))
    assert dnf
    assert dnf.uri == "https://m/c/stable/rpm/x86_64/"
    assert "\ngpgcheck=0\nrepo_gpgcheck=1\n" in dnf.text(RHEL9)
    assert toolkit_repository(Settings(), RHEL9, survey("power9")) is None


def test_nvidia_s_own_list_is_switched_off() -> None:
    ours = toolkit_repository(Settings(), DEBIAN, survey("gh200"))
    assert ours
    line = "deb [signed-by=/k.gpg] https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n"
    other = "#deb [signed-by=/k.gpg] https://nvidia.github.io/libnvidia-container/experimental/deb/$(ARCH) /\n"
    path = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
    assert switched_off({path: line + other}, (ours,), "aarch64") == {path: OFF + line + other}


# ---- packages


def _have(**versions: str) -> Packages:
    return Packages({name.replace("_", "-"): Package(version) for name, version in versions.items()})


ALL = {name.replace("-", "_"): "1.19.1-1" for name in PACKAGES}
WANTED = Toolkit("1.19.1")


def test_what_is_amiss() -> None:
    assert len(amiss(WANTED, _have())) == 4
    assert amiss(WANTED, _have(**ALL)) == []
    old = amiss(WANTED, _have(**(ALL | {"libnvidia_container1": "1.9.0-1"})))
    assert old == ["libnvidia-container1 is 1.9.0-1"]
    half = Packages({**_have(**ALL).found, PACKAGES[0]: Package("1.19.1-1", whole=False)})
    assert amiss(WANTED, half) == ["nvidia-container-toolkit is half-installed"]


def test_nothing_goes_below_what_is_installed() -> None:
    newer = dict.fromkeys(ALL, "1.20.0-1")
    assert amiss(WANTED, _have(**newer)) == []
    assert target(WANTED, _have(**newer)) == "1.20.0-1"
    # what is missing beside it comes in its version
    assert target(WANTED, _have(nvidia_container_toolkit_base="1.20.0-1")) == "1.20.0-1"
    assert len(amiss(WANTED, _have(nvidia_container_toolkit_base="1.20.0-1"))) == 3
    assert target(WANTED, _have(nvidia_container_toolkit_base="1.20.0~rc.1-1")) == "1.20.0~rc.1-1"


# ---- docker, CDI, files


@pytest.mark.parametrize(
    ("version", "how"),
    [("20.10.24+dfsg1", "none"), ("24.0.7", "none"), ("25.0.0", "flag"), ("28.1.1", "flag"), ("28.2.0", "always"), ("29.0.1", "always"), ("", "none")],
)  # fmt: skip
def test_how_docker_takes_cdi(version: str, how: str) -> None:
    assert docker_cdi(version) == how


def test_dgx_s_drop_in_is_seen() -> None:
    dgx = "{ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// -s overlay2 --add-runtime=nvidia=/usr/bin/nvidia-container-runtime ; }"
    assert sets_runtimes(dgx) == "--add-runtime"
    assert sets_runtimes("/usr/bin/dockerd -H fd:// -s overlay2 --default-shm-size=1G") == ""


def test_a_list_of_devices_is_current_by_the_driver_in_it() -> None:
    assert not spec_is_current({}, "580.1")
    assert spec_is_current({"/etc/cdi/nvidia.yaml": frozenset({"580.1"})}, "580.1")
    assert not spec_is_current({"/etc/cdi/nvidia.yaml": frozenset()}, "580.1")
    both = {"/etc/cdi/nvidia.yaml": frozenset({"580.1"}), "/var/run/cdi/nvidia.yaml": frozenset({"570.9"})}
    assert not spec_is_current(both, "580.1"), "the one in /var/run counts"


def test_files() -> None:
    assert toolkit_files(None) == ()
    found = {file.path: file.content for file in toolkit_files(Toolkit("1.19.1", ("crio",)))}
    assert "After=nvidia-persistenced.service\n" in found[REFRESH_DROP_IN]
    assert 'RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"' in found[UDEV_RULE]
    assert "[crio.runtime.runtimes.nvidia]" in found[CRIO_DROP_IN]


# ---- the fact


def _encoded(data: bytes) -> str:
    return f"{len(data)}\n{base64.encodebytes(data).decode()}"


INFO = {"ServerVersion": "27.5.1", "Runtimes": {"runc": {}, "nvidia": {}}, "CDISpecDirs": []}
TOLD = {
    "programs": "docker\ndockerd",
    "path": "/srv/daemon.json",
    "daemon": _encoded(b'{"log-driver": "journald"}' * 9),
    "before": "",
    "units": "Id=docker.service\nLoadState=loaded\nActiveState=active\nActiveEnterTimestamp=@1790000000\nNeedDaemonReload=yes\n"
    "Id=crio.service\nActiveEnterTimestamp=\nLoadState=not-found\nActiveState=inactive\nNeedDaemonReload=no",
    "exec": "{ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd -H fd:// }\n/usr/sbin/dockerd\n-H",
    "info": f"WARNING: something\n{json.dumps(INFO)}\n@rc=0",
    "running": "web\nworker\n@rc=0",
    "times": "1790000001 /etc/crio/crio.conf.d/99-embedfleet-nvidia.conf",
    "specs": "/etc/cdi/nvidia.yaml\n/etc/cdi/nvidia.yaml 580.95.05",
    "banner": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.126.20  Release Build  (dvs)",
    "links": "/dev/nvidia0",
}


def _parsed(**changes: str) -> Any:
    return parse(
        [line for name, text in (TOLD | changes).items() for line in ("", f"@@{name}", *text.splitlines())] + ["@@end"]
    )


def test_the_fact_reads_all_of_it() -> None:
    state = _parsed()
    assert state.complete
    assert state.docker
    assert state.docker_version == "27.5.1"
    assert state.daemon == '{"log-driver": "journald"}' * 9
    assert (state.before, state.unreadable, state.daemon_path) == (None, "", "/srv/daemon.json")
    assert state.running == ("web", "worker")
    assert (state.unit("docker").since, state.unit("docker").stale) == (1790000000, True)
    assert not state.unit("crio").there
    assert not state.unit("containerd").active
    assert state.specs == {"/etc/cdi/nvidia.yaml": frozenset({"580.95.05"})}
    assert state.loaded == "580.126.20"
    assert not parse([]).complete


def test_podman_s_docker_is_no_docker() -> None:
    assert not _parsed(programs="docker\npodman", units="").docker


def test_files_that_cannot_be_read_are_not_taken_for_empty() -> None:
    assert "UTF-8" in _parsed(daemon=_encoded(b"\xff\xfe{}")).unreadable
    assert "no file" in _parsed(daemon="2000000").unreadable
    assert "no file" in _parsed(daemon="folder").unreadable
    assert _parsed(daemon="0").unreadable == ""
    assert _parsed(daemon="0").daemon == ""


def test_the_fact_s_script_runs_on_any_host() -> None:
    script = ContainerState().command().get_raw_value()
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert done.stderr == ""
    assert parse(done.stdout.splitlines()).complete


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_the_packages_fact_is_a_script(manager: str) -> None:
    script = DriverPackages().command(manager).get_raw_value()
    assert subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True).stderr == ""
