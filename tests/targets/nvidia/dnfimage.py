"""An image with dnf and rpm, to look at the rpm repositories with: Debian has both, and no registry is needed."""

from __future__ import annotations

import hashlib
import subprocess

from tests.targets.engine import docker, docker_words
from tests.targets.host import RigError, lock, say

PACKAGES = ("dnf", "rpm")


def dnf_tag(target: str) -> str:
    """The image's name; it is the target's image with a few packages more."""
    return f"embedfleet-dnf:{hashlib.sha256(f'{target} {PACKAGES}'.encode()).hexdigest()[:12]}"


def ensure_dnf_image(target: str) -> str:
    """Make the image, once (a quarter of a minute); its tag."""
    tag = dnf_tag(target)
    words = [*docker_words(), "image", "inspect", tag]
    with lock("image-dnf"):
        if subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
            return tag
        say(f"making {tag}: the target's image with {' '.join(PACKAGES)}")
        script = (
            "export DEBIAN_FRONTEND=noninteractive && apt-get -qq -o Acquire::Languages=none update && "
            f"apt-get -qq -y install --no-install-recommends {' '.join(PACKAGES)} && "
            "apt-get clean && rm -rf /var/lib/apt/lists/*"
        )
        container = docker("create", target, "/bin/sh", "-c", script).strip()
        try:
            docker("start", container)
            if docker("wait", container).strip() != "0":
                raise RigError(f"apt failed in {target}:\n{docker('logs', '--tail', '15', container)}", "check apt")
            docker("commit", container, tag)
        finally:
            docker("rm", "-f", container)
    return tag
