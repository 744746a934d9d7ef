"""The emulated machine's parts that need no machine: GRUB's configuration, qemu's messages, reaching it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.targets.host import find_tool
from tests.targets.vm import boot, disk, qemu
from tests.targets.vm.boot import BootError, choose, default_boot, environment, parse, starter
from tests.targets.vm.reach import from_ssh_config
from tests.targets.vm.state import Boot, State, alive, load, save, start_time

#: What Debian 12's grub-mkconfig writes, shortened.
GRUB_CFG = """
if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
  fi
}
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-5f1e' {
\tload_video
\tif [ x$grub_platform = xxen ]; then insmod xzio; fi
\techo\t'Loading Linux 6.1.0-57-arm64 ...'
\tlinux\t/boot/vmlinuz-6.1.0-57-arm64 root=UUID=5f1e ro console=ttyAMA0 "dyndbg=file a.c +p" quiet
\tinitrd\t/boot/initrd.img-6.1.0-57-arm64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-5f1e' {
\tmenuentry 'Debian GNU/Linux, with Linux 6.1.0-57-arm64' $menuentry_id_option 'gnulinux-6.1.0-57-arm64-advanced-5f1e' {
\t\tlinux\t/boot/vmlinuz-6.1.0-57-arm64 root=UUID=5f1e ro
\t\tinitrd\t/boot/initrd.img-6.1.0-57-arm64
\t}
\tmenuentry 'Debian GNU/Linux, with Linux 6.1.0-50-arm64' $menuentry_id_option 'gnulinux-6.1.0-50-arm64-advanced-5f1e' {
\t\tlinux\t/boot/vmlinuz-6.1.0-50-arm64 root=UUID=5f1e ro
\t}
}
"""


def _with_default(default: str) -> str:
    return GRUB_CFG.replace('set default="0"', f'set default="{default}"')


def test_the_default_entry_boots() -> None:
    found = default_boot(GRUB_CFG)
    assert found.kernel == "/boot/vmlinuz-6.1.0-57-arm64"
    assert found.initrd == "/boot/initrd.img-6.1.0-57-arm64"
    assert found.cmdline == 'root=UUID=5f1e ro console=ttyAMA0 "dyndbg=file a.c +p" quiet'


@pytest.mark.parametrize(
    ("default", "kernel", "initrd"),
    [
        ("1>1", "/boot/vmlinuz-6.1.0-50-arm64", ""),
        ("gnulinux-advanced-5f1e>gnulinux-6.1.0-50-arm64-advanced-5f1e", "/boot/vmlinuz-6.1.0-50-arm64", ""),
        ("1", "/boot/vmlinuz-6.1.0-57-arm64", "/boot/initrd.img-6.1.0-57-arm64"),
        ("not there", "/boot/vmlinuz-6.1.0-57-arm64", "/boot/initrd.img-6.1.0-57-arm64"),
        ("9", "/boot/vmlinuz-6.1.0-57-arm64", "/boot/initrd.img-6.1.0-57-arm64"),
    ],
)
def test_the_default_is_an_index_an_id_or_a_path_into_a_submenu(default: str, kernel: str, initrd: str) -> None:
    found = default_boot(_with_default(default))
    assert (found.kernel, found.initrd) == (kernel, initrd)


def test_a_saved_default_comes_from_grubenv() -> None:
    grubenv = "# GRUB Environment Block\nsaved_entry=1>1\n" + "#" * 900
    assert environment(grubenv) == {"saved_entry": "1>1"}
    assert default_boot(_with_default("${saved_entry}"), grubenv).kernel == "/boot/vmlinuz-6.1.0-50-arm64"
    assert default_boot(_with_default("${saved_entry}")).kernel == "/boot/vmlinuz-6.1.0-57-arm64"


def test_the_first_configuration_of_an_image_is_read_back() -> None:
    assert default_boot(starter("/boot/k", "/boot/i", "root=/dev/vda ro")) == boot.Boot(
        "/boot/k", "/boot/i", "root=/dev/vda ro"
    )


@pytest.mark.parametrize(
    "text", ["", "set default=0\n", "menuentry 'x' {\n\techo hello\n}\n", "menuentry 'x' {\n\tlinux /k\n", "}\n"]
)
def test_a_configuration_that_boots_nothing_is_refused(text: str) -> None:
    with pytest.raises(BootError):
        default_boot(text)


def test_submenus_nest() -> None:
    default, menu = parse(GRUB_CFG)
    assert default == "0"
    assert [entry.title for entry in menu] == ["Debian GNU/Linux", "Advanced options for Debian GNU/Linux"]
    assert [len(entry.children) for entry in menu] == [0, 2]
    assert choose("1>0", menu).id == "gnulinux-6.1.0-57-arm64-advanced-5f1e"


# ---- the disk


@pytest.fixture
def ext4(tmp_path: Path) -> Path:
    """A small file system with GRUB's files in it."""
    if find_tool("mke2fs") is None or find_tool("debugfs") is None:
        pytest.skip("no e2fsprogs")
    tree = tmp_path / "tree"
    (tree / "boot/grub").mkdir(parents=True)
    (tree / "etc").mkdir()
    (tree / "boot/grub/grub.cfg").write_text(starter("/boot/vmlinuz-1", "/boot/initrd.img-1", "root=/dev/vda"))
    (tree / "boot/vmlinuz-1").write_bytes(b"kernel")
    (tree / "boot/initrd.img-1").write_bytes(b"initrd" * 1000)
    image = tmp_path / "disk.raw"
    subprocess.run([find_tool("mke2fs"), "-q", "-t", "ext4", "-d", tree, image, "8M"], check=True)
    return image


def test_the_next_boot_is_read_from_the_disk(ext4: Path, tmp_path: Path) -> None:
    assert disk.next_boot(ext4, tmp_path) == boot.Boot("/boot/vmlinuz-1", "/boot/initrd.img-1", "root=/dev/vda")
    assert (tmp_path / "kernel").read_bytes() == b"kernel"
    assert (tmp_path / "initrd").read_bytes() == b"initrd" * 1000


def test_files_are_written_as_roots_with_their_mode(ext4: Path) -> None:
    disk.write(ext4, {"/etc/a": ("text\n", 0o600)})
    disk.write(ext4, {"/etc/a": ("other\n", 0o640)})
    assert disk.read(ext4, "/etc/a") == "other\n"
    assert disk.read(ext4, "/etc/b") is None
    told = subprocess.run([find_tool("debugfs"), "-R", "stat /etc/a", ext4], capture_output=True, text=True).stdout
    assert "Mode:  0640" in told
    assert "User:     0   Group:     0" in told
    disk.check(ext4)


def test_a_kernel_that_is_missing_stops_the_boot(ext4: Path, tmp_path: Path) -> None:
    disk.write(ext4, {"/boot/grub/grub.cfg": (starter("/boot/vmlinuz-2", "", "ro"), 0o644)})
    with pytest.raises(BootError, match="vmlinuz-2"):
        disk.next_boot(ext4, tmp_path)


def test_a_disk_after_a_power_cut_is_read_all_the_same(ext4: Path, tmp_path: Path) -> None:
    told = subprocess.run([find_tool("dumpe2fs"), ext4], capture_output=True, text=True).stdout
    size, block = re.search(r"Block size: +(\d+)", told), re.search(r"Inode bitmap at (\d+)", told)
    assert size
    assert block
    with ext4.open("r+b") as handle:  # its checksum is wrong now, as where the journal has a newer one
        handle.seek(int(size[1]) * int(block[1]))
        handle.write(b"\xff" * 64)
    assert disk.next_boot(ext4, tmp_path).kernel == "/boot/vmlinuz-1"


# ---- qemu


def _event(reason: str) -> str:
    return json.dumps({"event": "SHUTDOWN", "data": {"guest": True, "reason": reason}})


@pytest.mark.parametrize(
    ("lines", "how"),
    [
        ([_event("guest-reset")], qemu.RESET),
        ([_event("guest-shutdown")], qemu.OFF),
        ([_event("host-signal")], qemu.CUT),
        (['{"QMP": {}}', '{"return": {}}', "not JSON"], qemu.CUT),
        ([], qemu.CUT),
    ],
)
def test_why_a_machine_stopped(lines: list[str], how: str) -> None:
    assert qemu.ending(lines) == how


# ---- the state


def test_state_survives_the_file(tmp_path: Path) -> None:
    state = State(os.getpid(), start_time(os.getpid()), 2222, boots=[Boot("power on", 1.5, "/boot/k", "ro")])
    save(tmp_path / "vm.json", state)
    assert load(tmp_path / "vm.json") == state
    assert load(tmp_path / "none.json") is None


def test_a_supervisor_is_told_from_another_process_with_its_number() -> None:
    assert alive(State(os.getpid(), start_time(os.getpid()), 1))
    assert not alive(State(os.getpid(), "1", 1))
    assert not alive(State(os.getpid(), "", 1))
    assert not alive(None)
    assert start_time(2**22 + 1) == ""


# ---- reaching it


def test_what_vagrant_says_becomes_an_inventory() -> None:
    text = 'Host default\n  HostName 192.168.121.7\n  User vagrant\n  Port 22\n  IdentityFile "/a b/key"\n  LogLevel FATAL\n'
    ((name, data),) = from_ssh_config(text)
    assert name == "default"
    assert data["ssh_hostname"] == "192.168.121.7"
    assert data["ssh_user"] == "vagrant"
    assert data["ssh_port"] == 22
    assert data["ssh_key"] == "/a b/key"


def test_the_scripts_are_sound() -> None:
    shell = shutil.which("sh")
    for script in (Path(disk.__file__).parent).glob("*.sh"):
        subprocess.run([shell, "-n", script], check=True)
