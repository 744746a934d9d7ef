"""Operating systems: who is recognised, and what that changes in a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedfleet.checks import problems_of
from embedfleet.facts.installed import Installed
from embedfleet.facts.installed import parse as parse_installed
from embedfleet.facts.survey import parse
from embedfleet.forecast import forecast
from embedfleet.platforms import PLATFORMS
from embedfleet.settings import Settings
from embedfleet.systems import DEBIAN, RHEL9, RHEL10, System, system_of
from tests.unit.hosts import HOSTS, lines
from tests.unit.test_plan import BASE, HOST, plan, sources

RHEL = replace(
    HOST, os_id="rhel", os_version="9.6", os_like=("fedora",), os_name="RHEL 9.6", managers=("dnf",), compilers={"g++": "11.5.0"}
)  # fmt: skip


def _os(text: str) -> dict[str, Any]:
    return {**HOSTS["x86-cpu"], "os": text}


@pytest.mark.parametrize(
    ("release", "system"),
    [
        ('ID=debian\nVERSION_ID="12"', DEBIAN),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"', DEBIAN),
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"', RHEL9),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"', RHEL9),
        ('ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="10.0"', RHEL10),
        ('ID="ol"\nID_LIKE="fedora"\nVERSION_ID="9.5"', RHEL9),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="10"', RHEL10),
    ],
)
def test_families(release: str, system: System) -> None:
    assert system_of(parse(lines(_os(release)))) is system


@pytest.mark.parametrize(
    "release",
    [
        'ID="rhel"\nVERSION_ID="8.10"',
        "ID=fedora\nVERSION_ID=44",
        'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"',
        "",
    ],
)
def test_a_system_that_is_not_in_the_table_is_refused_with_those_that_are(release: str) -> None:
    found = replace(parse(lines(_os(release))), managers=("zypper",))
    assert system_of(found) is None
    told = [p for p in problems_of("h1", Settings(**BASE), PLATFORMS["x86-cpu"], found, sources()) if p.fatal]
    assert any("none that embedfleet knows" in p.reason and "RHEL 9" in p.cure for p in told)


def test_on_rhel_everything_has_its_name() -> None:
    made = plan(RHEL, site_ca_certificates=[])
    assert made.system is RHEL9
    assert made.tools.spec["python"] == "/usr/bin/python3.12"
    assert made.engine.spec["compilers"] == "/opt/rh/gcc-toolset-14/root/usr/bin"
    assert plan().engine.spec["compilers"] == ""
    coming = forecast(made, RHEL).packages
    assert "gcc-toolset-14-gcc-c++: to be installed" in coming
    assert not any(name in " ".join(coming) for name in ("libnuma-dev", "python3-venv"))


def test_the_site_s_authorities_go_where_the_system_looks(tmp_path: Any) -> None:
    pem = tmp_path / "ours.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    for survey, where in ((HOST, "/usr/local/share/ca-certificates"), (RHEL, "/etc/pki/ca-trust/source/anchors")):
        made = plan(survey, site_ca_certificates=[str(pem)])
        assert made.certificates == (f"{where}/embedfleet-ours.crt",)
        assert made.certificates[0] in {file.path for file in made.files}


def test_rhel_s_own_old_compiler_is_not_in_the_way_and_its_absence_of_dnf_is() -> None:
    def told(survey: Any) -> str:
        found = problems_of("h1", Settings(**BASE), PLATFORMS["x86-cpu"], survey, sources())
        return " ".join(problem.reason for problem in found if problem.fatal)

    assert told(RHEL) == ""
    assert "without dnf" in told(replace(RHEL, managers=("rpm-ostree",)))
    assert "g++ 11.5.0" in told(replace(HOST, compilers={"g++": "11.5.0"}))


def test_selinux_is_told_of() -> None:
    found = problems_of("h1", Settings(**BASE), PLATFORMS["x86-cpu"], replace(RHEL, selinux=True), sources())
    assert any("SELinux" in problem.reason and not problem.fatal for problem in found)


def test_what_is_installed() -> None:
    assert parse_installed(["end"]) == Installed()
    found = parse_installed(
        ["group embedfleet", "unit /etc/systemd/system/embedfleet-vllm@.service", "running embedfleet-gateway.service", "account embedfleet",
         "package nginx", "path /opt/embedfleet", "certificate /usr/local/share/ca-certificates/embedfleet-a b.crt", "record", "end"]
    )  # fmt: skip
    assert (found.accounts, found.packages, found.record) == (("embedfleet",), ("nginx",), True)
    assert found.certificates == ("/usr/local/share/ca-certificates/embedfleet-a b.crt",)
    assert (found.groups, found.unknown) == (("embedfleet",), "")
    assert "did not answer to the end" in parse_installed(["package nginx"]).unknown
    assert (
        parse_installed(["unknown the package manager is ill", "record", "end"]).unknown == "the package manager is ill"
    )
