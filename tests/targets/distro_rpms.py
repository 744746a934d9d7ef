"""The rpm repository that stands in for RHEL 9's own (BaseOS, AppStream, CodeReady Builder): the packages a deploy asks for.

RHEL's archive can't be had without a subscription, so packages of the real names bring Debian's programs: nginx's and numactl's
files are really in theirs; the others point at what the image has (Python 3.11 under the name of 3.12), or bring nothing but
their name. Built with rpmbuild in a container of the mirror's image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.targets.engine import docker
from tests.targets.host import as_root, cache_dir, lock, run, say

BUILDER = Path(__file__).with_name("fake") / "build-rpms"


@dataclass(frozen=True)
class Rpm:
    """One package: Debian's packages whose files it brings, links that it makes, names that it needs."""

    name: str
    version: str
    debs: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()


_TOOLSET = "/opt/rh/gcc-toolset-14/root/usr/bin"
_COMPILERS = {f"{_TOOLSET}/{name}": f"/usr/bin/{name}" for name in ("gcc", "g++", "cc", "c++")}

RPMS = (
    Rpm("ca-certificates", "2025.2.80_v9.0.304-91.1"),
    Rpm("git-core", "2.47.3-1"),
    Rpm("libgomp", "11.5.0-5"),
    Rpm("nginx-filesystem", "1.20.1-22.4"),
    Rpm("nginx", "1.20.1-22.4", ("nginx", "nginx-common"), requires=("nginx-filesystem",)),
    Rpm("numactl-libs", "2.0.19-1"),
    Rpm("numactl", "2.0.19-1", ("numactl",), requires=("numactl-libs",)),
    Rpm("numactl-devel", "2.0.19-1", requires=("numactl-libs",)),
    Rpm("gcc-toolset-14-runtime", "14.0-1"),
    Rpm("gcc-toolset-14-gcc-c++", "14.2.1-7.1", links=_COMPILERS, requires=("gcc-toolset-14-runtime",)),
    Rpm("python3.12-libs", "3.12.11-2"),
    Rpm("site-web", "1-1", requires=("nginx",)),  # an operator's, for tests of what uninstall.py leaves
    Rpm("python3.12", "3.12.11-2", links={"/usr/bin/python3.12": "python3.11"}, requires=("python3.12-libs",)),
)


def ensure_distro_rpms(image: str) -> Path:
    """The folder of the repository, built once per content."""
    specs = json.dumps([asdict(rpm) for rpm in RPMS])
    digest = hashlib.sha256("\n".join([specs, BUILDER.read_text(), image]).encode()).hexdigest()[:12]
    done = cache_dir() / "distro-rpms" / digest
    if done.is_dir():
        return done
    with lock("distro-rpms"):
        if not done.is_dir():
            say("building the rpm packages of the RHEL stand-in")
            work = done.with_name(f".{done.name}.{os.getpid()}")
            work.mkdir(parents=True)
            (work / "specs.json").write_text(specs)
            mounts = ["-v", f"{BUILDER}:/build-rpms:ro", "-v", f"{work}:/out"]
            try:
                docker("run", "--rm", *mounts, image, "python3", "/build-rpms", "/out", timeout=600)
                if os.geteuid() != 0:  # the container's root wrote it
                    run([*as_root(), "chown", "-R", f"{os.getuid()}:{os.getgid()}", work])
                work.rename(done)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return done
