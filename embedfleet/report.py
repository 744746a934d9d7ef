"""What a run says at its end: problems, and the table of embeddings. One place, so that every verb says it alike."""

from __future__ import annotations

import atexit
import gc
import json
import sys
import time
from typing import Any

from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_state, state

from embedfleet import forecast, status
from embedfleet.problems import Problem, render

_problems: list[Problem] = []
_verified: dict[str, dict[str, Any]] = {}
_platforms: dict[str, str] = {}
_forecasts: list[forecast.Forecast] = []
_statuses: list[status.Status] = []
_stopping: list[str] = []
_told: set[Problem] = set()
_begun = False
_format = "table"
_started = time.monotonic()


def add(problem: Problem) -> None:
    """Have a problem told at the end of the run, once."""
    if problem not in _problems:
        _problems.append(problem)


def describe(host: str, platform: str) -> None:
    """Remember what the table says of a host beside its embeddings."""
    _platforms[host] = platform


def expect(coming: forecast.Forecast) -> None:
    """Remember what a deploy would do to a host, which a dry run tells at its end."""
    _forecasts.append(coming)


def tell_status(found: status.Status) -> None:
    """Have a host's status told at the end of the run."""
    _statuses.append(found)


def stop_before_changes(host: str) -> None:
    """Have the run end before its first change, since `host` is refused and its settings say so."""
    _stopping.append(host)


def before_changes() -> None:
    """Tell all problems of all hosts, once, when every host is planned for and none is changed.

    :raises PyinfraError: where a refused host is to stop everybody
    """
    global _begun
    if not _begun and _problems and _format == "table":
        print("\n" + render(_problems) + "\n", file=sys.stderr)
        _told.update(_problems)
    _begun = True
    if _stopping:  # each time: with --no-wait every host comes here by itself
        raise PyinfraError(f"refused: {', '.join(sorted(_stopping))}; nothing was changed, as on_refused = 'stop' says")


def choose_format(format: object) -> None:
    """Have the report of this run told as a table or as JSON; before anything can be refused."""
    global _format
    _format = "json" if format == "json" else "table"


def verified(host: str, found: dict[str, Any]) -> None:
    """Remember what a host's verify found."""
    _verified[host] = found


def table(results: dict[str, dict[str, Any]], platforms: dict[str, str]) -> str:
    """Return the table of a run: a line an instance and gateway, of every host."""
    head = ("host", "platform", "release", "endpoint", "model", "dim", "norm", "related", "unrelated", "seconds", "")
    lines = [head]
    for host, found in sorted(results.items()):
        for row in found.get("rows", []):
            if row["right"]:
                cells = (
                    row["model"],
                    str(row["dimension"]),
                    f"{row['norm']:.4f}",
                    f"{row['near']:.4f}",
                    f"{row['far']:.4f}",
                    f"{row['seconds']:.3f}",
                    "right",
                )
            else:
                cells = ("-", "-", "-", "-", "-", "-", f"WRONG: {row.get('error', '')}")
            lines.append((host, platforms.get(host, "?"), str(row.get("release")), row["name"], *cells))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _changes() -> int | None:
    """Return how many operations changed something; None where nothing was executed."""
    if not ctx_state.isset() or not state.initialised:  # type: ignore[no-untyped-call]
        return None
    count, ran = 0, False
    for operations in state.ops.values():
        for data in operations.values():
            meta = data.operation_meta
            if meta.is_complete():
                ran = True
                count += meta.did_change()
    return count if ran else None


def _at_end() -> None:
    changes = _changes()
    seconds = round(time.monotonic() - _started, 1)
    if _statuses:
        hosts = {found.host: found.as_dict() for found in sorted(_statuses, key=lambda each: each.host)}
        unreached = [problem for problem in _problems if problem.host not in hosts]
        if _format == "json":
            told = [problem.as_dict() for problem in unreached]
            print(json.dumps({"hosts": hosts, "seconds": seconds, "problems": told}))
        else:
            print(status.render(_statuses))
            if unreached:
                print("\n" + render(unreached), file=sys.stderr)
        return
    dry = changes is None
    if _format == "json":
        hosts = {host: {"platform": _platforms.get(host), **found} for host, found in sorted(_verified.items())}
        print(
            json.dumps(
                {
                    "hosts": hosts,
                    "changes": changes,
                    "seconds": seconds,
                    "problems": [problem.as_dict() for problem in _problems],
                    **({"forecast": [each.as_dict() for each in _forecasts]} if dry else {}),
                }
            )
        )
        return
    if _verified:
        print("\n" + table(_verified, _platforms), file=sys.stderr)
    if dry and _forecasts:
        print("\n" + forecast.render(_forecasts), file=sys.stderr)
    last = [problem for problem in _problems if problem.fatal or problem not in _told]  # warnings once, reasons last
    if last:
        print("\n" + render(last), file=sys.stderr)
    if changes is not None:
        print(f"\nembedfleet: {changes} change{'' if changes == 1 else 's'}, {seconds} s", file=sys.stderr)


def _leave_quickly() -> None:
    """Spare the interpreter's last collection: a short program's memory goes back with the process (0.2 s a run)."""
    gc.freeze()


atexit.register(_leave_quickly)
atexit.register(_at_end)
