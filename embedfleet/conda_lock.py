"""Make a conda lock from a channel: python -m embedfleet.conda_lock CHANNEL SUBDIR OUT [SPEC...]

CHANNEL is a URL (https://, http:// or file://), SUBDIR linux-64, linux-aarch64 or linux-ppc64le. The solve is done here,
once, by a person who commits the result; hosts install exactly what the lock says, each archive checked by its sha256.
The lock is relative to the channel, so a mirror of the channel needs no other lock.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Literal, cast, get_args

import rattler

# Engines get an environment of their own, which uv fills from a lock of its own: the interpreter is all that conda gives.
SPECS = ("python 3.11.*",)
Subdir = Literal["linux-64", "linux-aarch64", "linux-ppc64le"]
# What the oldest supported host has (Debian 12, Ubuntu 22.04), so that the lock does not depend on where it is made.
_HOST = {"__linux": "5.15", "__glibc": "2.35", "__unix": "0"}


def solve(channel: str, subdir: Subdir, specs: list[str]) -> list[rattler.RepoDataRecord]:
    """Return the packages that `specs` need from one channel on `subdir`."""
    virtual = [
        rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0"))
        for name, version in _HOST.items()
    ]
    return asyncio.run(
        rattler.solve([rattler.Channel(channel)], specs, platforms=[subdir, "noarch"], virtual_packages=virtual)
    )


def text(records: list[rattler.RepoDataRecord], channel: str, specs: list[str]) -> str:
    """Return the lock: a line a package, relative to the channel."""
    lines = [f"# {' '.join(specs)} from {channel}; made by `make conda-lock`"]
    for record in sorted(records, key=lambda record: str(record.file_name)):
        if record.sha256 is None:
            raise SystemExit(f"{record.file_name}: the channel gives no sha256")
        lines.append(f"{record.subdir}/{record.file_name}#sha256:{record.sha256.hex()}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Command line entry point."""
    if len(arguments) < 3 or arguments[1] not in get_args(Subdir):
        print(__doc__, file=sys.stderr)
        return 2
    channel, subdir, out, *specs = arguments
    wanted = specs or list(SPECS)
    records = solve(channel.rstrip("/"), cast(Subdir, subdir), wanted)
    Path(out).write_text(text(records, channel, wanted), encoding="utf-8")
    print(f"{out}: {len(records)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
