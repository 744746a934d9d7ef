"""How hosts are reached, and what pyinfra says and asks on the way: what only config.py can set."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

from paramiko import Transport
from pyinfra.api import Host, State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.state import BaseStateCallback, StateStage
from pyinfra.context import ctx_state, state
from pyinfra_cli import cli  # type: ignore[import-untyped]

from embedfleet import report
from embedfleet.problems import Problem


class Words(BaseStateCallback):
    """Tells an unreachable host as a problem with a cure, and all problems before the first change."""

    @staticmethod
    def host_connect_error(run: State, host: Host, error: object) -> None:
        if run.current_stage >= StateStage.Execute:
            return  # server.reboot tries until the host is back, and fails by itself where it does not come
        address = host.data.get("ssh_hostname") or host.name
        if host.name.startswith("@docker/"):
            problem = Problem(host.name, "docker container", f"the host cannot be reached: {error}", "make targets")
        else:
            cure = f"check {address} in the inventory, that the host is up, and that `ssh {address}` works from here"
            problem = Problem(host.name, "ssh_hostname", f"the host cannot be reached: {error}", cure)
        report.add(problem)

    @staticmethod
    def operation_start(_: State, op_hash: str) -> None:
        report.before_changes()

    @staticmethod
    def operation_host_start(_: State, host: Host, op_hash: str) -> None:
        report.before_changes()  # with --serial or --no-wait there is no other word before the first operation


def stop_only_while_executing(run: State) -> bool:
    """Say whether failed hosts stop the run: not while connecting, where it is that host's failure alone."""
    return run.current_stage >= StateStage.Execute


def tell_unreachable_hosts() -> None:
    """Have unreachable hosts told, and the others go on. Called from config.py.

    pyinfra's State takes callbacks only after `init`, and connects right after it: there is no other place.
    """
    init = State.init

    def init_with_callbacks(self: State, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        # pyinfra would end with 0: to a monitor with a mistyped name that reads as "all is well".
        if not list(self.inventory) or kwargs.get("initial_limit") == []:
            cure = "name a host, a group or a pattern of the inventory" if len(self.inventory) else "put hosts into it"
            raise PyinfraError(f"no host of this inventory is meant, so nothing was done; {cure} (--limit '*gh200*')")
        report.choose_format(self.inventory.override_data.get("format"))  # for hosts that are never reached, too
        self.add_callback_handler(Words())  # type: ignore[no-untyped-call]
        if self.should_raise_failed_hosts is None:  # without -y pyinfra asks the operator instead
            self.should_raise_failed_hosts = stop_only_while_executing

    State.init = init_with_callbacks  # type: ignore[method-assign]


def ask_only_before_changes() -> None:
    """Have pyinfra not ask for Enter where a verb has no operation at all, as status.py. Called from config.py."""
    ask = cli._do_confirm

    def confirm(message: str) -> bool:
        planned = ctx_state.isset() and state.current_stage == StateStage.Prepare  # type: ignore[no-untyped-call]
        if planned and not state.op_meta:
            return True
        connecting = ctx_state.isset() and state.current_stage == StateStage.Connect  # type: ignore[no-untyped-call]
        if connecting and not sys.stdin.isatty():
            return True  # nobody to ask: the others go on
        if ask(message):
            return True
        if planned:  # pyinfra would end with 0, as if all had been done
            print("\nembedfleet: nothing was changed, as the answer was not Enter", file=sys.stderr)
            raise SystemExit(1)
        return False

    cli._do_confirm = confirm


def disable_nagle() -> None:
    """Set TCP_NODELAY on ssh connections: paramiko does not, which costs 42 ms a command. Called from config.py."""
    start_client = Transport.start_client

    def start_client_nodelay(self: Transport, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(AttributeError, OSError):  # a ProxyJump or ProxyCommand has no TCP socket of ours
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # type: ignore[union-attr]
        start_client(self, *args, **kwargs)

    Transport.start_client = start_client_nodelay  # type: ignore[method-assign]
