"""THE platform table: one row per kind of host, as data, and how each value of it is known.

`read`: in vLLM's sources, NVIDIA's and IBM's documents or public reports, on no machine. `run`: on a stand-in (containers,
another card). `verified`: on that hardware. docs/platform-matrix.md is made from this table (`make docs`).
How a host finds its row is in embedfleet/recognise.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

How = Literal["read", "run", "verified"]
DATE = "2026-11-30"


@dataclass(frozen=True)
class Known:
    """How a value is known: read, run on a stand-in, or verified on that hardware; where, and when."""

    how: How
    source: str
    date: str = DATE


@dataclass(frozen=True)
class DriverPolicy:
    """What the deploy does about NVIDIA's driver.

    :param action: install, keep (the vendor's system brings and updates it) or none
    :param branch: driver branch that is installed, and the oldest that this row's CUDA wheels run with
    :param open_only: whether only the open kernel modules work
    """

    action: Literal["install", "keep", "none"]
    branch: int = 580
    open_only: bool = False


# torch's CPU builds (`+cpu`) are in no general index; vLLM's own CPU requirements name them (vllm PR#43115).
_TORCH_CPU = ("https://download.pytorch.org/whl/cpu",)
_IBM = ("https://wheels.developerfirst.ibm.com/ppc64le/linux/+simple/",)


@dataclass(frozen=True)
class Platform:
    """One row. Every field from `machine` on has an entry in `known`.

    :param machine: `uname -m`
    :param cpus, products: what confirms the row, as people know it: CPU model, DMI or device-tree product
    :param conda_subdir: conda's name of the architecture
    :param device: vLLM's target device
    :param capability: compute capabilities of its GPUs; empty where the card decides
    :param arch_list: TORCH_CUDA_ARCH_LIST; "" on CPU, and where it comes from the card
    :param cmake_args: CMAKE_ARGS of vLLM's build
    :param build_env: other environment of vLLM's build, compiler flags among it
    :param component_flags: compiler flags of what else is built from source: component -> CFLAGS
    :param driver: what is done about NVIDIA's driver
    :param toolkit: package of the CUDA toolkit that builds and JIT need; "" for none
    :param python: versions of Python that the row's wheels exist for
    :param vllm: the vLLM that is pinned
    :param vllm_works: oldest and newest vLLM for which the row is thought to work
    :param install: how vLLM gets there by default
    :param serve_env: environment of the instances
    :param requirements: lock file of the engine's Python packages, {version} is vLLM's
    :param indexes: package indexes beside the default one; a mirror (python_index_url) is expected to hold all
    :param threads: NUMA and SMT policy, in words; plan.threads applies it
    :param page_size: page size that is advised, bytes; None for no advice
    :param build_gib: memory one compiler job needs, GiB
    :param build_core_minutes: what a build takes, minutes times jobs; None where nobody measured it
    :param engine_gib: disk that building and keeping one engine needs, GiB
    """

    name: str
    title: str
    machine: str
    cpus: str
    products: str
    conda_subdir: str
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "float16", "bfloat16"]
    capability: tuple[str, ...] = ()
    arch_list: str = ""
    cmake_args: tuple[str, ...] = ()
    build_env: dict[str, str] = field(default_factory=dict)
    component_flags: dict[str, str] = field(default_factory=dict)
    driver: DriverPolicy = field(default_factory=lambda: DriverPolicy("none"))
    toolkit: str = ""
    python: tuple[str, ...] = ("3.11", "3.12")
    vllm: str = "0.32.0"
    vllm_works: tuple[str, str] = ("0.32.0", "0.33.0")
    install: Literal["source", "wheel"] = "source"
    serve_env: dict[str, str] = field(default_factory=dict)
    requirements: str = ""
    indexes: tuple[str, ...] = ()
    threads: str = ""
    page_size: int | None = None
    enforce_eager: bool = False
    gpu_memory_utilization: float | None = None
    build_gib: float = 6.0
    build_core_minutes: float | None = None
    engine_gib: float = 12.0
    notes: str = ""
    known: dict[str, Known] = field(default_factory=dict)

    @property
    def how(self) -> How:
        """The weakest way in which any value of the row is known."""
        ways = {known.how for known in self.known.values()}
        return next(how for how in ("read", "run", "verified") if how in ways) if ways else "read"

    def version(self, wanted: str | None) -> str:
        """Return the vLLM to install: the one that the settings want, else the row's."""
        return wanted or self.vllm


def _read(source: str) -> Known:
    return Known("read", source)


# What is known of all rows, of CUDA rows and of CPU rows; a row's own entries come on top.
_ALL = {
    "machine": _read("uname(2)"),
    "cpus": _read("Linux arch/*/kernel, util-linux lscpu-arm.c"),
    "products": _read("public captures; no proof on its own"),
    "conda_subdir": _read("conda-forge's platforms"),
    "device": _read("vLLM 0.33 setup.py:107-121"),
    "dtype": _read("vLLM 0.33 vllm/config/model.py:2423-2495; float16 is what BGE-M3's authors use"),
    "capability": _read("NVIDIA's list of CUDA GPUs, mirrored"),
    "arch_list": _read("vLLM 0.33 CMakeLists.txt:119-240"),
    "cmake_args": _read("vLLM 0.33 setup.py:333-335: split at blanks, appended last"),
    "build_env": _read("vLLM 0.33 setup.py"),
    "component_flags": _read("nothing else is built from source"),
    "driver": _read("NVIDIA's driver branches as of R620"),
    "toolkit": _read("NVIDIA's CUDA repositories"),
    "python": _read("vLLM 0.32, 0.33 metadata: >=3.11,<3.15; conda lock files here are 3.11"),
    "vllm": _read("the newest whose build, start and upgrade the project has run (on x86_64)"),
    "vllm_works": _read("vLLM's metadata and CMake files of 0.32 and 0.33"),
    "install": _read("the project's design: source where nothing speaks against it"),
    "serve_env": _read("vLLM 0.33 envs.py"),
    "requirements": _read("files/locks"),
    "indexes": _read("requirements/cpu.txt of vLLM 0.33; torch's and IBM's indexes"),
    "threads": _read("vLLM 0.33 vllm/platforms/cpu.py"),
    "page_size": _read("NVIDIA's Grace performance tuning guide"),
    "enforce_eager": _read("vLLM 0.33"),
    "gpu_memory_utilization": _read("vLLM 0.33 vllm/config/cache.py:215 (default 0.92); BGE-M3 needs 1.1 GB"),
    "build_gib": _read("reports of builds out of memory: vllm#14452, #3180, #42204"),
    "build_core_minutes": _read("vLLM 0.33 gpu.cuda.inc.md:404-413: about 25 min with 66 jobs, two architectures"),
    "engine_gib": _read("sizes of the wheels, twice"),
    "notes": _read("vLLM's and NVIDIA's issue trackers"),
}
_CUDA = _ALL | {"threads": _read("CUDA_DEVICE_ORDER as the NVIDIA tools count")}
_CPU = _ALL | {
    "capability": _read("no GPU"),
    "arch_list": _read("no GPU"),
    "driver": _read("no GPU"),
    "toolkit": _read("no GPU"),
    "gpu_memory_utilization": _read("no GPU"),
    "dtype": _read("vLLM 0.33 vllm/config/model.py:2423-2495"),
    "build_core_minutes": _read("nobody measured one"),
    "build_gib": _read("estimate; an x86_64 job took under 2 GiB"),
}


def _cuda(
    name: str,
    title: str,
    *,
    capability: tuple[str, ...] = (),
    arch_list: str = "",
    machine: str = "aarch64",
    cpus: str = "Neoverse V2 (0x41/0xd4f)",
    products: str = "",
    driver: DriverPolicy | None = None,
    install: Literal["source", "wheel"] = "source",
    utilization: float = 0.3,
    env: dict[str, str] | None = None,
    page_size: int | None = None,
    notes: str = "",
    known: dict[str, Known] | None = None,
) -> Platform:
    return Platform(
        name=name,
        title=title,
        machine=machine,
        cpus=cpus,
        products=products,
        conda_subdir={"aarch64": "linux-aarch64", "x86_64": "linux-64"}[machine],
        device="cuda",
        dtype="float16",
        capability=capability,
        arch_list=arch_list,
        build_env={"CUDA_HOME": "/usr/local/cuda-13.0", "NVCC_THREADS": "1"},
        driver=driver or DriverPolicy("install", open_only=True),
        toolkit="cuda-toolkit-13-0",
        install=install,
        serve_env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **(env or {})},
        requirements=f"files/locks/engine-{{version}}-cuda-{machine}.lock",
        threads="all cores; instances are not bound to GPUs yet",
        page_size=page_size,
        gpu_memory_utilization=utilization,
        build_core_minutes=1650.0,
        engine_gib=20.0,
        notes=notes,
        known=_CUDA | (known or {}),
    )


def _cpu(
    name: str,
    title: str,
    machine: str,
    dtype: Literal["float32", "bfloat16"],
    *,
    cpus: str,
    products: str,
    flags: str = "",
    components: dict[str, str] | None = None,
    threads: str,
    notes: str = "",
    works: tuple[str, str] = ("0.32.0", "0.33.0"),
    known: dict[str, Known] | None = None,
) -> Platform:
    return Platform(
        name=name,
        title=title,
        machine=machine,
        cpus=cpus,
        products=products,
        vllm_works=works,
        conda_subdir={"aarch64": "linux-aarch64", "ppc64le": "linux-ppc64le", "x86_64": "linux-64"}[machine],
        device="cpu",
        dtype=dtype,
        build_env={"CFLAGS": flags, "CXXFLAGS": flags} if flags else {},
        component_flags=components or {},
        requirements=f"files/locks/engine-{{version}}-cpu-{machine}.lock",
        indexes=_IBM if machine == "ppc64le" else _TORCH_CPU,
        # nobind, since a binding list asserts on hosts with few cores (ppc64le/build-scripts#8270) and vLLM's own binds
        # every instance to the same cores; how many threads is in plan.threads.
        serve_env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        threads=threads,
        enforce_eager=machine == "x86_64",
        build_gib=2.0,
        engine_gib=7.0 if machine == "x86_64" else 6.0,
        notes=notes,
        known=_CPU | (known or {}),
    )


_OPEN = _read("R580 is LTS to 2028; open modules only: NVIDIA/cloud-native-docs PR#6; CUDA 13 needs R580")
_INSTALLED = Known(
    "run",
    "stand-ins of NVIDIA's packages under the real apt, dnf, dpkg, rpm, modinfo, on presented hardware (docs/driver.md)",
)
_EMULATED = {
    field: Known("run", "emulated containers with presented hardware; vLLM itself by a stand-in (docs/testing.md)")
    for field in ("machine", "conda_subdir")
}
_POWER = _EMULATED | {
    "build_env": _read("vLLM 0.33 cmake/cpu_extension.cmake:190-202, docker/Dockerfile.ppc64le:57-59"),
    "component_flags": _read("vLLM 0.33 docker/build_vllm_ppc64le.sh"),
    "indexes": _read("IBM's index as listed in ppc64le/pyeco (2026-08-20); torch up to 2.13"),
    "threads": _read("vLLM 0.33 vllm/platforms/cpu.py: cpu.id % 8 < 4, thought for SMT8"),
    "notes": _read("vLLM 0.33 docker/Dockerfile.ppc64le:122; Linux cpu_specs_book3s_64.h"),
    "vllm_works": _read("torch 2.13 is IBM's newest; vLLM 0.33 wants 2.14"),
}
_X86 = {
    field: Known("run", "systemd containers on x86_64, kernels from a precompiled wheel; `make demo`")
    for field in (
        "machine", "conda_subdir", "device", "dtype", "python", "install", "serve_env", "requirements", "threads",
        "enforce_eager", "engine_gib", "vllm",
    )
}  # fmt: skip

PLATFORMS: dict[str, Platform] = {
    row.name: row
    for row in (
        _cuda(
            "gh200",
            "Grace Hopper (GH200)",
            capability=("9.0",),
            arch_list="9.0",
            products="NVIDIA MGX and OEM servers; DMI differs by maker",
            page_size=65536,
            notes="easiest of the Grace hosts: FlashAttention 3, native sm_90",
            known=_EMULATED | {"driver": _INSTALLED, "toolkit": _INSTALLED},
        ),
        _cuda(
            "gb200",
            "Grace Blackwell (GB200)",
            capability=("10.0",),
            arch_list="10.0",
            products="DGX GB200, NVL72 trays",
            page_size=65536,
            notes="FlashAttention 4 compiles at first use; IMEX only on multi-node NVLink; NUMA nodes without CPUs",
            known={"driver": _OPEN},
        ),
        _cuda(
            "gb300",
            "Grace Blackwell Ultra (GB300)",
            capability=("10.3",),
            arch_list="10.3",
            products="DGX GB300, DGX Station",
            page_size=65536,
            notes="CUDA 13 builds 10.3 as 10.0; FlashAttention 4 compiles at first use; IMEX only multi-node",
            known={"driver": _OPEN},
        ),
        _cuda(
            "gb10",
            "DGX Spark and its siblings (GB10)",
            capability=("12.1",),
            arch_list="12.1",
            cpus="Cortex-X925 and A725 (0x41/0xd85, 0xd87)",
            products="NVIDIA_DGX_Spark; ASUS GX10, Dell Pro Max with GB10, Lenovo 30KL..., Gigabyte AI TOP ATOM",
            driver=DriverPolicy("keep", open_only=True),
            install="wheel",
            # Unified memory: the default share of 0.92 is of all the host's memory and wedges it (vllm#46307).
            utilization=0.15,
            env={"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"},
            notes="unified memory, so nvidia-smi knows none; DGX OS keeps its driver; the first start compiles PTX",
            known={
                "driver": _read("DGX OS brings it; the proprietary module fails: start-technologies PR#3693"),
                "install": _read("source builds for 12.1 broke repeatedly: vllm#36835, PR#38484, PR#28938"),
                "serve_env": _read("ptxas of Triton lacks sm_121a: triton-lang/triton#8539"),
                "gpu_memory_utilization": _read("vllm#46307"),
            },
        ),
        _cuda(
            "arm-gpu",
            "Arm server with discrete NVIDIA GPUs",
            cpus="Ampere Altra and One, Kunpeng 920, Graviton, Phytium, Grace",
            products="any",
            notes="A10, L4, A100 and the like; the arch list comes from the card",
            known={"arch_list": _read("the card's capability, embedfleet/gpus.py")},
        ),
        _cpu(
            "grace-cpu",
            "Grace without a GPU",
            "aarch64",
            "bfloat16",
            cpus="Neoverse V2 (0x41/0xd4f), SoC jep106:036b:0241",
            products="Grace CPU Superchip servers",
            threads="cores divided by instances, not bound to NUMA nodes",
            notes="oneDNN with the Arm Compute Library; keep the pinned torch (wrong batches: vllm#27034)",
            known={"build_env": _read("bf16 and i8mm are found from /proc/cpuinfo")},
        ),
        _cpu(
            "power10",
            "Power10 and Power11",
            "ppc64le",
            "bfloat16",
            cpus="POWER10 (pvr 0080), Power11 (pvr 0082)",
            products="S1022, S1024, E1080; S1122, S1124, E1180",
            # gcc knows no power11 (ollama PR#12946); vLLM itself maps it to power10.
            flags="-mcpu=power10 -mtune=power10",
            components={"openblas": "-O3 -mcpu=power10", "xgrammar": "-fno-lto -mcpu=power9"},
            threads="4 of 8 SMT threads a core, divided by instances, not bound to NUMA nodes",
            notes="dependencies from IBM's index first; vLLM's image preloads tcmalloc; kernels before Linux 6.9 call a Power11 POWER10",
            works=("0.32.0", "0.32.0"),
            known=_POWER,
        ),
        _cpu(
            "power9",
            "POWER9, AC922 too",
            "ppc64le",
            "float32",
            cpus="POWER9 (pvr 004e)",
            products="S922, S924, AC922 (8335-GT[CGHWX])",
            flags="-mcpu=power9 -mtune=power9",
            components={"openblas": "-O3 -mcpu=power9", "xgrammar": "-fno-lto -mcpu=power9"},
            threads="all SMT threads, divided by instances, not bound to NUMA nodes",
            notes="no bf16 hardware; IBM's wheels may be built for Power10 (SIGILL): not known; V100s stay unused",
            works=("0.32.0", "0.32.0"),
            known=_POWER,
        ),
        _cpu(
            "x86-cpu",
            "x86_64 without a GPU: development, tests, staging",
            "x86_64",
            "float32",
            cpus="x86_64 with AVX2",
            products="any",
            threads="cores divided by instances, not bound",
            notes="what the tests and the demo run on",
            known=_X86,
        ),
        _cuda(
            "x86-gpu",
            "x86_64 with NVIDIA GPUs: development, staging",
            machine="x86_64",
            cpus="x86_64",
            products="any",
            driver=DriverPolicy("install"),
            notes="the arch list comes from the card; Fabric Manager only with NVSwitch",
            known={
                "dtype": Known("run", "vLLM 0.24 from its wheel on an H200"),
                "capability": Known("verified", "an H200: survey, nvidia-smi and PCI id agree; other cards are read"),
                "arch_list": _read("the card's capability, embedfleet/gpus.py"),
                "driver": _INSTALLED,
                "toolkit": _INSTALLED,
            },
        ),
    )
}
