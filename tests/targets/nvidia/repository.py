"""All of it, built once for each content into the cache: apt/, rpm/, their .variants/, and the public keys."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.targets.host import cache_dir, ensure_tool, lock, say
from tests.targets.nvidia import aptrepo, cuda, keys, rpmrepo, specs
from tests.targets.nvidia.package import HERE

#: Program -> Debian package that brings it.
TOOLS = {"gpg": "gpg", "rpmbuild": "rpm", "createrepo_c": "createrepo-c"}

#: Ways in which a repository can go wrong that the mirror serves from a tree beside the real one.
VARIANTS = ("stale", "expired-release", "expired-key", "new-key", "badsig")


def running_kernel() -> tuple[str, ...]:
    """This machine's kernel, which is the targets' kernel too: there are modules for it, so that modinfo finds them."""
    release = os.uname().release
    return (release,) if re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", release) else ()


def digest(kernels: tuple[str, ...]) -> str:
    """What the repositories are made from: the code and the programs beside it, and the kernels."""
    total = hashlib.sha256(json.dumps(kernels).encode())
    for path in sorted(HERE.iterdir()):
        if path.is_file():
            total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def ensure_repositories(kernels: tuple[str, ...] | None = None) -> Path:
    """The folder with everything that the mirror serves for drivers, CUDA and the container toolkit."""
    kernels = running_kernel() if kernels is None else kernels
    folder = cache_dir() / "repos" / digest(kernels)
    if folder.exists():
        return folder
    with lock("repos"):
        if folder.exists():
            return folder
        for tool, package in TOOLS.items():
            ensure_tool(tool, package)
        say("making the apt and rpm repositories of NVIDIA's stand-ins (half a minute, once)")
        started = time.monotonic()
        partial = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            with tempfile.TemporaryDirectory(prefix="rig") as work:
                build(partial, Path(work), kernels)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        say(f"made {folder} in {time.monotonic() - started:.1f} s")
    return folder


def build(root: Path, work: Path, kernels: tuple[str, ...]) -> None:
    """Write the whole tree; `work` is an empty folder of a short name."""
    secret = keys.make(work / "gpg")
    try:
        public = root / "keys"
        public.mkdir(parents=True)
        # a client's keyring has old keys as well, as archive keyrings do
        secret.export(public / "keyring.gpg", secret.valid, secret.expired)
        secret.export(public / "key.asc", secret.valid, armor=True)
        secret.export(public / "expired.asc", secret.expired, armor=True)
        secret.export(public / "next.asc", secret.successor, armor=True)
        variants = root / ".variants"
        with ThreadPoolExecutor(2) as pool:
            indexes = aptrepo.indexes((public / "keyring.gpg").read_bytes(), kernels)
            jobs = [pool.submit(aptrepo.write, index, root, variants, secret) for index in indexes]
            for number, repository in enumerate(rpmrepo.repositories(kernels)):
                (there := work / f"rpm{number}").mkdir()
                jobs.append(pool.submit(rpmrepo.write, repository, root, variants, secret, there))
            for job in jobs:
                job.result()
        _extras(root)
        fingerprints = {"good": secret.valid, "expired": secret.expired, "next": secret.successor}
        (root / "repos.json").write_text(json.dumps({"fingerprints": fingerprints}, indent=2) + "\n")
    finally:
        secret.close()


def _extras(root: Path) -> None:
    """Keys and source files at the places where guides fetch them (the URLs in the files are the real ones)."""
    key = (root / "keys" / "key.asc").read_bytes()
    for distro in specs.CUDA_DISTROS:
        for arch in specs.NVIDIA_ARCH.values():
            folder = root / "apt/nvidia" / distro / arch
            (folder / "3bf863cc.pub").write_bytes(key)
            (folder / "cuda-archive-keyring.gpg").write_bytes((root / "keys/keyring.gpg").read_bytes())
            (folder / f"cuda-{distro}.pin").write_text(cuda.pin())
    real = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9"
    for arch in specs.NVIDIA_ARCH.values():
        folder = root / "rpm/nvidia/rhel9" / arch
        (folder / "D42D0685.pub").write_bytes(key)
        lines = [f"[cuda-rhel9-{arch}]", f"name=cuda-rhel9-{arch}", f"baseurl={real}/{arch}", "enabled=1", "gpgcheck=1"]
        lines.append(f"gpgkey={real}/{arch}/D42D0685.pub")
        (folder / "cuda-rhel9.repo").write_text("\n".join(lines) + "\n")
    real = "https://nvidia.github.io/libnvidia-container"
    for kind in ("apt", "rpm"):
        (root / kind / "libnvidia-container" / "gpgkey").write_bytes(key)
    deb = f"deb {real}/stable/deb/$(ARCH) /\n#deb {real}/experimental/deb/$(ARCH) /\n"
    (root / "apt/libnvidia-container/stable/deb/nvidia-container-toolkit.list").write_text(deb)
    lines = ["[nvidia-container-toolkit]", "name=nvidia-container-toolkit", f"baseurl={real}/stable/rpm/$basearch"]
    lines += ["repo_gpgcheck=1", "gpgcheck=0", "enabled=1", f"gpgkey={real}/gpgkey", "sslverify=1"]
    lines.append("sslcacert=/etc/pki/tls/certs/ca-bundle.crt")
    (root / "rpm/libnvidia-container/stable/rpm/nvidia-container-toolkit.repo").write_text("\n".join(lines) + "\n")


def describe(folder: Path, url: str) -> dict[str, Any]:
    """The part of rig.json about repositories: URLs inside the rig's network, keys on this machine."""
    apt, rpm = f"{url}/apt", f"{url}/rpm"
    return {
        "apt": {
            "ubuntu": f"{apt}/ubuntu",
            "ubuntu-ports": f"{apt}/ubuntu-ports",
            "nvidia": f"{apt}/nvidia",
            "libnvidia-container": f"{apt}/libnvidia-container",
        },
        "rpm": {
            "nvidia": f"{rpm}/nvidia",
            "libnvidia-container": f"{rpm}/libnvidia-container",
            "rhel": f"{rpm}/rhel",
        },
        "keys": {
            **json.loads((folder / "repos.json").read_text()),
            "keyring": str(folder / "keys" / "keyring.gpg"),
            "good": str(folder / "keys" / "key.asc"),
            "expired": str(folder / "keys" / "expired.asc"),
            "next": str(folder / "keys" / "next.asc"),
        },
        "kernels": list(running_kernel()),
    }
