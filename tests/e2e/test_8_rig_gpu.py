"""The target `gpu`, a server without a driver: packages bring one, modprobe's stand-in loads it, a reboot keeps it."""

from __future__ import annotations

import pytest

from tests.e2e.apt import Apt
from tests.e2e.conftest import rig
from tests.e2e.fleet import Fleet
from tests.targets.kernel import install_kernel
from tests.targets.nvidia.specs import NEWER, OLDER

pytestmark = [pytest.mark.target, pytest.mark.fault]

KERNEL, NEXT_KERNEL = "6.8.0-138-generic", "6.8.0-139-generic"
GPUS = "NVIDIA H100 80GB HBM3, 00000000:18:00.0\nNVIDIA H100 80GB HBM3, 00000000:2A:00.0"
QUERY = "nvidia-smi --query-gpu=name,pci.bus_id --format=csv,noheader"


def packages(kernel: str) -> str:
    """Canonical's signed modules for a kernel, and what goes with them."""
    names = ("nvidia-utils", "libnvidia-compute", "nvidia-kernel-common", "nvidia-compute-utils", "libnvidia-cfg1")
    return f"linux-modules-nvidia-580-server-open-{kernel} {' '.join(f'{name}-580-server' for name in names)}"


@pytest.fixture(scope="module")
def apt(gpu: Fleet) -> Apt:
    """The target with its own kernel's files, and apt for the mirror."""
    install_kernel(gpu.container, KERNEL)
    return Apt(gpu)


def archive(apt: Apt, *suites: str) -> None:
    """Canonical's archive as it was at a release, or as it is with its updates. Reboots empty /tmp, where apt's sources are."""
    apt.prepare()
    apt.use(*(f"{apt.urls['ubuntu']} {suite} restricted" for suite in suites))
    apt.ok("apt-get update")


def test_there_is_no_driver_at_first(gpu: Fleet) -> None:
    assert gpu.on_target("uname -rm; . /etc/os-release; echo $ID $VERSION_ID") == f"{KERNEL} x86_64\nubuntu 24.04"
    found = gpu.on_target("cd /sys/bus/pci/devices; for d in *; do echo $d $(cat $d/device $d/class); done")
    assert found.splitlines() == [
        "0000:07:00.0 0x22a3 0x068000",
        "0000:18:00.0 0x2330 0x030200",
        "0000:2a:00.0 0x2330 0x030200",
    ]
    assert gpu.on_target("ls /sys/module/nvidia /proc/driver/nvidia /dev/nvidia* 2>/dev/null", check=False) == ""
    told = gpu.on_target("command -v nvidia-smi nvcc; modprobe nvidia 2>&1", check=False)
    assert told == f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{KERNEL}"


def test_packages_bring_a_driver_that_modprobe_loads(gpu: Fleet, apt: Apt) -> None:
    archive(apt, "noble")
    apt.ok(f"apt-get -y install {packages(KERNEL)}")
    assert gpu.on_target("nvidia-smi", check=False).startswith("NVIDIA-SMI has failed because it couldn't communicate")
    assert gpu.on_target("modinfo -F signer nvidia") == "Canonical Ltd. Kernel Module Signing"
    gpu.on_target("modprobe nvidia-uvm")
    assert gpu.on_target(QUERY) == GPUS
    assert f"Open Kernel Module for x86_64  {OLDER}  Release Build" in gpu.on_target("cat /proc/driver/nvidia/version")
    assert gpu.on_target("lsmod | awk '{print $1, $3, $4}'").splitlines()[1:] == ["nvidia 1 nvidia_uvm", "nvidia_uvm 0"]


def test_a_reboot_comes_back_with_the_driver(gpu: Fleet) -> None:
    address, start = gpu.on_target("hostname -I"), gpu.on_target("cut -d' ' -f22 /proc/1/stat")
    gpu.on_target("touch /root/kept")
    gpu.reboot()
    assert gpu.on_target("ls /root/kept; hostname -I") == f"/root/kept\n{address}"
    assert gpu.on_target("cut -d' ' -f22 /proc/1/stat") != start
    assert gpu.on_target(QUERY) == GPUS
    assert "loading NVIDIA UNIX Open Kernel Module" in gpu.on_target("dmesg")


def test_a_driver_that_is_newer_on_disk_than_in_the_kernel(gpu: Fleet, apt: Apt) -> None:
    archive(apt, "noble", "noble-updates")
    apt.ok(f"apt-get -y install {packages(KERNEL)}")
    assert "Driver/library version mismatch" in gpu.on_target("nvidia-smi", check=False)
    assert gpu.on_target("modinfo -F version nvidia") == NEWER
    assert gpu.on_target("cat /sys/module/nvidia/version") == OLDER


def test_a_new_kernel_boots_and_needs_its_own_modules(gpu: Fleet, apt: Apt) -> None:
    install_kernel(gpu.container, NEXT_KERNEL)
    gpu.reboot()
    archive(apt, "noble", "noble-updates")
    assert gpu.on_target("uname -r; python3 -c 'import os; print(open(\"/proc/sys/kernel/osrelease\").read())'") == (
        f"{NEXT_KERNEL}\n{NEXT_KERNEL}"
    )
    assert gpu.on_target("nvidia-smi", check=False).startswith("NVIDIA-SMI has failed")
    apt.ok(f"apt-get -y install {packages(NEXT_KERNEL)}")
    gpu.on_target("modprobe nvidia")
    assert gpu.on_target(f"{QUERY}; cat /sys/module/nvidia/version") == f"{GPUS}\n{NEWER}"


def test_what_is_driven(gpu: Fleet) -> None:
    rig("drive", "gpu", "gpu/1/bus", "gone")
    assert gpu.on_target(f"{QUERY}; ls /sys/bus/pci/devices") == (f"{GPUS.splitlines()[0]}\n0000:07:00.0\n0000:18:00.0")
    rig("drive", "gpu", "gpu/1/bus", "there")
    rig("drive", "gpu", "boot/secure-boot", "on")
    assert gpu.on_target("mokutil --sb-state") == "SecureBoot enabled"
    assert gpu.on_target("od -An -tu1 /sys/firmware/efi/efivars/SecureBoot-*").split() == ["6", "0", "0", "0", "1"]
    gpu.on_target("modprobe -r nvidia")
    rig("drive", "gpu", "gpu/nouveau", "yes")
    assert "could not insert 'nvidia': No such device" in gpu.on_target("modprobe nvidia 2>&1", check=False)
    # the driver's package blacklists it, but this initramfs has not heard of that
    gpu.on_target(f"test -s /boot/initrd.img-{NEXT_KERNEL} && : >/boot/initrd.img-{NEXT_KERNEL}")
    gpu.reboot()
    assert gpu.on_target("readlink -f /sys/bus/pci/devices/0000:18:00.0/driver") == "/sys/bus/pci/drivers/nouveau"
    gpu.on_target("update-initramfs -u")
    gpu.reboot()
    assert gpu.on_target(QUERY) == GPUS
