"""THE platform table: one row per kind of host, as data; and how a host is recognised.

Each row says how its values are known: `verified` on that hardware, `run` (on a stand-in or under emulation), or
`read` (in vLLM's sources and NVIDIA's and IBM's documents, on no machine). docs/first-deploy.md says so to operators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from embedfleet.facts.survey import Survey
from embedfleet.problems import Problem, Refused

# torch's CPU builds (`+cpu`) are in no general index; vLLM's own CPU requirements name them (vllm PR#43115).
_TORCH_CPU = ("https://download.pytorch.org/whl/cpu",)
_IBM = ("https://wheels.developerfirst.ibm.com/ppc64le/linux/+simple/",)

# What every build on Debian and Ubuntu needs beside the locked Python packages: a compiler for the kernels and for
# torch.compile at run time, git for the sources, libnuma for vLLM's CPU worker, the OpenMP runtime that torch loads.
_DEBIAN = (
    "ca-certificates",
    "curl",
    "g++",
    "git",
    "libgomp1",
    "libnuma-dev",
    "nginx",
    "numactl",
    "python3",
    "python3-venv",
)


@dataclass(frozen=True)
class Platform:
    """One row.

    :param machine: `uname -m`
    :param conda_subdir: conda's name of the same
    :param device: vLLM's target device
    :param arch_list: TORCH_CUDA_ARCH_LIST (compute capabilities), empty on CPU
    :param cmake_args: CMAKE_ARGS of vLLM's build
    :param build_env: other environment of the build, compiler flags among it
    :param serve_env: environment of the instances
    :param requirements: lock file of the engine's Python packages, {version} is vLLM's
    :param indexes: package indexes beside the default one; a mirror (python_index_url) is expected to hold all
    :param build_gib: memory one compiler job needs, GiB
    :param engine_gib: disk that building and keeping one engine needs, GiB
    :param known: how the row is known
    """

    name: str
    machine: str
    conda_subdir: str
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "float16", "bfloat16"]
    known: Literal["read", "run", "verified"]
    known_note: str
    arch_list: str = ""
    cmake_args: tuple[str, ...] = ()
    build_env: dict[str, str] = field(default_factory=dict)
    serve_env: dict[str, str] = field(default_factory=dict)
    requirements: str = ""
    indexes: tuple[str, ...] = ()
    packages: tuple[str, ...] = _DEBIAN
    enforce_eager: bool = False
    gpu_memory_utilization: float | None = None
    build_gib: float = 6.0
    engine_gib: float = 12.0


def _cuda(name: str, arch_list: str, note: str, *, machine: str = "aarch64", utilization: float = 0.3) -> Platform:
    subdir = {"aarch64": "linux-aarch64", "x86_64": "linux-64"}[machine]
    return Platform(
        name,
        machine,
        subdir,
        "cuda",
        "float16",
        "read",
        note,
        arch_list=arch_list,
        build_env={"CUDA_HOME": "/usr/local/cuda", "NVCC_THREADS": "1"},
        serve_env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        requirements=f"files/locks/engine-{{version}}-cuda-{machine}.lock",
        gpu_memory_utilization=utilization,
        engine_gib=20.0,
    )


def _cpu(name: str, machine: str, flags: str, dtype: Literal["float32", "bfloat16"], note: str) -> Platform:
    subdir = {"aarch64": "linux-aarch64", "ppc64le": "linux-ppc64le", "x86_64": "linux-64"}[machine]
    env = {"CFLAGS": flags, "CXXFLAGS": flags} if flags else {}
    return Platform(
        name,
        machine,
        subdir,
        "cpu",
        dtype,
        "read",
        note,
        build_env=env,
        requirements=f"files/locks/engine-{{version}}-cpu-{machine}.lock",
        indexes=_IBM if machine == "ppc64le" else _TORCH_CPU,
        build_gib=2.0,
        engine_gib=6.0,
    )


PLATFORMS: dict[str, Platform] = {
    row.name: row
    for row in (
        Platform(
            "x86-cpu",
            "x86_64",
            "linux-64",
            "cpu",
            "float32",
            "run",
            "run in systemd containers on x86_64 CPUs, kernels taken from a precompiled wheel (2026-11-30)",
            requirements="files/locks/engine-{version}-cpu-x86_64.lock",
            indexes=_TORCH_CPU,
            # nobind, since a binding list asserts on hosts with few cores (ppc64le/build-scripts#8270); the number of
            # threads, cores divided by instances, is in plan.serve_env.
            serve_env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            enforce_eager=True,
            build_gib=2.0,
            engine_gib=7.0,
        ),
        _cuda("x86-gpu", "", "arch list comes from the card", machine="x86_64"),
        _cuda("gh200", "9.0", "Grace Hopper"),
        _cuda("gb200", "10.0", "Grace Blackwell"),
        _cuda("gb300", "10.3", "Grace Blackwell Ultra"),
        # Unified memory: the default share of 0.92 is of all the host's memory and wedges it (vllm#46307).
        _cuda("gb10", "12.1", "DGX Spark", utilization=0.15),
        _cuda("arm-gpu", "", "aarch64 server with a discrete NVIDIA GPU"),
        _cpu("grace-cpu", "aarch64", "", "bfloat16", "Grace without a GPU"),
        # gcc knows no power11 (ollama PR#12946); vLLM itself maps it to power10.
        _cpu("power10", "ppc64le", "-mcpu=power10 -mtune=power10", "bfloat16", "Power10 and Power11"),
        _cpu("power9", "ppc64le", "-mcpu=power9 -mtune=power9", "float32", "POWER9 has no bf16 hardware"),
    )
}


def choose(host: str, wanted: str, survey: Survey) -> Platform:
    """Return the row of `host`.

    `auto` decides only what the survey proves. CPU facts alone never make a host a Grace host: other vendors use
    the same core.

    :raises Refused: for an unknown row, a row of another architecture, or a host that cannot be told
    """
    rows = ", ".join(PLATFORMS)
    if wanted != "auto":
        row = PLATFORMS.get(wanted)
        if row is None:
            reason = f"{wanted!r} is no platform"
            raise Refused([Problem(host, "platform", reason, f"name one of: {rows}; or leave it at 'auto'")])
        if survey.machine != row.machine:
            reason = f"{wanted} is for {row.machine}, and this host is {survey.machine or 'unknown'}"
            raise Refused([Problem(host, "platform", reason, "name the row of this host's architecture")])
        return row
    if survey.machine == "x86_64" and survey.nvidia_devices == 0:
        return PLATFORMS["x86-cpu"]
    seen = "unknown number of" if survey.nvidia_devices is None else str(survey.nvidia_devices)
    reason = f"not recognised: architecture {survey.machine or 'unknown'}, {seen} NVIDIA PCI devices, {survey.product or 'no DMI product'}"
    raise Refused([Problem(host, "platform", reason, f"name the platform in the inventory, one of: {rows}")])
