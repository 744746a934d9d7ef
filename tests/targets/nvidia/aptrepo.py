"""apt repositories as static files: pools, Packages, Release, InRelease; and the same gone wrong."""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.targets.nvidia import containertoolkit, cuda, debs, specs, ubuntu
from tests.targets.nvidia.keys import Keys
from tests.targets.nvidia.package import Package

#: A day in seconds.
DAY = 86400


@dataclass(frozen=True)
class Index:
    """One Release file. `place`: its folder under apt/. `base`: what the pool's paths are relative to.

    `packages` makes what it lists; `gone` what it listed before, which no pool has any more.
    """

    place: str
    base: str
    arch: str
    release: dict[str, str]
    packages: Callable[[], list[Package]]
    gone: Callable[[], list[Package]]

    @property
    def flat(self) -> bool:
        return self.place == self.base

    def where(self, package: Package) -> str:
        """A package's path relative to `base`."""
        name = debs.file_name(package)
        if self.flat:
            return f"./{name}"
        first = package.name[:4] if package.name.startswith("lib") else package.name[0]
        return f"pool/restricted/{first}/{package.name}/{name}"

    @property
    def listing(self) -> str:
        """The path of Packages relative to the Release file."""
        return "Packages" if self.flat else f"restricted/binary-{self.arch}/Packages"


def indexes(keyring: bytes, kernels: tuple[str, ...]) -> list[Index]:
    """Every apt index of the mirror, laid out as the real ones are.

    :param kernels: kernels to have modules for besides Ubuntu's: what the targets run, emulated ones too
    """
    found = []
    for arch, root in (("amd64", "ubuntu"), ("arm64", "ubuntu-ports")):
        for pocket in specs.POCKETS:
            codename = pocket.suite.split("-")[0]
            fields = {"Origin": "Ubuntu", "Label": "Ubuntu", "Suite": pocket.suite, "Codename": codename}
            fields |= {"Version": pocket.series, "Architectures": arch, "Components": "restricted"}
            found.append(
                Index(
                    f"{root}/dists/{pocket.suite}", root, arch, fields,
                    lambda p=pocket, a=arch: ubuntu.packages(p, a, kernels),  # type: ignore[misc]
                    lambda p=pocket, a=arch: ubuntu.packages(specs.gone(p), a),  # type: ignore[misc]
                )
            )  # fmt: skip
    drivers = (specs.OLDER, specs.NEWER, specs.NEXT)
    for distro in specs.CUDA_DISTROS:
        for arch, name in specs.NVIDIA_ARCH.items():
            place = f"nvidia/{distro}/{name}"
            fields = {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": f"{arch} all"}
            found.append(
                Index(
                    place, place, arch, fields,
                    lambda d=distro, a=arch: cuda.packages(d, a, drivers, keyring),  # type: ignore[misc]
                    lambda d=distro, a=arch: cuda.packages(d, a, (specs.GONE,), keyring),  # type: ignore[misc]
                )
            )  # fmt: skip
    for arch in specs.NVIDIA_ARCH:
        place = f"libnvidia-container/stable/deb/{arch}"
        fields = {"Origin": "https://nvidia.github.io/libnvidia-container", "Label": "libnvidia-container"}
        fields |= {"Architectures": arch}
        found.append(
            Index(
                place, place, arch, fields,
                lambda a=arch: [p for v in specs.TOOLKITS for p in containertoolkit.packages(v, a)],  # type: ignore[misc]
                lambda a=arch: containertoolkit.packages(specs.TOOLKIT_GONE, a),  # type: ignore[misc]
            )
        )  # fmt: skip
    return found


def release(index: Index, listing: bytes, made: float, until: float | None = None) -> str:
    """The text of a Release file for a list of packages."""
    fields = {**index.release, "Date": email.utils.formatdate(made, usegmt=True)}
    if until is not None:
        fields["Valid-Until"] = email.utils.formatdate(until, usegmt=True)
    lines = [f"{key}: {value}\n" for key, value in fields.items()]
    lines.append("SHA256:\n")
    for name, content in ((index.listing, listing), (f"{index.listing}.gz", gzip.compress(listing, mtime=0))):
        lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content):>8} {name}\n")
    return "".join(lines)


def _list(folder: Path, index: Index, listing: bytes) -> None:
    path = folder / index.listing
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(listing)
    path.with_name("Packages.gz").write_bytes(gzip.compress(listing, mtime=0))


def _packages(index: Index, packages: list[Package], pool: Path | None) -> bytes:
    """The text of Packages; the packages themselves go into `pool`, if there is one."""
    entries = []
    for package in packages:
        content, where = debs.build(package), index.where(package)
        if pool is not None:
            file = pool / where
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        entries.append(debs.entry(package, where, content))
    return "\n".join(entries).encode()


def write(index: Index, root: Path, variants: Path, keys: Keys) -> None:
    """An index and its pool under root/apt, and what it is in each of the mirror's `variants`."""
    now = time.time()
    folder = root / "apt" / index.place
    folder.mkdir(parents=True, exist_ok=True)
    listing = _packages(index, index.packages(), root / "apt" / index.base)
    _list(folder, index, listing)
    (folder / "Release").write_text(release(index, listing, now))
    keys.inline(keys.valid, folder / "Release", folder / "InRelease")
    keys.detached(keys.valid, folder / "Release", folder / "Release.gpg")

    def variant(mode: str) -> Path:
        path = variants / mode / "apt" / index.place
        path.mkdir(parents=True, exist_ok=True)
        return path

    for mode, key in (("expired-key", keys.expired), ("new-key", keys.successor)):
        keys.inline(key, folder / "Release", variant(mode) / "InRelease")
    signed = (folder / "InRelease").read_text()
    (variant("badsig") / "InRelease").write_text(signed.replace("\nDate: ", "\nNotAutomatic: no\nDate: ", 1))
    old = variant("expired-release")
    (old / "Release").write_text(release(index, listing, now - 30 * DAY, now - 2 * DAY))
    keys.inline(keys.valid, old / "Release", old / "InRelease")
    stale = variant("stale")
    before = _packages(index, index.gone(), None)
    _list(stale, index, before)
    (stale / "Release").write_text(release(index, before, now - 90 * DAY))
    keys.inline(keys.valid, stale / "Release", stale / "InRelease")
