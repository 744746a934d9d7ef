"""Install a locked list of conda packages from one channel into a prefix, without a solver.

Usage: install_from_lock.py CHANNEL_URL LOCKFILE PREFIX   (with a Python that has py-rattler)

CHANNEL_URL is a file:// or http(s):// channel, LOCKFILE a list of `subdir/name-version-build.tar.bz2#sha256:hex` (or
`.conda`), paths relative to the channel. Every package's sha256 is checked here, before anything is linked into
PREFIX: py-rattler 0.28 checks it for http(s) only, and links a wrong package of a file:// channel without a word.
The channel's repodata is not read. Packages that PREFIX has and the lock does not are removed. The last line printed
is `changed` or `unchanged`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import tempfile
import urllib.request
from pathlib import Path

import rattler
from rattler.package.build_string import BuildString

LINE = re.compile(
    r"(?P<subdir>[a-z0-9]+(?:-[a-z0-9]+)?)/"
    r"(?P<file>(?P<name>[a-z0-9_.-]+)-(?P<version>[^-/#\s]+)-(?P<build>[^-/#\s]+)(?:\.tar\.bz2|\.conda))"
    r"#sha256:(?P<sha256>[0-9a-f]{64})"
)


def read_lock(lock: Path, channel: str) -> list[rattler.RepoDataRecord]:
    """Return one record for each package of the lock file."""
    records: list[rattler.RepoDataRecord] = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise SystemExit(f"{lock}:{number}: not `subdir/name-version-build.tar.bz2#sha256:hex`: {line!r}")
        part = match.groupdict()
        build_number = re.search(r"(\d+)$", part["build"])
        package = rattler.PackageRecord(
            name=part["name"],
            version=part["version"],
            build=BuildString(part["build"]),
            subdir=part["subdir"],
            build_number=int(build_number[1]) if build_number else 0,
            sha256=bytes.fromhex(part["sha256"]),
        )
        url = f"{channel}/{part['subdir']}/{part['file']}"
        records.append(rattler.RepoDataRecord(package, part["file"], url, channel))
    if not records:
        raise SystemExit(f"{lock}: no package in it")
    return records


def meta_path(record: rattler.RepoDataRecord, prefix: Path) -> Path:
    """Return where conda-meta keeps the installed package's record."""
    return prefix / "conda-meta" / (re.sub(r"(\.tar\.bz2|\.conda)$", "", record.file_name) + ".json")


def same(record: rattler.RepoDataRecord, prefix: Path) -> bool:
    """Tell whether the prefix already has exactly this package."""
    meta = meta_path(record, prefix)
    return meta.is_file() and rattler.PrefixRecord.from_path(meta).sha256 == record.sha256


def fetch(record: rattler.RepoDataRecord, folder: Path) -> None:
    """Download one package into `folder`, check its sha256 and point the record at the local copy."""
    target = folder / record.subdir / record.file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with urllib.request.urlopen(record.url, timeout=60) as response, target.open("wb") as out:
        while chunk := response.read(1 << 20):
            digest.update(chunk)
            out.write(chunk)
    if digest.digest() != record.sha256:
        expected = record.sha256.hex() if record.sha256 else "?"
        raise SystemExit(f"{record.url}: sha256 is {digest.hexdigest()}, the lock says {expected}")
    record.url = target.as_uri()


def install(records: list[rattler.RepoDataRecord], prefix: Path) -> bool:
    """Make the prefix hold exactly the records; return whether that changed anything."""
    installed = list((prefix / "conda-meta").glob("*.json"))
    if len(installed) == len(records) and all(same(record, prefix) for record in records):
        return False
    prefix.parent.mkdir(parents=True, exist_ok=True)
    # beside the prefix, so that the packages' files are hard linked and not copied
    with tempfile.TemporaryDirectory(prefix=f".{prefix.name}-", dir=prefix.parent) as work:
        urls = [record.url for record in records]
        for record in records:
            fetch(record, Path(work) / "packages")
        cache = Path(work) / "cache"
        asyncio.run(rattler.install(records, prefix, cache_dir=cache, show_progress=False))
    for record, url in zip(records, urls):
        meta = meta_path(record, prefix)
        content = json.loads(meta.read_text(encoding="utf-8")) | {"url": url}
        content.pop("extracted_package_dir", None)
        meta.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return True


def main() -> None:
    """Command line entry point."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    records = read_lock(Path(sys.argv[2]), sys.argv[1].rstrip("/"))
    print("changed" if install(records, Path(sys.argv[3]).absolute()) else "unchanged")


if __name__ == "__main__":
    main()
