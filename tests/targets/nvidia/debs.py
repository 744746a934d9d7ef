"""A .deb from a package: an ar archive with two tar archives, as dpkg-deb would write it, only faster and always alike."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

from tests.targets.nvidia.package import Package

#: The time that all files have: equal input gives equal packages.
EPOCH = 1_750_000_000


def fields(package: Package) -> dict[str, str]:
    """The control file's fields, in its order."""
    size = sum(len(file.data) for file in package.files.values())
    found = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": package.arch,
        "Maintainer": "embedfleet's test rig <rig@localhost>",
        "Installed-Size": str(size // 1024 + 1),
        "Depends": ", ".join(package.depends),
        "Recommends": ", ".join(package.recommends),
        "Provides": ", ".join(package.provides),
        "Conflicts": ", ".join(package.conflicts),
        "Replaces": ", ".join(package.replaces),
        "Section": "restricted/misc",
        "Priority": "optional",
        "Description": f"{package.summary}\n A stand-in of embedfleet's test rig: it has the name, and nothing in it.",
    }
    return {key: value for key, value in found.items() if value}


def control(values: dict[str, str]) -> str:
    """A stanza of a control file or of Packages."""
    return "".join(f"{key}: {value}\n" for key, value in values.items())


def file_name(package: Package) -> str:
    """The archive's file name, which has no epoch."""
    return f"{package.name}_{package.version.split(':')[-1]}_{package.arch}.deb"


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(f".{name}")
    info.size, info.mode, info.mtime = len(data), mode, EPOCH
    info.uname = info.gname = "root"
    tar.addfile(info, io.BytesIO(data))


def _folders(paths: list[str]) -> list[str]:
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")[1:-1]
        found.update("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return sorted(found)


def _tar(entries: dict[str, tuple[bytes, int]], links: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in _folders([*entries, *links]):
            info = tarfile.TarInfo(f".{folder}")
            info.type, info.mode, info.mtime, info.uname, info.gname = tarfile.DIRTYPE, 0o755, EPOCH, "root", "root"
            tar.addfile(info)
        for name, (data, mode) in sorted(entries.items()):
            _add(tar, name, data, mode)
        for name, target in sorted(links.items()):
            info = tarfile.TarInfo(f".{name}")
            info.type, info.linkname, info.mtime, info.uname, info.gname = (
                tarfile.SYMTYPE,
                target,
                EPOCH,
                "root",
                "root",
            )
            tar.addfile(info)
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


def build(package: Package) -> bytes:
    """The whole .deb."""
    meta = {"/control": (control(fields(package)).encode(), 0o644)}
    sums = [f"{hashlib.md5(file.data, usedforsecurity=False).hexdigest()}  {path[1:]}\n" for path, file in package.files.items()]  # fmt: skip
    meta["/md5sums"] = ("".join(sums).encode(), 0o644)
    conffiles = "".join(f"{path}\n" for path, file in package.files.items() if file.conf)
    if conffiles:
        meta["/conffiles"] = (conffiles.encode(), 0o644)
    meta |= {f"/{name}": (text.encode(), 0o755) for name, text in package.scripts.items()}
    data = {path: (file.data, file.mode) for path, file in package.files.items()}
    members = (
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", _tar(meta, {})),
        ("data.tar.gz", _tar(data, dict(package.links))),
    )
    parts = [b"!<arch>\n"]
    for name, content in members:
        parts.append(f"{name:<16}{EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
        parts.append(content + b"\n" * (len(content) % 2))
    return b"".join(parts)


def entry(package: Package, path: str, content: bytes) -> str:
    """The package's stanza in Packages; `path` is relative to the repository's root."""
    values = fields(package)
    description = values.pop("Description")
    sums = {
        "Filename": path,
        "Size": str(len(content)),
        "MD5sum": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        "SHA256": hashlib.sha256(content).hexdigest(),
    }
    return control({**values, **sums, "Description": description})
