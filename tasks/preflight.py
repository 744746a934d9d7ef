"""Before any change: settings and facts become a plan, or the host is refused with every reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyinfra import host, state

from embedfleet import report, settings, sources
from embedfleet.checks import disk_problems, problems_of
from embedfleet.facts.survey import HostSurvey, Survey
from embedfleet.forecast import forecast
from embedfleet.plan import Plan, make_plan
from embedfleet.problems import Problem, Refused
from embedfleet.recognise import choose, recognise

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Look:
    """What preflight found: the survey, the platform's name and why it is that, and a plan or problems that refuse it."""

    survey: Survey
    platform: str
    why: str
    plan: Plan | None
    problems: list[Problem]


def look() -> Look:
    """Survey this host and plan for it, in one remote command; nothing is changed and nothing is told."""
    survey = Survey()
    try:
        wanted = settings.load(host.data.dict(), host.name)  # type: ignore[no-untyped-call]
        # Without sudo, or with a connection that breaks, pyinfra would end this host with no word about why.
        survey = host.get_fact(HostSurvey, _ignore_errors=True)
        if not survey.complete:
            reason = "the survey did not come back whole: commands do not run there, or were cut off"
            cure = f"see what `ssh {host.name} sudo -n true` says; passwordless sudo, or root, is needed"
            raise Refused([Problem(host.name, "_sudo", reason, cure)])
        row = choose(host.name, wanted.platform, survey)
    except Refused as refused:
        return Look(survey, "", "", None, refused.problems)
    problems: list[Problem] = []
    files, made = sources.Sources({}), None
    try:
        files = sources.read(host.name, wanted, row, ROOT)
        made = make_plan(host.name, wanted, row, survey, files)
        problems += disk_problems(made, survey)
    except Refused as refused:  # go on, so that what else is wrong is told with it
        problems += refused.problems
    problems += problems_of(host.name, wanted, row, survey, files)
    answer, why = recognise(survey), "named in the settings"
    if wanted.platform == "auto":
        why = answer.why
        cure = "nothing, if that is as it should be"
        problems += [Problem(host.name, "platform", remark, cure, fatal=False) for remark in answer.remarks]
    return Look(survey, row.name, why, None if any(problem.fatal for problem in problems) else made, problems)


def plan() -> Plan | None:
    """Return this host's plan; None when it is refused, which the run tells before any change and at its end.

    A refused host gets no operation and the run ends with 1; the others go on, or nobody does (on_refused = "stop").
    """
    report.choose_format(host.data.get("format"))
    found = look()
    for problem in found.problems:
        report.add(problem)
    if found.plan is None:
        if host.data.get("on_refused") == "stop":
            report.stop_before_changes(host.name)
        state.failed_hosts.add(state.inventory.get_host(host.name))  # `host` is a proxy, which sets do not know
        return None
    report.describe(host.name, found.platform)
    report.expect(forecast(found.plan, found.survey, found.why))
    return found.plan
