"""Other architectures on this machine: qemu-user through the kernel's binfmt_misc."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from tests.targets.host import RigError, apt_install, as_root, cache_dir, find_tool, lock, run, say, write_whole

BINFMT = Path("/proc/sys/fs/binfmt_misc")

#: Debian's architecture -> qemu's name of it.
QEMU = {"arm64": "aarch64", "ppc64el": "ppc64le"}


def native() -> str:
    """Debian's name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}.get(platform.machine(), platform.machine())


def _record() -> Path:
    """What the rig itself made: entries, and the mount."""
    return cache_dir() / "binfmt.json"


def _made() -> dict[str, list[str]]:
    made: dict[str, list[str]] = (
        json.loads(_record().read_text()) if _record().exists() else {"entries": [], "mounts": []}
    )
    return made


def registered(arch: str) -> bool:
    """Whether the kernel runs programs of an architecture, in containers too (flag F: the emulator is opened once)."""
    entry = BINFMT / f"qemu-{QEMU[arch]}"
    if not entry.exists():
        return False
    lines = entry.read_text().splitlines()
    return "enabled" in lines and any(line.startswith("flags:") and "F" in line for line in lines)


def ensure_emulation(arch: str) -> None:
    """Register the emulator of an architecture unless this machine runs it already."""
    if arch == native() or registered(arch):
        return
    if arch not in QEMU:
        raise RigError(f"no emulation is known for {arch}", f"one of {', '.join(QEMU)}")
    with lock("binfmt"):
        before = set(os.listdir(BINFMT)) if (BINFMT / "register").exists() else set()
        made = _made()
        if not before:
            say(f"mounting binfmt_misc at {BINFMT}")
            run([*as_root(), "mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], cure="the kernel needs binfmt_misc")
            made["mounts"] = [str(BINFMT)]
            before = set(os.listdir(BINFMT))
            write_whole(_record(), json.dumps(made) + "\n")
        if find_tool(f"qemu-{QEMU[arch]}-static") is None or find_tool("update-binfmts") is None:
            say("qemu-user-static is missing: installing it with apt")
            apt_install("qemu-user-static", "binfmt-support", "arch-test")
        if not registered(arch):
            # a formats file that is imported and enabled already is only told about
            run([*as_root(), "update-binfmts", "--import"])
            run([*as_root(), "update-binfmts", "--enable", f"qemu-{QEMU[arch]}"])
        made["entries"] = sorted({*made["entries"], *(set(os.listdir(BINFMT)) - before)})
        write_whole(_record(), json.dumps(made) + "\n")
        if not registered(arch):
            raise RigError(
                f"the kernel runs no {arch} programs in containers",
                f"see {BINFMT}/qemu-{QEMU[arch]}: enabled, with flag F",
            )


def remove_emulation() -> None:
    """Unregister what `ensure_emulation` registered, and the mount if it made that; others' entries stay."""
    with lock("binfmt"):
        made = _made()
        for entry in made["entries"]:
            path = BINFMT / entry
            if path.exists():
                run([*as_root(), "sh", "-c", 'echo -1 > "$0"', path])
        for mount in made["mounts"]:
            if os.path.ismount(mount):
                run([*as_root(), "umount", mount], cure=f"see who uses {mount}")
        _record().unlink(missing_ok=True)
