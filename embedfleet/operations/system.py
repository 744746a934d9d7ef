"""Accounts, directories, packages and certificates."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand
from pyinfra.facts.deb import DebPackages
from pyinfra.facts.rpm import RpmPackages

from embedfleet.facts.installed import RECORD
from embedfleet.facts.state import Accounts, TrustedCertificates
from embedfleet.operations.shell import Told, locked
from embedfleet.systems import System


@operation()
def accounts_and_directories(
    users: Sequence[str], directories: Mapping[str, tuple[str, str]]
) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure system accounts (declared as for systemd-sysusers) and directories, one fact for all.

    + users: accounts that /etc/embedfleet/sysusers.conf declares
    + directories: path -> (octal mode, owner), parents before children
    """
    have: list[str] = host.get_fact(Accounts, users=list(users), directories=list(directories))
    missing = [user for user in users if f"user {user}" not in have]
    if missing:
        # recorded before: an account or group that is not ours is never removed, one that is ours never forgotten
        yield StringCommand(
            f"set -e; mkdir -p {RECORD}; for u in", *(QuoteString(user) for user in missing),
            f'; do getent group "$u" >/dev/null || echo "group:$u" >>{ACCOUNTS}; echo "user:$u" >>{ACCOUNTS}; done;',
            "systemd-sysusers /etc/embedfleet/sysusers.conf",
        )  # fmt: skip
    wrong = {p: want for p, want in directories.items() if f"dir {p} {want[0]} {want[1]}" not in have}
    for path, (mode, owner) in wrong.items():
        yield StringCommand(
            "install -d -m", mode, "-o", QuoteString(owner), "-g", QuoteString(owner), QuoteString(path)
        )
    if not wrong and not missing:
        host.noop(f"{len(users)} accounts and {len(directories)} directories are right")


# What deploys brought, which is what uninstall.py takes away: accounts and groups, and packages.
ACCOUNTS = f"{RECORD}/accounts.ours"
OURS = f"{RECORD}/packages.ours"
#: Those among them that deploys asked for by name; the managers mark them as a person's, too.
ASKED = f"{RECORD}/packages.asked"

# A run that lost its connection leaves dpkg half-configured: finish it. It may also leave apt at work on the host, as
# unattended-upgrades do: wait, since dpkg itself and `apt-get update` know no time-out for their locks. dnf waits by itself.
# A package that cannot be configured (a DKMS build without headers) is no reason to wait: what comes next may cure it.
SETTLE = (
    "n=0; until o=$(DEBIAN_FRONTEND=noninteractive dpkg --configure -a --force-confdef --force-confold 2>&1 && apt-get check -qq 2>&1);"
    ' do case $o in *" lock"*) ;; *) echo "$o" | tail -n 20; break ;; esac;'
    " n=$((n+1)); [ $n -lt 60 ] || { echo \"$o\" | tail -n 5; exit 1; }; echo 'waiting for another apt or dpkg'; sleep 5; done"
)

# The names that an installation would add, asked of the manager before it is done: an installation that is killed half-way
# is on record, and what others install at the same time is not. What would only be upgraded is no name of ours.
_COMING = {
    "apt": "apt-get -s {options} install {specs} | sed -n 's/^Inst \\([^ ]*\\) (.*/\\1/p'",
    "dnf": "{{ dnf --assumeno {options} install {specs} 2>&1 || :; }}"
    " | awk '/^Installing.*:$/ {{on=1; next}} /^[^ ]/ {{on=0}} on && /^ [^ ]/ {{print $1}}'",
}
_CURE = "see whether the host's package sources answer (apt-get update, dnf makecache), then deploy again"
_OPTIONS = {
    "apt": "-o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold --no-install-recommends",
    "dnf": "--setopt=install_weak_deps=False",
}


def updated(options: str = "", setting: str = "packages", cure: str = _CURE) -> Told:
    """Fetch apt's lists, waiting for another apt that does: their lock knows no time-out of its own (DPkg::Lock::Timeout is another's)."""
    update = f"DEBIAN_FRONTEND=noninteractive apt-get -q update {options} 2>&1"
    wait = 'case $o in *"ould not get lock"*) ;; *) echo "$o"; exit $rc ;; esac; n=$((n+1)); [ $n -lt 60 ] || { echo "$o"; exit 1; }; sleep 5'
    script = f'n=0; while :; do rc=0; o=$({update}) || rc=$?; [ $rc -ne 0 ] || {{ echo "$o"; exit 0; }}; {wait}; done'
    return locked(script, setting=setting, cure=cure)


def settled(system: System) -> Generator[PyinfraCommand, None, None]:
    """Finish what an interrupted run left, and wait for another apt or dpkg."""
    if system.manager == "apt":
        yield locked(SETTLE, setting="packages", cure="end what holds dpkg on the host, then deploy again")


def installed(
    system: System, names: Sequence[str], specs: Sequence[str], options: str = "", cure: str = _CURE
) -> Generator[PyinfraCommand, None, None]:
    """
    Install packages in one transaction, those that come put on record before.

    :param names: packages that are asked for
    :param specs: the same as the manager wants them, with versions, and with what is to go
    :param options: more options of the manager
    """
    options = f"{_OPTIONS[system.manager]} {options}".strip()
    coming = _COMING[system.manager].format(specs=" ".join(specs), options=options)
    # Only what was not there counts as ours, whoever asked for it before.
    yield locked(
        f"set -e; export LC_ALL=C; mkdir -p {RECORD}; new=$({coming}); touch {OURS} {ASKED};"
        f" printf '%s\\n' $new | sed '/^$/d' | sort -u - {OURS} >{OURS}.new;"
        f' {{ cat {ASKED}; for p in {" ".join(names)}; do case " "$(echo $new)" " in *" $p "*) echo "$p" ;; esac; done; }} | sort -u >{ASKED}.new;'
        f" sync {OURS}.new {ASKED}.new; mv {ASKED}.new {ASKED}; mv {OURS}.new {OURS}",
        setting="packages",
        cure=cure,
    )
    # Versions and removals in one transaction are more than apt.packages and dnf.packages can say.
    manager = "DEBIAN_FRONTEND=noninteractive apt-get" if system.manager == "apt" else "dnf"
    yield locked(f"{manager} -y {options} install {' '.join(specs)}", setting="packages", cure=cure)


@operation()
def packages(system: System, names: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure the distribution's packages, without starting the services that some of them bring, and keep a record of them.

    + system: their manager. A service that comes with a package of ours is masked before; a package that was there before
      keeps its service.
    + names: the packages
    """
    have = host.get_fact(DebPackages if system.manager == "apt" else RpmPackages)
    missing = [name for name in names if name not in have]
    if not missing:
        host.noop(f"{len(names)} packages are installed")
        return
    host.log(f"install {', '.join(missing)}")
    for package, unit in system.masked:
        if package in missing:
            yield StringCommand("ln -sfn /dev/null", QuoteString(f"/etc/systemd/system/{unit}"))
    yield from settled(system)
    if system.manager == "apt":
        yield updated()
    yield from installed(system, missing, missing)


@operation()
def certificates(system: System, paths: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that the system trusts exactly these certificates of ours.

    + system: where it keeps them, and how it takes them on
    + paths: files of ours among its anchors, which an earlier operation wrote
    """
    have = host.get_fact(TrustedCertificates, anchors=system.anchors, bundle=system.bundle)
    gone = sorted(set(have) - set(paths))
    if not gone and all(have.get(path) for path in paths):
        host.noop(f"{len(paths)} certificates are trusted")
        return
    if gone:
        yield StringCommand("rm -f --", *(QuoteString(path) for path in gone))
    yield StringCommand(system.trust[bool(gone)])
