"""The machine's disk image: Debian for arm64 on an ext4 file system, bootstrapped from packages and kept in the cache.

Only what a package's scripts do runs under emulation; unpacking, the kernel and the file system are this machine's own work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from pathlib import Path

from tests.targets.aptsource import AptSource, debian_source
from tests.targets.emulation import ensure_emulation, native
from tests.targets.host import apt_install, as_root, cache_dir, ensure_tool, find_tool, lock, run, say
from tests.targets.image import BAKED, DEBIAN_KEYS, PACKAGES, SSHD, SUITE, ca_hooks
from tests.targets.vm.boot import GRUB_CFG, starter

ARCH = "arm64"

#: What makes a machine of a root file system.
MACHINE = (
    "udev",
    "kmod",
    "linux-base",
    "initramfs-tools",
    "busybox",
    "zstd",
    "e2fsprogs",
    "grub-common",
    "grub2-common",
)

#: The file system's, and so the root device's name; the same in every image, as it is in the first grub.cfg.
UUID = "5f1e3b2a-0f0c-4c5c-9d9e-656d62656466"
SIZE = "12G"

#: What the first boot needs in the initramfs; MODULES=list keeps `update-initramfs -u` in the emulated machine short.
INITRAMFS_MODULES = ("ext4", "virtio_blk", "virtio_pci", "virtio_net")

CMDLINE = "console=ttyAMA0 net.ifnames=0"

#: No orphan_file, no metadata_csum_seed: Debian 12's grub-probe does not know them.
FEATURES = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

FILES = {
    "/etc/hostname": "grace-vm\n",
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 grace-vm\n",
    "/etc/fstab": f"UUID={UUID} / ext4 errors=remount-ro 0 1\n",
    "/etc/resolv.conf": "nameserver 10.0.2.3\n",  # qemu's user network
    # an emulated start on a busy machine takes minutes: that says nothing of the units
    "/etc/systemd/system.conf.d/rig.conf": "[Manager]\nDefaultTimeoutStartSec=600\nDefaultDeviceTimeoutSec=600\n",
    "/etc/systemd/network/80-dhcp.network": "[Match]\nName=eth* en*\n\n[Network]\nDHCP=yes\n",
    "/etc/ssh/sshd_config.d/rig.conf": SSHD,
    # in the initramfs, but loaded there by udev alone, which heeds a blacklist (what `modules` lists is loaded regardless)
    "/etc/initramfs-tools/hooks/rig": (
        '#!/bin/sh\n[ "$1" = prereqs ] && exit 0\n. /usr/share/initramfs-tools/hook-functions\nmanual_add_modules virtio_rng\n'
    ),
    "/etc/initramfs-tools/conf.d/rig": "MODULES=list\nFSTYPE=ext4\nCOMPRESSLEVEL=1\n",  # FSTYPE: fsck is in the first one, too
    "/etc/default/grub": (
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_DISTRIBUTOR=Debian\nGRUB_TERMINAL=console\n"
        f'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="{CMDLINE}"\n'
    ),
}

#: The network's; and neither the nginx that is baked for the deploy nor apt's daily jobs amid a test.
ENABLED = ("systemd-networkd.service",)
DISABLED = ("nginx.service", "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "e2scrub_reap.service")

HERE = Path(__file__).parent
SCRIPTS = ("native-unpack.sh", "kernel.sh")
MERGED_USR = Path("/usr/share/mmdebstrap/hooks/merged-usr")

#: native-unpack.sh's folder, and the PATH that apt gives its dpkg, whatever its own is.
NATIVE = "/rig-native"
DPKG_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def folder() -> Path:
    """Where images are kept."""
    return cache_dir() / "vm"


def _recipe(source: AptSource) -> list[object]:
    scripts = [(HERE / name).read_text() for name in SCRIPTS]
    return [SUITE, PACKAGES, BAKED, MACHINE, UUID, SIZE, INITRAMFS_MODULES, FEATURES, FILES, ENABLED, DISABLED, scripts,
            source.lines, source.options]  # fmt: skip


def ensure_image() -> Path:
    """The image that the recipe, with this machine's mirror, makes; built once."""
    source = debian_source(SUITE)
    digest = hashlib.sha256(json.dumps(_recipe(source)).encode()).hexdigest()[:12]
    image = folder() / f"debian-{ARCH}-{digest}.ext4"
    if image.exists():
        return image
    with lock("vm-image"):
        if not image.exists():
            _tools(source)
            begun = time.monotonic()
            say(f"building the image of the {ARCH} machine (once; minutes)")
            _build(image, source)
            say(f"built {image.name} in {time.monotonic() - begun:.0f} s")
    return image


def _tools(source: AptSource) -> None:
    ensure_tool("mmdebstrap", "mmdebstrap")
    ensure_tool("depmod", "kmod")
    ensure_tool("mke2fs", "e2fsprogs")
    if not source.lines and not DEBIAN_KEYS.exists():
        apt_install("debian-archive-keyring")  # Ubuntu: apt would refuse every package without Debian's own keys
    ensure_emulation(ARCH)


def _build(image: Path, source: AptSource) -> None:
    image.parent.mkdir(exist_ok=True)
    tree, partial = image.with_suffix(f".{os.getpid()}.tree"), image.with_suffix(f".{os.getpid()}")
    timings = []
    try:
        for what, words in (("bootstrap", _bootstrap(tree, source)), ("file system", _file_system(tree, partial))):
            begun = time.monotonic()
            run([*as_root(), *words], cure="check that this machine's apt works (`apt-get update`) and its free space")
            timings.append(f"{what} {time.monotonic() - begun:.0f} s")
        say(", ".join(timings))
        if os.geteuid() != 0:
            run([*as_root(), "chown", f"{os.getuid()}:{os.getgid()}", partial])
        partial.rename(image)
    finally:
        run([*as_root(), "rm", "-rf", "--one-file-system", tree, partial])


def _bootstrap(tree: Path, source: AptSource) -> list[str | Path]:
    """mmdebstrap's command for the root file system."""
    unpack = f"sh {shlex.quote(str(HERE / 'native-unpack.sh'))}"
    options = list(source.options)
    hooks = {"setup": [], "extract": [], "essential": [], "customize": []}  # type: dict[str, list[str]]
    if MERGED_USR.is_dir():  # else a package converts the file system afterwards, in perl
        hooks["setup"].append(f'sh {MERGED_USR}/setup00.sh "$1"')
        hooks["essential"].append(f'sh {MERGED_USR}/essential00.sh "$1"')
    if native() != ARCH:
        hooks["extract"].append(f'{unpack} add "$1"')
        hooks["customize"].append(f'{unpack} remove "$1"')
        options.append(f'DPkg::Path "{NATIVE}:{DPKG_PATH}"')
    # keys that are there already are not made; these are gone in the end
    keys = 'for kind in rsa ecdsa ed25519; do touch "$1/etc/ssh/ssh_host_${kind}_key"; done'
    hooks["essential"].append(f'mkdir -p "$1/etc/ssh" && {keys}')
    # a machine's disk does survive a power cut, but while it is built there is nothing to lose
    hooks["essential"].append('echo force-unsafe-io > "$1/etc/dpkg/dpkg.cfg.d/rig"')
    hooks["customize"] += [
        *ca_hooks(source),
        *_file_hooks(),
        f'sh {shlex.quote(str(HERE / "kernel.sh"))} "$1"',
        *_last_hooks(),
    ]
    # the first packages are installed by mmdebstrap's own dpkg, the others by apt's
    words: list[str | Path] = ["env", f"PATH={NATIVE}:{os.environ.get('PATH', os.defpath)}:{DPKG_PATH}"]
    words += ["mmdebstrap", "--quiet", "--variant=minbase", "--format=directory", f"--arch={ARCH}"]
    words += [f"--include={','.join((*PACKAGES, *BAKED, *MACHINE))}"]
    words += [f"--aptopt={option}" for option in options]
    words += [f"--{stage}-hook={hook}" for stage, lines in hooks.items() for hook in lines]
    return [*words, SUITE, tree, *source.lines]


def _file_hooks() -> list[str]:
    hooks = [
        f'mkdir -p "$1{Path(path).parent}" && rm -f "$1{path}" && printf %s {shlex.quote(text)} > "$1{path}"'
        for path, text in FILES.items()
    ]
    hooks += [
        f'chroot "$1" systemctl --quiet {verb} {" ".join(units)}'
        for verb, units in (("enable", ENABLED), ("disable", DISABLED))
    ]
    return [
        *hooks,
        'chmod 755 "$1/etc/initramfs-tools/hooks/rig"',
        f'printf "%s\\n" {" ".join(INITRAMFS_MODULES)} >> "$1/etc/initramfs-tools/modules"',
    ]


def _last_hooks() -> list[str]:
    """The first grub.cfg, and nothing that two machines must not share: keys come at `up`, the rest at the first boot."""
    text = starter("/boot/vmlinuz-VERSION", "/boot/initrd.img-VERSION", f"root=UUID={UUID} ro {CMDLINE} quiet")
    return [
        f'mkdir -p "$1/boot/grub" && printf %s {shlex.quote(text)} '
        f'| sed "s/VERSION/$(cat "$1/boot/rig-version")/" > "$1{GRUB_CFG}"',
        'rm -f "$1/boot/rig-version" "$1"/etc/ssh/ssh_host_*_key* "$1/etc/dpkg/dpkg.cfg.d/rig" "$1/var/lib/dbus/machine-id"',
        'mkdir -p -m 700 "$1/root/.ssh"',
    ]


def _file_system(tree: Path, partial: Path) -> list[str | Path]:
    """mke2fs's command: an ext4 image with the tree in it, without a loop device."""
    mke2fs = find_tool("mke2fs") or "mke2fs"
    return [mke2fs, "-q", "-t", "ext4", "-U", UUID, "-L", "rig", "-O", FEATURES, "-d", tree, partial, SIZE]
