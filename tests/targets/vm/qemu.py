"""qemu-system-aarch64: the words that start it, and why it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROGRAM = "qemu-system-aarch64"
MEMORY_MB = 2048
CPUS = 2

#: How a machine stopped. CUT: the process is gone and no one had asked for it.
RESET, OFF, CUT = "reset", "off", "cut"


def words(folder: Path, kernel: Path, initrd: Path | None, cmdline: str, port: int) -> list[str]:
    """The command. Everything is emulated: KVM is not asked for, as the machine beneath has another architecture."""
    return [
        # the machine does not outlive its supervisor, whatever ends that one
        *("setpriv", "--pdeathsig", "KILL", PROGRAM, "-name", f"embedfleet,process={folder.parent.name}"),
        *("-M", "virt", "-cpu", "cortex-a72", "-smp", str(CPUS), "-m", str(MEMORY_MB), "-accel", "tcg,thread=multi"),
        *("-display", "none", "-nodefaults", "-no-reboot", "-qmp", "stdio"),
        *("-chardev", f"file,id=console,path={folder / 'console.log'},append=on", "-serial", "chardev:console"),
        # unsafe: the guest's flushes wait for no real disk. A killed qemu loses nothing that it was handed all the same.
        *("-drive", f"file={folder / 'disk.raw'},format=raw,if=none,id=disk,cache=unsafe,discard=unmap"),
        *("-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"),
        *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=net,romfile="),
        *("-kernel", str(kernel), *(("-initrd", str(initrd)) if initrd else ()), "-append", cmdline),
    ]


def ending(messages: Iterable[str]) -> str:
    """How the machine stopped, from QMP's lines until their end."""
    how = CUT
    for line in messages:
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if message.get("event") == "SHUTDOWN":
            reason = message.get("data", {}).get("reason", "")
            # guest-reset is `reboot` (with -no-reboot a shutdown), and the reset after a panic with panic=N
            how = {"guest-reset": RESET, "guest-shutdown": OFF}.get(reason, CUT)
    return how
