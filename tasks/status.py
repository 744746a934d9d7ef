"""What each host is and how it does; changes nothing."""

from __future__ import annotations

from pyinfra import host, state

from embedfleet import report
from embedfleet.facts.state import ControlState, FileStates
from embedfleet.status import status as describe
from tasks import preflight


def status() -> None:
    """Tell platform, release, driver, health, drift and pending reboot: three remote commands a host."""
    report.choose_format(host.data.get("format"))
    found = preflight.look()
    files = host.get_fact(FileStates, paths=[file.path for file in found.plan.files]) if found.plan else {}
    control = host.get_fact(ControlState) if found.survey.root else {}
    told = describe(host.name, found.platform, found.survey, found.plan, files, control, found.problems)
    report.tell_status(told)
    if not told.well:
        state.failed_hosts.add(state.inventory.get_host(host.name))
