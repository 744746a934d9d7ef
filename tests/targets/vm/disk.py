"""The guest's disk, read and written from outside while the machine is off: an ext4 file system without partitions."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

from tests.targets.host import RigError, find_tool, run
from tests.targets.vm.boot import GRUB_CFG, GRUB_ENV, Boot, BootError, default_boot


def _debugfs(disk: Path, *requests: str, write: bool = False) -> str:
    """Run debugfs's requests; it ends with 0 whatever happens, so that callers look at what they got."""
    # -c, -n: after a power cut the bitmaps and their checksums wait in the journal; to read a file they are not needed
    words = [find_tool("debugfs") or "debugfs", *(["-w"] if write else ["-c", "-n"]), "-f", "-", str(disk)]
    done = subprocess.run(words, input="\n".join(requests) + "\n", capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def fetch(disk: Path, inside: str, target: Path) -> bool:
    """Copy a file out of the guest; False where there is none.

    The journal is not replayed, as GRUB does not: after a power cut both see what was last written back.
    """
    target.unlink(missing_ok=True)
    _debugfs(disk, f"dump {shlex.quote(inside)} {target}")
    return target.is_file() and target.stat().st_size > 0


def read(disk: Path, inside: str) -> str | None:
    """A text file of the guest, or None."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "file"
        return target.read_text(errors="replace") if fetch(disk, inside, target) else None


def write(disk: Path, files: dict[str, tuple[str, int]]) -> None:
    """Put files (path -> text, mode) of root's into the guest; their folders must be there."""
    with tempfile.TemporaryDirectory() as folder:
        requests = []
        for number, (inside, (text, mode)) in enumerate(files.items()):
            source = Path(folder) / str(number)
            source.write_text(text)
            requests += [f"rm {inside}", f"write {source} {inside}", f"sif {inside} mode 010{mode:04o}"]
            requests += [f"sif {inside} uid 0", f"sif {inside} gid 0"]
        told = _debugfs(disk, *requests, write=True)
    for inside, (text, _) in files.items():
        if read(disk, inside) != text:
            raise RigError(
                f"{inside} could not be written into {disk}:\n{told}", "remove the disk with `down`, then `up`"
            )


def next_boot(disk: Path, folder: Path) -> Boot:
    """Load what the guest's configuration says into `folder` (kernel, initrd), as the boot loader would."""
    grub_cfg = read(disk, GRUB_CFG)
    if grub_cfg is None:
        raise BootError(f"the guest has no {GRUB_CFG}: its boot loader would stop at a prompt")
    boot = default_boot(grub_cfg, read(disk, GRUB_ENV) or "")
    for inside, name in ((boot.kernel, "kernel"), (boot.initrd, "initrd")):
        if inside and not fetch(disk, inside, folder / name):
            raise BootError(f"{GRUB_CFG} names {inside}, which the guest does not have")
    return boot


def check(disk: Path) -> str:
    """e2fsck's findings without a change to the disk; raises where it finds damage. The machine must be off."""
    return run([find_tool("e2fsck") or "e2fsck", "-f", "-n", disk], cure="keep the disk and read its console.log")
