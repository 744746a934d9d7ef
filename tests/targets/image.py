"""Images for targets and for the mirror, bootstrapped from Debian packages: no container registry is needed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.targets import upstream
from tests.targets.aptsource import AptSource, debian_source
from tests.targets.emulation import ensure_emulation, native
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

#: What the distribution provides, baked into the images of emulated targets: to install it there takes minutes each time
#: (on the x86_64 target the deploy really installs all of it).
BAKED = ("curl", "g++", "git", "libgomp1", "libnuma-dev", "nginx", "numactl", "python3-venv")

#: Written into the image: keys only, and no reverse look-up of the controller's address before each login.
SSHD = "PasswordAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n"

HOOKS = (
    f"printf '%s' '{SSHD}' > \"$1/etc/ssh/sshd_config.d/rig.conf\"",
    # as in Docker's own images: a container's disk need not survive a power cut, and dpkg asks it to file by file
    'echo force-unsafe-io > "$1/etc/dpkg/dpkg.cfg.d/rig"',
    # /tmp is a tmpfs from `docker run`; systemd's own mount unit would cover it a second time
    'ln -sf /dev/null "$1/etc/systemd/system/tmp.mount"',
)

#: These use LoadCredential, which fails under qemu-user (status 243/CREDENTIALS); what they would make is in the image.
EMULATED = tuple(
    f'ln -sf /dev/null "$1/etc/systemd/system/{unit}.service"'
    for unit in ("systemd-sysusers", "systemd-tmpfiles-setup", "systemd-tmpfiles-setup-dev", "nginx")
)

_RHEL_RELEASE = """NAME="Red Hat Enterprise Linux"
VERSION="9.6 (Plow)"
ID="rhel"
ID_LIKE="fedora"
VERSION_ID="9.6"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Red Hat Enterprise Linux 9.6 (Plow)"
CPE_NAME="cpe:/o:redhat:enterprise_linux:9::baseos"
"""

#: RHEL's way to trust a site's own authority: anchors and one bundle made of all.
_UPDATE_CA_TRUST = """#!/bin/sh
# Stand-in for RHEL's update-ca-trust: the system's authorities and the anchors, in one bundle.
set -e
out=/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
{ cat /usr/share/ca-certificates/mozilla/*.crt; cat /etc/pki/ca-trust/source/anchors/* 2>/dev/null || :; } >$out.new
mv $out.new $out
"""

RHEL = (
    f"cat > \"$1/etc/os-release\" <<'END'\n{_RHEL_RELEASE}END",
    'mkdir -p "$1/etc/pki/ca-trust/source/anchors" "$1/etc/pki/ca-trust/extracted/pem" "$1/etc/pki/tls/certs"',
    f"cat > \"$1/usr/bin/update-ca-trust\" <<'END'\n{_UPDATE_CA_TRUST}END",
    'chmod 755 "$1/usr/bin/update-ca-trust" && chroot "$1" /usr/bin/update-ca-trust',
    'ln -s /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem "$1/etc/pki/tls/certs/ca-bundle.crt"',
    'mkdir -p "$1/etc/dnf/vars" "$1/etc/yum.repos.d" && echo 9 > "$1/etc/dnf/vars/releasever"',
)


@dataclass(frozen=True)
class Recipe:
    """How an image is bootstrapped: Debian's and Docker's name of the architecture, packages, mmdebstrap's hooks.

    :param gone: programs that the finished image must not have
    """

    arch: str
    platform: str
    packages: tuple[str, ...] = PACKAGES
    hooks: tuple[str, ...] = HOOKS
    gone: tuple[str, ...] = ()


RECIPES = {
    "amd64": Recipe("amd64", "linux/amd64"),
    "arm64": Recipe("arm64", "linux/arm64", (*PACKAGES, *BAKED), (*HOOKS, *EMULATED)),
    "ppc64el": Recipe("ppc64el", "linux/ppc64le", (*PACKAGES, *BAKED), (*HOOKS, *EMULATED)),
    # Debian's programs under RHEL's name, with dnf and rpm as the only package managers: what RHEL's packages bring comes
    # from the mirror's (distro_rpms.py).
    "rhel9": Recipe(
        "amd64",
        "linux/amd64",
        (*PACKAGES, *(name for name in BAKED if name not in ("nginx", "numactl")), "dnf", "rpm"),
        (*HOOKS, *RHEL),
        ("apt", "apt-get", "apt-cache", "apt-mark", "apt-config", "dpkg", "dpkg-query", "dpkg-deb", "update-ca-certificates"),
    ),
}  # fmt: skip

#: Where apt in the image finds certificates for an HTTPS mirror. Not the system's store: the site's CA is the deploy's.
MIRROR_CA = "/etc/apt/mirror-ca.crt"

#: The image's configuration (docker import --change).
CHANGES = ('CMD ["/sbin/init"]', "ENV container=docker")

DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

#: git serves the repository; python3-venv has the parts of Python (ensurepip) that the conda package is made from; rpm and
#: createrepo-c make the rpm repositories.
MIRROR_PACKAGES = ("git", "python3-venv", "rpm", "createrepo-c")

#: What a server has beside that: kmod; and what the deploy of a driver does not test: the distribution's packages, and gpg.
SERVER_PACKAGES = {
    "amd64": ("kmod", "gpg", *(name for name in BAKED if name != "nginx")),
    "arm64": ("kmod", "gpg"),
    "rhel9": ("kmod",),
}

#: kmod goes by the name that it is called by.
KMOD_LINKS = "for name in lsmod rmmod insmod modinfo modprobe depmod; do ln -sf ../bin/kmod /usr/sbin/$name; done"

#: Debian's packages whose programs the stand-in of RHEL gets as RHEL's packages.
REPACKED = ("nginx", "nginx-common", "numactl")


def _exists(tag: str) -> bool:
    probe = subprocess.run([*docker_words(), "image", "inspect", tag], capture_output=True, stdin=subprocess.DEVNULL)
    return probe.returncode == 0


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def target_tag(kind: str = "amd64", source: AptSource | None = None) -> str:
    """The name of the image that the recipe, with this machine's mirror, makes."""
    source = source or debian_source(SUITE)
    recipe = RECIPES[kind]
    return f"embedfleet-target:{kind}-{_digest(SUITE, asdict(recipe), CHANGES, source.lines, source.options)}"


def server_tag(kind: str) -> str:
    """The name of the image of targets that load modules and reboot, made from the other targets'."""
    base = upstream.tag(kind) if upstream.wanted() else target_tag(kind)
    return f"embedfleet-server:{kind}-{_digest(base, SERVER_PACKAGES[kind], KMOD_LINKS)}"


def mirror_tag(target: str) -> str:
    """The name of the mirror's image, made from the target's."""
    return f"embedfleet-mirror:{_digest(target, MIRROR_PACKAGES, REPACKED)}"


def ensure_image(kind: str = "amd64") -> str:
    """A bare server with systemd and sshd as a Docker image; its tag. Debian's, or the distribution's own (upstream.py)."""
    ensure_emulation(RECIPES[kind].arch)
    if not upstream.wanted():
        return ensure_debian(kind)
    with lock(f"image-{kind}"):
        if not _exists(upstream.tag(kind)):
            upstream.build(kind, RECIPES[kind].arch != native())
    return upstream.tag(kind)


def ensure_debian(kind: str = "amd64") -> str:
    """The image that is bootstrapped from Debian's packages; the mirror's is made of it too."""
    source = debian_source(SUITE)
    tag = target_tag(kind, source)
    if _exists(tag):
        return tag
    with lock(f"image-{kind}"):
        if _exists(tag):
            return tag
        tarball = ensure_tarball(kind)
        say(f"importing {tag}")
        changes = [word for change in CHANGES for word in ("--change", change)]
        docker("import", "--platform", RECIPES[kind].platform, *changes, tarball, tag)
    return tag


def ensure_tarball(kind: str) -> Path:
    """The bootstrapped root file system, from the cache or made now."""
    source, recipe = debian_source(SUITE), RECIPES[kind]
    tarball = cache_dir() / "images" / f"{target_tag(kind, source).replace(':', '-')}.tar"
    if tarball.exists():
        return tarball
    with lock(f"tarball-{kind}"):
        if not tarball.exists():
            _bootstrap(kind, recipe, source, tarball)
    return tarball


def _bootstrap(kind: str, recipe: Recipe, source: AptSource, tarball: Path) -> None:
    ensure_tool("mmdebstrap", "mmdebstrap")
    ensure_emulation(recipe.arch)
    if not source.lines and not DEBIAN_KEYS.exists():
        apt_install("debian-archive-keyring")  # Ubuntu: apt would refuse every package without Debian's own keys
    took = "half a minute" if recipe.arch == native() else "five to ten minutes, emulated"
    say(f"bootstrapping Debian {SUITE} for {kind} from packages (about {took}, once)")
    tarball.parent.mkdir(exist_ok=True)
    partial = tarball.with_suffix(f".{os.getpid()}.tar")
    words = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--arch={recipe.arch}",
        f"--include={','.join(recipe.packages)}",
    ]
    words += [f"--aptopt={option}" for option in source.options]
    words += [f"--customize-hook={hook}" for hook in (*recipe.hooks, *ca_hooks(source))]
    try:
        run(
            [*as_root(), *words, SUITE, partial, *_kept_up(source, recipe.arch)],
            cure="check that this machine's apt works (`apt-get update`) and that there are 2 GB free in /tmp",
            timeout=2400,
        )
        if os.geteuid() != 0:
            run([*as_root(), "chown", f"{os.getuid()}:{os.getgid()}", partial])
        if recipe.gone:  # not by a hook: mmdebstrap itself uses them to the end
            run(["tar", "--delete", "-f", partial, *(f"./usr/bin/{name}" for name in recipe.gone if name != "update-ca-certificates"), *(f"./usr/sbin/{name}" for name in recipe.gone if name == "update-ca-certificates")])  # fmt: skip
        partial.rename(tarball)
    finally:
        run([*as_root(), "rm", "-f", partial])


def _kept_up(source: AptSource, arch: str) -> list[str]:
    """The lines that still work for an architecture: Debian 12's security archive is kept up for a few since 2026 (LTS), and for
    ppc64el its index no longer matches its files, which ends a bootstrap (seen 2026-11-30)."""
    return [line for line in source.lines if arch != "ppc64el" or "-security " not in line]


def ca_hooks(source: AptSource) -> list[str]:
    """For an HTTPS mirror: apt in the image trusts what this machine trusts (a site's own CA among it)."""
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if not source.https or not bundle.exists():
        return []
    conf = f'Acquire::https::CAInfo "{MIRROR_CA}";'
    return [f'cp {bundle} "$1{MIRROR_CA}"', f"echo '{conf}' > \"$1/etc/apt/apt.conf.d/90mirror-ca\""]


def ensure_mirror_image() -> str:
    """The target's image plus what the mirror's container and the conda channel's builder need."""
    target = ensure_debian()
    tag = mirror_tag(target)
    if _exists(tag):
        return tag
    with lock("image-mirror"):
        if _exists(tag):
            return tag
        say(f"making {tag}: the target's image with {' '.join(MIRROR_PACKAGES)}")
        script = (
            f"{_apt(MIRROR_PACKAGES)} && mkdir -p /srv/debs && cd /srv/debs && apt-get download {' '.join(REPACKED)} && "
            f"{_APT_CLEAN} && "
            # the repository belongs to whoever owns the cache, and git serves no stranger's repository otherwise
            "git config --system --add safe.directory '*'"
        )
        _derive(tag, target, script)
    return tag


def ensure_server_image(kind: str) -> str:
    """A target's image plus what it needs to be a server whose driver comes and goes."""
    target = ensure_image(kind)
    tag = server_tag(kind)
    if _exists(tag):
        return tag
    # of Debian under RHEL's name there is no apt any more: it gets the program of the other image
    donor = ensure_server_image("amd64") if kind == "rhel9" and not upstream.wanted() else None
    with lock(f"image-server-{kind}"):
        if _exists(tag):
            return tag
        packages = SERVER_PACKAGES[kind]
        say(f"making {tag}: the target's image with {' '.join(packages)}")
        if donor:
            with tempfile.TemporaryDirectory() as folder, _created(donor, "true") as other:
                docker("cp", f"{other}:/usr/bin/kmod", folder)
                _derive(tag, target, KMOD_LINKS, Path(folder) / "kmod")
        elif kind == "rhel9":
            _derive(tag, target, f"dnf install -y {' '.join(packages)} && dnf clean all")
        else:
            _derive(tag, target, f"{_apt(packages)} && {_APT_CLEAN}")
    return tag


_APT_CLEAN = "apt-get clean && rm -rf /var/lib/apt/lists/*"


def _apt(packages: tuple[str, ...]) -> str:
    install = f"apt-get install -y --no-install-recommends {' '.join(packages)}"
    return f"apt-get update && DEBIAN_FRONTEND=noninteractive {install}"


@contextlib.contextmanager
def _created(image: str, script: str) -> Iterator[str]:
    """A container that has not started; gone in the end."""
    container = docker("create", image, "/bin/sh", "-c", script).strip()
    try:
        yield container
    finally:
        docker("rm", "-f", container)


def _derive(tag: str, image: str, script: str, program: Path | None = None) -> None:
    """An image made of another one by a script, and a program that it gets before. Run and commit, not `docker build`: the classic
    builder is gone from some clients and buildx missing on others."""
    with _created(image, script) as container:
        if program:
            docker("cp", program, f"{container}:/usr/bin/{program.name}")
        docker("start", container)
        if docker("wait", container).strip() != "0":
            raise RigError(
                f"this failed in {image}: {script}\n{docker('logs', '--tail', '15', container)}",
                "check apt and the network",
            )
        docker("commit", container, tag)
