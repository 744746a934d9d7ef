"""Make a conda channel that holds one package: the Python 3.11 of Debian, for linux-64 (this host's) and other platforms.

Usage: conda_channel.py OUT_CHANNEL_DIR [ROOTS]   (with a Python that has py-rattler)

ROOTS holds a folder for each other platform (linux-aarch64 ...), with usr/bin/python3.11 and usr/lib/python3.11 of it.

Debian's interpreter moves installs to local/lib/pythonX/dist-packages; the copy here goes without that patch, so
that pip and uv install into PREFIX/lib/python3.11/site-packages as with any conda Python. The same input gives the
same bytes: sorted members, fixed owner, mode and time. OUT_CHANNEL_DIR/conda-PLATFORM.lock names the package and its
sha256 relative to the channel. Made by Python 3.11, whose bytecode it brings. Test equipment: the package needs this host's shared libraries (libssl, libffi, ...).
"""

from __future__ import annotations

import asyncio
import bz2
import functools
import hashlib
import importlib.util
import io
import json
import marshal
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

from rattler.index import index_fs

PYTHON, STDLIB = "usr/bin/python3.11", "usr/lib/python3.11"
ARCH = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}
BUILD = "embedfleet_0"
EPOCH = 1_700_000_000
SKIP_DIRS = {"__pycache__", "test", "dist-packages", "idlelib", "lib2to3", "turtledemo", "pydoc_data"}
SKIP_FILES = {"EXTERNALLY-MANAGED", "sitecustomize.py"}
LINKS = {"bin/python": "python3.11", "bin/python3": "python3.11"}
# `site` is frozen into Debian's binary with its dist-packages folders: this file in one of them adds site-packages
SITE_PTH = (
    "import os, site, sys; site.addsitedir(os.path.join(sys.base_prefix, 'lib', 'python3.11', 'site-packages'))\n"
)
# file below lib/python3.11 -> (Debian's text, text without Debian's patch); every text must occur
UNPATCH: dict[str, list[tuple[str, str]]] = {
    "sysconfig.py": [
        ("os.environ.get('DEB_PYTHON_INSTALL_LAYOUT', 'posix_local')", "'posix_prefix'"),
        ("prefix_scheme = 'posix_local'", "prefix_scheme = 'posix_prefix'"),
    ],
    "distutils/sysconfig.py": [
        ('os.path.join(prefix, "lib", "python3", "dist-packages")', 'os.path.join(libpython, "site-packages")')
    ],
    "_distutils_system_mod.py": [],  # setuptools takes Debian's schemes from it: left out
    "ensurepip/__init__.py": [
        ("    _ensurepip_is_disabled_in_debian_for_system()\n", ""),
        ("_WHEEL_PKG_DIR = sysconfig.get_config_var('WHEEL_PKG_DIR')", "_WHEEL_PKG_DIR = '/usr/share/python-wheels'"),
    ],
}


def unpatched(relative: str, data: bytes) -> bytes | None:
    """Return the file's bytes without Debian's install layout, or None where the file is left out."""
    changes = UNPATCH.get(relative)
    if changes is None:
        return data
    text = data.decode()
    for old, new in changes:
        if old not in text:
            raise SystemExit(f"{STDLIB}/{relative}: {old!r} not found, is this not Debian 12's Python?")
        text = text.replace(old, new)
    return text.encode() if changes else None


@functools.cache
def bytecode(source: bytes, name: str) -> bytes | None:
    """Return a module's bytecode as real conda packages bring it, the same on every architecture; None for bad examples.

    Without it every start of an engine compiles what it imports of the standard library: seconds under emulation.
    """
    try:
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):  # lib2to3's test data and the like
        return None
    flags = struct.pack("<I", 0b01)  # by hash, and not checked: dates of unpacked files say nothing
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(code)


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return the package's files: path below the prefix -> (mode, bytes)."""
    files: dict[str, tuple[int, bytes]] = {"bin/python3.11": (0o755, (root / PYTHON).read_bytes())}
    stdlib = root / STDLIB
    for path in sorted(stdlib.rglob("*")):
        relative = path.relative_to(stdlib)
        if SKIP_DIRS & set(relative.parts) or relative.parts[0].startswith("config-3.11") or not path.is_file():
            continue
        if relative.name in SKIP_FILES:
            continue
        data = unpatched(str(relative), path.read_bytes())
        if data is not None:
            mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
            files[f"lib/python3.11/{relative}"] = (mode, data)
            if relative.suffix == ".py" and (code := bytecode(data, f"lib/python3.11/{relative}")):
                cached = relative.parent / "__pycache__" / f"{relative.stem}.cpython-311.pyc"
                files[f"lib/python3.11/{cached}"] = (0o644, code)
    files["lib/python3.11/dist-packages/site-packages.pth"] = (0o644, SITE_PTH.encode())
    files["lib/python3.11/site-packages/README.txt"] = (0o644, b"Packages installed with pip or uv are here.\n")
    return files


def write_package(path: Path, version: str, subdir: str, root: Path) -> str:
    """Write the .tar.bz2 package and return its sha256."""
    files = contents(root)
    paths = [
        {"_path": name, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
        for name, (_, data) in files.items()
    ]
    paths += [
        {
            "_path": name,
            "path_type": "softlink",
            "sha256": hashlib.sha256(files["bin/python3.11"][1]).hexdigest(),
            "size_in_bytes": len(files["bin/python3.11"][1]),
        }
        for name in LINKS
    ]
    paths.sort(key=lambda entry: str(entry["_path"]))
    index = {
        "arch": ARCH[subdir],
        "build": BUILD,
        "build_number": 0,
        "depends": [],
        "license": "PSF-2.0",
        "name": "python",
        "platform": "linux",
        "subdir": subdir,
        "timestamp": EPOCH * 1000,
        "version": version,
    }
    info = {
        "info/index.json": json.dumps(index, indent=1, sort_keys=True),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}, indent=1, sort_keys=True),
        "info/files": "".join(f"{entry['_path']}\n" for entry in paths),
    }
    members = {name: (0o644, text.encode()) for name, text in info.items()} | files
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted([*members, *LINKS], key=lambda member: (not member.startswith("info/"), member)):
            entry = tarfile.TarInfo(name)
            entry.mtime = EPOCH
            if name in LINKS:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, LINKS[name], 0o777
                tar.addfile(entry)
            else:
                entry.mode, data = members[name]
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    package = bz2.compress(buffer.getvalue(), 9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(package)
    return hashlib.sha256(package).hexdigest()


def main() -> None:
    """Command line entry point."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    channel = Path(sys.argv[1])
    roots = {"linux-64": Path("/")}
    if len(sys.argv) == 3:
        roots |= {path.name: path for path in sorted(Path(sys.argv[2]).iterdir())}
    # all of one suite of Debian, so this host's version is theirs
    version = subprocess.run([f"/{PYTHON}", "-IVV"], check=True, capture_output=True, text=True).stdout.split()[1]
    for folder in (*roots, "noarch"):  # an index of before would keep its packages and shards
        shutil.rmtree(channel / folder, ignore_errors=True)
    for subdir, root in roots.items():
        name = f"{subdir}/python-{version}-{BUILD}.tar.bz2"
        digest = write_package(channel / name, version, subdir, root)
        comment = f"# conda packages of the channel, platform {subdir}: path relative to the channel#sha256"
        lock = f"{comment}\n{name}#sha256:{digest}\n"
        (channel / f"conda-{subdir}.lock").write_text(lock)
        print(lock, end="")
    (channel / "noarch").mkdir(exist_ok=True)
    asyncio.run(index_fs(channel))


if __name__ == "__main__":
    main()
