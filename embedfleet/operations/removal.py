"""Take embedfleet off a host again. Each operation looks at what is there, so an interrupted run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.facts.installed import RECORD
from embedfleet.systems import System


@operation()
def units(files: Sequence[str], running: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that no unit of ours runs, is enabled or is known to systemd.

    + files: unit files of ours, and links that enable or mask one for us
    + running: units of ours that are at work, or failed
    """
    serving = sorted(unit for unit in running if unit.startswith(("embedfleet-vllm", "embedfleet-gateway")))
    if files or running:
        host.log(f"remove {len(files)} unit files and links; stops serving: {', '.join(serving) or 'nothing'}")
    if running:
        # the gateway last, so that instances are drained of nothing new: clients see it close, not break
        ordered = sorted(running, key=lambda unit: unit.startswith("embedfleet-gateway"))
        yield StringCommand("systemctl stop", *(QuoteString(unit) for unit in ordered))
        yield StringCommand("systemctl reset-failed", *(QuoteString(unit) for unit in ordered), "2>/dev/null || :")
    if files:
        yield StringCommand("rm -f --", *(QuoteString(path) for path in files))
        yield StringCommand("systemctl daemon-reload")
    if not running and not files:
        host.noop("no unit of ours")


# What a deploy brought and nobody else needs: marked as dependencies, ours are what the package manager calls unneeded. Others'
# recommendations do not count, since before the deploy they were not followed either. What something else depends on by now
# stays. No glob, no autoremove: what was unneeded before embedfleet came is none of its business.
_APT = r"""
set -e; export LC_ALL=C DEBIAN_FRONTEND=noninteractive
n=0; until dpkg --configure -a --force-confdef --force-confold && apt-get check -qq; do
  n=$((n+1)); [ $n -lt 60 ] || exit 1; echo 'waiting for another apt or dpkg'; sleep 5; done
apt-mark auto $mine >/dev/null
o='-o APT::AutoRemove::SuggestsImportant=0 -o APT::AutoRemove::RecommendsImportant=0 -o DPkg::Lock::Timeout=300'
free=$(apt-get $o -s --purge autoremove | sed -n 's/^\(Purg\|Remv\) \([^ ]*\).*/\2/p' | sed 's/:.*//' | sort -u)
go=$(printf '%s\n' $mine | sort -u | { printf '%s\n' $free >/tmp/embedfleet-free.$$; comm -12 - /tmp/embedfleet-free.$$; })
rm -f /tmp/embedfleet-free.$$
kept=$(printf '%s\n' $mine | grep -vxF "$go" || :)
[ -z "$kept" ] || echo "kept, as others need them:" $kept
[ -z "$go" ] || apt-get $o -y -q purge $go
"""
_DNF = r"""
set -e; export LC_ALL=C
dnf -q -y --disablerepo='*' mark remove $mine >/dev/null
dnf -q --disablerepo='*' repoquery --unneeded --qf '%{name}' | sort -u >/tmp/embedfleet-free.$$
go=$(printf '%s\n' $mine | sort -u | comm -12 - /tmp/embedfleet-free.$$)
rm -f /tmp/embedfleet-free.$$
kept=$(printf '%s\n' $mine | grep -vxF "$go" || :)
[ -z "$kept" ] || echo "kept, as others need them:" $kept
[ -z "$go" ] || dnf -q -y --disablerepo='*' --noautoremove remove $go
"""


@operation()
def packages(names: Sequence[str], system: System) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that packages which a deploy brought are gone, those that something else needs by now excepted.

    + names: of packages that a deploy brought and that are installed
    + system: the host's, which says how
    """
    if not names:
        host.noop("no package of ours")
        return
    host.log(f"remove {', '.join(names)}")
    script = {"apt": _APT, "dnf": _DNF}[system.manager]
    yield StringCommand(f"mine={' '.join(names)!r};", script)


@operation()
def certificates(paths: Sequence[str], system: System) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that authorities of ours are trusted no more.

    + paths: their files
    + system: the host's, which says how
    """
    if not paths:
        host.noop("no certificate of ours")
        return
    host.log(f"distrust {', '.join(paths)}")
    yield StringCommand("rm -f --", *(QuoteString(path) for path in paths))
    yield StringCommand(system.trust[1])


@operation()
def accounts(names: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that accounts which a deploy made are gone, with their groups; one that was there before stays.

    + names: accounts
    """
    if not names:
        host.noop("no account of ours")
        return
    host.log(f"remove {', '.join(names)}")
    for name in names:
        yield StringCommand("userdel", QuoteString(name))
        yield StringCommand("! getent group", QuoteString(name), ">/dev/null || groupdel", QuoteString(name))


@operation()
def paths(names: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that folders and files of ours are gone.

    + names: their paths
    """
    if not names:
        host.noop("no folder of ours")
        return
    host.log(f"delete {', '.join(names)}")
    # A disk of its own may be mounted there (the cure for too little room): it is emptied, and stays mounted.
    yield StringCommand(
        "set -e; for p in", *(QuoteString(name) for name in names),
        '; do if mountpoint -q "$p"; then find "$p" -xdev -mindepth 1 ! -path "$p/lost+found*" -delete;'
        ' else rm -rf --one-file-system -- "$p"; fi; done',
    )  # fmt: skip


@operation()
def record(there: bool) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that the record of what a deploy brought is gone: the last thing, since a run that stops before needs it.

    + there: whether it is there
    """
    if not there:
        host.noop("no record of ours")
        return
    yield StringCommand(f"rm -rf --one-file-system -- {RECORD}")
