"""A reboot that loses no request and no host: drained before, waited for after, one host at a time, and none after a failure."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.state import StateStage

from embedfleet import report
from embedfleet.facts.state import CTL
from embedfleet.operations.shell import Told
from embedfleet.problems import Problem

#: Hosts whose change was begun and not finished in this run: with one of them, the next ones are left as they are.
_begun: dict[str, bool] = {}

# This boot: the machine's id, and when PID 1 began, since a container shares the former with its machine; as the evidence
# has it.
BOOT = """echo "$(cat /proc/sys/kernel/random/boot_id) $(sed 's/.*) //' /proc/1/stat | cut -d' ' -f20)\""""

# The gateway first: nginx closes its ports, and answers what it has. Then nothing runs or waits in the instances.
_DRAIN = """for u in $(systemctl list-units --plain --no-legend --state=active,activating 'embedfleet-job-*' | cut -d' ' -f1); do
  echo "$u is at work"; exit 1; done
systemctl stop embedfleet-gateway.service && systemctl stop 'embedfleet-vllm@*'"""

_UNDRAIN = """systemctl start embedfleet-gateway.service
for u in /etc/systemd/system/*.wants/embedfleet-vllm@*; do [ -L "$u" ] && systemctl start --no-block "${u##*/}"; done; :"""


@dataclass(frozen=True, repr=False)
class Reboots:
    """What the settings and the host say about reboots.

    :param when: as in the settings
    :param serving: whether instances serve there now
    :param local: whether the host is the controller itself
    :param timeout: seconds for it to come back, and to serve
    """

    when: Literal["never", "if_needed", "always"]
    serving: bool
    local: bool
    timeout: int
    boots: list[str] = field(default_factory=list, compare=False)

    def __repr__(self) -> str:
        """Short: pyinfra prints an operation's arguments."""
        return f"reboot {self.when}"

    def refused(self) -> str:
        """Why it must not be rebooted; "" where it may."""
        if self.local:
            return "it is the controller itself, which a run never reboots"
        return "reboot is set to never" if self.when == "never" else ""

    def held_back(self) -> str:
        """Why a serving host is left as it is; "" where nothing speaks against a change."""
        failed = sorted(name for name, whole in _begun.items() if not whole and name != host.name)
        return (
            f"not begun, since {', '.join(failed)} did not come through its change" if failed and self.serving else ""
        )

    def began(self) -> None:
        """Remember that this host's change begins; those that serve nothing hold nobody back."""
        if (
            self.serving and host.state.current_stage >= StateStage.Execute
        ):  # before that, pyinfra only asks what would change
            _begun[host.name] = False

    def done(self) -> None:
        """Remember that it is through."""
        if self.serving:
            _begun[host.name] = True


def drained(reboots: Reboots) -> Generator[PyinfraCommand, None, None]:
    """Have the host answer what it has taken on, and take on nothing more."""
    if reboots.serving:
        yield Told(_DRAIN, setting="reboot", cure="wait for that job (journalctl -u), then deploy again")


def rebooted(boot: str, reboots: Reboots) -> Generator[PyinfraCommand, None, None]:
    """Reboot and wait for the host. pyinfra's own server.reboot goes by uptime, which a container shares with its machine.

    :param boot: identity of the boot that ends
    """

    def wait(state: State, host: Host) -> bool:
        deadline, here = time.monotonic() + reboots.timeout, ""
        while time.monotonic() < deadline:
            # No sleep in vain: a host that refuses connections is asked again, one that takes none costs the connection's limit.
            time.sleep(2)
            host.disconnect()
            try:
                host.connect(show_errors=False)
                status, output = host.run_shell_command(StringCommand(BOOT)) if host.connected else (False, None)
            except (PyinfraError, OSError, EOFError):
                continue
            here = " ".join(output.stdout_lines) if status and output else ""
            if here not in ("", boot):
                reboots.boots.append(boot)
                return True
        if here == boot:  # it answers, and nothing happened: what was drained serves again
            # said here again: pyinfra passes an operation's own arguments to its commands, not to a callback's
            host.run_shell_command(StringCommand(_UNDRAIN), _sudo=bool(host.data.get("_sudo")))
            problem = Problem(
                host.name,
                "reboot",
                "systemctl reboot did nothing; what was drained runs again",
                "see `systemctl list-jobs`, and reboot the host by hand",
            )
        else:
            reason = f"it did not come back within {reboots.timeout} s of its reboot"
            problem = Problem(host.name, "reboot", reason, "look at its console; reboot_timeout is in the settings")
        report.add(problem)
        return False

    yield StringCommand("( sleep 1 && systemctl reboot ) </dev/null >/dev/null 2>&1 &")
    yield FunctionCommand(wait, (), {})
    # sshd answers before all is up: what is asked next is to find services that have started
    yield StringCommand("timeout 300 systemctl is-system-running --wait >/dev/null 2>&1 || :")


def serving_again(reboots: Reboots, stopped: bool) -> Generator[PyinfraCommand, None, None]:
    """After a reboot of a host that served: wait until what it served is right again.

    :param stopped: whether it was drained, so that without a reboot it has to be started
    """
    if not reboots.serving or not (reboots.boots or stopped):
        return
    if not reboots.boots:
        yield StringCommand(_UNDRAIN)
    limit = reboots.timeout
    yield Told(
        f"e=$(($(date +%s)+{limit})); until {CTL} verify >/dev/null 2>&1; do [ $(date +%s) -lt $e ] ||"
        f" {{ {CTL} verify; exit 1; }}; sleep 2; done",
        setting="reboot", cure="journalctl -u 'embedfleet-*' on the host; the units start at boot by themselves",
    )  # fmt: skip
