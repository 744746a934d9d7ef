"""One survey of a host: hardware, system, driver, disk, ports. Never raises: on a bare host "absent" is an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyinfra.api import FactBase, StringCommand

from embedfleet.facts.cpu import Cpu, integer, parse_cpu
from embedfleet.facts.gpu import Driver, Gpu, PciGpu, parse_driver, parse_pci, parse_smi
from embedfleet.facts.script import PRELUDE, sections
from embedfleet.facts.system import (
    Listener,
    parse_dgx,
    parse_disk,
    parse_listeners,
    parse_secure_boot,
    parse_versions,
    reboot_reasons,
)
from embedfleet.systems import SYSTEMS

PATHS = ("/opt", "/var", "/tmp")

# Section by section, each followed by what its command prints; a missing command leaves its section empty.
# Only POSIX sh, /proc and /sys are taken for granted: minimal images have no lscpu, lspci, ss, timeout or python3.
# `read` in place of cat where it does, since a fork is a millisecond and a bus has a hundred devices; not for CPU lists,
# which the kernel does not give byte by byte, as dash reads (they came back empty from a machine with Ubuntu 24.04).
_SCRIPT = (
    PRELUDE
    + r"""
s machine; uname -m; s kernel; uname -r; s pagesize; getconf PAGESIZE 2>/dev/null
s os; cat /etc/os-release 2>/dev/null; s dgx; [ -r /etc/dgx-release ] && grep -E '^DGX_(NAME|PLATFORM|SWBUILD_VERSION|OTA_VERSION)=' /etc/dgx-release
s cpu; grep -E '^(model name|cpu|revision|CPU implementer|CPU part)[[:space:]]*:' /proc/cpuinfo 2>/dev/null | sort -u | head -c 8192
s cores; grep -c -E '^processor[[:space:]]*:' /proc/cpuinfo 2>/dev/null
s siblings; cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list 2>/dev/null; s smt; f /sys/devices/system/cpu/smt/control
s numa; for d in /sys/devices/system/node/node[0-9]*; do [ -d "$d" ] && echo "${d##*/}|$(cat "$d/cpulist")|$(f "$d/meminfo")"; done 2>/dev/null
s memory; n=0; while [ $n -lt 5 ] && read -r l; do echo "$l"; n=$((n+1)); done </proc/meminfo
s glibc; getconf GNU_LIBC_VERSION 2>/dev/null
s product; f /sys/class/dmi/id/product_name; s vendor; f /sys/class/dmi/id/sys_vendor
s soc; for d in /sys/devices/soc[0-9]*/soc_id; do f "$d"; done
t=/sys/firmware/devicetree/base  # /proc/device-tree is a link to it
s devicetree; [ -r $t/model ] && { tr '\000' '\n' <$t/model; echo; tr '\000' '\n' <$t/compatible; }
s virt; systemd-detect-virt 2>/dev/null
s pci; [ -d /sys/bus/pci/devices ] && echo bus; for d in /sys/bus/pci/devices/*; do
  v=; { read -r v <"$d/vendor"; } 2>/dev/null; [ "$v" = 0x10de ] || continue
  r=$(readlink "$d/driver" 2>/dev/null); echo "${d##*/} $v $(f "$d/device") $(f "$d/class") ${r##*/}"; done
s smi; limited nvidia-smi --query-gpu=pci.bus_id,name,compute_cap,memory.total,temperature.gpu,ecc.mode.current --format=csv,noheader,nounits
s banner; f /proc/driver/nvidia/version; s module; f /sys/module/nvidia/version
m() { command -v modinfo >/dev/null && modinfo -F "$1" nvidia 2>/dev/null; }
s disk_module; m version; s licence; m license
s libraries; for l in /usr/lib/*/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.*; do [ -e "$l" ] && echo "$l"; done
s runfile; for f in /usr/bin/nvidia-uninstall /usr/bin/nvidia-installer; do [ -e "$f" ] && echo "$f"; done
s nouveau; [ -d /sys/module/nouveau ] && echo loaded
s secureboot; secureboot
s compilers; for c in gcc g++; do v=$($c -dumpfullversion 2>/dev/null) && echo "$c $v"; done
  command -v nvcc >/dev/null && nvcc --version 2>/dev/null | sed -n 's/.*release /nvcc /p'; for d in /opt/rh/gcc-toolset-*; do [ -d "$d" ] && echo "${d##*/} there"; done
s runtimes; for c in docker containerd podman crio; do command -v $c >/dev/null && echo "$c there"; done
s reboot; [ -e /run/reboot-required ] && cat /run/reboot-required /run/reboot-required.pkgs 2>/dev/null
s kernels; n=; for k in /boot/vmlinu[xz]-*; do [ -e "$k" ] && n=1 && echo "${k#*/vmlinu?-}"; done
  [ -n "$n" ] || for d in /lib/modules/*; do [ -d "$d" ] && echo "${d##*/}"; done
s packages; p="@PACKAGES@"
  dpkg-query -W -f='${db:Status-Status} ${Package} ${Version}\n' $p 'nvidia-driver-[0-9]*' 'linux-modules-nvidia-*' 'nvidia-dkms*' 'nvidia-kernel*dkms' 'linux-image-[a-z]*' nvidia-container-toolkit 2>/dev/null |
  sed -n 's/^installed //p'; command -v dnf >/dev/null && rpm -q --qf '@%{NAME} %{VERSION}-%{RELEASE}\n' $p nvidia-driver nvidia-open kmod-nvidia-open-dkms kmod-nvidia-latest-dkms nvidia-container-toolkit 2>/dev/null |
  sed -n 's/^@//p'
s init; f /proc/1/comm; s uid; id -u; s selinux; f /sys/fs/selinux/enforce
s managers; for c in apt-get dnf zypper; do command -v $c >/dev/null && echo "$c there"; done
s disk; d=/opt; [ -d /opt/embedfleet ] && d=/opt/embedfleet; df -Pk "$d" /var /tmp 2>/dev/null
s parts; find /opt/embedfleet -mindepth 3 -maxdepth 3 -name manifest.json -size +0 2>/dev/null
s current; readlink /opt/embedfleet/current 2>/dev/null
s tcp; grep -h ' 0A ' /proc/net/tcp /proc/net/tcp6 2>/dev/null
s listeners; ss -Hltnpe 2>/dev/null | head -c 1000000
s end
"""
)


SCRIPT = _SCRIPT.replace("@PACKAGES@", " ".join(sorted({name for system in SYSTEMS for name in system.packages})))


@dataclass(frozen=True)
class Survey:
    """What a host is. `None` (and an empty text) means *unknown*, which is never zero and never "there is none".

    :param complete: whether the survey came back whole; where it did not, nothing below is worth anything
    :param machine: `uname -m`
    :param page_size: bytes
    :param memory_mib, available_mib: MemTotal and MemAvailable, MiB
    :param product, vendor: DMI's, on hosts that have it
    :param soc: system-on-chip ids, e.g. jep106:036b:0241 for Grace
    :param devicetree: its model, then its compatible list (Power, Jetson)
    :param virt: systemd-detect-virt: none, kvm, docker ...; "" for unknown
    :param pci: NVIDIA display or 3D controllers on the PCI bus, driver or not
    :param nvswitches: NVSwitches on the PCI bus, which join the GPUs of HGX boards
    :param gpus: the GPUs that nvidia-smi lists
    :param runfile: NVIDIA's own installer, which a driver came by that no package manager knows; "" for none
    :param secure_boot: whether the firmware enforces signatures
    :param os_like: what the system says it is like (ID_LIKE)
    :param selinux: whether SELinux enforces; None where there is none
    :param compilers: gcc, g++, nvcc, gcc-toolset-N -> version
    :param runtimes: container runtimes that are there
    :param managers: package managers that are there
    :param packages: distribution packages of ours -> version; what is not installed is not there
    :param kernels: installed kernels: those that can be booted where /boot tells, else those with modules
    :param reboot: why the host waits for a reboot
    :param free_mib: MiB free for a path (/opt, /var, /tmp); a file system of its own at /opt/embedfleet counts as /opt
    :param listeners: TCP ports in use
    :param parts: finished parts of ours, as kind/id
    :param current: the release that runs
    """

    complete: bool = False
    machine: str = ""
    kernel: str = ""
    page_size: int | None = None
    os_id: str = ""
    os_name: str = ""
    os_version: str = ""
    os_like: tuple[str, ...] = ()
    dgx: dict[str, str] = field(default_factory=dict)
    cpu: Cpu = field(default_factory=Cpu)
    memory_mib: int | None = None
    available_mib: int | None = None
    glibc: str = ""
    product: str = ""
    vendor: str = ""
    soc: tuple[str, ...] = ()
    devicetree: tuple[str, ...] = ()
    virt: str = ""
    pci: tuple[PciGpu, ...] | None = None
    nvswitches: int = 0
    gpus: tuple[Gpu, ...] = ()
    driver: Driver = field(default_factory=Driver)
    runfile: str = ""
    secure_boot: bool | None = None
    selinux: bool | None = None
    compilers: dict[str, str] = field(default_factory=dict)
    runtimes: tuple[str, ...] = ()
    managers: tuple[str, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    reboot: tuple[str, ...] = ()
    init: str = ""
    root: bool = False
    free_mib: dict[str, int] = field(default_factory=dict)
    listeners: tuple[Listener, ...] = ()
    parts: frozenset[str] = frozenset()
    current: str = ""

    @property
    def kernel_metas(self) -> tuple[str, ...]:
        """Debian's and Ubuntu's metapackages of kernels that are installed, e.g. linux-image-generic-64k-hwe-24.04."""
        return tuple(
            sorted(name for name in self.packages if re.fullmatch(r"linux-image-(?!unsigned)[a-z][a-z0-9.-]*", name))
        )

    @property
    def container(self) -> bool:
        """Whether this is a container, whose PCI bus, kernel and modules are its host's."""
        return self.virt in (
            "docker",
            "podman",
            "lxc",
            "lxc-libvirt",
            "systemd-nspawn",
            "openvz",
            "rkt",
            "wsl",
            "container-other",
        )


def parse(output: list[str]) -> Survey:
    """Parse the survey script's output; unknown or garbled sections become unknown values."""
    told = sections(output)

    def lines(name: str) -> list[str]:
        return told.get(name, [])

    def first(name: str) -> str:
        return next((line.strip() for line in lines(name) if line.strip()), "")[:500]

    os_release = {key: value.strip().strip("\"'") for key, _, value in (line.partition("=") for line in lines("os"))}
    memory = {key: integer((value.split() or [""])[0]) for key, _, value in (x.partition(":") for x in lines("memory"))}

    def mib(key: str) -> int | None:
        kib = memory.get(key)
        return None if kib is None else kib // 1024

    gpus, smi = parse_smi(lines("smi"))
    driver = parse_driver(
        first("banner"),
        first("module"),
        first("disk_module"),
        first("licence"),
        lines("libraries"),
        smi,
        bool(first("nouveau")),
    )
    return Survey(
        complete="end" in told,
        machine=first("machine"),
        kernel=first("kernel"),
        page_size=integer(first("pagesize")),
        os_id=os_release.get("ID", ""),
        os_name=os_release.get("PRETTY_NAME", ""),
        os_version=os_release.get("VERSION_ID", ""),
        os_like=tuple(os_release.get("ID_LIKE", "").split()),
        dgx=parse_dgx(lines("dgx")),
        cpu=parse_cpu(lines("cpu"), first("cores"), first("siblings"), first("smt"), lines("numa")),
        memory_mib=mib("MemTotal"),
        available_mib=mib("MemAvailable"),
        glibc=first("glibc").removeprefix("glibc").strip(),
        product=first("product"),
        vendor=first("vendor"),
        soc=tuple(line.strip() for line in lines("soc") if line.strip()),
        devicetree=tuple(line.strip() for line in lines("devicetree") if line.strip())[:20],
        virt=first("virt"),
        pci=parse_pci(lines("pci")),
        nvswitches=sum(line.split()[2:3] in (["0x1af1"], ["0x22a3"]) for line in lines("pci")),
        gpus=gpus,
        driver=driver,
        runfile=first("runfile"),
        secure_boot=parse_secure_boot(lines("secureboot")),
        selinux={"0": False, "1": True}.get(first("selinux")),
        compilers=parse_versions(lines("compilers")),
        runtimes=tuple(parse_versions(lines("runtimes"))),
        managers=tuple(parse_versions(lines("managers"))),
        packages=parse_versions(lines("packages")),
        kernels=tuple(line.strip() for line in lines("kernels")),
        reboot=reboot_reasons(first("kernel"), lines("kernels"), lines("reboot"), driver.loaded, driver.on_disk),
        init=first("init"),
        root=first("uid") == "0",
        free_mib=parse_disk(lines("disk"), PATHS),
        listeners=parse_listeners(lines("tcp"), lines("listeners")),
        parts=frozenset("/".join(line.strip().split("/")[-3:-1]) for line in lines("parts")),
        current=first("current").rpartition("/")[2],
    )


class HostSurvey(FactBase[Survey]):
    """The survey, in one round trip."""

    default = Survey

    def command(self) -> StringCommand:
        return StringCommand(SCRIPT)

    def process(self, output: list[str]) -> Survey:
        return parse(list(output))
