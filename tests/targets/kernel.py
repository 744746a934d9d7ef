"""The kernel that a target presents, as packages: what a server has of it before anything is deployed."""

from __future__ import annotations

import subprocess

from tests.targets.engine import docker, docker_words
from tests.targets.host import RigError
from tests.targets.nvidia.repository import ensure_repositories

#: What drivers look for, on a target whose distribution's kernel the mirror does not have.
_FILES = (
    "mkdir -p /lib/modules/{0} /boot && cd /lib/modules/{0} && touch modules.order modules.builtin modules.builtin.modinfo"
    " && echo {0} >/boot/vmlinuz-{0} && echo {0} >/boot/config-{0} && depmod {0}"
)


def install_kernel(container: str, release: str) -> None:
    """Give a target a kernel: Ubuntu's stand-in package, or (RHEL, Debian) the files alone. It boots with the next reboot if it
    is the newest of its flavour."""
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(docker("exec", container, "uname", "-m").strip(), "")
    name = f"linux-image-{release}"
    found = sorted(ensure_repositories().glob(f"apt/ubuntu*/pool/restricted/l/{name}/{name}_*_{arch}.deb"))
    if not found:
        docker("exec", container, "sh", "-c", _FILES.format(release))
        return
    script = "cat >/tmp/kernel.deb && dpkg -i /tmp/kernel.deb; rc=$?; rm -f /tmp/kernel.deb; exit $rc"
    words = [*docker_words(), "exec", "-i", container, "sh", "-c", script]
    done = subprocess.run(words, input=found[-1].read_bytes(), capture_output=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise RigError(f"{name} was not installed in {container}:\n{said}", "read dpkg's message")
