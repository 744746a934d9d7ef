"""Canonical's packages: signed modules for each kernel, the driver's -server packages, kernels, dkms."""

from __future__ import annotations

from tests.targets.nvidia.kernelmodule import OPEN, PROPRIETARY
from tests.targets.nvidia.package import File, Package, own, text
from tests.targets.nvidia.payload import (
    CFG,
    COMPUTE,
    MACHINE,
    REBOOT,
    branch,
    depmod,
    dkms_source,
    firmware,
    kernel_modules,
    libraries,
    script,
    service,
    smi,
    start,
    stop,
)
from tests.targets.nvidia.specs import Pocket

_BLACKLIST = "blacklist nouveau\nblacklist lbm-nouveau\nalias nouveau off\nalias lbm-nouveau off\n"


def packages(pocket: Pocket, arch: str, extra_kernels: tuple[str, ...] = ()) -> list[Package]:
    """Everything of a pocket for an architecture. `extra_kernels`: those of the machine that the rig runs on."""
    kernels = pocket.kernels(arch)
    found = [dkms()]
    for release, _, number in kernels:
        found += kernel(release, f"{pocket.kernel}-{number}.{number}", arch)
    for release in extra_kernels:
        found += kernel(release, "1.0-1", arch)
    for flavour, newest in {flavour: release for release, flavour, _ in kernels}.items():
        version = f"{pocket.kernel}.{newest.split('-')[1]}.1"
        for kind in ("image", "headers"):
            needs = (f"linux-{kind}-{newest}",)
            found.append(Package(f"linux-{kind}-{flavour}", version, arch, f"The {flavour} kernel", needs))
    for driver in pocket.drivers:
        found += server(driver, pocket.series, arch)
        found += signed_modules(driver, pocket, arch, extra_kernels)
    return found


def dkms() -> Package:
    """A dkms that builds nothing; newer than bookworm's, so that apt takes it from here."""
    files = {"/usr/sbin/dkms": own("dkms", DEST="updates/dkms"), "/usr/lib/dkms/common.postinst": own("dkms-postinst")}
    hook = '#!/bin/sh\nset -e\nexec dkms autoinstall -k "$1"\n'
    files |= {
        f"/etc/kernel/{kind}.d/dkms": File(hook.encode(), 0o755, True) for kind in ("header_postinst", "postinst")
    }
    return Package(
        "dkms",
        "3.0.11-1ubuntu13",
        "all",
        "Dynamic Kernel Module System (DKMS)",
        files=files,
        scripts={"postrm": script("rmdir /var/lib/dkms 2>/dev/null || true")},
    )


def kernel(release: str, version: str, arch: str) -> list[Package]:
    """A kernel and its headers, as far as drivers look at them."""
    modules = f"/lib/modules/{release}"
    names = ("modules.order", "modules.builtin", "modules.builtin.modinfo")
    image = Package(
        f"linux-image-{release}",
        version,
        arch,
        "Signed kernel image",
        files={f"/boot/{name}-{release}": text(f"{name} {release}\n") for name in ("vmlinuz", "config", "System.map")}
        | {f"{modules}/{name}": File(b"") for name in names},
        scripts={
            "postinst": script(
                depmod(release),
                f"[ ! -d /etc/kernel/postinst.d ] || run-parts --arg={release} /etc/kernel/postinst.d",
            ),
            "postrm": script(f'[ "$1" != purge ] || rm -f {modules}/modules.*', f"rmdir {modules} 2>/dev/null || true"),
        },
    )
    source = f"/usr/src/linux-headers-{release}"
    headers = Package(
        f"linux-headers-{release}",
        version,
        arch,
        "Linux kernel headers",
        files={
            f"{source}/Makefile": text(f"# {release}\n"),
            f"{source}/include/generated/autoconf.h": text("#define CONFIG_MODULES 1\n"),
        },
        links={f"{modules}/build": source},
        scripts={
            "postinst": script(
                f"[ ! -d /etc/kernel/header_postinst.d ] || run-parts --arg={release} /etc/kernel/header_postinst.d"
            )
        },
    )
    return [image, headers]


def server(driver: str, series: str, arch: str) -> list[Package]:
    """nvidia-graphics-drivers-<branch>-server: one of two branches at a time (they conflict through virtual names)."""
    number, machine = branch(driver), MACHINE[arch]
    name, version = f"{number}-server", f"{driver}-0ubuntu0.{series}.1"
    folder = f"/usr/lib/{machine}-linux-gnu"
    exactly = f"(= {version})"

    def one(base: str, summary: str, depends: tuple[str, ...] = (), **more: object) -> Package:
        # one branch at a time: each conflicts with the name without a branch, which all provide (MEM for most; seen on a
        # host for nvidia-kernel-common)
        extra = more.pop("provides", ())
        assert isinstance(extra, tuple)
        return Package(
            f"{base}-{name}",
            version,
            arch,
            summary,
            depends,
            provides=(base, *extra),
            conflicts=(base,),
            replaces=(base,),
            **more,  # type: ignore[arg-type]
        )

    def meta(full: str, *depends: str) -> Package:
        return Package(full, version, arch, "NVIDIA metapackage (open kernel module)", depends)

    compute_files, compute_links = libraries(COMPUTE, driver, machine, folder)
    cfg_files, cfg_links = libraries(CFG, driver, machine, folder)
    common = f"nvidia-kernel-common-{name}"
    source = f"nvidia-kernel-source-{name}-open"
    parts = (
        f"libnvidia-cfg1-{name} {exactly}",
        f"libnvidia-compute-{name} {exactly}",
        f"nvidia-compute-utils-{name} {exactly}",
    )
    fabric = service("nvidia-fabricmanager", driver)
    return [
        Package(
            f"nvidia-firmware-{name}-{driver}",
            version,
            arch,
            "Firmware files used by the kernel module",
            files=firmware(driver),
        ),
        one(
            "nvidia-kernel-common",
            "Shared files used with the kernel module",
            (f"nvidia-firmware-{name}-{driver}",),
            # UBUNTU: nvidia-utils depends on this virtual name, which holds a whole version
            provides=(f"{common}-{driver}",),
            files={
                "/lib/modprobe.d/nvidia-graphics-drivers.conf": text(_BLACKLIST),
                "/lib/udev/rules.d/71-nvidia.rules": text(
                    'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", TAG+="systemd"\n'
                ),
            },
            scripts={"postinst": script(REBOOT)},
        ),
        one("libnvidia-cfg1", "NVIDIA binary OpenGL/GLX configuration library", files=cfg_files, links=cfg_links),
        one("libnvidia-compute", "NVIDIA libcompute package", files=compute_files, links=compute_links),
        one(
            "nvidia-compute-utils",
            "NVIDIA compute utilities",
            (f"libnvidia-compute-{name}",),
            files=service("nvidia-persistenced", driver, installable=False),
            scripts={
                "postinst": script(
                    "getent passwd nvidia-persistenced >/dev/null || useradd --system --home-dir /"
                    " --no-create-home --shell /usr/sbin/nologin nvidia-persistenced",
                    start("nvidia-persistenced", enable=False),
                ),
                "prerm": script(stop("nvidia-persistenced")),
                "postrm": script('[ "$1" != purge ] || userdel nvidia-persistenced 2>/dev/null || true'),
            },
        ),
        one(
            "nvidia-utils",
            "NVIDIA Server Driver support binaries",
            (f"libnvidia-compute-{name} (>= {driver})", f"{common}-{driver}"),
            provides=("nvidia-smi",),
            files=smi(driver),
        ),
        Package(
            source,
            version,
            arch,
            "NVIDIA kernel source package (open kernel module)",
            files=dkms_source("nvidia-srv", driver, OPEN, [machine]),
        ),
        Package(
            f"nvidia-dkms-{name}-open",
            version,
            arch,
            "NVIDIA DKMS package (open kernel module)",
            ("dkms", f"{source} {exactly}", f"{common} {exactly}"),
            provides=("nvidia-dkms-kernel",),
            conflicts=("nvidia-dkms-kernel",),
            replaces=("nvidia-dkms-kernel",),
            scripts=dkms_scripts("nvidia-srv", driver),
        ),
        meta(f"nvidia-headless-no-dkms-{name}-open", *parts, f"{common} {exactly}", f"{source} {exactly}"),
        meta(
            f"nvidia-headless-{name}-open",
            f"nvidia-headless-no-dkms-{name}-open {exactly}",
            f"nvidia-dkms-{name}-open {exactly}",
        ),
        meta(
            f"nvidia-driver-{name}-open",
            *parts,
            f"nvidia-utils-{name} {exactly}",
            f"{common} {exactly}",
            f"nvidia-dkms-{name}-open (<= {version}) | linux-modules-nvidia-{name}-open",
        ),
        Package(
            f"nvidia-fabricmanager-{number}",
            version,
            arch,
            "Fabric Manager for NVSwitch based systems",
            provides=("nvidia-fabricmanager",),
            conflicts=("nvidia-fabricmanager",),
            replaces=("nvidia-fabricmanager",),
            files={**fabric, "/usr/share/nvidia/nvswitch/fabricmanager.cfg": text("LOG_LEVEL=4\nDAEMONIZE=1\n")},
            scripts={"prerm": script(stop("nvidia-fabricmanager"))},
        ),
    ]


def dkms_scripts(module: str, driver: str) -> dict[str, str]:
    """What dh_dkms puts into a package; its postinst ends with dkms's exit code."""
    return {
        "postinst": script(f"/usr/lib/dkms/common.postinst {module} {driver}", REBOOT),
        "prerm": script(f"dkms remove -m {module} -v {driver} --all || true"),
    }


def signed_modules(driver: str, pocket: Pocket, arch: str, extra: tuple[str, ...]) -> list[Package]:
    """linux-restricted-modules: a package a kernel, a metapackage a flavour; and the proprietary ones, up to 580."""
    number, machine = branch(driver), MACHINE[arch]
    found: list[Package] = []
    kinds = [(f"{number}-server-open", f"nvidia-{number}srv-open", OPEN)]
    if int(number) < 620:  # GUIDE, R620: "Proprietary Kernel Modules Removed"
        kinds.append((f"{number}-server", f"nvidia-{number}srv", PROPRIETARY))
    for name, folder, licence in kinds:
        common = f"nvidia-kernel-common-{number}-server (>= {driver})"
        newest: dict[str, tuple[str, str]] = {}
        rows = [(release, flavour, f"{pocket.kernel}-{abi}.{abi}") for release, flavour, abi in pocket.kernels(arch)]
        rows += [(release, "", f"{pocket.series}.{driver}-1") for release in extra]
        for release, flavour, version in rows:
            if pocket.suite.endswith("-updates"):
                version += "+1"  # rebuilt for a newer driver, as the archive does
            found.append(
                Package(
                    f"linux-modules-nvidia-{name}-{release}",
                    version,
                    arch,
                    f"Linux kernel nvidia modules for version {release}",
                    (f"linux-image-{release}", common),
                    provides=(f"linux-modules-nvidia-{name}",),
                    # seen on hosts: /lib/modules/6.17.0-1018-gcp/kernel/nvidia-580srv-open/nvidia.ko
                    files=kernel_modules(f"/lib/modules/{release}/kernel/{folder}", release, driver, licence, machine),
                    scripts={"postinst": script(depmod(release), REBOOT), "postrm": script(depmod(release))},
                )
            )
            if flavour:
                newest[flavour] = (release, version)
        for flavour, (release, version) in newest.items():
            found.append(
                Package(
                    f"linux-modules-nvidia-{name}-{flavour}",
                    version,
                    arch,
                    f"Extra drivers for nvidia-{name} for the {flavour} flavour",
                    (f"linux-modules-nvidia-{name}-{release} (= {version})", common),
                )
            )
    return found
