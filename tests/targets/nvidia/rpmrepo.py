"""rpm repositories: signed packages, repodata with module streams, signed repomd.xml; and the same gone wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.targets.host import find_tool, run
from tests.targets.nvidia import containertoolkit, rhel, rpms, specs
from tests.targets.nvidia.keys import Keys
from tests.targets.nvidia.package import Package


@dataclass(frozen=True)
class Repository:
    """One repodata folder: its place under rpm/, rpm's architecture, what it has, what it had, its module streams."""

    place: str
    arch: str
    packages: list[Package]
    gone: list[Package]
    modules: Callable[[str], str] | None = None


def repositories(kernels: tuple[str, ...]) -> list[Repository]:
    """Every rpm repository of the mirror, laid out as the real ones are."""
    found = []
    for arch, name in (("x86_64", "x86_64"), ("aarch64", "sbsa")):
        drivers = [
            package for version in (specs.OLDER, specs.NEWER, specs.NEXT) for package in rhel.driver(version, arch)
        ]
        everything = [*rhel.toolkit(arch), *drivers]
        found.append(
            Repository(f"nvidia/rhel9/{name}", arch, everything, rhel.driver(specs.GONE, arch), rhel.modules_yaml)
        )
        toolkits = [p for version in specs.TOOLKITS for p in containertoolkit.packages(version, arch, rpm=True)]
        old = containertoolkit.packages(specs.TOOLKIT_GONE, arch, rpm=True)
        found.append(Repository(f"libnvidia-container/stable/rpm/{arch}", arch, toolkits, old))
        found.append(Repository(f"rhel/9/{arch}", arch, rhel.base(arch, kernels), []))
    return found


def write(repository: Repository, root: Path, variants: Path, keys: Keys, work: Path) -> None:
    """A repository under root/rpm, and what its repodata is in each of the mirror's `variants`."""
    folder = root / "rpm" / repository.place
    rpms.build(repository.packages, repository.arch, folder, work / "current")
    macros = {"__gpg": find_tool("gpg"), "_gpg_name": keys.valid, "_gpg_path": keys.home}
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    run(["rpmsign", *defines, "--addsign", *sorted(folder.glob("*.rpm"))], cure="check that rpmsign works here")
    _index(folder, repository, work)
    repomd = folder / "repodata" / "repomd.xml"
    keys.detached(keys.valid, repomd, repomd.with_name("repomd.xml.asc"))

    def variant(mode: str) -> Path:
        path = variants / mode / "rpm" / repository.place / "repodata"
        path.mkdir(parents=True, exist_ok=True)
        return path

    for mode, key in (("expired-key", keys.expired), ("new-key", keys.successor)):
        keys.detached(key, repomd, variant(mode) / "repomd.xml.asc")
    text = repomd.read_text()
    (variant("badsig") / "repomd.xml").write_text(text.replace("</repomd>", "<!-- not what was signed --></repomd>"))
    if not repository.gone:
        return
    before = work / "gone" / repository.place
    rpms.build(repository.gone, repository.arch, before, work / "older")
    _index(before, repository, work)
    stale = variant("stale")
    shutil.copytree(before / "repodata", stale, dirs_exist_ok=True)
    keys.detached(keys.valid, stale / "repomd.xml", stale / "repomd.xml.asc")


def _index(folder: Path, repository: Repository, work: Path) -> None:
    run(["createrepo_c", "--quiet", folder], cure="check that createrepo_c works here")
    if repository.modules is not None:
        yaml = work / "modules.yaml"
        yaml.write_text(repository.modules(repository.arch))
        run(["modifyrepo_c", "--mdtype=modules", yaml, folder / "repodata"], cure="check that modifyrepo_c works here")
