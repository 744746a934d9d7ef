"""Keeps one machine going: it is boot loader, power supply and bookkeeper. `python -m tests.targets.vm.supervisor FOLDER PORT`.

Each boot reads kernel, initramfs and command line from the guest's own disk. A guest that reboots is started again, and so is
one whose qemu was killed (power comes back); one that powers itself off stays off.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.targets.host import RigError
from tests.targets.vm import disk, qemu
from tests.targets.vm.boot import BootError
from tests.targets.vm.state import POWER_CUT, POWER_ON, REBOOT, Boot, Files, State, save, start_time

#: A qemu that dies sooner than this did not start: to try again would help nobody.
START_S = 5.0

#: Nor would going on after this many boots in a row that ended within so many seconds: a kernel that panics and resets.
SHORT_BOOTS, SHORT_S = 5, 20.0


class _Stop(Exception):
    """Somebody wants the machine off."""


def _stop(*_: object) -> None:
    raise _Stop


def supervise(folder: Path, port: int) -> None:
    """Run the machine until it is off."""
    files = Files(folder)
    state = State(os.getpid(), start_time(os.getpid()), port)
    save(files.state, state)
    cause, short = POWER_ON, 0
    try:
        while cause:
            begun = time.monotonic()
            cause = _one_boot(files, state, cause)
            short = short + 1 if time.monotonic() - begun < SHORT_S else 0
            if cause and short == SHORT_BOOTS:
                raise RigError(f"{short} boots in a row ended within {SHORT_S:.0f} s", f"read {files.console}")
    except _Stop:
        pass
    except (BootError, RigError, OSError) as error:
        state.error = str(error)
    finally:
        state.running, state.qemu, state.started = False, 0, ""
        save(files.state, state)


def _one_boot(files: Files, state: State, cause: str) -> str:
    """Boot once and wait for the end; the cause of the next boot, empty for none."""
    boot = disk.next_boot(files.disk, files.folder)
    initrd = files.folder / "initrd" if boot.initrd else None
    begun = time.monotonic()
    with files.console.open("a") as console:
        console.write(f"\n==== boot {len(state.boots) + 1} ({cause}): {boot.kernel} {boot.cmdline}\n")
    process = subprocess.Popen(
        qemu.words(files.folder, files.folder / "kernel", initrd, boot.cmdline, state.port),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write('{"execute": "qmp_capabilities"}\n')
        process.stdin.flush()
        state.running, state.qemu = True, process.pid
        state.boots.append(Boot(cause, time.time(), boot.kernel, boot.cmdline))
        save(files.state, state)
        how = qemu.ending(process.stdout)
        process.wait()
    finally:
        process.kill()
        process.wait()
    lived = time.monotonic() - begun
    print(f"boot {len(state.boots)} ended after {lived:.1f} s: {how} ({process.returncode})", flush=True)
    if how == qemu.OFF:
        return ""
    if how == qemu.CUT and lived < START_S:
        raise RigError(
            f"qemu ended after {lived:.1f} s with {process.returncode}", f"read {files.log} and {files.console}"
        )
    return REBOOT if how == qemu.RESET else POWER_CUT


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    supervise(Path(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
