"""Images for targets and for the mirror, bootstrapped from Debian packages: no container registry is needed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

from tests.targets.aptsource import AptSource, debian_source
from tests.targets.engine import docker, docker_words
from tests.targets.host import RigError, apt_install, as_root, cache_dir, ensure_tool, lock, run, say

SUITE = "bookworm"

#: A server as a hosting company would hand it over: nothing here that the deploy is there to install, but for the C
#: compiler, which most bring and which is the bulk of what g++ pulls in.
PACKAGES = (
    "gcc",
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "sudo",
    "ca-certificates",
    "iproute2",
    "procps",
    "openssh-server",
)

#: Written into the image: keys only, and no reverse look-up of the controller's address before each login.
SSHD = "PasswordAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n"

HOOKS = (
    f"printf '%s' '{SSHD}' > \"$1/etc/ssh/sshd_config.d/rig.conf\"",
    # as in Docker's own images: a container's disk need not survive a power cut, and dpkg asks it to file by file
    'echo force-unsafe-io > "$1/etc/dpkg/dpkg.cfg.d/rig"',
    # /tmp is a tmpfs from `docker run`; systemd's own mount unit would cover it a second time
    'ln -sf /dev/null "$1/etc/systemd/system/tmp.mount"',
)

#: Where apt in the image finds certificates for an HTTPS mirror. Not the system's store: the site's CA is the deploy's.
MIRROR_CA = "/etc/apt/mirror-ca.crt"

#: The image's configuration (docker import --change).
CHANGES = ('CMD ["/sbin/init"]', "ENV container=docker")

DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

#: git serves the repository; python3-venv has the parts of Python (ensurepip) that the conda package is made from.
MIRROR_PACKAGES = ("git", "python3-venv")


def _exists(tag: str) -> bool:
    probe = subprocess.run([*docker_words(), "image", "inspect", tag], capture_output=True, stdin=subprocess.DEVNULL)
    return probe.returncode == 0


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def target_tag(arch: str = "amd64", source: AptSource | None = None) -> str:
    """The name of the image that the recipe, with this machine's mirror, makes."""
    source = source or debian_source(SUITE)
    return f"embedfleet-target:{arch}-{_digest(SUITE, PACKAGES, HOOKS, CHANGES, source.lines, source.options)}"


def mirror_tag(target: str) -> str:
    """The name of the mirror's image, made from the target's."""
    return f"embedfleet-mirror:{_digest(target, MIRROR_PACKAGES)}"


def ensure_image(arch: str = "amd64") -> str:
    """A bare Debian with systemd and sshd as a Docker image; its tag."""
    source = debian_source(SUITE)
    tag = target_tag(arch, source)
    if _exists(tag):
        return tag
    with lock(f"image-{arch}"):
        if _exists(tag):
            return tag
        tarball = _tarball(arch, tag, source)
        say(f"importing {tag}")
        changes = [word for change in CHANGES for word in ("--change", change)]
        docker("import", *changes, tarball, tag)
    return tag


def _tarball(arch: str, tag: str, source: AptSource) -> Path:
    """The bootstrapped root file system, from the cache or made now."""
    tarball = cache_dir() / "images" / f"{tag.replace(':', '-')}.tar"
    if tarball.exists():
        return tarball
    ensure_tool("mmdebstrap", "mmdebstrap")
    if not source.lines and not DEBIAN_KEYS.exists():
        apt_install("debian-archive-keyring")  # Ubuntu: apt would refuse every package without Debian's own keys
    say(f"bootstrapping Debian {SUITE} for {arch} from packages (about half a minute, once)")
    tarball.parent.mkdir(exist_ok=True)
    partial = tarball.with_suffix(f".{os.getpid()}.tar")
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--arch={arch}", f"--include={','.join(PACKAGES)}"]
    words += [f"--aptopt={option}" for option in source.options]
    words += [f"--customize-hook={hook}" for hook in (*HOOKS, *_ca_hooks(source))]
    try:
        run(
            [*as_root(), *words, SUITE, partial, *source.lines],
            cure="check that this machine's apt works (`apt-get update`) and that there are 2 GB free in /tmp",
            timeout=1200,
        )
        if os.geteuid() != 0:
            run([*as_root(), "chown", f"{os.getuid()}:{os.getgid()}", partial])
        partial.rename(tarball)
    finally:
        run([*as_root(), "rm", "-f", partial])
    return tarball


def _ca_hooks(source: AptSource) -> list[str]:
    """For an HTTPS mirror: apt in the image trusts what this machine trusts (a site's own CA among it)."""
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if not source.https or not bundle.exists():
        return []
    conf = f'Acquire::https::CAInfo "{MIRROR_CA}";'
    return [f'cp {bundle} "$1{MIRROR_CA}"', f"echo '{conf}' > \"$1/etc/apt/apt.conf.d/90mirror-ca\""]


def ensure_mirror_image(arch: str = "amd64") -> str:
    """The target's image plus what the mirror's container and the conda channel's builder need."""
    target = ensure_image(arch)
    tag = mirror_tag(target)
    if _exists(tag):
        return tag
    with lock("image-mirror"):
        if _exists(tag):
            return tag
        say(f"making {tag}: the target's image with {' '.join(MIRROR_PACKAGES)}")
        script = (
            "apt-get update && DEBIAN_FRONTEND=noninteractive "
            f"apt-get install -y --no-install-recommends {' '.join(MIRROR_PACKAGES)} && "
            "apt-get clean && rm -rf /var/lib/apt/lists/* && "
            # the repository belongs to whoever owns the cache, and git serves no stranger's repository otherwise
            "git config --system --add safe.directory '*'"
        )
        # run and commit, not `docker build`: the classic builder is gone from some clients and buildx missing on others
        container = docker("create", target, "/bin/sh", "-c", script).strip()
        try:
            docker("start", container)
            if docker("wait", container).strip() != "0":
                raise RigError(
                    f"apt failed in {target}:\n{docker('logs', '--tail', '15', container)}", "check apt and the network"
                )
            docker("commit", container, tag)
        finally:
            docker("rm", "-f", container)
    return tag
