"""Many files in one operation: one fact when all are right, one upload when some are not."""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
import time
from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import FileUploadCommand, QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.facts.state import FileStates
from embedfleet.render import ManagedFile

_SUFFIX = ".embedfleet-new"


@operation()
def managed(files: Sequence[ManagedFile]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure content, mode and owner of many files, each replaced whole (written beside, then renamed).

    + files: the files
    """
    current = host.get_fact(FileStates, paths=[file.path for file in files])
    stale = [f for f in files if current.get(f.path) != f.state]
    if not stale:
        host.noop(f"{len(files)} files are right")
        return
    programs = [file for file in stale if "/lib/" in file.path]
    if programs:
        host.log(f"write {len(programs)} program files of embedfleetctl")
    for file in [file for file in stale if file not in programs]:
        host.log(f"{'write' if file.path not in current else 'change'} {file.path}")
    archive = _archive(stale)
    content = "".join(f"{file.path} {file.sha256}" for file in stale)
    temp = host.get_temp_filename(f"embedfleet-{hashlib.sha256(content.encode()).hexdigest()}")
    reload = ["systemctl daemon-reload;"] if any("/systemd/system/" in file.path for file in stale) else []
    marks: list[str | QuoteString] = []
    for mark in sorted({file.mark for file in stale if file.mark}):
        marks += ["mkdir -p", QuoteString(posixpath.dirname(mark)), ";", "touch", QuoteString(mark), ";"]
    folders = sorted({posixpath.dirname(file.path) for file in stale})
    renames: list[str | QuoteString] = []
    for file in stale:
        renames += ["mv -f", QuoteString(file.path + _SUFFIX), QuoteString(file.path), ";"]
    yield FileUploadCommand(archive, temp)
    yield StringCommand(
        "set -e; mkdir -p",
        *(QuoteString(f) for f in folders),
        ";",
        "tar -xpf",
        QuoteString(temp),
        "-C / --no-same-owner;",
        "rm -f",
        QuoteString(temp),
        ";",
        *_owners(stale),
        *marks,
        *renames,
        *reload,
    )


def _owners(files: Sequence[ManagedFile]) -> list[str | QuoteString]:
    parts: list[str | QuoteString] = []
    for file in files:
        if (file.owner, file.group) != ("root", "root"):
            parts += ["chown", QuoteString(f"{file.owner}:{file.group}"), QuoteString(file.path + _SUFFIX), ";"]
    return parts


def _archive(files: Sequence[ManagedFile]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in files:
            data = file.content.encode()
            info = tarfile.TarInfo(file.path.lstrip("/") + _SUFFIX)
            info.size, info.mode = len(data), int(file.mode, 8)
            info.mtime = int(time.time())  # systemd tells a changed unit by its time
            tar.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer
