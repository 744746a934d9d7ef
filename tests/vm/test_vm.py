"""One machine's life, in order: settings without effect, a reboot that brings it, none without need, kills and a power cut."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from tests.targets.naming import CHECKOUT
from tests.targets.vm import disk
from tests.targets.vm.machine import Machine
from tests.targets.vm.state import POWER_CUT, POWER_ON, REBOOT
from tests.vm.conftest import Deploys

pytestmark = pytest.mark.vm

#: Writes numbered files as a deploy writes them, under a temporary name, synced and renamed, as fast as it can.
WRITER = """
import os
n = 0
while True:
    n += 1
    with open('/var/lib/rig/part', 'w') as handle:
        handle.write(f'{n}\\n' * 20000)
        handle.flush()
        os.fsync(handle.fileno())
    os.rename('/var/lib/rig/part', f'/var/lib/rig/{n:06}')
"""

#: The same in every file: its number on every line, 20000 times.
READER = """
import os, sys
names = sorted(name for name in os.listdir('/var/lib/rig') if name.isdigit())
for name in names:
    lines = open(f'/var/lib/rig/{name}').read().split()
    assert lines == [str(int(name))] * 20000, (name, len(lines))
print(len(names))
"""


def causes(machine: Machine) -> list[str]:
    """Why the machine booted, each time."""
    return [boot.cause for boot in machine.boots()]


def cmdline(machine: Machine) -> list[str]:
    return machine.ssh("cat /proc/cmdline").split()


def changed(text: str) -> int:
    """The number of changes that a run told."""
    told = re.search(r"embedfleet: (\d+) changes?,", text)
    assert told, text
    return int(told[1])


def test_a_new_machine_is_sound(machine: Machine) -> None:
    assert causes(machine) == [POWER_ON]
    assert machine.ssh("systemctl is-system-running", check=False) == "running", machine.ssh("systemctl --failed")
    assert machine.ssh("systemctl list-jobs --no-legend") == ""
    assert machine.ssh("uname -m") == "aarch64"
    assert machine.ssh("dpkg --audit && apt-get check -qq") == ""
    assert "linux-image" in machine.ssh("dpkg -S /boot/vmlinuz-$(uname -r)")
    # what the tests below change
    assert "virtio_rng" in machine.ssh("lsmod")
    assert machine.ssh("cat /sys/module/virtio_net/parameters/napi_tx") == "Y"


def test_settings_for_the_next_boot_have_no_effect_yet(machine: Machine, deploys: Deploys) -> None:
    before = causes(machine)
    run = deploys.run("reboot=never")
    assert run.code == 0, run.text
    assert causes(machine) == before
    assert machine.ssh("sysctl -n vm.swappiness net.core.somaxconn").split() == ["17", "2048"]
    assert "rig.word=fresh" not in cmdline(machine)
    assert "virtio_rng" in machine.ssh("lsmod")
    inside = machine.ssh("lsinitramfs /boot/initrd.img-$(uname -r)")
    assert "etc/modprobe.d/rig-blacklist.conf" in inside
    assert "etc/modprobe.d/rig-options.conf" in inside


def test_a_due_reboot_happens_once_and_the_run_goes_on(machine: Machine, deploys: Deploys) -> None:
    before = causes(machine)
    run = deploys.run()
    assert run.code == 0, run.text
    assert "cannot be reached" not in run.text, run.text  # each try while it boots is no problem to tell
    assert causes(machine) == [*before, REBOOT]
    assert machine.ssh("cat /var/lib/rig-finished") == "all of it"


def test_what_was_set_has_effect_after_it(machine: Machine) -> None:
    machine.settle()
    words = cmdline(machine)
    assert {"transparent_hugepage=madvise", "rig.word=fresh", "console=ttyAMA0"} <= set(words)
    assert "[madvise]" in machine.ssh("cat /sys/kernel/mm/transparent_hugepage/enabled")
    assert machine.boots()[-1].cmdline.split() == [word for word in words if not word.startswith("BOOT_IMAGE=")]
    assert machine.ssh("sysctl -n vm.swappiness net.core.somaxconn").split() == ["17", "2048"]


def test_module_options_and_the_blacklist_have_effect(machine: Machine) -> None:
    assert machine.ssh("cat /sys/module/null_blk/parameters/nr_devices") == "3"
    assert machine.ssh("ls /dev | grep -c ^nullb") == "3"
    # these two are loaded from the initramfs: what holds there is what was put into it
    assert machine.ssh("cat /sys/module/virtio_net/parameters/napi_tx") == "N"
    assert "virtio_rng" not in machine.ssh("lsmod")
    assert machine.ssh("modprobe --showconfig | grep -c '^blacklist nouveau$'") == "1"


def test_units_start_at_boot_in_their_order(machine: Machine) -> None:
    assert machine.ssh("cat /run/rig-order").split() == ["first", "second"]
    shown = machine.ssh(
        "systemctl show -P ExecMainExitTimestampMonotonic rig-first; systemctl show -P ExecMainStartTimestampMonotonic rig-second"
    )
    ended, started = (int(number) for number in shown.split())
    assert 0 < ended <= started
    assert machine.ssh("systemctl is-system-running", check=False) == "running", machine.ssh("systemctl --failed")
    assert machine.ssh("systemctl list-jobs --no-legend") == ""


def test_nothing_to_do_reboots_never(machine: Machine, deploys: Deploys) -> None:
    before, boot_id = causes(machine), machine.ssh("cat /proc/sys/kernel/random/boot_id")
    run = deploys.run()
    assert run.code == 0, run.text
    assert changed(run.text) == 0, run.text
    assert causes(machine) == before
    assert machine.ssh("cat /proc/sys/kernel/random/boot_id") == boot_id


def test_a_run_killed_in_the_reboot_is_resumed_without_another(machine: Machine, deploys: Deploys) -> None:
    before = causes(machine)
    machine.ssh("rm /var/lib/rig-finished; sed -i s/rig.word=fresh/rig.word=stale/ /etc/default/grub.d/50-rig.cfg")
    process = subprocess.Popen(deploys.words(), cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while causes(machine) == before:
            assert process.poll() is None, process.returncode
            assert time.monotonic() < deadline
            time.sleep(0.5)
    finally:
        process.kill()
        process.wait()
    machine.settle()
    assert machine.ssh("test -e /var/lib/rig-finished || echo no") == "no"
    run = deploys.run()
    assert run.code == 0, run.text
    assert changed(run.text) == 1, run.text
    assert causes(machine) == [*before, REBOOT]
    assert machine.ssh("cat /var/lib/rig-finished") == "all of it"


def test_a_power_cut_among_writes_loses_nothing_that_was_finished(machine: Machine, deploys: Deploys) -> None:
    before = causes(machine)
    machine.ssh("mkdir -p /var/lib/rig && cat > /root/writer.py <<'EOF'\n" + WRITER + "EOF")
    machine.ssh("systemd-run --quiet --unit=rig-writer python3 /root/writer.py")
    finished = 0
    deadline = time.monotonic() + 180
    while finished < 20:
        assert time.monotonic() < deadline
        time.sleep(2)
        finished = int(machine.ssh("ls /var/lib/rig | grep -c '^[0-9]' || true"))
    machine.cut()
    assert causes(machine) == [*before, POWER_CUT]
    assert machine.ssh("systemctl is-system-running", check=False) == "running", machine.ssh("systemctl --failed")
    machine.ssh("cat > /root/reader.py <<'EOF'\n" + READER + "EOF")
    assert int(machine.ssh("python3 /root/reader.py")) >= finished
    assert "rig.word=fresh" in cmdline(machine)
    run = deploys.run()
    assert (run.code, changed(run.text)) == (0, 0), run.text
    assert causes(machine) == [*before, POWER_CUT]


def test_its_disk_is_clean(machine: Machine) -> None:
    machine.stop()
    assert machine.off()
    assert " files (" in disk.check(machine.files.disk)  # its summary; e2fsck ends with an error where it finds damage
