"""What a target presents itself as: files under /proc and /sys, nvidia-smi, nvcc; written as data, driven by tests.

A rig's folder hardware/HOST is mounted at /rig in the target. Its sys/ becomes the target's /sys (with the real control groups),
cpuinfo its /proc/cpuinfo, driver-version its /proc/driver/nvidia/version. Under gpu/N/ there is a file for each field that
nvidia-smi is asked for (temperature.gpu, ecc.mode.current ...), which tests change while the target runs; gpu/mode is how
nvidia-smi ends.

A machine with an `initramfs` has no driver at first: root/ has stand-ins of the programs that load one or tell of it, which take the
real ones' places, and lib/ what the kernel does at boot (fake/kernel). There, tests also drive gpu/N/bus (gone: off the bus),
gpu/nouveau, gpu/modprobe, gpu/requires, boot/secure-boot and boot/mok (fake/kernel/modprobe says what they do).

The values come from the documented formats and public captures that docs/platform-matrix.md names; nothing
of this was recorded on such hardware.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.targets.host import RigError, write_whole
from tests.targets.nvidia.kernelmodule import OPEN
from tests.targets.nvidia.payload import kernel_modules, libraries, service

FAKES = Path(__file__).with_name("fake")
KERNEL = FAKES / "kernel"
DRIVER = "580.126.20"
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus, and what nvidia-smi says of it (field -> value)."""

    address: str
    device: str
    smi: dict[str, str] = field(default_factory=dict)
    kind: str = "0x030200"


@dataclass(frozen=True)
class Hardware:
    """A machine.

    :param cpus: how many, and the lines of each in /proc/cpuinfo
    :param sys: path below /sys -> content
    :param driver: architecture in the driver's banner; "" for no driver, no nvidia-smi and no nvcc
    :param dgx: /etc/dgx-release
    :param others: NVIDIA's devices that are no GPUs
    :param initramfs: the program that makes one, on a machine that loads modules and reboots; "" for one that does not
    :param os: /etc/os-release; "" for the image's own (this and the next two: with `initramfs` alone)
    :param kernel: `uname -r`; "" for the kernel that really runs
    :param secure_boot: None for a machine without EFI
    """

    cpus: int
    cpuinfo: str
    sys: dict[str, str]
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    dgx: str = ""
    others: tuple[Gpu, ...] = ()
    initramfs: str = ""
    os: str = ""
    kernel: str = ""
    secure_boot: bool | None = None

    @property
    def machine(self) -> str:
        """The architecture that such a machine has."""
        if "firmware/devicetree/base/model" in self.sys:
            return "ppc64le"
        return "aarch64" if "CPU implementer" in self.cpuinfo else "x86_64"


def _memory(node: int, kib: int) -> str:
    return f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib // 2} kB"


_GRACE_CPU = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n"
_GRACE = {
    "devices/soc0/soc_id": "jep106:036b:0241",
    "class/dmi/id/sys_vendor": "Supermicro",
    "class/dmi/id/product_name": "ARS-111GL-NHR",
    "devices/system/node/node0/cpulist": "0-71",
    "devices/system/node/node0/meminfo": _memory(0, 490000000),
    # GH200's GPU memory is a NUMA node without CPUs
    "devices/system/node/node1/cpulist": "",
    "devices/system/node/node1/meminfo": _memory(1, 100000000),
}


def _power(cpu: str, revision: str, model: str, compatible: str) -> dict[str, str]:
    return {
        "cpuinfo": f"cpu\t\t: {cpu}, altivec supported\nclock\t\t: 2900.000000MHz\nrevision\t: {revision}\n",
        "firmware/devicetree/base/model": model + "\0",
        "firmware/devicetree/base/compatible": compatible,
    }


def _smi(name: str, capability: str, memory: str, ecc: str) -> dict[str, str]:
    return {
        "name": name,
        "compute_cap": capability,
        "memory.total": memory,
        "memory.used": "0" if memory.isdigit() else "[N/A]",
        "temperature.gpu": "41",
        "ecc.mode.current": ecc,
        "driver_version": DRIVER,
    }


def _ubuntu(version: str, codename: str) -> str:
    return (
        f'PRETTY_NAME="Ubuntu {version} LTS"\nNAME="Ubuntu"\nVERSION_ID="{version}"\nVERSION="{version} LTS ({codename})"\n'
        f"VERSION_CODENAME={codename.split()[0].lower()}\nID=ubuntu\nID_LIKE=debian\nUBUNTU_CODENAME={codename.split()[0].lower()}\n"
    )


_NOBLE = _ubuntu("24.04", "Noble Numbat")
_GH200 = (Gpu("0009:01:00.0", "2342", _smi("NVIDIA GH200 480GB", "9.0", "97871", "Enabled")),)

#: A server with two of the eight GPUs of its kind; its EFI is there, with Secure Boot off.
_H100 = Hardware(
    32,
    "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n"
    "flags\t\t: fpu sse4_2 avx avx2 fma avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8\n",
    {
        "class/dmi/id/sys_vendor": "Supermicro",
        "class/dmi/id/product_name": "SYS-821GE-TNHR",
        "devices/system/node/node0/cpulist": "0-15",
        "devices/system/node/node0/meminfo": _memory(0, 520000000),
        "devices/system/node/node1/cpulist": "16-31",
        "devices/system/node/node1/meminfo": _memory(1, 520000000),
    },
    tuple(
        Gpu(address, "2330", _smi("NVIDIA H100 80GB HBM3", "9.0", "81559", "Enabled"))
        for address in ("0000:18:00.0", "0000:2a:00.0")
    ),
    others=(Gpu("0000:07:00.0", "22a3", kind="0x068000"),),  # an NVSwitch
    initramfs="update-initramfs",
    os=_NOBLE,
    kernel="6.8.0-138-generic",
    secure_boot=False,
)

_P9 = _power("POWER9", "2.2 (pvr 004e 1202)", "8335-GTH", "ibm,powernv\0ibm,p9-openbmc\0")
_P10 = _power("POWER10 (architected)", "2.0 (pvr 0080 0200)", "IBM,9105-42A", "IBM,9105-42A\0")

HARDWARE: dict[str, Hardware] = {
    "gh200": Hardware(
        72,
        _GRACE_CPU,
        _GRACE,
        _GH200,
        driver="aarch64",
    ),
    # two GPUs, one of which tests can heat; as in the GB200 trays
    "gb200": Hardware(
        144,
        _GRACE_CPU,
        _GRACE,
        tuple(Gpu(f"00{n}:01:00.0", "2941", _smi("NVIDIA GB200", "10.0", "189471", "Enabled")) for n in ("08", "09")),
        driver="aarch64",
    ),
    # its memory is the host's: nvidia-smi knows none, and no ECC
    "gb10": Hardware(
        20,
        _GRACE_CPU.replace("0xd4f", "0xd85"),
        {
            "devices/soc0/soc_id": "jep106:0426:8901",
            "class/dmi/id/sys_vendor": "NVIDIA",
            "class/dmi/id/product_name": "NVIDIA_DGX_Spark",
        },
        (Gpu("000f:01:00.0", "2e12", _smi("NVIDIA GB10", "12.1", "[N/A]", "[N/A]"), "0x030000"),),
        driver="aarch64",
        dgx='DGX_NAME="DGX Spark"\nDGX_PLATFORM="DGX Spark"\nDGX_OTA_VERSION="7.4.0"\n',
    ),
    "power9": Hardware(
        160,
        _P9.pop("cpuinfo"),
        {
            **_P9,
            "devices/system/node/node0/cpulist": "0-79",
            "devices/system/node/node0/meminfo": _memory(0, 130000000),
            "devices/system/node/node8/cpulist": "80-159",
            "devices/system/node/node8/meminfo": _memory(8, 130000000),
            "devices/system/node/node252/cpulist": "",
            "devices/system/node/node252/meminfo": _memory(252, 16000000),
        },
        (Gpu("0004:04:00.0", "1db1"), Gpu("0004:05:00.0", "1db1")),  # an AC922's V100s, which stay unused
    ),
    "power10": Hardware(192, _P10.pop("cpuinfo"), _P10),
    "h100": _H100,
    "h100-jammy": replace(_H100, os=_ubuntu("22.04", "Jammy Jellyfish"), kernel="5.15.0-160-generic"),
    "h100-debian": replace(_H100, os="", kernel=""),
    "h100-rhel": replace(_H100, os="", kernel="5.14.0-687.51.1.el9_8.x86_64", initramfs="dracut"),
    "gh200-bare": Hardware(
        72,
        _GRACE_CPU,
        _GRACE,
        _GH200,
        initramfs="update-initramfs",
        os=_NOBLE,
        kernel="6.8.0-138-generic-64k",
        secure_boot=False,
    ),
}


#: The stand-ins of the driver and of CUDA, as the mirror's packages bring them too.
_TOOLS = Path(__file__).with_name("nvidia")
_FILLED = {
    "nvidia-smi": {"@VERSION@": DRIVER},
    "nvcc": {"@BUILT@": "Wed_Aug_20_01:57:39_PM_PDT_2025", "@RELEASE@": "13.0", "@VERSION@": "13.0.88", "@BUILD@": "36424714_0"},
}  # fmt: skip


#: Program of fake/kernel -> where the real ones are.
_PLACES = {
    "uname": ("/usr/bin/uname",),
    "modprobe": ("/usr/sbin/modprobe", "/usr/sbin/rmmod"),
    "kmod": ("/usr/sbin/modinfo", "/usr/sbin/depmod", "/usr/sbin/lsmod"),
    "dmesg": ("/usr/bin/dmesg",),
    "mokutil": ("/usr/bin/mokutil",),
}
#: And those that go with the program that makes an initramfs: a distribution's.
_DISTRIBUTION = {
    "dracut": {"dracut": ("/usr/bin/dracut",)},
    "update-initramfs": {
        "update-initramfs": ("/usr/sbin/update-initramfs",),
        "kernel-postinst": ("/etc/kernel/postinst.d/initramfs-tools",),
        "notify-reboot-required": ("/usr/share/update-notifier/notify-reboot-required",),
    },
}


def _programs(hardware: Hardware) -> dict[str, str]:
    """The programs that a presentation brings: path below /rig -> text."""
    found = {f"bin/{name}": (FAKES / name).read_text() for name in ("present", "systemd-detect-virt")}
    for name, values in _FILLED.items() if hardware.driver else ():
        text = (_TOOLS / name).read_text()
        for mark, value in values.items():
            text = text.replace(mark, value)
        found[f"bin/{name}"] = text
    if hardware.initramfs:
        found |= {f"lib/{name}": (KERNEL / name).read_text() for name in ("boot", "kernel.sh", "plug")}
        for name, places in (_PLACES | _DISTRIBUTION[hardware.initramfs]).items():
            found |= {f"root{place}": (KERNEL / name).read_text() for place in places}
    return found


def version(hardware: Hardware) -> str:
    """Changes with whatever a presentation consists of."""
    return hashlib.sha256(repr((hardware, _files(hardware))).encode()).hexdigest()


def write(folder: Path, hardware: Hardware) -> None:
    """Make what the target sees at /rig; an older presentation is replaced, so only for a target that does not run."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in _files(hardware).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for gpu in hardware.gpus:
        if hardware.driver:  # the kernel links a device to its driver; where the link leads is not looked at
            (folder / "sys/bus/pci/devices" / gpu.address / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    if hardware.driver:
        _vendor(folder / "vendor", hardware.driver)


def _vendor(root: Path, machine: str) -> None:
    """The driver's files that a vendor's system brings, as the mirror's packages have them: modules for the kernel that runs,
    NVML, and the persistence daemon, which is enabled."""
    kernel, unit = os.uname().release, "usr/lib/systemd/system/nvidia-persistenced.service"
    files = kernel_modules(f"/usr/lib/modules/{kernel}/kernel/nvidia", kernel, DRIVER, OPEN, machine)
    libraries_of, links = libraries(
        {"libnvidia-ml.so": "libnvidia-ml.so.1"}, DRIVER, machine, f"/usr/lib/{machine}-linux-gnu"
    )
    services = {
        path.replace("/lib/systemd", "/usr/lib/systemd"): file
        for path, file in service("nvidia-persistenced", DRIVER).items()
    }
    for path, file in (files | libraries_of | services).items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.data)
        place.chmod(file.mode)
    links |= {"/etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service": f"/{unit}"}
    for path, leads in links.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(leads)


def drive(folder: Path, path: str, value: str) -> None:
    """Change a value while the target runs: drive(folder, "gpu/0/temperature.gpu", "91"), drive(folder, "gpu/mode", "hang")."""
    target = folder / path
    first, *more = Path(path).parts or ("",)
    if first not in ("gpu", "boot") or ".." in more or not target.is_file():
        files = (found for name in ("gpu", "boot") for found in (folder / name).rglob("*") if found.is_file())
        there = sorted(str(found.relative_to(folder)) for found in files)
        raise RigError(f"{path} is not driven here", f"one of {', '.join(there) or 'nothing: this machine has no GPU'}")
    write_whole(target, value + "\n")


def _files(hardware: Hardware) -> dict[str, str]:
    cpus = "\n".join(f"processor\t: {n}\n{hardware.cpuinfo}" for n in range(hardware.cpus))
    files = {"cpuinfo": cpus + "\n", **_programs(hardware)}
    files |= {f"sys/{path}": text + ("" if "\0" in text else "\n") for path, text in hardware.sys.items()}
    for gpu in (*hardware.gpus, *hardware.others):
        device = f"sys/bus/pci/devices/{gpu.address}"
        files |= {
            f"{device}/vendor": "0x10de\n",
            f"{device}/device": f"0x{gpu.device}\n",
            f"{device}/class": gpu.kind + "\n",
        }
    for number, gpu in enumerate(hardware.gpus):
        if hardware.driver or hardware.initramfs:
            domain, _, rest = gpu.address.partition(":")
            smi = {
                "index": str(number),
                "uuid": f"GPU-7d2c6a1e-0000-4000-8000-{number:012}",
                "pci.bus_id": f"{int(domain, 16):08X}:{rest.upper()}",
                **gpu.smi,
            }
            if hardware.initramfs:
                smi |= {"slot": gpu.address, "bus": "there"}
                del smi["driver_version"]  # the installed driver's
            files |= {f"gpu/{number}/{name}": value + "\n" for name, value in smi.items()}
    if hardware.driver or hardware.initramfs:
        files["gpu/mode"] = "ok\n"
    if hardware.initramfs:
        files |= _boot(hardware)
    if hardware.driver:
        files["sys/module/nvidia/version"] = f"{DRIVER}\n"
        files["driver-version"] = (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for {hardware.driver}  {DRIVER}  Release Build  (dvs-builder@U22)"
            "  Tue Jun 23 2026\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
        )
    if hardware.dgx:
        files["dgx-release"] = hardware.dgx
    return files


def _boot(hardware: Hardware) -> dict[str, str]:
    """What a machine that loads modules boots with, and what tests drive of it."""
    files = {"kernel": hardware.kernel + "\n", "gpu/modprobe": "ok\n", "gpu/nouveau": "no\n", "gpu/requires": "any\n"}
    if hardware.os:
        files["os-release"] = hardware.os
    if hardware.others:
        files["gpu/nvswitch"] = f"{len(hardware.others)}\n"
    if hardware.secure_boot is not None:
        # four bytes of attributes, and the value
        files[f"sys/firmware/efi/efivars/{SECURE_BOOT}"] = "\6\0\0\0\1" if hardware.secure_boot else "\6\0\0\0\0"
        files |= {"boot/secure-boot": "on\n" if hardware.secure_boot else "off\n", "boot/mok": "none\n"}
    return files
