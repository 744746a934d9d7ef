"""Targets from the distributions' own images (TARGET_BASE=upstream), for machines that reach a container registry.

Written from the images' documentation; it could not be run where this was written, which reaches no registry.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.targets.engine import docker
from tests.targets.host import RigError, say


@dataclass(frozen=True)
class Upstream:
    """An image of a distribution, and what makes a server with systemd and sshd of it."""

    image: str
    platform: str
    install: str


_APT = (
    "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc systemd systemd-sysv dbus"
    " python3 sudo ca-certificates iproute2 procps openssh-server{more} && apt-get clean"
)
_BAKED = " curl g++ git libgomp1 libnuma-dev nginx numactl python3-venv && systemctl mask nginx"
_DNF = "dnf install -y gcc systemd python3 sudo iproute procps-ng openssh-server findutils hostname && dnf clean all"

UPSTREAM = {
    "amd64": Upstream("ubuntu:24.04", "linux/amd64", _APT.format(more="")),
    "arm64": Upstream("ubuntu:24.04", "linux/arm64", _APT.format(more=_BAKED)),
    "ppc64el": Upstream("ubuntu:24.04", "linux/ppc64le", _APT.format(more=_BAKED)),
    "rhel9": Upstream("registry.access.redhat.com/ubi9/ubi", "linux/amd64", _DNF),
}

#: Emulated, systemd's LoadCredential fails (tests/targets/image.py).
_MASK = "systemctl mask systemd-sysusers systemd-tmpfiles-setup systemd-tmpfiles-setup-dev"


def wanted() -> bool:
    """Whether the distributions' own images are asked for."""
    base = os.environ.get("TARGET_BASE", "")
    if base not in ("", "debian", "upstream"):
        raise RigError(f"TARGET_BASE={base!r} is no base", "leave it out, or set it to upstream")
    return base == "upstream"


def tag(kind: str) -> str:
    """The name of the image made from the distribution's."""
    return f"embedfleet-upstream:{kind}"


def build(kind: str, emulated: bool) -> None:
    """Pull the distribution's image and install what a server has; a container that is committed, as `docker build` is missing on some."""
    base = UPSTREAM[kind]
    say(f"making {tag(kind)} from {base.image}")
    docker("pull", "--platform", base.platform, base.image, timeout=1800)
    script = base.install + (f" && {_MASK}" if emulated else "") + " && ln -sf /dev/null /etc/systemd/system/tmp.mount"
    container = docker("create", "--platform", base.platform, base.image, "/bin/sh", "-c", script).strip()
    try:
        docker("start", "-a", container, timeout=2400)
        docker("commit", "--change", 'CMD ["/sbin/init"]', "--change", "ENV container=docker", container, tag(kind))
    finally:
        docker("rm", "-f", container)
