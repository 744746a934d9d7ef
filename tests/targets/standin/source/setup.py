"""Build the stand-in as vLLM is built: from the same variables, refusing what vLLM's build refuses."""

import json
import os
import zipfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

DEVICE = os.environ.get("VLLM_TARGET_DEVICE", "")
VERSION = os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION", "")
KEPT = ("VLLM_", "CMAKE_ARGS", "TORCH_CUDA_ARCH_LIST", "CFLAGS", "CXXFLAGS", "MAX_JOBS", "NVCC_THREADS", "CUDA_HOME")


def check() -> None:
    """Fail as a real build would without what the deploy has to give it."""
    if DEVICE not in ("cpu", "cuda"):
        raise SystemExit(f"VLLM_TARGET_DEVICE={DEVICE!r} is no device")
    if not VERSION:
        raise SystemExit("setuptools-scm: no version, as the tag's clone is shallow")
    if DEVICE == "cuda":
        if not os.environ.get("TORCH_CUDA_ARCH_LIST"):
            raise SystemExit("no TORCH_CUDA_ARCH_LIST: the build would take every architecture")
        nvcc = Path(os.environ.get("CUDA_HOME", "/nowhere")) / "bin/nvcc"
        if not nvcc.exists():
            raise SystemExit(f"CMake Error: CUDA compiler not found at {nvcc}")


def kernels() -> dict[str, str]:
    """What a precompiled wheel brings, where the deploy gave one (VLLM_USE_PRECOMPILED)."""
    if os.environ.get("VLLM_USE_PRECOMPILED") != "1":
        return {}
    with zipfile.ZipFile(os.environ["VLLM_PRECOMPILED_WHEEL_LOCATION"]) as wheel:
        return {"kernels": wheel.read("vllm/_C.txt").decode().strip()}


class Build(build_py):
    """Leaves the build's environment in the package, so that a test can see what reached it."""

    def run(self) -> None:
        super().run()
        seen = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        target = Path(self.build_lib, "vllm", "_build.json")
        target.write_text(json.dumps({**seen, **kernels()}, indent=1, sort_keys=True) + "\n")


check()
setup(
    name="vllm",
    version=f"{VERSION}+standin.{DEVICE}",
    packages=find_packages(include=["vllm", "vllm.*"]),
    package_data={"vllm": ["flags.json"]},
    entry_points={"console_scripts": ["vllm=vllm.entrypoints.cli.main:main"]},
    cmdclass={"build_py": Build},
)
