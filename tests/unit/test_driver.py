"""The driver's plan, and what is amiss with what a host has."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.driver import (
    FAMILY,
    Driver,
    cuda_home,
    plan_driver,
    repository,
    toolkit_version,
)
from embedfleet.driver_files import preferences, unattended
from embedfleet.facts.packages import Offer, Package, Packages, order, parse_available, parse_installed
from embedfleet.facts.survey import Survey
from embedfleet.platforms import PLATFORMS
from embedfleet.settings import Settings
from embedfleet.systems import DEBIAN, RHEL10, system_of
from embedfleet.versions import Choice, NoVersion, amiss, choose, driver_version, fits, in_the_way, other_flavour
from tests.unit.hosts import survey

NOBLE = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"'
BOOKWORM = 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"'
EL9 = 'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"\nPRETTY_NAME="RHEL 9.6"'


def made(host: str | Survey = "gh200 without a driver", **settings: Any) -> Driver:
    found = survey(host) if isinstance(host, str) else host
    system = system_of(found)
    assert system
    row = PLATFORMS["x86-gpu" if found.machine == "x86_64" else "gh200"]
    return plan_driver(Settings(**settings), row, system, found)


def grace(os: str = NOBLE, kernel: str = "6.8.0-1039-nvidia-64k", **more: str) -> Survey:
    return survey("gh200 without a driver", **{"os": os, "kernel": kernel, "kernels": kernel} | more)


def test_canonicals_modules_for_the_running_the_next_and_later_kernels() -> None:
    host = grace(kernels="6.8.0-1039-nvidia-64k\n6.8.0-1041-nvidia-64k\n6.8.0-90-generic", packages="linux-image-nvidia-64k-hwe-24.04 6.8\nlinux-image-6.8.0-1039-nvidia-64k 1")  # fmt: skip
    driver = made(host)
    assert driver.source == "distribution"
    assert not driver.dkms
    assert driver.kernel_packages == (
        "linux-modules-nvidia-580-server-open-6.8.0-1039-nvidia-64k",
        "linux-modules-nvidia-580-server-open-6.8.0-1041-nvidia-64k",
        "linux-modules-nvidia-580-server-open-nvidia-64k-hwe-24.04",
    )
    assert made(grace()).kernel_packages == driver.kernel_packages[:1], "a pinned kernel stays pinned"
    assert "nvidia-utils-580-server" in driver.packages
    assert "libnvidia-compute-580-server" in driver.packages


def test_nvidias_names_lose_their_branch() -> None:
    old = made(grace(), driver_source="nvidia")
    assert "nvidia-dkms-580-open" in old.packages
    assert "linux-headers-6.8.0-1039-nvidia-64k" in old.kernel_packages
    new = made(grace(), driver_source="nvidia", driver_branch=620)
    assert {"nvidia-dkms-open", "nvidia-persistenced", "nvidia-utils"} <= set(new.packages)
    assert not any("620" in name for name in new.packages)


def test_debian_and_red_hat() -> None:
    debian = made(grace(BOOKWORM, "6.1.0-40-arm64"))
    assert "nvidia-kernel-open-dkms" in debian.packages
    assert debian.kernel_packages[0] == "linux-headers-6.1.0-40-arm64"
    red = made(grace(EL9, "5.14.0-687.51.1.el9_8.aarch64+64k", managers="dnf there"))
    assert red.module == "nvidia-driver:580-open"
    assert red.kernel_packages == ("kernel-64k-devel-5.14.0-687.51.1.el9_8.aarch64",)
    assert "kmod-nvidia-open-dkms" in red.packages
    ten = replace(grace(EL9, "6.12.0-1.el10.aarch64", managers="dnf there"), os_version="10.0")
    assert plan_driver(Settings(), PLATFORMS["gh200"], RHEL10, ten).module == ""


def test_open_modules_on_grace_whatever_is_asked() -> None:
    assert made(grace(), kernel_modules="proprietary").open
    closed = made(survey("x86-gpu", os=NOBLE), kernel_modules="proprietary", driver="install")
    assert not closed.open
    assert "linux-modules-nvidia-580-server-6.8.0-60-generic" in closed.kernel_packages


def test_fabric_manager_on_x86_switches_alone_and_imex_where_nodes_are_named() -> None:
    x86 = made(survey("x86-gpu", os=NOBLE), driver="install")
    assert "nvidia-fabricmanager-580" in x86.packages
    assert x86.fabric
    assert "nvidia-fabricmanager" in x86.services
    assert not any("fabric" in name for name in made(grace()).packages)
    assert not any("imex" in name for name in made(grace()).packages)
    assert "nvidia-imex" in made(grace(), imex_nodes=["10.0.0.1", "10.0.0.2"]).services


def test_dgx_os_keeps_its_driver() -> None:
    kept = plan_driver(Settings(), PLATFORMS["gb10"], DEBIAN, survey("gb10"))
    assert kept.action == "keep"
    assert kept.packages == ()


@pytest.mark.parametrize(
    ("os", "machine", "place"),
    [
        (NOBLE, "aarch64", "ubuntu2404/sbsa"),
        (NOBLE, "x86_64", "ubuntu2404/x86_64"),
        (BOOKWORM, "aarch64", "debian12/sbsa"),
        (EL9, "aarch64", "rhel9/sbsa"),
    ],
)
def test_the_repository_of_a_host(os: str, machine: str, place: str) -> None:
    host = replace(grace(os), machine=machine)
    found = repository(Settings(), system_of(host) or DEBIAN, host)
    assert found is not None
    assert found.uri.endswith(f"/cuda/repos/{place}/")
    assert found.key_url.startswith(found.uri)
    assert all(re.fullmatch("[0-9A-F]{40}", value) for value in found.fingerprints)


def test_no_repository_for_power() -> None:
    assert repository(Settings(), DEBIAN, replace(grace(), machine="ppc64le")) is None


def test_one_origin_and_a_pin() -> None:
    own = preferences(made(grace()))
    assert "Pin: release l=NVIDIA CUDA\nPin-Priority: -1" in own
    theirs = preferences(made(grace(), driver_source="nvidia", driver_version="580.95.05"))
    assert "Pin: release o=Ubuntu\nPin-Priority: -1" in theirs
    assert "Pin: version 580.95.05-*\nPin-Priority: 1001" in theirs
    assert "Pin: version 580.*\n" in preferences(made(grace(), driver_source="nvidia"))


def test_what_unattended_upgrades_leave_alone() -> None:
    patterns = re.findall(r'"(\S+)"', unattended(made(grace())))
    held = [
        "nvidia-utils-580-server", "libnvidia-compute-580-server", "linux-modules-nvidia-580-server-open-generic-64k",
        "linux-image-generic-64k", "libcuda1",
    ]  # fmt: skip
    free = ["libnvidia-container1", "nvidia-container-toolkit", "openssl", "nginx", "libc6"]
    assert all(any(re.match(pattern, name) for pattern in patterns) for name in held)
    assert not any(re.match(pattern, name) for pattern in patterns for name in free)
    built = re.findall(r'"(\S+)"', unattended(made(grace(), driver_source="nvidia")))
    assert not any(re.match(pattern, "linux-image-generic-64k") for pattern in built), "DKMS follows the kernel"


def test_the_container_toolkit_is_none_of_the_family() -> None:
    for name in (
        "libnvidia-container1",
        "libnvidia-container-tools",
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
    ):
        assert not any(re.match(pattern, name) for pattern in FAMILY)


DRIVER = made(grace())
GOOD = {name: Package("580.159.03-0ubuntu0.24.04.1") for name in DRIVER.packages} | {
    name: Package("6.8.0-1039.39") for name in DRIVER.kernel_packages
}


def test_nothing_is_amiss_with_what_a_deploy_left() -> None:
    assert amiss(DRIVER, Packages(GOOD)) == []
    assert amiss(replace(DRIVER, version="580.159.03"), Packages(GOOD)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"nvidia-utils-580-server": None}, "is not installed"),
        ({"nvidia-utils-580-server": Package("580.159.03-0ubuntu0.24.04.1", whole=False)}, "half-installed"),
        ({"nvidia-utils-580-server": Package("580.173.02-0ubuntu0.24.04.1")}, "versions are mixed"),
        ({"nvidia-utils-580-server": Package("620.57.02-0ubuntu0.24.04.1")}, "is 620.57.02"),
        ({DRIVER.kernel_packages[0]: None}, "linux-modules-nvidia"),
        ({"linux-modules-nvidia-580-server-6.8.0-1039-nvidia-64k": Package("1")}, "another flavour"),
        ({"linux-modules-nvidia-570-server-open-nvidia-64k": Package("1")}, "another flavour or branch"),
        ({"nvidia-dkms-580-server-open": Package("580.159.03-0ubuntu0.24.04.1")}, "another flavour"),
    ],
)
def test_what_is_amiss(change: dict[str, Package | None], word: str) -> None:
    found = {name: package for name, package in (GOOD | change).items() if package}
    assert any(word in said for said in amiss(DRIVER, Packages(found)))


def test_a_pinned_version_and_a_module_stream() -> None:
    assert len(amiss(replace(DRIVER, version="580.173.02"), Packages(GOOD))) == len(DRIVER.packages)
    red = replace(DRIVER, module="nvidia-driver:580-open")
    assert amiss(red, Packages(GOOD, stream="580-open")) == []
    assert "stream is open-dkms" in amiss(red, Packages(GOOD, stream="open-dkms"))[0]


THREE = ("620.57.02", "580.173.02", "580.159.03")
AVAILABLE = {name: [Offer(f"{v}-0ubuntu0.24.04.1") for v in THREE] for name in DRIVER.packages} | {
    name: [Offer("6.8.0-1039.39+1", "580.173.02"), Offer("6.8.0-1039.39", "580.159.03")]
    for name in DRIVER.kernel_packages
}


def test_the_version_to_install() -> None:
    nothing = Packages()
    assert choose(DRIVER, nothing, AVAILABLE).driver == "580.173.02", "the newest of the branch where there is none"
    assert choose(DRIVER, Packages(GOOD), AVAILABLE).driver == "580.159.03", "what is there stays"
    assert choose(replace(DRIVER, version="newest"), Packages(GOOD), AVAILABLE).driver == "580.173.02"
    older = choose(replace(DRIVER, version="580.159.03"), nothing, AVAILABLE)
    assert isinstance(older, Choice)
    assert set(older.packages.values()) == {"580.159.03-0ubuntu0.24.04.1", "6.8.0-1039.39"}
    assert set(choose(DRIVER, nothing, AVAILABLE).packages.values()) == {
        "580.173.02-0ubuntu0.24.04.1",
        "6.8.0-1039.39+1",
    }


def test_what_is_there_stays_also_when_the_sources_have_moved_on() -> None:
    gone = {name: [o for o in offers if "159" not in o.version] for name, offers in AVAILABLE.items()}
    with pytest.raises(NoVersion, match=r"580\.159\.03 is there, .* there is: 580\.173\.02"):
        choose(DRIVER, Packages(GOOD), gone)
    assert choose(replace(DRIVER, version="newest"), Packages(GOOD), gone).driver == "580.173.02"


def test_kernel_modules_that_want_another_driver() -> None:
    new = {name: [Offer("6.8.0-1039.39+1", "580.173.02")] for name in DRIVER.kernel_packages}
    with pytest.raises(NoVersion, match=r"is there for driver 580\.173\.02 and newer, not for 580\.159\.03"):
        choose(replace(DRIVER, version="580.159.03"), Packages(), AVAILABLE | new)
    none = {name: offers for name, offers in AVAILABLE.items() if name not in DRIVER.kernel_packages}
    with pytest.raises(NoVersion, match="have no linux-modules-nvidia-580-server-open"):
        choose(DRIVER, Packages(), none)


def test_a_version_that_not_all_packages_have_is_none() -> None:
    torn = AVAILABLE | {"nvidia-utils-580-server": [Offer("580.159.03-0ubuntu0.24.04.1")]}
    assert choose(DRIVER, Packages(), torn).driver == "580.159.03"
    with pytest.raises(NoVersion, match=r"no driver 580\.173\.02 .* there is: 580\.159\.03"):
        choose(replace(DRIVER, version="580.173.02"), Packages(), torn)
    with pytest.raises(NoVersion, match="have no nvidia-utils-580-server"):
        choose(DRIVER, Packages(), {name: v for name, v in AVAILABLE.items() if name != "nvidia-utils-580-server"})


def test_versions_in_the_words_of_packages() -> None:
    assert driver_version("3:580.159.03-1.el9") == "580.159.03"
    assert driver_version("580.142-0ubuntu0.24.04.1") == "580.142"
    assert driver_version("6.8.0-139.139") == ""
    assert sorted(["580.173.02-0ubuntu1", "580.95.05-0ubuntu1", "3:580.142-1"], key=order)[-1].startswith("580.173")
    assert max("6.8.0-138.138", "6.8.0-138.138+1", key=order) == "6.8.0-138.138+1", "rebuilt for a newer driver"
    assert not fits(DRIVER, "")
    assert not fits(DRIVER, "620.57.02")


def test_of_two_origins_the_other_ones_modules_are_another_flavour() -> None:
    dkms = made(grace(), driver_source="nvidia")
    assert other_flavour(dkms, "linux-modules-nvidia-580-server-open-generic")
    assert not other_flavour(dkms, "nvidia-dkms-580-open")
    assert other_flavour(dkms, "nvidia-dkms-580")
    assert not other_flavour(dkms, "nvidia-utils-580-server"), "apt itself sees to names that conflict"


def test_firmware_of_the_other_origin_is_in_the_way() -> None:
    both = {
        name: Package("1")
        for name in ("nvidia-firmware-580-server-580.173.02", "nvidia-firmware-580-server-580.159.03")
    }
    dkms = made(grace(), driver_source="nvidia")
    assert in_the_way(dkms, Packages(both), "580.173.02") == ["nvidia-firmware-580-server-580.173.02"]
    assert in_the_way(DRIVER, Packages(both), "580.173.02") == [], (
        "of the same origin it stays with the module that is loaded"
    )


def test_parsing_of_packages() -> None:
    found = parse_installed(
        ["ii |nvidia-utils-580-server|580.1-1", "iF |nvidia-dkms-580|580.1-1", "un |nvidia-x|", "rc |nvidia-old|570.1-1",
         "hi |libcuda1|580.1-1", "ii |kernel-devel|5.14.0-1.el9|kernel-devel-5.14.0-1.el9.x86_64", "@stream|580-open", "@state|enabled",
         "@initramfs|stale"]
    )  # fmt: skip
    assert found.found["nvidia-utils-580-server"].whole
    assert not found.found["nvidia-dkms-580"].whole
    assert found.found["libcuda1"].whole
    assert {"nvidia-x", "nvidia-old"}.isdisjoint(found.found)
    assert "kernel-devel-5.14.0-1.el9.x86_64" in found.found
    assert found.stream == "580-open"
    assert found.initramfs_stale
    told = ["Package: a", "Version: 1.0", "Package: a", "Version: 2.0", "Depends: x, nvidia-kernel-common-580-server (>= 580.1.2)",
            "Package: b", "Version: 3:1.0-1", "Depends: y"]  # fmt: skip
    assert parse_available(told) == {"a": [Offer("2.0", "580.1.2"), Offer("1.0")], "b": [Offer("3:1.0-1")]}


@given(st.lists(st.text(max_size=60), max_size=30))
def test_parsing_never_raises(lines: list[str]) -> None:
    parse_installed(lines)
    parse_available(lines)


def test_the_toolkit_has_one_home() -> None:
    assert toolkit_version("cuda-toolkit-13-0") == "13.0"
    assert cuda_home("cuda-toolkit-13-0") == "/usr/local/cuda-13.0"
