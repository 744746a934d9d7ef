"""What a host is and how it does, beside what it should be: `status.py`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from embedfleet.facts.state import FileState
from embedfleet.facts.survey import Survey
from embedfleet.plan import Plan
from embedfleet.problems import Problem


@dataclass(frozen=True)
class Status:
    """One host.

    :param platform: its row; "" where it is undecided or refused
    :param release: the current one; "" for none
    :param driver: version and flavour of NVIDIA's driver, or none
    :param health: right, wrong, not deployed, or unknown, with the reason
    :param drift: what differs from the plan; empty for nothing
    :param reboot: why it waits for a reboot
    :param refused: why a deploy would refuse it
    """

    host: str
    platform: str
    system: str
    release: str
    driver: str
    health: str
    drift: tuple[str, ...]
    reboot: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether nobody has to look at it: it is not refused, and what is deployed answers right."""
        return not self.refused and self.health == "right"

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "well": self.well}


def status(
    host: str,
    platform: str,
    survey: Survey,
    plan: Plan | None,
    files: Mapping[str, FileState],
    state: Mapping[str, Any],
    problems: list[Problem],
) -> Status:
    """Return how a host does.

    :param plan: None for a refused host
    :param files: the managed files as they are on the host
    :param state: what `embedfleetctl state --probe` says; empty where it is not installed
    """
    try:
        health = _health(state) if state else "unknown" if survey.current or not survey.complete else "not deployed"
    except (KeyError, TypeError, AttributeError) as error:  # of a host whose embedfleetctl is another one, or damaged
        state, health = {}, f"unknown: embedfleetctl answers oddly ({type(error).__name__})"
    return Status(
        host=host,
        platform=platform,
        system=f"{survey.os_name or 'unknown system'}, {survey.machine or 'unknown'}, kernel {survey.kernel or 'unknown'}",
        release=str(state.get("current") or survey.current),
        driver=_driver(survey),
        health=health,
        drift=_drift(plan, files, state) if plan and state.get("current") else (),
        reboot=survey.reboot,
        refused=tuple(f"{problem.setting}: {problem.reason}" for problem in problems if problem.fatal),
    )


def _driver(survey: Survey) -> str:
    driver = survey.driver
    if not driver.version:
        return "none" if survey.complete else "unknown"
    flavour = {True: " open", False: " proprietary", None: ""}[driver.loaded_open]
    return f"{driver.version}{flavour}" + ("" if driver.smi == "ok" else f" (nvidia-smi: {driver.smi})")


def _health(state: Mapping[str, Any]) -> str:
    if not state.get("current"):
        return "not deployed"
    verify = state.get("verify")
    if verify:
        wrong = [f"{row['name']}: {row.get('error', '')}" for row in verify.get("rows", []) if not row.get("right")]
        return "; ".join(wrong) or "right"
    down = [f"instance {i['port']} is {i['active']}" for i in state.get("instances", []) if i.get("active") != "active"]
    mixed = {i.get("release") for i in state.get("instances", [])} - {state["current"]}
    found = [*down, *(["instances run another release than the current one"] if mixed and not down else [])]
    if not state.get("gateway", {}).get("applied"):
        found.append("the gateway does not run with what is on disk")
    return "; ".join(found) or "unknown"


def _drift(plan: Plan, files: Mapping[str, FileState], state: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    if state.get("current") != plan.release:
        found.append(f"release: the settings give {plan.release}")
    other = [file.path for file in plan.files if files.get(file.path) != file.state]
    if other:
        found.append(f"files: {', '.join(other[:3])}{f' and {len(other) - 3} more' if len(other) > 3 else ''}")
    if state.get("rollout"):
        found.append("a rollout was not finished")
    for port, out in (state.get("gateway") or {}).get("out", {}).items():
        found.append(
            f"instance {port} is out of the gateway, by {out.get('by', '?') if isinstance(out, dict) else '?'}"
        )
    return tuple(found)


def render(found: list[Status]) -> str:
    """Return a table, and below it what does not fit into one."""
    head = ("host", "platform", "release", "driver", "health", "drift", "reboot")
    rows = [head]
    for item in sorted(found, key=lambda each: each.host):
        drift = "-" if not item.drift else str(len(item.drift))
        health = "refused" if item.refused else item.health.partition(";")[0][:60]
        rows.append(
            (
                item.host,
                item.platform or "undecided",
                item.release or "-",
                item.driver,
                health,
                drift,
                "pending" if item.reboot else "-",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for item in sorted(found, key=lambda each: each.host):
        for label, texts in (("drift", item.drift), ("reboot", item.reboot), ("refused", item.refused)):
            lines += [f"{item.host}  {label}: {text}" for text in texts]
        if item.health not in ("right", "not deployed") and len(item.health) > 60:
            lines.append(f"{item.host}  health: {item.health}")
    return "\n".join(lines)
