"""apt on a target with sources of the mirror alone: nothing of the host's own is used or changed."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass

from tests.e2e.fleet import Fleet
from tests.targets.engine import docker_words

#: Everything of apt's that isn't the host's: sources, lists, downloads.
HOME = "/tmp/rig-apt"
CONF = f"""\
Dir::Etc::sourcelist "{HOME}/sources.list";
Dir::Etc::sourceparts "{HOME}/none";
Dir::Etc::parts "{HOME}/none";
Dir::State::lists "{HOME}/lists";
Dir::Cache "{HOME}/cache";
APT::Install-Recommends "0";
Acquire::Retries "0";
Acquire::Languages "none";
Acquire::http::Timeout "10";
Dpkg::Use-Pty "0";
"""
KEYRING = f"{HOME}/keyring.gpg"


@dataclass
class Told:
    """How a command ended, and what it said."""

    code: int
    text: str


class Apt:
    """apt on the target with sources of the mirror alone."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.urls: dict[str, str] = fleet.info["repos"]["apt"]
        self.kernel = fleet.on_target("uname -r")

    def prepare(self) -> None:
        """The configuration and the keyring."""
        with open(self.fleet.info["repos"]["keys"]["keyring"], "rb") as keyring:
            script = f"mkdir -p {HOME} && cat > {KEYRING}"
            words = [*docker_words(), "exec", "-i", self.fleet.container, "sh", "-c", script]
            subprocess.run(words, stdin=keyring, check=True)
        self.ok(f"printf %s {shlex.quote(CONF)} > {HOME}/apt.conf")

    def run(self, command: str, limit: float = 120) -> Told:
        """A shell command on the target; apt's configuration is in its environment."""
        text = self.fleet.on_target(
            f'export APT_CONFIG={HOME}/apt.conf DEBIAN_FRONTEND=noninteractive\n( {command}\n) 2>&1; echo "rc=$?"',
            limit=limit,
        )
        said, _, code = text.rpartition("rc=")
        return Told(int(code), said)

    def ok(self, command: str) -> str:
        """The same for a command that must succeed."""
        told = self.run(command)
        assert told.code == 0, f"{command}: {told.code}\n{told.text}"
        return told.text

    def use(self, *sources: str) -> None:
        """These sources, and no list of packages yet."""
        lines = "".join(f"deb [signed-by={KEYRING}] {source}\n" for source in sources)
        self.ok(
            f"rm -rf {HOME}/lists {HOME}/cache; mkdir -p {HOME}/none {HOME}/lists/partial {HOME}/cache/archives/partial; printf %s {shlex.quote(lines)} > {HOME}/sources.list"
        )

    def version(self, package: str) -> str:
        """The installed version, or nothing."""
        return self.run(f"dpkg-query -W -f '${{Version}}' {package} 2>/dev/null").text
