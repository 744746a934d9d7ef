"""Operations that let embedfleetctl work on the host: make a part, apply the gateway, activate a release, verify."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Generator, Sequence
from typing import Any, TypeVar, cast

from pyinfra import host
from pyinfra.api import FactBase, FileUploadCommand, Host, QuoteString, State, StringCommand, operation
from pyinfra.api.arguments import ConnectorArguments
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.state import StateStage
from pyinfra.connectors.util import CommandOutput
from typing_extensions import override

from embedfleet import report
from embedfleet.facts.state import CTL, ControlState, FileStates, Probes
from embedfleet.operations.shell import failing
from embedfleet.plan import Part
from embedfleet.problems import Problem
from embedfleet.render import ManagedFile

T = TypeVar("T")
FAILED = "embedfleetctl failed: "  # how files/embedfleetctl/__main__.py begins to tell a failure


_known: dict[tuple[str, int], dict[type[FactBase[Any]], Any]] = {}


def _now() -> tuple[str, int]:
    return host.name, int(host.state.current_stage)


def known(fact: type[FactBase[T]]) -> T:
    """Return a fact of what embedfleetctl alone changes, read once until one of the operations here changes something.

    pyinfra reads facts anew in every operation, which for two state questions is a command too many.
    """
    kept = _known.setdefault(_now(), {})
    if fact not in kept:
        kept[fact] = host.get_fact(fact)
    value: T = kept[fact]
    return value


def forget() -> None:
    """Have the facts of this host read anew: something is about to change."""
    _known.pop(_now(), None)


class Control(StringCommand):
    """An embedfleetctl call whose progress is shown as it comes, and whose failure is told as a Problem."""

    @override
    def execute(self, state: State, host: Host, connector_arguments: ConnectorArguments) -> tuple[bool, CommandOutput]:
        connector_arguments.update(self.connector_arguments)
        status, output = host.run_shell_command(
            self, print_output=True, print_input=state.print_input, **connector_arguments
        )
        if not status:
            report.add(failure_of(host.name, output.stderr_lines))
            return status, CommandOutput([])  # shown as it came; pyinfra would print all of it again
        return status, output


def failure_of(name: str, stderr: list[str]) -> Problem:
    """Return the failure that embedfleetctl told on standard error; without one, what it printed instead."""
    lines = list(stderr)
    for index, line in enumerate(lines):
        if line.startswith(FAILED):
            rest = lines[index + 1 :]
            cut = next((i for i, text in enumerate(rest) if text.startswith("cure: ")), len(rest))
            cure = "\n".join(rest[cut:]).removeprefix("cure: ")
            return Problem(name, line.removeprefix(FAILED).strip(), "\n".join(rest[:cut]), cure or "read the log")
    tail = "\n".join(lines[-8:]) or "the connection or the command ended without a word"
    return Problem(name, "host", tail, "run the deploy again: it goes on from what is finished")


@operation()
def part(part: Part, there: Collection[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that a part is finished; making it runs in a systemd unit on the host, which outlives this run.

    + part: what to make
    + there: finished parts, as kind/id, from the survey: one that somebody finished since is found so by the host itself
    """
    if f"{part.kind}/{part.id}" in there:
        host.noop(f"{part.kind}/{part.id} is finished")
        return
    host.log(f"make {part.kind}/{part.id}")
    forget()
    spec = io.StringIO(json.dumps(part.spec, indent=1))
    yield FileUploadCommand(spec, f"/var/lib/embedfleet/specs/{part.kind}-{part.id}.json")
    yield Control(CTL, "make", part.kind, QuoteString(part.id), f"--limit {part.limit}")


@operation()
def gateway(inputs: Sequence[ManagedFile]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that the gateway runs with what is on disk: `nginx -t`, then start or reload, only when something differs.

    + inputs: the files it depends on, which an earlier operation writes; a dry run has to look at them itself
    """
    state = known(ControlState)
    coming = False
    if host.state.current_stage < StateStage.Execute:
        current = host.get_fact(FileStates, paths=[file.path for file in inputs])
        coming = any(file.path not in current or current[file.path].sha256 != file.sha256 for file in inputs)
    if cast(dict[str, Any], state.get("gateway", {})).get("applied") and not coming:
        host.noop("the gateway runs with what is on disk")
        return
    forget()
    yield Control(CTL, "gateway apply")


def converged(state: dict[str, Any], release: str, ports: Sequence[int]) -> bool:
    """Say whether the instances on `ports` run `release`, proven, and nothing else of ours runs."""
    instances = state.get("instances", [])
    return bool(
        state.get("current") == release
        and not state.get("rollout")
        and not state.get("candidate")
        and {i["port"] for i in instances} == set(ports)
        and all(
            i["active"] == "active" and i["enabled"] and i.get("unit_current") and i["release"] == release
            for i in instances
        )
        and not any(out.get("by") == "rollout" for out in state.get("gateway", {}).get("out", {}).values())
    )


@operation()
def activate(release: str, ports: Sequence[int], limit: int) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that a finished release is current and runs in every instance: proven on a side port, switched one by one.

    + release: id
    + ports: of the instances
    + limit: seconds
    """
    if converged(known(ControlState), release, ports):
        host.noop(f"{release} is current and runs in every instance")
        return
    forget()
    yield Control(CTL, "activate", QuoteString(release), f"--limit {limit}")


@operation()
def verified(release: str) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that every instance and the gateway answer with right embeddings of `release`; changes nothing, fails otherwise.

    + release: id that must be current
    """
    settled = _known.get(_now(), {}).get(ControlState, {})  # read in this run, and nothing was changed since
    found: dict[str, Any] = settled.get("verify") or host.get_fact(Probes)
    if found:
        report.verified(host.name, found)
    wrong = [f"{row['name']}: {row.get('error', '')}" for row in found.get("rows", []) if not row["right"]]
    cure = "embedfleetctl verify on the host; journalctl -u 'embedfleet-*'"
    if found.get("release") != release:
        wrong.append(f"current is {found.get('release')}, these settings give {release}")
        cure = "run deploy.py, or verify with the same --data that the deploy had"
    for port, out in found.get("out", {}).items():
        reason = f"instance {port} is out of the gateway, by {out.get('by', '?')}: {out.get('reason', '')}"
        report.add(Problem(host.name, "gateway", reason, f"embedfleetctl gateway in {port}", fatal=False))
    if not wrong:
        host.noop("every instance and the gateway answer right")
        return
    problem = Problem(host.name, "verify", "; ".join(wrong), cure)
    yield failing(problem)
