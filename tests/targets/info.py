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
    data: dict[str, Any] = {"conda_lock": info["conda"]["locks"][SUBDIRS[target.image]]}
    if host == "x86":
        return data
    # The stand-in, by the same tasks. Grace's row is built from source alone; the others reuse kernels of a wheel.
    standin = info["standin"]
    return {
        **data,
        "vllm_git_url": standin["git"],
        "vllm_commit": standin["commit"],
        "vllm_requirements": standin["lock"],
        "vllm_patches": [],
        "vllm_precompiled": None if target.group == "grace" else standin["kernels"],
        "model_id": standin["model"],
        "model_known": standin["known"],
        "model_name": "standin",
        "model_sha256": standin["sha256"],
        "serve_env": {},
        # update-ca-certificates is some 500 processes: a second, and minutes under emulation. x86 and rhel have it tested.
        **({} if target.image == "rhel9" else {"site_ca_certificates": []}),
    }
