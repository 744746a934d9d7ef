"""What a running rig is: rig.json. Apart from the rig's command line, since every pyinfra run on the targets reads it."""

from __future__ import annotations

import json
from typing import Any

from tests.targets.host import RigError
from tests.targets.naming import TARGETS, Names

#: Image -> conda's name of its platform.
SUBDIRS = {"amd64": "linux-64", "rhel9": "linux-64", "arm64": "linux-aarch64", "ppc64el": "linux-ppc64le"}


def read_info(rig: Names) -> dict[str, Any]:
    """rig.json as `up` or `mirror` left it."""
    try:
        info: dict[str, Any] = json.loads((rig.state / "rig.json").read_text())
    except FileNotFoundError as error:
        raise RigError(f"rig {rig.rig} isn't up", "run `python -m tests.targets.rig up`") from error
    return info


def host_data(info: dict[str, Any], host: str) -> dict[str, Any]:
    """What is a target's own among the settings: group_data/docker.py has what all share."""
    target = TARGETS[host]
    data: dict[str, Any] = {"conda_lock": info["conda"]["locks"][SUBDIRS[target.image]]} | _nvidia(info, target.image)
    if host == "x86":
        return data
    # The stand-in, by the same tasks. Grace's row is built from source alone; the others reuse kernels of a wheel.
    # update-ca-certificates is some 500 processes: a second, and minutes under emulation. x86 and rhel have it tested.
    emulated: dict[str, Any] = {} if target.machine == "x86_64" else {"site_ca_certificates": []}
    if (
        target.kmod
    ):  # its driver and its nvcc came with it; a driver is installed on the targets that have none (gpu, gpu-grace)
        emulated |= {"driver": "keep", "cuda_toolkit": "none"}
    return {**data, **_standin(info, kernels=target.group != "grace"), **emulated}


def _nvidia(info: dict[str, Any], image: str) -> dict[str, Any]:
    """NVIDIA's packages from the mirror, signed with its key."""
    repos = info["repos"]
    return {
        "nvidia_repository_url": repos["rpm" if image == "rhel9" else "apt"]["nvidia"],
        "nvidia_key_fingerprints": [repos["keys"]["fingerprints"]["good"]],
        "allow_http_repositories": True,
    }


def machine_data(info: dict[str, Any]) -> dict[str, Any]:
    """Settings of the emulated machine (tests/targets/vm): all from the mirror, as group_data/docker.py has it for containers."""
    mirror = info["mirror"]["url"]
    return {
        "platform": "grace-cpu",  # its cores are not Grace's, so it cannot be recognised as one
        "conda_lock": info["conda"]["locks"]["linux-aarch64"],
        "conda_channel": f"{mirror}/conda",
        "python_index_url": f"{mirror}/simple/",
        "model_endpoint": mirror,
        "model_revision": "v1",
        "start_timeout": 600,
        **_standin(info, kernels=True),
    }


def _standin(info: dict[str, Any], kernels: bool) -> dict[str, Any]:
    standin = info["standin"]
    return {
        "vllm_git_url": standin["git"],
        "vllm_commit": standin["commit"],
        "vllm_requirements": standin["lock"],
        "vllm_patches": [],
        "vllm_precompiled": standin["kernels"] if kernels else None,
        "model_id": standin["model"],
        "model_known": standin["known"],
        "model_name": "standin",
        "model_sha256": standin["sha256"],
        "serve_env": {},
    }
