"""NVIDIA's driver by the deploy's own tasks: from the mirror's stand-in packages, with the real apt, dpkg, dnf, rpm, modinfo and systemd.

What is a stand-in: the packages' contents, modprobe and the kernel that it loads into (tests/targets/fake/kernel).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import on_demand
from tests.e2e.fleet import Fleet
from tests.e2e.server import Server
from tests.e2e.snapshot import difference, snapshot
from tests.targets.kernel import install_kernel
from tests.targets.nvidia.specs import EL_KERNEL, NEWER, NEXT, OLDER

pytestmark = pytest.mark.target

GRACE_KERNEL = "6.8.0-139-generic-64k"
KERNEL, NEXT_KERNEL = "6.8.0-138-generic", "6.8.0-139-generic"
CUDA_REPO = "/etc/yum.repos.d/cuda-rhel9.repo"
CUDA_LIST = "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list"


@pytest.fixture(scope="module")
def ubuntu(gpu: Fleet) -> Server:
    """Two H100 and an NVSwitch under Ubuntu 24.04, no driver; an entry for NVIDIA's repository that somebody pasted."""
    server = Server(gpu)
    server.prepare(KERNEL)
    server.archive("noble")
    url = gpu.info["repos"]["apt"]["nvidia"]
    gpu.on_target(
        f"printf '# by hand\\ndeb [trusted=yes] {url}/ubuntu2404/x86_64/ /\\n' >{CUDA_LIST}; chmod 640 {CUDA_LIST}"
    )
    gpu.bare = snapshot(gpu)
    return server


def test_a_dry_run_tells_what_would_come_and_changes_nothing(ubuntu: Server) -> None:
    run = ubuntu.run("--dry")
    assert run.code == 0, run.err
    told = " ".join(run.err.split())
    assert "NVIDIA driver none -> 580 open, from the distribution" in told
    assert "cuda-toolkit-13-0: to be installed" in told
    assert "reboot: no" in told
    assert difference(ubuntu.fleet.bare or set(), snapshot(ubuntu.fleet)) == []


def test_a_fresh_driver_is_loaded_without_a_reboot(ubuntu: Server) -> None:
    boot = ubuntu.boot
    changed = ubuntu.ok()
    assert changed[-3:] == ["Repositories", "Driver", "CUDA toolkit"]
    assert (ubuntu.loaded, ubuntu.gpus, ubuntu.boot) == (OLDER, 2, boot)
    on = ubuntu.fleet.on_target
    assert on("systemctl is-active nvidia-persistenced nvidia-fabricmanager") == "active\nactive"
    assert on("/usr/local/cuda-13.0/bin/nvcc --version | grep -o 'release 13.0'") == "release 13.0"
    assert on("dpkg-query -W -f '${db:Status-Status} ${Package}\\n' 'nvidia-dkms*' 2>/dev/null", check=False) == ""
    assert ubuntu.ok() == []


def test_the_entry_of_somebody_else_is_off_and_apt_works(ubuntu: Server) -> None:
    on = ubuntu.fleet.on_target
    assert on(f"grep -c '^# switched off by embedfleet' {CUDA_LIST}; stat -c %a {CUDA_LIST}") == "1\n640"
    assert "Signed-By" not in on("apt-get update 2>&1")
    key = on(
        "export GNUPGHOME=$(mktemp -d); gpg --show-keys --with-colons /usr/share/keyrings/embedfleet-nvidia-*.asc 2>/dev/null | grep -c ^pub"
    )
    assert key == "1", "whatever else the server's file holds is not trusted"


def test_one_origin_and_nobody_upgrades_it_by_the_way(ubuntu: Server) -> None:
    on = ubuntu.fleet.on_target
    policy = on("apt-cache policy nvidia-dkms-580-open")
    assert "Candidate: (none)" in policy, "NVIDIA's own would mix with Canonical's"
    held = on("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert '"^nvidia-utils";' in held
    assert '"^linux-image-";' in held


@pytest.mark.fault
def test_a_reboot_that_is_not_allowed_is_pending_and_told(ubuntu: Server) -> None:
    ubuntu.archive("noble", "noble-updates")
    assert ubuntu.ok() == [], "a newer one in the archive changes nothing by itself"
    told = ubuntu.refused("reboot is set to never", driver_version="newest", reboot="never")
    assert f"{NEWER}" in told
    assert ubuntu.loaded == OLDER
    run = ubuntu.fleet.pyinfra("status.py", limit=120)
    assert f"NVIDIA module {NEWER} is installed, {OLDER} is loaded" in run.out


def test_it_is_proven_then_rebooted_into(ubuntu: Server) -> None:
    ubuntu.archive("noble", "noble-updates")
    boot = ubuntu.boot
    assert ubuntu.ok(driver_version="newest") == ["Driver"]
    assert ubuntu.boot != boot
    assert (ubuntu.loaded, ubuntu.gpus) == (NEWER, 2)
    boot = ubuntu.boot
    assert ubuntu.ok(driver_version="newest") == []
    assert ubuntu.boot == boot


@pytest.mark.fault
def test_a_version_that_is_not_there(ubuntu: Server) -> None:
    ubuntu.refused(f"there is: {OLDER}, {NEWER}, {NEXT}".replace(f", {NEXT}", ""), driver_version="580.1.2")
    assert ubuntu.loaded == NEWER


@pytest.mark.fault
def test_another_branch_and_back_and_an_older_minor(ubuntu: Server) -> None:
    for branch, version, want in ((620, None, NEXT), (580, OLDER, OLDER)):
        data = {"driver_branch": branch} | ({"driver_version": version} if version else {})
        assert "Driver" in ubuntu.ok(**data)
        assert (ubuntu.loaded, ubuntu.gpus) == (want, 2)
        assert ubuntu.ok(**data) == []
        listed = "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' '*nvidia*' | sed -n 's/^installed //p'"
        others = [name for name in ubuntu.fleet.on_target(listed).splitlines() if str(1200 - branch) in name]
        # the firmware of a driver that is loaded until the reboot stays until then, and nobody asks for it after
        assert [name for name in others if "firmware" not in name] == []


@pytest.mark.fault
def test_flavours(ubuntu: Server) -> None:
    data = {"driver_version": OLDER}
    ubuntu.ok(kernel_modules="proprietary", **data)
    assert "Kernel Module" in ubuntu.fleet.on_target("cat /proc/driver/nvidia/version")
    assert "Open" not in ubuntu.fleet.on_target("cat /proc/driver/nvidia/version")
    ubuntu.ok(**data)
    assert "Open Kernel Module" in ubuntu.fleet.on_target("cat /proc/driver/nvidia/version")
    assert ubuntu.ok(**data) == []


@pytest.mark.fault
def test_modules_for_the_kernel_that_boots_next(ubuntu: Server) -> None:
    data = {"driver_version": OLDER}
    install_kernel(ubuntu.fleet.container, NEXT_KERNEL)
    changed = ubuntu.run(**data)
    if changed.code:  # 139's modules are made for the newer driver alone: said before anything is done
        assert "is there for driver" in changed.err
    assert ubuntu.ok(driver_version="newest") == ["Driver"]
    assert ubuntu.fleet.on_target(f"modinfo -k {NEXT_KERNEL} -F version nvidia") == NEWER
    ubuntu.ok(driver_version="newest", reboot="always")  # into that kernel, unless the driver needed a reboot as well
    assert ubuntu.fleet.on_target("uname -r") == NEXT_KERNEL
    assert ubuntu.loaded == NEWER


@pytest.mark.fault
def test_always_reboots_for_what_the_system_waits_for_once(ubuntu: Server) -> None:
    data = {"driver_version": "newest"}
    ubuntu.fleet.on_target(
        "echo '*** System restart required ***' >/run/reboot-required; echo libc6 >/run/reboot-required.pkgs"
    )
    boot = ubuntu.boot
    assert ubuntu.ok(**data) == []
    assert ubuntu.boot == boot, "the driver needs none"
    assert ubuntu.ok(reboot="always", **data) == ["Driver"]
    assert ubuntu.boot != boot
    assert ubuntu.ok(reboot="always", **data) == []


@pytest.mark.fault
def test_no_reboot_into_a_kernel_without_the_module(ubuntu: Server) -> None:
    on = ubuntu.fleet.on_target
    boot = ubuntu.boot
    on("cd /lib/modules/*139-generic/kernel && mv nvidia-580srv-open /root/kept && depmod 6.8.0-139-generic")
    on("modprobe -r nvidia_uvm nvidia 2>/dev/null; :", check=False)
    ubuntu.refused("driver", driver_version="newest")
    assert ubuntu.boot == boot
    on("mv /root/kept /lib/modules/6.8.0-139-generic/kernel/nvidia-580srv-open && depmod 6.8.0-139-generic")
    ubuntu.ok(driver_version="newest")
    assert ubuntu.gpus == 2


@pytest.mark.fault
def test_a_run_that_is_killed_in_dpkg_is_gone_on_with(ubuntu: Server) -> None:
    with ubuntu.fleet.deploying(driver_branch=620, reboot="never", format="json"):
        ubuntu.fleet.until("pgrep -x dpkg >/dev/null && pgrep -f 620 >/dev/null", 120)
        ubuntu.fleet.on_target("pkill -9 -x apt-get; pkill -9 -x dpkg", check=False)
    ubuntu.ok(driver_branch=620)
    assert (ubuntu.loaded, ubuntu.gpus) == (NEXT, 2)
    assert ubuntu.fleet.on_target("dpkg --audit") == ""


@pytest.mark.fault
def test_a_mirror_that_fails_in_the_middle(ubuntu: Server) -> None:
    for mode in ("cut", "503", "corrupt"):
        ubuntu.fleet.on_target("apt-get clean")
        ubuntu.fleet.fault("libnvidia-compute-580-server", mode)
        told = ubuntu.refused("driver", driver_branch=580)
        assert "package sources" in told or "docs/driver-troubleshooting.md" in told
        ubuntu.fleet.heal()
    ubuntu.ok(driver_branch=580)
    assert (ubuntu.loaded, ubuntu.gpus) == (NEWER, 2)


@pytest.mark.fault
def test_a_key_that_is_not_the_pinned_one(ubuntu: Server) -> None:
    ubuntu.refused("has key", "not " + "A" * 40, nvidia_key_fingerprints=["A" * 40])
    assert ubuntu.ok() == [] or ubuntu.ok() == []


@pytest.mark.fault
def test_gpus_that_are_gone_and_modules_that_do_not_load(ubuntu: Server) -> None:
    ubuntu.drive("gpu/mode", "failed")
    told = ubuntu.refused("driver")
    assert "nvidia-smi" in told or "NVIDIA" in told
    ubuntu.drive("gpu/mode", "ok")
    ubuntu.drive("gpu/mode", "hang")
    ubuntu.refused("driver")
    ubuntu.drive("gpu/mode", "ok")
    assert ubuntu.ok() == []


@pytest.mark.fault
def test_from_canonicals_packages_to_nvidias_and_a_build_that_fails(ubuntu: Server) -> None:
    on = ubuntu.fleet.on_target
    data = {"driver_source": "nvidia", "driver_version": NEWER}
    ubuntu.archive("noble", "noble-updates")
    kernel = on("uname -r")
    on(
        f"apt-get update -qq; apt-get -qq -y install linux-headers-{kernel} >/dev/null; rm /usr/src/linux-headers-{kernel}/include/generated/autoconf.h"
    )
    told = ubuntu.refused("driver", **data)
    assert "autoconf.h" in told or "Bad return status" in told or "dkms" in told.lower()
    on(f"apt-get -qq -y install --reinstall linux-headers-{kernel} >/dev/null 2>&1", check=False)
    ubuntu.ok(**data)
    assert (ubuntu.loaded, ubuntu.gpus) == (NEWER, 2)
    assert on("dkms status | grep -c installed") != "0"
    assert ubuntu.ok(**data) == []
    ubuntu.drive("boot/secure-boot", "on")
    ubuntu.ok(driver_version=NEWER)  # signed modules again
    assert (ubuntu.loaded, ubuntu.gpus) == (NEWER, 2)
    ubuntu.drive("boot/secure-boot", "off")


def test_uninstall_leaves_the_server_as_it_was(ubuntu: Server) -> None:
    run = ubuntu.fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    ubuntu.archive("noble")
    left = difference(ubuntu.fleet.bare or set(), snapshot(ubuntu.fleet))
    assert left == [], "\n".join(left)
    again = ubuntu.fleet.pyinfra("uninstall.py", "-y", "--json")
    assert (again.code, again.changed) == (0, []), again.err


@pytest.fixture(scope="module")
def rhel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same server under RHEL 9's name: dnf and rpm."""
    with on_demand("gpu-rhel", Path(tmp_path_factory.mktemp("gpu-rhel"))) as fleet:
        server = Server(fleet)
        install_kernel(fleet.container, f"{EL_KERNEL}.x86_64")
        base = f"[base]\\nname=base\\nbaseurl={fleet.info['repos']['rpm']['rhel']}/9/x86_64\\ngpgcheck=0\\n"
        # as a server has it: an initramfs, a folder for keys, an entry for NVIDIA's repository
        fleet.on_target(
            f"printf '{base}' >/etc/yum.repos.d/base.repo; mkdir -p /etc/pki/rpm-gpg /etc/modprobe.d; dracut --force --regenerate-all"
        )
        url = f"{fleet.info['repos']['rpm']['nvidia']}/rhel9/x86_64"
        fleet.on_target(
            f"printf '[cuda-rhel9-x86_64]\\nname=cuda\\nbaseurl={url}\\nenabled=1\\ngpgcheck=0\\n' >{CUDA_REPO}"
        )
        fleet.bare = snapshot(fleet)
        yield server


@pytest.mark.fault
def test_rhel_from_nothing_to_another_branch_and_back(rhel: Server) -> None:
    assert "Driver" in rhel.ok()
    assert (rhel.loaded, rhel.gpus) == (NEWER, 2)
    assert rhel.ok() == []
    on = rhel.fleet.on_target
    assert on(f"grep -c enabled=0 {CUDA_REPO}") == "1", "somebody else's entry for the same place"
    assert "580-open" in on("cat /etc/dnf/modules.d/nvidia-driver.module")
    boot = rhel.boot
    rhel.ok(driver_version=OLDER)
    assert (rhel.loaded, rhel.gpus) == (OLDER, 2)
    assert rhel.boot != boot
    assert rhel.ok(driver_version=OLDER) == []
    assert "Nothing to do" in on("dnf -q -y upgrade 2>&1; echo Nothing to do")
    assert rhel.loaded == OLDER
    rhel.ok(driver_branch=620)
    assert (rhel.loaded, rhel.gpus) == (NEXT, 2)
    assert rhel.ok(driver_branch=620) == []


@pytest.mark.fault
def test_rhel_uninstall(rhel: Server) -> None:
    run = rhel.fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    # the stand-ins of rpms own no folders, and make /usr/local/cuda by a script
    loose = re.compile(r"\+ file /(usr/lib/firmware|usr/src|usr/local/cuda|var/lib/dkms)\S* [dl] ")
    left = [line for line in difference(rhel.fleet.bare or set(), snapshot(rhel.fleet)) if not loose.match(line)]
    assert left == [], "\n".join(left)


@pytest.fixture(scope="module")
def grace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A GH200 under Ubuntu with a kernel of 64 KiB pages; emulated."""
    with on_demand("gpu-grace", Path(tmp_path_factory.mktemp("gpu-grace"))) as fleet:
        server = Server(fleet)
        server.prepare(GRACE_KERNEL)
        server.archive("noble", "noble-updates")
        fleet.bare = snapshot(fleet)
        yield server


@pytest.mark.fault
def test_grace_gets_the_modules_of_its_kernels_flavour(grace: Server) -> None:
    grace.drive("boot/secure-boot", "on")
    assert "Driver" in grace.ok(kernel_modules="open")
    assert (grace.loaded, grace.gpus) == (NEWER, 1)
    assert grace.fleet.on_target(f"modinfo -k {GRACE_KERNEL} -F signer nvidia").startswith("Canonical")
    assert grace.ok() == []
    boot = grace.boot
    grace.ok(driver_branch=620)
    assert (grace.loaded, grace.gpus) == (NEXT, 1)
    assert grace.boot != boot


@pytest.mark.fault
def test_grace_uninstall(grace: Server) -> None:
    run = grace.fleet.pyinfra("uninstall.py", "-y")
    assert run.code == 0, run.err
    left = difference(grace.fleet.bare or set(), snapshot(grace.fleet))
    assert left == [], "\n".join(left)
