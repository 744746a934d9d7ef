"""The host's base: files, accounts, directories, packages, the site's certificates."""

from __future__ import annotations

from pyinfra.api import deploy

from embedfleet.operations import files, system
from embedfleet.plan import Plan


@deploy("Site")
def site(plan: Plan) -> None:
    """Lay the ground that every other component stands on."""
    files.managed(name="Files", files=plan.files)
    system.accounts_and_directories(name="Accounts and directories", users=plan.accounts, directories=plan.directories)
    system.packages(name="Packages", system=plan.system, names=plan.packages)
    system.certificates(name="Site certificates", system=plan.system, paths=plan.certificates)
