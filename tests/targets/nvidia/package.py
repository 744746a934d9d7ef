"""What a stand-in package is, before it becomes a .deb or an .rpm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class File:
    """A file that a package leaves; `conf`: a configuration file, which purge alone removes."""

    data: bytes
    mode: int = 0o644
    conf: bool = False


@dataclass(frozen=True)
class Package:
    """One package of one version for one architecture, in the words of its archive.

    `version` is Debian's whole version, or rpm's [epoch:]version-release. `scripts` are named as Debian names them.
    """

    name: str
    version: str
    arch: str
    summary: str
    depends: tuple[str, ...] = ()
    recommends: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)


def text(content: str, *, conf: bool = False) -> File:
    """A text file."""
    return File(content.encode(), conf=conf)


def program(content: str) -> File:
    """A script that can be run."""
    return File(content.encode(), 0o755)


def own(name: str, **values: str) -> File:
    """One of the programs beside this module, with its @PLACEHOLDERS@ filled in."""
    content = (HERE / name).read_text()
    for key, value in values.items():
        content = content.replace(f"@{key}@", value)
    return program(content)
