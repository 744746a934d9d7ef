"""Write docs/platform-matrix.md from the platform table: python -m embedfleet.matrix_page [--check]."""

from __future__ import annotations

import sys
from pathlib import Path

from embedfleet.generated import write_or_check
from embedfleet.gpus import GPUS
from embedfleet.platforms import PLATFORMS, Known, Platform
from embedfleet.stack import MIN_CAPABILITY, VERSIONS
from embedfleet.systems import SYSTEMS

PAGE = Path(__file__).parent.parent / "docs" / "platform-matrix.md"

_HEAD = """# Platform matrix

Every kind of host, what the deploy does there, and how each value is known. Generated from `embedfleet/platforms.py`,
`systems.py`, `gpus.py` and `stack.py` (`make docs`).

**How it is known**: *read*: in sources, documents or public reports, on no machine. *run*: on a stand-in, such as a
container or another card. *verified*: on that hardware. A row is worth its weakest value. **No row has been verified on Grace
or Power hardware.**

This version does not do all of it yet: it installs no wheels (`install` must be source), and builds
nothing but vLLM from source (flags of other components). Where a row needs that, the host is refused and told so.

A host's row comes from PCI ids, GPU names and SoC ids. CPU facts alone prove nothing (Graviton4 and Axion have Grace's core)
and DMI names differ by maker: such a host is *undecided*, and the operator names its row: `platform = "grace-cpu"`.

"""


_SOURCES = """OGKM: supported GPUs in the README of NVIDIA/open-gpu-kernel-modules (R550, R615). PCIIDS: pci.ids of pciutils/pciids. KERN:
drivers/vfio/pci/nvgrace-gpu/main.c of Linux. A star: the capability of the chip is taken for a variant of it.

"""


def _cell(value: object) -> str:
    text = str(value) if value not in ("", (), {}, None) else "-"
    return text.replace("|", "\\|").replace("\n", " ")


def _values(row: Platform) -> dict[str, tuple[str, str]]:
    """Return what a row's fields are called and show: field -> (label, value)."""
    driver = row.driver
    modules = "open kernel modules only" if driver.open_only else "open kernel modules"
    policy = {
        "install": f"install R{driver.branch}, {modules}",
        "keep": f"keep the vendor's, R{driver.branch} or newer, {modules}",
        "none": "none",
    }[driver.action]
    env = " ".join(f"{key}={value}" for key, value in sorted(row.build_env.items()))
    return {
        "machine": ("architecture", row.machine),
        "cpus": ("CPU", row.cpus),
        "products": ("product names", row.products),
        "conda_subdir": ("conda", row.conda_subdir),
        "device": ("device", row.device),
        "capability": (
            "compute capability",
            ", ".join(row.capability) or ("the card's" if row.device == "cuda" else ""),
        ),
        "arch_list": ("TORCH_CUDA_ARCH_LIST", row.arch_list or ("the card's" if row.device == "cuda" else "")),
        "cmake_args": ("CMAKE_ARGS", " ".join(row.cmake_args)),
        "build_env": ("build environment", env),
        "component_flags": (
            "flags of other components",
            "; ".join(f"{k}: {v}" for k, v in row.component_flags.items()),
        ),
        "driver": ("driver", policy),
        "toolkit": ("CUDA toolkit", row.toolkit),
        "python": ("Python", ", ".join(row.python)),
        "vllm": ("vLLM pinned", f"{row.vllm} (torch {VERSIONS[row.vllm].torch})"),
        "vllm_works": ("vLLM thought to work", " to ".join(row.vllm_works)),
        "install": ("install default", row.install),
        "dtype": ("dtype", row.dtype),
        "serve_env": ("serving environment", " ".join(f"{k}={v}" for k, v in sorted(row.serve_env.items()))),
        "gpu_memory_utilization": ("GPU memory share", _cell(row.gpu_memory_utilization)),
        "enforce_eager": ("eager", "yes" if row.enforce_eager else "no"),
        "requirements": ("engine's lock", row.requirements),
        "indexes": ("more indexes", " ".join(row.indexes)),
        "threads": ("NUMA and SMT", row.threads),
        "page_size": ("page size advised", f"{row.page_size // 1024} KiB" if row.page_size else ""),
        "build_gib": ("memory a compiler job", f"{row.build_gib:.0f} GiB"),
        "build_core_minutes": ("build, minutes times jobs", _cell(row.build_core_minutes)),
        "engine_gib": ("disk an engine", f"{row.engine_gib:.0f} GiB"),
        "notes": ("notes", row.notes),
    }


def _known(known: Known) -> str:
    return f"*{known.how}* {known.date}: {_cell(known.source)}"


def _systems() -> str:
    text = "\n## Operating systems\n\n| system | packages | compilers | Python of the tools | known |\n|---|---|---|---|---|\n"
    for system in SYSTEMS:
        also = f"{system.compilers or '/usr/bin'} | {system.python}"
        text += f"| {system.name} | {system.manager}: {' '.join(system.packages)} | {also} | {system.known} |\n"
    return text


def page() -> str:
    """Return the page."""
    lines = [
        "| row | hosts | device | arch list | dtype | driver | install | known |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in PLATFORMS.values():
        shown = _values(row)
        cells = [shown[name][1] for name in ("device", "arch_list", "dtype", "driver", "install")]
        lines.append(f"| [{row.name}](#{row.name}) | {row.title} | {' | '.join(map(_cell, cells))} | {row.how} |")
    text = _HEAD + "\n".join(lines) + "\n" + _systems()
    for row in PLATFORMS.values():
        text += f"\n## {row.name}\n\n{row.title}. Weakest value: **{row.how}**.\n\n| what | value | how it is known |\n|---|---|---|\n"
        text += "".join(
            f"| {label} | {_cell(value)} | {_known(row.known[name])} |\n"
            for name, (label, value) in _values(row).items()
        )
    text += "\n## GPUs by PCI device id (vendor 10de)\n\n| id | GPU | compute capability | row | source |\n|---|---|---|---|---|\n"
    text = text.replace("| id | GPU |", _SOURCES + "| id | GPU |")
    for number, gpu in GPUS.items():
        row_name = gpu.row or ("refused" if gpu.refused else "arm-gpu, x86-gpu")
        if gpu.capability and float(gpu.capability) < MIN_CAPABILITY:
            row_name = f"refused for CUDA: under {MIN_CAPABILITY}"
        text += f"| {number} | {gpu.name} | {gpu.capability or 'unknown'} | {row_name} | {gpu.source} |\n"
    return text


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page))
