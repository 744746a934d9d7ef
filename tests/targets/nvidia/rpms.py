"""Real .rpm files: one spec for many packages, because each rpmbuild takes a second."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.targets.host import run
from tests.targets.nvidia.package import Package

#: Debian's names of maintainer scripts -> rpm's.
_SCRIPTS = {"preinst": "pre", "postinst": "post", "prerm": "preun", "postrm": "postun"}

_HEAD = """\
%global __os_install_post %{nil}
%global _build_id_links none
%global debug_package %{nil}
%global _binary_payload w1.gzdio
%global __brp_mangle_shebangs %{nil}
AutoReqProv: no
Name: embedfleet-rig
Version: 1
Release: 1
Summary: The rig's stand-ins
License: MIT
%description
Never built: the packages below are.
"""


def batches(packages: Sequence[Package]) -> list[list[Package]]:
    """As few specs as possible: none has two versions of a package."""
    found: list[dict[str, Package]] = []
    for package in packages:
        batch = next((names for names in found if package.name not in names), None)
        if batch is None:
            found.append(batch := {})
        batch[package.name] = package
    return [list(batch.values()) for batch in found]


def spec(packages: Sequence[Package], tree: Path) -> str:
    """A spec that makes these packages of the files in `tree`, which it writes too."""
    parts = [_HEAD]
    tree.mkdir(parents=True)
    for package in packages:
        epoch, _, rest = package.version.rpartition(":")
        version, release = rest.rsplit("-", 1)
        parts.append(
            f"%package -n {package.name}\nSummary: {package.summary}\nVersion: {version}\nRelease: {release}\n"
        )
        # said each time: a subpackage without an epoch would inherit none, but one after it must not get this one
        parts.append(f"Epoch: {epoch}\n" if epoch else "")
        parts.append("BuildArch: noarch\n" if package.arch == "noarch" else "")
        for word, values in (
            ("Requires", package.depends),
            ("Provides", package.provides),
            ("Conflicts", package.conflicts),
            ("Obsoletes", package.replaces),
        ):
            parts += [f"{word}: {value}\n" for value in values]
        parts.append(f"AutoReqProv: no\n%description -n {package.name}\nA stand-in of embedfleet's test rig.\n")
        for name, text in package.scripts.items():
            parts.append(f"%{_SCRIPTS[name]} -n {package.name}\n{text.removeprefix('#!/bin/sh').strip()}\n")
        parts.append(f"%files -n {package.name}\n")
        for path, file in package.files.items():
            place = tree / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.data)
            flag = "%config(noreplace) " if file.conf else ""
            parts.append(f"{flag}%attr({file.mode:o},root,root) {path}\n")
        for path, target in package.links.items():
            place = tree / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
            parts.append(f"{path}\n")
    # %changelog would come here; %install copies what was laid out
    return "".join(parts) + f"%install\nmkdir -p %{{buildroot}}\ncp -a {tree}/. %{{buildroot}}/\n"


def build(packages: Sequence[Package], arch: str, out: Path, work: Path) -> None:
    """Write every package's .rpm into `out` (real file names: name-version-release.arch.rpm)."""
    out.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches(packages)):
        here = work / f"{out.parent.name}-{out.name}-{number}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        (here / "rig.spec").write_text(spec(batch, here / "tree"))
        words = [
            "rpmbuild",
            "-bb",
            "--quiet",
            "--nodeps",
            "--target",
            f"{arch}-linux",
            "--define",
            f"_topdir {here}/top",
        ]
        words += [
            "--define",
            f"_rpmdir {here}/rpms",
            "--define",
            "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        ]
        words += ["--define", "_buildhost rig", "--define", "clamp_mtime_to_source_date_epoch 1"]
        run([*words, str(here / "rig.spec")], env={"SOURCE_DATE_EPOCH": "1750000000"}, cure="read rpmbuild's message")
        for file in sorted((here / "rpms").glob("*.rpm")):
            file.replace(out / file.name)
