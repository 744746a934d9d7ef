"""Everything of embedfleet, off the host again."""

from __future__ import annotations

from pyinfra import host, state
from pyinfra.api import deploy

from embedfleet import report
from embedfleet.facts.installed import EmbedfleetInstalled
from embedfleet.facts.survey import HostSurvey
from embedfleet.operations import containers, removal
from embedfleet.problems import Problem
from embedfleet.systems import DEBIAN, system_of


@deploy("Uninstall")
def uninstall() -> None:
    """Units, packages that it brought, certificates, accounts, files; what was there before a deploy stays.

    Settings are not looked at: a host is cleared also where they are wrong, or are no longer those of its deploy.
    """
    report.choose_format(host.data.get("format"))
    survey = host.get_fact(HostSurvey, _ignore_errors=True)
    if not (survey.complete and survey.root):
        reason = "commands do not run as root on this host" if survey.complete else "the survey did not come back whole"
        cure = f"see what `ssh {host.name} sudo -n true` says; passwordless sudo, or root, is needed"
        report.add(Problem(host.name, "_sudo", reason, cure))
        state.failed_hosts.add(state.inventory.get_host(host.name))
        return
    system = system_of(survey) or DEBIAN
    found = host.get_fact(EmbedfleetInstalled, manager=system.manager, own=list(system.packages), _ignore_errors=True)
    if found.unknown:
        cure = "repair the package manager on the host (dpkg --audit, rpm -qa), then run uninstall.py again"
        report.add(Problem(host.name, "packages", f"{found.unknown}; nothing was removed", cure))
        state.failed_hosts.add(state.inventory.get_host(host.name))
        return
    removal.units(name="Units", files=found.units, running=found.running)
    containers.removed(name="Container runtimes")  # before the programs go that it is done with
    removal.packages(name="Packages", names=found.packages, system=system)
    removal.sources(name="Package sources", replaced=found.replaced, stream=found.stream, keys=found.keys)
    removal.certificates(name="Site certificates", paths=found.certificates, system=system)
    removal.accounts(name="Accounts", users=found.accounts, groups=found.groups)
    removal.paths(name="Files", names=found.paths)
    removal.record(name="Record", there=found.record)
