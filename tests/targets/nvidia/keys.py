"""The keys that sign the repositories: one that is good, one that has expired, one that no client knows yet."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.targets.host import run

#: When the expired key was made, and signs: it lived for a month.
THEN = "20200101T000000"
_CURE = "check that gpg works here (`gpg --version`), and that /tmp can be written to"


@dataclass(frozen=True)
class Keys:
    """Fingerprints, and the folder (of a short name: gpg-agent's socket is in it) that has the secret halves."""

    home: Path
    valid: str
    expired: str
    successor: str

    def _gpg(self, key: str, *words: str | Path) -> list[str | Path]:
        then = ["--faked-system-time", THEN] if key == self.expired else []
        return ["gpg", "--homedir", self.home, "--batch", "--quiet", "--yes", *then, *words]

    def inline(self, key: str, source: Path, target: Path) -> None:
        """InRelease: the text and its signature in one file."""
        run([*self._gpg(key, "--local-user", f"{key}!", "--clearsign", "--output", target, source)], cure=_CURE)

    def detached(self, key: str, source: Path, target: Path) -> None:
        """Release.gpg, repomd.xml.asc: a signature beside the file."""
        words = ("--local-user", f"{key}!", "--armor", "--detach-sign", "--output", target, source)
        run([*self._gpg(key, *words)], cure=_CURE)

    def export(self, target: Path, *which: str, armor: bool = False) -> None:
        """Public halves, as a keyring (binary) or as the text that `apt-key` and rpm want."""
        form = ["--armor"] if armor else []
        run([*self._gpg("", *form, "--output", target, "--export", *which)], cure=_CURE)

    def close(self) -> None:
        """End the agent that gpg started for this folder."""
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "gpg-agent"], capture_output=True)


def make(home: Path) -> Keys:
    """Three keys in an empty folder."""
    home.mkdir(mode=0o700, exist_ok=True)
    rows = (
        ("embedfleet rig (good)", "", "never"),
        ("embedfleet rig (expired)", THEN, "30d"),
        ("embedfleet rig (next)", "", "never"),
    )
    fingerprints = []
    for name, then, life in rows:
        words = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", "--status-fd", "1"]
        words += ["--faked-system-time", then] if then else []
        told = run([*words, "--quick-generate-key", f"{name} <rig@localhost>", "rsa2048", "sign", life], cure=_CURE)
        fingerprints.append(next(line.split()[-1] for line in told.splitlines() if "KEY_CREATED" in line))
    return Keys(home, *fingerprints)
