"""The same image as a Vagrant box for libvirt: `python -m tests.targets.vm.box` fills tests/targets/vm/box/ beside the Vagrantfile.

The box has no boot loader either: libvirt is given the kernel, the initramfs and the command line that the image's own
grub.cfg names. What a deploy changes of these inside shows with `python -m tests.targets.vm`, not with vagrant.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.targets.containers import ensure_key
from tests.targets.host import RigError, ensure_tool, run, say
from tests.targets.vm import disk
from tests.targets.vm.image import SIZE, ensure_image

FOLDER = Path(__file__).with_name("box")
NAME = "embedfleet-arm64.box"


def make(folder: Path = FOLDER) -> Path:
    """The box, the key that opens it, and what libvirt boots it with."""
    ensure_tool("qemu-img", "qemu-utils")
    image = ensure_image()
    folder.mkdir(exist_ok=True)
    key = ensure_key(folder)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        raw, qcow2 = Path(work) / "raw", Path(work) / "box.img"
        run(["cp", "--reflink=auto", "--sparse=always", image, raw])
        host_key = Path(work) / "host_key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "box", "-f", host_key])
        disk.write(
            raw,
            {
                "/root/.ssh/authorized_keys": (key.with_suffix(".pub").read_text(), 0o600),
                "/etc/ssh/ssh_host_ed25519_key": (host_key.read_text(), 0o600),
                "/etc/ssh/ssh_host_ed25519_key.pub": (host_key.with_suffix(".pub").read_text(), 0o644),
            },
        )
        boot = disk.next_boot(raw, folder)
        (folder / "cmdline").write_text(boot.cmdline + "\n")
        run(["qemu-img", "convert", "-c", "-O", "qcow2", raw, qcow2])
        metadata = Path(work) / "metadata.json"
        size = int(SIZE.removesuffix("G"))
        metadata.write_text(json.dumps({"provider": "libvirt", "format": "qcow2", "virtual_size": size}))
        with tarfile.open(folder / f".{NAME}", "w") as box:  # the image is compressed already
            for path in (qcow2, metadata):
                box.add(path, path.name)
    shutil.move(folder / f".{NAME}", folder / NAME)
    return folder / NAME


if __name__ == "__main__":
    try:
        say(f"made {make()}")
    except RigError as error:
        sys.exit(f"box: error: {error}")
