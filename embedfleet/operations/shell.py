"""Commands of a host's own tools whose failure is told as a problem with a cure, not as raw output alone."""

from __future__ import annotations

from typing import Any

from pyinfra import logger
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand
from pyinfra.api.arguments import ConnectorArguments
from pyinfra.connectors.util import CommandOutput
from typing_extensions import override

from embedfleet import report
from embedfleet.problems import Problem, render

TOLD = "#> "  # lines of a script that people are to see
_WORDS = 12  # lines of output that a problem shows


class Told(StringCommand):
    """A shell command: lines that begin with `#> ` are shown, and a failure is told with `setting` and `cure`.

    :param setting: what is at odds, in the report
    """

    def __init__(self, *bits: str | QuoteString | StringCommand, setting: str, cure: str) -> None:
        super().__init__(*bits)
        self.setting, self.cure = setting, cure

    @override
    def execute(self, state: State, host: Host, connector_arguments: ConnectorArguments) -> tuple[bool, CommandOutput]:
        connector_arguments.update(self.connector_arguments)
        arguments: dict[str, Any] = dict(connector_arguments)
        status, output = host.run_shell_command(
            self, print_output=state.print_output, print_input=state.print_input, **arguments
        )
        for line in output.output.splitlines():
            if line.startswith(TOLD):
                host.log(line.removeprefix(TOLD))
        if not status:
            said = [line for line in output.output.splitlines() if line.strip()][-_WORDS:]
            reason = "\n".join(said) or "the connection or the command ended without a word"
            report.add(Problem(host.name, self.setting, reason, self.cure))
            return status, CommandOutput([])  # told by the report; pyinfra would print all of it as well
        return status, output


def locked(command: str | StringCommand, *, setting: str, cure: str) -> Told:
    """Return a command that holds the lock of everything of ours which changes packages: two controllers take turns."""
    if not isinstance(command, str):
        command = command.get_raw_value()
    return Told("flock -w 900 /run/embedfleet-packages.lock sh -c", QuoteString(command), setting=setting, cure=cure)


def failing(problem: Problem) -> FunctionCommand:
    """Return a command that fails the operation and tells why."""

    def tell(state: State, host: Host) -> bool:
        report.add(problem)
        logger.error(render([problem]))
        return False

    return FunctionCommand(tell, (), {})
