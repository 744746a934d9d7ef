"""The stand-ins of a kernel's programs: a driver that comes and goes, on a root of the test's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.targets import containers, hardware, rig
from tests.targets.hardware import HARDWARE, SECURE_BOOT, drive, write
from tests.targets.host import RigError
from tests.targets.naming import TARGETS, Names

KERNEL = "6.8.0-138-generic"
OPEN = "version:        580.1\nlicense:        Dual MIT/GPL\n"
SIGNED = f"{OPEN}vermagic:       {KERNEL} SMP\nsigner:         Canonical Ltd. Kernel Module Signing\n"


class Root:
    """A target's root, booted as fake/kernel/boot does it, as far as that needs no mounts."""

    def __init__(self, path: Path, presented: str = "h100") -> None:
        self.path = path
        write(path / "rig", HARDWARE[presented])
        for folder in (
            "usr/lib/rig",
            "dev",
            "proc/driver",
            "boot",
            "run/rig",
            "var/log",
            "etc/modprobe.d",
            "lib/modules",
        ):
            (path / folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", path / "rig/sys", path / "run/rig/sys"], check=True)
        (path / "run/rig/kernel").write_text(KERNEL + "\n")
        (path / "run/rig/smi").write_text("failed\n")
        self.real("modinfo", f'cat "{path}/lib/modules/$2/$3" 2>/dev/null')
        self.real("modprobe", 'echo real "$@"')
        self.real("depmod", 'echo real "$@"')
        self.real(
            "uname", 'case $1 in -r) echo 6.1-real ;; -m) echo x86_64 ;; *) echo "Linux host 6.1-real #1 6.1 x" ;; esac'
        )

    def real(self, name: str, text: str) -> None:
        file = self.path / "usr/lib/rig" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def module(self, info: str, name: str = "nvidia", kernel: str = KERNEL) -> None:
        file = self.path / "lib/modules" / kernel / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(info)

    def run(self, program: str, *words: str) -> tuple[int, str]:
        env = {**os.environ, "RIG_ROOT": str(self.path)}
        command = ["sh", str(self.path / "rig" / program), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout + done.stderr

    def modprobe(self, *words: str) -> tuple[int, str]:
        return self.run("root/usr/sbin/modprobe", *words)

    def log(self) -> str:
        return self.run("root/usr/bin/dmesg", "-t")[1]

    def drive(self, path: str, value: str) -> None:
        drive(self.path / "rig", path, value)
        assert self.run("lib/plug") == (0, "")

    def drivers(self) -> list[str]:
        links = sorted((self.path / "run/rig/sys/bus/pci/devices").glob("*/driver"))
        return [f"{link.parent.name} {link.resolve().name}" for link in links]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    found = Root(tmp_path)
    for name in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"):
        found.module(SIGNED, name)
    return found


def test_a_driver_is_loaded_and_taken_out(root: Root) -> None:
    assert root.modprobe("nvidia-uvm") == (0, "")
    assert root.drivers() == ["0000:07:00.0 nvidia-nvswitch", "0000:18:00.0 nvidia", "0000:2a:00.0 nvidia"]
    banner = (root.path / "proc/driver/nvidia/version").read_text()
    assert banner.startswith("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release Build")
    assert (root.path / "run/rig/sys/module/nvidia/version").read_text() == "580.1\n"
    assert (root.path / "run/rig/smi").read_text() == "ok\n"
    devices = {"nvidia0", "nvidia1", "nvidiactl", "nvidia-nvswitchctl", "nvidia-uvm", "nvidia-uvm-tools"}
    assert {path.name for path in (root.path / "dev").iterdir()} == devices
    listed = (root.path / "run/rig/modules").read_text()
    assert "nvidia 1048576 1 nvidia_uvm, Live" in listed
    assert root.run("root/usr/sbin/lsmod")[1].splitlines()[1] == "nvidia               1048576  1 nvidia_uvm"
    assert root.modprobe("-r", "nvidia") == (1, "modprobe: FATAL: Module nvidia is in use.\n")
    assert root.run("root/usr/sbin/rmmod", "nvidia")[1].startswith(
        "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm"
    )
    assert root.modprobe("-r", "nvidia_uvm") == (0, "")
    assert root.drivers() == []
    assert (root.path / "run/rig/modules").read_text() == ""
    assert not list((root.path / "dev").iterdir())


def test_the_real_modprobe_answers_for_the_rest(root: Root) -> None:
    assert root.modprobe("loop", "max_loop=8") == (0, f"real -S {KERNEL} loop max_loop=8\n")
    assert root.modprobe("--showconfig") == (0, f"real -S {KERNEL} --showconfig\n")
    assert root.run("root/usr/sbin/depmod", "-a") == (0, f"real -a {KERNEL}\n")
    assert root.run("root/usr/sbin/depmod", "6.8.0-1-x") == (0, "real 6.8.0-1-x\n")
    assert root.run("root/usr/sbin/modinfo", "nvidia") == (0, SIGNED)
    assert root.run("root/usr/bin/uname", "-a") == (0, f"Linux host {KERNEL} #1 6.1 x\n")


@pytest.mark.parametrize(
    ("info", "driven", "words"),
    [
        (OPEN + f"vermagic: {KERNEL} SMP\n", {"boot/secure-boot": "on"}, "could not insert 'nvidia': Key was rejected by service"),
        (SIGNED.replace("138", "137"), {}, "could not insert 'nvidia': Exec format error"),
        (SIGNED, {"gpu/modprobe": "Unknown symbol in module"}, "could not insert 'nvidia': Unknown symbol in module"),
        (SIGNED, {"gpu/nouveau": "yes"}, "could not insert 'nvidia': No such device"),
        (SIGNED, {"gpu/0/bus": "gone", "gpu/1/bus": "gone"}, "could not insert 'nvidia': No such device"),
    ],
)  # fmt: skip
def test_how_loading_fails(root: Root, info: str, driven: dict[str, str], words: str) -> None:
    root.module(info)
    for path, value in driven.items():
        root.drive(path, value)
    assert root.modprobe("nvidia") == (1, f"modprobe: ERROR: {words}\n")
    assert not (root.path / "proc/driver/nvidia").exists()


def test_a_module_that_is_not_there(root: Root) -> None:
    (root.path / "run/rig/kernel").write_text("6.8.0-139-generic\n")
    words = "Module nvidia-uvm not found in directory /lib/modules/6.8.0-139-generic"
    assert root.modprobe("nvidia-uvm") == (1, f"modprobe: FATAL: {words}\n")


def test_dkms_signs_with_a_key_that_must_be_enrolled(root: Root) -> None:
    root.module(f"filename: /lib/modules/{KERNEL}/updates/dkms/nvidia.ko\n{OPEN}vermagic: {KERNEL} SMP\n")
    root.drive("boot/secure-boot", "on")
    assert (root.path / "run/rig/sys/firmware/efi/efivars" / SECURE_BOOT).read_bytes() == b"\6\0\0\0\1"
    assert root.run("root/usr/bin/mokutil", "--sb-state") == (0, "SecureBoot enabled\n")
    key = str(root.path / "run/rig/kernel")
    assert root.run("root/usr/bin/mokutil", "--test-key", key) == (0, f"{key} is not enrolled\n")
    assert root.modprobe("nvidia")[0] == 1
    root.drive("boot/mok", "enrolled")
    assert root.run("root/usr/bin/mokutil", "--test-key", key)[1] == f"{key} is already enrolled\n"
    assert root.modprobe("nvidia") == (0, "")


def test_blackwell_wants_the_open_modules(root: Root) -> None:
    root.module(SIGNED.replace("Dual MIT/GPL", "NVIDIA"))
    root.drive("gpu/requires", "open")
    assert root.modprobe("nvidia") == (0, "")
    assert "NVIDIA UNIX x86_64 Kernel Module  580.1  " in (root.path / "proc/driver/nvidia/version").read_text()
    assert (
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)\nNVRM: installed in this system requires use of"
        in root.log()
    )
    assert "NVRM: GPU 0000:2a:00.0: RmInitAdapter failed! (0x22:0x56:884)\n" in root.log()
    assert (root.path / "run/rig/smi").read_text() == "none\n"


def test_nouveau_has_the_gpus_until_it_is_taken_out(root: Root) -> None:
    root.drive("gpu/nouveau", "yes")
    assert root.drivers() == ["0000:18:00.0 nouveau", "0000:2a:00.0 nouveau"]
    assert root.modprobe("nvidia")[0] == 1
    assert "NVRM: GPU 0000:18:00.0 is already bound to nouveau.\n" in root.log()
    assert root.modprobe("-r", "nouveau") == (0, "")
    assert root.modprobe("nvidia") == (0, "")


def _function(root: Root, words: str) -> tuple[int, str]:
    script = f'. "{root.path}/rig/lib/kernel.sh"\n{words}\n'
    done = subprocess.run(
        ["sh", "-c", script], env={**os.environ, "RIG_ROOT": str(root.path)}, capture_output=True, text=True
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    ("kernel", "installed", "expected"),
    [
        ("6.8.0-138-generic", [], "6.8.0-138-generic"),
        ("6.8.0-138-generic", ["6.8.0-138-generic", "6.8.0-1001-generic", "6.8.0-2000-generic-64k"], "6.8.0-1001-generic"),
        ("6.8.0-138-generic-64k", ["6.8.0-139-generic", "6.8.0-139-generic-64k"], "6.8.0-139-generic-64k"),
        ("5.14.0-687.51.1.el9_8.x86_64", ["5.14.0-690.1.1.el9_9.x86_64", "5.14.0-700.1.1.el9_9.x86_64+rt"], "5.14.0-690.1.1.el9_9.x86_64"),
    ],
)  # fmt: skip
def test_the_newest_kernel_of_the_flavour_boots(root: Root, kernel: str, installed: list[str], expected: str) -> None:
    for release in installed:
        (root.path / "boot" / f"vmlinuz-{release}").touch()
    assert _function(root, f"next_kernel {kernel}") == (0, expected)


def test_nouveau_boots_unless_disk_and_initramfs_say_no(root: Root) -> None:
    drive(root.path / "rig", "gpu/nouveau", "yes")
    (root.path / "boot" / f"vmlinuz-{KERNEL}").touch()
    boots = f"nouveau_boots {KERNEL} && echo yes || echo no"
    assert root.run("root/usr/sbin/update-initramfs", "-u")[0] == 0
    (root.path / "etc/modprobe.d/nvidia.conf").write_text("blacklist nouveau\n")
    assert _function(root, boots) == (0, "yes")
    assert root.run("root/usr/sbin/update-initramfs", "-u", "-k", "all")[0] == 0
    assert _function(root, boots) == (0, "no")
    assert (
        root.path / "boot" / f"initrd.img-{KERNEL}"
    ).read_text() == "# /etc/modprobe.d/nvidia.conf\nblacklist nouveau\n"
    assert (root.path / "var/log/rig-initramfs").read_text() == "update-initramfs -u\nupdate-initramfs -u -k all\n"


def test_dracut_overwrites_when_told_to(tmp_path: Path) -> None:
    root = Root(tmp_path, "h100-rhel")
    assert root.run("root/usr/bin/dracut")[0] == 0
    assert root.run("root/usr/bin/dracut")[0] == 1
    assert root.run("root/usr/bin/dracut", "--force") == (0, "")
    assert (tmp_path / "boot" / f"initramfs-{KERNEL}.img").exists()


def test_which_machine_a_target_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {HARDWARE[target.hardware].machine for target in TARGETS.values() if target.hardware and target.machine == "x86_64"} == {"x86_64"}  # fmt: skip
    for host, presented in (("grace", "gh200-bare"), ("gpu-grace", "gh200"), ("gpu", "gh200-bare")):
        with pytest.raises(RigError, match="is not"):
            rig.present(Names("none-such"), host, presented)


def test_a_version_tells_presentations_apart() -> None:
    assert len({hardware.version(found) for found in HARDWARE.values()}) == len(HARDWARE)


def test_addresses_that_are_kept_are_the_subnets_last() -> None:
    kept = {containers.kept_address("172.19.0.0/16", host) for host in TARGETS}
    assert len(kept) == len(TARGETS)
    assert all(address.startswith("172.19.255.") for address in kept)
    assert "172.19.255.255" not in kept
