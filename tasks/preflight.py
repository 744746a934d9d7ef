"""Before any change: settings and facts become a plan, or the host is refused with every reason."""

from __future__ import annotations

from pathlib import Path

from pyinfra import host, state

from embedfleet import report, settings, sources
from embedfleet.checks import problems_of
from embedfleet.facts.survey import HostSurvey
from embedfleet.plan import Plan, make_plan
from embedfleet.platforms import choose
from embedfleet.problems import Refused

ROOT = Path(__file__).parent.parent


def plan() -> Plan | None:
    """Return this host's plan; None when it is refused, which the end of the run tells and exits 1 for."""
    report.choose_format(host.data.get("format"))
    try:
        wanted = settings.load(host.data.dict(), host.name)  # type: ignore[no-untyped-call]
        survey = host.get_fact(HostSurvey)
        platform = choose(host.name, wanted.platform, survey)
        files = sources.read(host.name, wanted, platform, ROOT)
        problems = problems_of(host.name, wanted, platform, survey)
        if any(problem.fatal for problem in problems):
            raise Refused(problems)
    except Refused as refused:
        for problem in refused.problems:
            report.add(problem)
        state.failed_hosts.add(state.inventory.get_host(host.name))  # `host` is a proxy, which sets do not know
        return None
    report.describe(host.name, platform.name)
    made = make_plan(host.name, wanted, platform, survey, files)
    for warning in made.warnings:
        report.add(warning)
    return made
