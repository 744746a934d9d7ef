"""Everything of embedfleet, off the host again."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from embedfleet import report
from embedfleet.facts.installed import EmbedfleetInstalled
from embedfleet.facts.survey import HostSurvey
from embedfleet.operations import removal
from embedfleet.systems import DEBIAN, system_of


@deploy("Uninstall")
def uninstall() -> None:
    """Units, packages that it brought, certificates, accounts, files; what was there before a deploy stays."""
    report.choose_format(host.data.get("format"))
    system = system_of(host.get_fact(HostSurvey)) or DEBIAN
    found = host.get_fact(EmbedfleetInstalled)
    removal.units(name="Units", files=found.units, running=found.running)
    removal.packages(name="Packages", names=found.packages, system=system)
    removal.certificates(name="Site certificates", paths=found.certificates, system=system)
    removal.accounts(name="Accounts", names=found.accounts)
    removal.paths(name="Files", names=found.paths)
    removal.record(name="Record", there=found.record)
