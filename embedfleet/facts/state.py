"""What embedfleet itself has on a host: managed files, instances, gateway. One round trip each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyinfra.api import FactBase, QuoteString, StringCommand

ROOT = "/opt/embedfleet"
CTL = f"{ROOT}/bin/embedfleetctl"


@dataclass(frozen=True)
class FileState:
    """A regular file: content's sha256, octal mode, owner:group."""

    sha256: str
    mode: str
    owner: str


class FileStates(FactBase[dict[str, FileState]]):
    """path -> state of the regular files that exist among `paths`."""

    default = dict

    def command(self, paths: list[str]) -> StringCommand:
        quoted = [QuoteString(path) for path in paths]
        return StringCommand(
            "stat -c",
            QuoteString("%a %U:%G %n"),
            *quoted,
            "2>/dev/null; echo --; sha256sum --",
            *quoted,
            "2>/dev/null; true",
        )

    def process(self, output: list[str]) -> dict[str, FileState]:
        lines = list(output)
        cut = lines.index("--") if "--" in lines else len(lines)
        rows = [cells for cells in (line.split(" ", 2) for line in lines[:cut]) if len(cells) == 3]
        stat = {path: (mode, owner) for mode, owner, path in rows}
        sums = {path: digest for digest, _, path in (line.partition("  ") for line in lines[cut + 1 :]) if path}
        return {path: FileState(sums[path], *stat[path]) for path in sums if path in stat}


class Accounts(FactBase[list[str]]):
    """Accounts and directories that exist, as `user NAME` and `dir PATH MODE OWNER`."""

    @staticmethod
    def default() -> list[str]:
        """Return: none of them exists."""
        return []

    def command(self, users: list[str], directories: list[str]) -> StringCommand:
        return StringCommand(
            "for u in",
            *(QuoteString(u) for u in users),
            '; do getent passwd "$u" >/dev/null && echo "user $u"; done;',
            "stat -c",
            QuoteString("dir %n %a %U"),
            *(QuoteString(d) for d in directories),
            "2>/dev/null; true",
        )

    def process(self, output: list[str]) -> list[str]:
        return [line.strip() for line in output]


class TrustedCertificates(FactBase[dict[str, bool]]):
    """Certificates of ours on the host -> whether the system's bundle holds them."""

    default = dict

    def command(self, anchors: str, bundle: str) -> StringCommand:
        # The last line before END is part of the signature, so it tells one certificate from another.
        return StringCommand(
            f'for f in {anchors}/embedfleet-*; do [ -e "$f" ] || continue;'
            " l=$(grep -B1 -m1 'END CERTIFICATE' \"$f\" | head -n1);"
            f' if grep -qF -- "$l" {bundle} 2>/dev/null; then echo "yes $f";'
            ' else echo "no $f"; fi; done'
        )

    def process(self, output: list[str]) -> dict[str, bool]:
        return {path: word == "yes" for word, _, path in (line.partition(" ") for line in output)}


class ControlState(FactBase[dict[str, Any]]):
    """What `embedfleetctl state` says: current release, instances, gateway; probes too where all runs what is current.

    Empty where it is not installed yet.
    """

    default = dict

    def command(self) -> StringCommand:
        return StringCommand(f"! test -x {CTL} || ! command -v python3 >/dev/null || {CTL} state --probe")

    def process(self, output: list[str]) -> dict[str, Any]:
        return _json(output)


class Probes(FactBase[dict[str, Any]]):
    """What `embedfleetctl verify` says: real embeddings from every instance and through the gateway."""

    default = dict

    def command(self) -> StringCommand:
        return StringCommand(f"! test -x {CTL} || ! command -v python3 >/dev/null || {CTL} verify --json")

    def process(self, output: list[str]) -> dict[str, Any]:
        return _json(output)


def _json(output: list[str]) -> dict[str, Any]:
    try:
        value = json.loads("\n".join(output))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
