"""What the packages of every archive have in common: libraries, programs, services, DKMS sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.targets.nvidia.kernelmodule import CANONICAL, MACHINES, MODULES, module, template
from tests.targets.nvidia.library import library
from tests.targets.nvidia.package import File, own, text

#: Debian's name of an architecture -> uname -m, which is rpm's name too.
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}

#: Driver branch -> the CUDA version that its nvidia-smi names.
CUDA_OF = {"580": "13.0", "620": "13.4"}

COMPUTE = {
    "libcuda.so": "libcuda.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
}
CFG = {"libnvidia-cfg.so": "libnvidia-cfg.so.1"}


def branch(version: str) -> str:
    """580.173.02 -> 580."""
    return version.split(".")[0]


def libraries(
    names: Mapping[str, str], version: str, machine: str, folder: str
) -> tuple[dict[str, File], dict[str, str]]:
    """Files and links of libraries of a driver."""
    files = {f"{folder}/{name}.{version}": File(library(soname, machine)) for name, soname in names.items()}
    return files, {f"{folder}/{soname}": f"{name}.{version}" for name, soname in names.items()}


def kernel_modules(folder: str, kernel: str, version: str, licence: str, machine: str) -> dict[str, File]:
    """The driver's five modules for one kernel, signed by the distribution."""
    return {f"{folder}/{name}.ko": File(module(name, version, licence, kernel, machine, CANONICAL)) for name in MODULES}


def smi(version: str) -> dict[str, File]:
    """nvidia-smi of a driver."""
    return {"/usr/bin/nvidia-smi": own("nvidia-smi", VERSION=version, CUDA=CUDA_OF.get(branch(version), "13.0"))}


def firmware(version: str) -> dict[str, File]:
    """The GSP firmware, which a GPU gets from the driver."""
    names = ("gsp_ga10x.bin", "gsp_tu10x.bin")
    return {f"/lib/firmware/nvidia/{version}/{name}": text(f"stand-in for {name} of {version}\n") for name in names}


_NO_DRIVER = (
    "if [ ! -d $RIG ] || [ -f $RIG/mode ] && grep -qx failed $RIG/mode || grep -qsx failed /run/rig/smi; then\n"
    "    echo 'Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*)"
    " exist, and that user 0 has read and write permissions for those files.' >&2\n    exit 1\nfi"
)
_MATCHES = (
    'if [ -n "$loaded" ] && [ "$loaded" != @VERSION@ ]; then\n'
    "    echo \"fabric manager NVIDIA GPU driver interface version @VERSION@ don't match with driver version $loaded."
    ' Please update with matching NVIDIA driver package." >&2\n    exit 1\nfi\n'
    "if [ ! -e $RIG/nvswitch ]; then\n"
    "    echo 'request to query NVSwitch device information from NVSwitch driver failed with error:"
    "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]' >&2\n    exit 1\nfi"
)

#: Service -> program, its arguments, what it asks of the host before it runs.
_SERVICES = {
    "nvidia-persistenced": (
        "/usr/bin/nvidia-persistenced",
        "--user nvidia-persistenced --persistence-mode --verbose",
        "NVIDIA Persistence Daemon",
        _NO_DRIVER,
    ),
    "nvidia-fabricmanager": (
        "/usr/bin/nv-fabricmanager",
        "-c /usr/share/nvidia/nvswitch/fabricmanager.cfg",
        "NVIDIA fabric manager service",
        _MATCHES,
    ),
    "nvidia-imex": (
        "/usr/bin/nvidia-imex",
        "-c /etc/nvidia-imex/config.cfg",
        "NVIDIA IMEX service",
        _NO_DRIVER,
    ),
}


def service(name: str, version: str, *, installable: bool = True) -> dict[str, File]:
    """A daemon and its unit. Not installable: "static", as Ubuntu's nvidia-persistenced is (udev starts it)."""
    path, arguments, description, check = _SERVICES[name]
    unit = (
        f"[Unit]\nDescription={description}\nWants=syslog.target\n\n"
        f"[Service]\nType=forking\nExecStart={path} {arguments}\nExecStopPost=/bin/rm -rf /var/run/{name}\n"
    )
    if installable:
        unit += "\n[Install]\nWantedBy=multi-user.target\n"
    return {
        path: own("daemon", CHECK=check, NAME=name, VERSION=version),
        f"/lib/systemd/system/{name}.service": text(unit),
    }


def dkms_source(name: str, version: str, licence: str, machines: Sequence[str]) -> dict[str, File]:
    """/usr/src/<name>-<version>, which dkms builds from: the rig's stand-in and the real one."""
    folder = f"/usr/src/{name}-{version}"
    conf = [f'PACKAGE_NAME="{name}"', f'PACKAGE_VERSION="{version}"', 'AUTOINSTALL="yes"']
    conf += ['MAKE[0]="make KERNEL=${kernelver} modules"', 'CLEAN="true"']
    for index, one in enumerate(MODULES):
        conf += [f'BUILT_MODULE_NAME[{index}]="{one}"', f'DEST_MODULE_LOCATION[{index}]="/kernel/drivers/char/drm"']
    files = {
        f"{folder}/dkms.conf": text("\n".join(conf) + "\n"),
        f"{folder}/Makefile": text("modules:\n\tsh ./build-modules $(KERNEL)\n"),
        f"{folder}/build-modules": own("build-modules"),
    }
    for machine in machines:
        assert machine in MACHINES
        for one in MODULES:
            head, size = template(one, version, licence, machine)
            files[f"{folder}/{machine}/{one}.ko.in"] = File(head)
            files[f"{folder}/{machine}/{one}.size"] = text(f"{size}\n")
    return files


# ---- maintainer scripts (Debian's); each is one `case`-less fragment, `script` makes it a program


def script(*parts: str) -> str:
    """A maintainer script that ends at its first failure."""
    return "#!/bin/sh\nset -e\n" + "".join(f"{part.rstrip()}\n" for part in parts)


def depmod(kernel: str) -> str:
    """Bring a kernel's modules.dep up to date, where kmod is."""
    return f"! command -v depmod >/dev/null || [ ! -d /lib/modules/{kernel} ] || depmod {kernel}"


REBOOT = (
    "[ ! -x /usr/share/update-notifier/notify-reboot-required ] || /usr/share/update-notifier/notify-reboot-required"
)


def start(name: str, *, enable: bool) -> str:
    """As debhelper does: a service that cannot start does not fail the package."""
    lines = ["if [ -d /run/systemd/system ]; then", "    systemctl --system daemon-reload >/dev/null || true"]
    if enable:
        lines.append(f"    systemctl enable {name}.service >/dev/null 2>&1 || true")
    return "\n".join([*lines, f"    deb-systemd-invoke restart {name}.service >/dev/null || true", "fi"])


def stop(name: str) -> str:
    """Before removal."""
    return (
        f'if [ -d /run/systemd/system ] && [ "$1" = remove ]; then\n    deb-systemd-invoke stop {name}.service || true\n'
        f"    systemctl disable {name}.service >/dev/null 2>&1 || true\nfi"
    )
