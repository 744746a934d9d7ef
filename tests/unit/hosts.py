"""What the survey prints on hosts that the project does not have.

Written from the vendors' documented formats and public captures (docs/platform-matrix.md names the sources), not recorded on
such hosts by the project. "H200" is recorded: a virtual machine with one card, 2026-11-30.
"""

from __future__ import annotations

from embedfleet.facts.survey import Survey, parse

_DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n" + "\n".join(
    f"/dev/nvme0n1p2 960000000 100000000 800000000 12% {path}" for path in ("/", "/", "/")
)
_UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nVERSION_ID="24.04"\nID=ubuntu'
_MEMORY = "MemTotal:       {0} kB\nMemFree:        1 kB\nMemAvailable:   {0} kB"

_BASE = {
    "os": _UBUNTU,
    "glibc": "glibc 2.39",
    "memory": _MEMORY.format(500_000_000),
    "pagesize": "4096",
    "init": "systemd",
    "uid": "0",
    "managers": "apt-get there",
    "disk": _DF,
    "virt": "none",
    "pci": "bus",
    "compilers": "gcc 13.3.0\ng++ 13.3.0",
    "secureboot": "none",
}

_GRACE = {
    "machine": "aarch64",
    "kernel": "6.8.0-1039-nvidia-64k",
    "pagesize": "65536",
    "cpu": "CPU implementer\t: 0x41\nCPU part\t: 0xd4f",
    "cores": "72",
    "siblings": "0",
    "soc": "jep106:036b:0241",
    "numa": "node0|0-71|Node 0 MemTotal:       490000000 kB\n"
    + "\n".join(f"node{n}||Node {n} MemTotal:       0 kB" for n in range(1, 9)),
}
_OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.126.20  Release Build  (dvs-builder@U22)  Tue Jun 23 2026"
_DRIVER = {
    "banner": _OPEN,
    "module": "580.126.20",
    "disk_module": "580.126.20",
    "licence": "Dual MIT/GPL",
    "libraries": "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.126.20",
    "compilers": "gcc 13.3.0\ng++ 13.3.0\nnvcc 13.0, V13.0.88",
}


def _smi(*rows: str) -> str:
    return "\n".join([*rows, "@rc=0"])


def _power(cpu: str, revision: str, model: str, machine: str = "", **more: str) -> dict[str, str]:
    return {
        "machine": "ppc64le",
        "kernel": "6.4.0-150600.23-default",
        "pagesize": "65536",
        "cpu": f"cpu\t\t: {cpu}, altivec supported\nrevision\t: {revision}",
        "cores": "160",
        "siblings": "0-7",
        "devicetree": f"{machine or model}\nibm,powernv" if "8335" in model else f"{model}\nIBM,{model}",
        **more,
    }


HOSTS: dict[str, dict[str, str]] = {
    "gh200": {
        **_GRACE,
        **_DRIVER,
        "vendor": "Supermicro",
        "product": "ARS-111GL-NHR",
        "pci": "bus\n0009:01:00.0 0x10de 0x2342 0x030200 nvidia\n0000:00:00.0 0x10de 0x22b2 0x060400 pcieport",
        "smi": _smi("00000009:01:00.0, NVIDIA GH200 480GB, 9.0, 97871, 41, Enabled"),
    },
    "gh200 without a driver": {
        **_GRACE,
        "product": "Super Server",
        "pci": "bus\n0009:01:00.0 0x10de 0x2348 0x030200",
    },
    "gb200": {
        **_GRACE,
        **_DRIVER,
        "cores": "144",
        "pci": "bus\n" + "\n".join(f"00{d}:01:00.0 0x10de 0x2941 0x030200 nvidia" for d in ("08", "09", "18", "19")),
        "smi": _smi(*(f"000000{d}:01:00.0, NVIDIA GB200, 10.0, 189471, 35, Enabled" for d in ("08", "09", "18", "19"))),
    },
    "gb300": {
        **_GRACE,
        **_DRIVER,
        "pci": "bus\n0009:01:00.0 0x10de 0x31c2 0x030200 nvidia",
        "smi": _smi("00000009:01:00.0, NVIDIA GB300, 10.3, 284208, 38, Enabled"),
    },
    "gb10": {
        **_DRIVER,
        "machine": "aarch64",
        "kernel": "6.17.0-1026-nvidia",
        "cpu": "CPU implementer\t: 0x41\nCPU part\t: 0xd85\nCPU part\t: 0xd87",
        "cores": "20",
        "memory": _MEMORY.format(125_513_944),
        "soc": "jep106:0426:8901",
        "vendor": "NVIDIA",
        "product": "NVIDIA_DGX_Spark",
        "dgx": 'DGX_NAME="DGX Spark"\nDGX_PLATFORM="DGX Spark"\nDGX_OTA_VERSION="7.2.3"\nDGX_OTA_VERSION="7.4.0"',
        "pci": "bus\n000f:01:00.0 0x10de 0x2e12 0x030000 nvidia\n000f:00:00.0 0x10de 0x22d1 0x060400 pcieport",
        "smi": _smi("0000000F:01:00.0, NVIDIA GB10, 12.1, [N/A], 44, [N/A]"),
    },
    "arm-gpu": {
        "machine": "aarch64",
        "kernel": "5.15.0-112-generic",
        "cpu": "CPU implementer\t: 0x48\nCPU part\t: 0xd01",
        "cores": "96",
        "product": "TaiShan 200",
        "pci": "bus\n0000:05:00.0 0x10de 0x2236 0x030200",
    },
    "grace-cpu": {**_GRACE, "product": "Grace CPU Superchip"},
    "power9": {
        **_power("POWER9", "2.2 (pvr 004e 1202)", "8335-GTH", "8335-GTH"),
        "siblings": "0-3",
        "smt": "4",
        "pci": "bus\n" + "\n".join(f"000{d}:0{n}:00.0 0x10de 0x1db1 0x030200" for d, n in (("4", "4"), ("4", "5"))),
        "numa": "node0|0-79|Node 0 MemTotal:      130000000 kB\nnode8|80-159|Node 8 MemTotal:      130000000 kB\n"
        + "\n".join(f"node{n}||Node {n} MemTotal:       0 kB" for n in range(252, 256)),
    },
    "power10": _power("POWER10 (architected)", "2.0 (pvr 0080 0200)", "9105-42A", smt="8"),
    "power11 that says POWER10": _power("POWER10 (architected)", "2.0 (pvr 0082 0200)", "9824-42A"),
    "power11": _power("Power11 (raw)", "2.0 (pvr 0082 0200)", "9824-42A"),
    "x86-cpu": {
        "machine": "x86_64",
        "kernel": "6.1.0-30-amd64",
        "os": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian',
        "cpu": "model name\t: AMD EPYC 7B13",
        "cores": "2",
        "virt": "docker",
        "glibc": "glibc 2.36",
    },
    "x86-gpu": {
        **_DRIVER,
        "machine": "x86_64",
        "kernel": "6.8.0-60-generic",
        "cpu": "model name\t: INTEL(R) XEON(R) PLATINUM 8570",
        "cores": "224",
        "banner": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed Jan 22 2026",
        "pci": "bus\n0000:18:00.0 0x10de 0x2335 0x030200 nvidia\n0000:05:00.0 0x10de 0x22a3 0x068000 nvidia-nvswitch",
        "smi": _smi("00000000:18:00.0, NVIDIA H200, 9.0, 143771, 30, Enabled"),
    },
}

HOSTS["H200"] = {
    "machine": "x86_64",
    "kernel": "6.18.44-fc-v657-gpu",
    "cpu": "model name\t: Intel(R) Xeon(R) Processor",
    "cores": "16",
    "smt": "notsupported",
    "memory": "MemTotal:       131981020 kB\nMemFree:        130733836 kB\nMemAvailable:   131487768 kB",
    "virt": "",
    "pci": "bus\n0000:00:06.0 0x10de 0x2335 0x030200 nvidia",
    "smi": "00000000:00:06.0, NVIDIA H200, 9.0, 143771, 40, Enabled\n@rc=0",
    "banner": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)",
    "module": "580.159.04",
    "compilers": "gcc 13.3.0\ng++ 13.3.0\nnvcc 13.0, V13.0.88",
}

ROWS = {
    "H200": "x86-gpu",
    "gh200 without a driver": "gh200",
    "power11 that says POWER10": "power10",
    "power11": "power10",
    **{name: name for name in HOSTS if " " not in name and name not in ("power11", "H200")},
}

# Hosts that get no row: name -> (sections, a word of the reason).
UNDECIDED: dict[str, tuple[dict[str, str], str]] = {
    "nothing at all": ({"machine": "", "pci": "bus"}, "architecture is unknown"),
    "Graviton4": ({**HOSTS["grace-cpu"], "soc": "", "vendor": "Amazon EC2", "product": "c8g.large"}, "Graviton4"),
    "Ampere Altra": ({**HOSTS["arm-gpu"], "pci": "bus"}, "no row is known to fit"),
    "GB10 whose GPU is gone": ({**HOSTS["gb10"], "pci": "bus", "smi": "No devices were found\n@rc=6"}, "GB10's cores"),
    "GH200 whose GPU is gone": (
        {**HOSTS["gh200"], "pci": "bus\n0000:00:00.0 0x10de 0x22b2 0x060400", "smi": "No devices were found\n@rc=6"},
        "a GPU that is lost?",
    ),
    "x86_64 whose GPU is gone": ({**HOSTS["x86-gpu"], "pci": "bus", "smi": "@hung"}, "a GPU that is lost?"),
    "Jetson Orin": (
        {
            "machine": "aarch64",
            "kernel": "5.15.199-tegra",
            "devicetree": "NVIDIA Jetson AGX Orin Developer Kit\nnvidia,p3701-0000\nnvidia,tegra234",
            "banner": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.5.0  Release Build",
        },
        "Jetson",
    ),
    "Jetson Thor": ({"machine": "aarch64", "pci": "bus\n0000:01:00.0 0x10de 0x2b00 0x030000 nvidia"}, "Thor"),
    "N1x": ({"machine": "aarch64", "pci": "bus\n0000:01:00.0 0x10de 0x2e2a 0x030000"}, "N1x"),
    "GPUs given to guests": (
        {**_GRACE, "pci": "bus\n0009:01:00.0 0x10de 0x2342 0x030200 nvgrace_gpu_vfio_pci"},
        "virtual machines",
    ),
    "a container on a GPU host": (
        {**HOSTS["x86-cpu"], "pci": "bus\n0000:18:00.0 0x10de 0x2335 0x030200 nvidia"},
        "a container (docker)",
    ),
    "no PCI bus": ({**HOSTS["x86-cpu"], "pci": ""}, "unknown"),
    "a card that nobody knows": ({**HOSTS["arm-gpu"], "pci": "bus\n0000:05:00.0 0x10de 0xffff 0x030200"}, "10de:ffff"),
    "Grace's GPU on x86_64": (
        {**HOSTS["x86-gpu"], "pci": "bus\n0000:05:00.0 0x10de 0x2342 0x030200", "smi": ""},
        "Grace's GPU",
    ),
    "POWER8": (_power("POWER8NVL (raw)", "1.0 (pvr 004c 0100)", "8335-GTB"), "POWER8"),
    "Power12": (_power("Power12 (raw)", "1.0 (pvr 0083 0100)", "9999-00A"), "no row"),
    "riscv64": ({"machine": "riscv64"}, "no architecture of the table"),
}


def lines(sections: dict[str, str]) -> list[str]:
    """Return the survey's output of a host."""
    return [line for name, text in (_BASE | sections).items() for line in (f"@@{name}", *text.splitlines())] + ["@@end"]


def survey(name: str, **changes: str) -> Survey:
    """Return the survey of a host of HOSTS, with other sections where `changes` says so."""
    return parse(lines(HOSTS[name] | changes))
