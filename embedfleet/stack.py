"""Which vLLM goes with which torch, CUDA, driver, Python and glibc; and which flags it no longer takes.

From the wheels' metadata on PyPI and vLLM's sources, read (2026-11-30); 0.32.0 on x86_64 CPUs was run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Vllm:
    """One vLLM release.

    :param torch: the version it pins
    :param python: oldest, and the first that is too new
    :param cuda: CUDA of its wheels and of torch's on PyPI
    :param driver: oldest driver branch for that CUDA (NVIDIA's CUDA 13 release notes: R580)
    """

    torch: str
    python: tuple[str, str]
    cuda: str = "13.0"
    driver: int = 580


VERSIONS: dict[str, Vllm] = {
    "0.26.0": Vllm("2.11.0", ("3.10", "3.15")),
    "0.27.0": Vllm("2.13.0", ("3.10", "3.15")),
    "0.28.0": Vllm("2.13.0", ("3.10", "3.15")),
    "0.29.0": Vllm("2.13.0", ("3.10", "3.15")),
    "0.30.0": Vllm("2.13.0", ("3.10", "3.15")),
    "0.31.0": Vllm("2.13.0", ("3.10", "3.15")),
    "0.32.0": Vllm("2.13.0", ("3.11", "3.15")),
    "0.33.0": Vllm("2.14.0", ("3.11", "3.15")),
}

# Oldest compute capability of vLLM's CUDA kernels (0.33 CMakeLists.txt:119-135 with CUDA 13; Volta went with CUDA 13).
MIN_CAPABILITY = 7.5

# glibc of the wheels that a CUDA or CPU installation needs: on aarch64 tilelang has manylinux_2_34 alone
# (docker/Dockerfile:229-233), on Power IBM's wheels are manylinux_2_34; on x86_64 torch is manylinux_2_28.
GLIBC = {"aarch64": (2, 34), "ppc64le": (2, 34), "x86_64": (2, 28)}

# Flags that `vllm serve` 0.32 and 0.33 refuse at once (exit 2), and what took their place.
REMOVED_FLAGS = {
    "task": "the deploy gives --runner pooling",
    "device": "the platform row decides; VLLM_TARGET_DEVICE",
    "swap-space": "there is none any more",
    "max-seq-len-to-capture": "there is none any more",
    "use-v2-block-manager": "there is none any more",
    "disable-log-requests": "requests are not logged unless --enable-log-requests",
    "enable-reasoning": "it is for text generation",
    "override-pooler-config": "--pooler-config",
}

# Flags that the deploy sets itself, from settings of their own.
OWN_FLAGS = {
    "host": "instances listen on localhost; clients come through the gateway",
    "port": "instance_ports",
    "served-model-name": "model_name",
    "max-model-len": "max_model_len",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "max-num-seqs": "max_num_seqs",
    "runner": "it is pooling",
    "dtype": "dtype",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "device-memory-utilization": "gpu_memory_utilization",
    "kv-cache-memory-bytes": "an encoder has no KV cache",
    "model": "model_id",
    "enforce-eager": "enforce_eager",
    "no-enforce-eager": "enforce_eager = False",
    "api-server-count": "api_server_count",
    "hf-token": "the model is fetched by the deploy, and argv can be read by every user of the host",
    "api-key": "it would stand in argv, where every user of the host can read it",
}


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers for comparison: "2.34" -> (2, 34); () for what is no version."""
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)
