"""A deploy whose settings count at the next boot: it reboots if that is due, goes on afterwards, and the next run does nothing.

--data reboot=never leaves the reboot for later, as an operator in working hours does.
"""

from __future__ import annotations

from io import StringIO

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation
from pyinfra.facts.files import File
from pyinfra.facts.server import Command
from pyinfra.operations import files, server, systemd

#: Says that a reboot is due; gone with the boot, as /run is memory. It outlives a deploy that was killed before its reboot.
DUE = "/run/rig-reboot-due"

OPTIONS = "options null_blk nr_devices=3\noptions virtio_net napi_tx=N\n"
BLACKLIST = "blacklist virtio_rng\nblacklist nouveau\noptions nouveau modeset=0\n"
CMDLINE = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX transparent_hugepage=madvise rig.word=fresh"\n'
UNIT = """[Unit]
Description={text}
{order}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c '{command}'

[Install]
WantedBy=multi-user.target
"""
FIRST = UNIT.format(text="Takes its time", order="", command="sleep 3; echo first >> /run/rig-order")
SECOND = UNIT.format(
    text="Needs the other",
    order="Requires=rig-first.service\nAfter=rig-first.service",
    command="echo second >> /run/rig-order",
)

FILES = {
    "/etc/modprobe.d/rig-options.conf": OPTIONS,
    "/etc/modprobe.d/rig-blacklist.conf": BLACKLIST,
    "/etc/modules-load.d/rig.conf": "null_blk\n",
    "/etc/default/grub.d/50-rig.cfg": CMDLINE,
    "/etc/systemd/system/rig-first.service": FIRST,
    "/etc/systemd/system/rig-second.service": SECOND,
}

#: What is older than its inputs: a run that was killed between writing one and making the other is made good by the next.
STALE = (
    'test -z "$(find /etc/modprobe.d /etc/initramfs-tools -newer /boot/initrd.img-$(uname -r) -print -quit)" || echo initramfs; '
    'test -z "$(find /etc/default/grub /etc/default/grub.d -newer /boot/grub/grub.cfg -print -quit)" || echo grub'
)


@operation()
def boot_files_current():
    """Ensure an initramfs and a grub.cfg that are newer than all that goes into them; a reboot is due where one is made."""
    stale = (host.get_fact(Command, STALE) or "").split()
    commands = {"initramfs": "update-initramfs -u", "grub": "update-grub"}
    for name in stale:
        yield StringCommand("touch", QuoteString(DUE))
        yield StringCommand(commands[name])
    if not stale:
        host.noop("initramfs and grub.cfg are newer than all that goes into them")


for path, text in FILES.items():
    files.put(name=path, src=StringIO(text), dest=path, mode="644", user="root", group="root")

for key, value in (("vm.swappiness", 17), ("net.core.somaxconn", 2048)):
    server.sysctl(name=key, key=key, value=value, persist=True, persist_file="/etc/sysctl.d/90-rig.conf")

for unit in ("rig-first.service", "rig-second.service"):
    systemd.service(name=unit, service=unit, running=None, enabled=True)

boot_files_current(name="initramfs and GRUB's configuration")

if host.data.get("reboot") != "never":
    # delay: pyinfra takes a host for rebooted when its uptime is below what it was before plus this
    server.reboot(
        name="Reboot, where it is due",
        delay=20,
        interval=2,
        reboot_timeout=400,
        _if=lambda: host.get_fact(File, path=DUE) is not None,
    )
    files.put(
        name="What comes after the reboot",
        src=StringIO("all of it\n"),
        dest="/var/lib/rig-finished",
        mode="644",
    )
