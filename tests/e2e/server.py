"""A server with GPUs and no driver, as the tests of the driver need it: its archive, its boots, its driver."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.e2e.conftest import rig
from tests.e2e.fleet import Fleet, Run
from tests.targets.engine import docker_words
from tests.targets.kernel import install_kernel

SOURCES = "/etc/apt/sources.list.d/ubuntu.list"
ARCHIVE_KEY = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"


@dataclass
class Server:
    """A target on demand; runs go up to the driver (tests/e2e/driver_only.py)."""

    fleet: Fleet

    @property
    def name(self) -> str:
        return self.fleet.target

    def prepare(self, kernel: str) -> None:
        """As the vendor hands it over: a kernel, and the distribution's archive with its key."""
        install_kernel(self.fleet.container, kernel)
        with open(self.fleet.info["repos"]["keys"]["keyring"], "rb") as keyring:
            words = [*docker_words(), "exec", "-i", self.fleet.container, "sh", "-c", f"cat >{ARCHIVE_KEY}"]
            subprocess.run(words, stdin=keyring, check=True)

    def archive(self, *suites: str) -> None:
        """The distribution's archive as it was at a release ("noble"), or as it is with its updates."""
        url = self.fleet.info["repos"]["apt"]["ubuntu-ports" if self.machine == "aarch64" else "ubuntu"]
        lines = "".join(f"deb [signed-by={ARCHIVE_KEY}] {url} {suite} restricted\n" for suite in suites)
        self.fleet.on_target(f"printf %s {shlex.quote(lines)} >{SOURCES}")

    @property
    def machine(self) -> str:
        return self.fleet.on_target("uname -m")

    def run(self, *words: str, **data: Any) -> Run:
        """One run, with what it changed as JSON."""
        return self.fleet.pyinfra("tests/e2e/driver_only.py", *(words or ("-y", "--json")), **data)

    def ok(self, **data: Any) -> list[str]:
        """A run that must succeed; the names of the operations that changed something, without their deploy's name."""
        run = self.run(**data)
        assert run.code == 0, run.err
        return [name.rpartition(" | ")[2] for name in run.changed]

    def refused(self, *words: str, **data: Any) -> str:
        """A run that must fail with these words in its last report, which has a cure."""
        run = self.run(**data)
        assert run.code == 1, run.err
        assert "FAILED" in run.err, run.err
        told = " ".join(run.err[run.err.rindex("FAILED") :].split())
        for word in ("cure:", *words):
            assert word in told, told
        return told

    def drive(self, what: str, value: str) -> None:
        rig("drive", self.name, what, value)

    @property
    def loaded(self) -> str:
        """The version of the loaded driver."""
        return self.fleet.on_target("cat /sys/module/nvidia/version 2>/dev/null", check=False)

    @property
    def boot(self) -> str:
        return self.fleet.on_target("cat /proc/sys/kernel/random/boot_id")

    @property
    def gpus(self) -> int:
        """How many GPUs nvidia-smi lists."""
        told = self.fleet.on_target("nvidia-smi -L", check=False)
        return len(re.findall(r"^GPU \d+: ", told, re.MULTILINE))
