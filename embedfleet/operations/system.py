"""Accounts, directories, packages and certificates."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand
from pyinfra.facts.deb import DebPackages
from pyinfra.operations import apt

from embedfleet.facts.state import Accounts, TrustedCertificates


@operation()
def accounts_and_directories(
    users: Sequence[str], directories: Mapping[str, tuple[str, str]]
) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure system accounts (declared in sysusers.d) and directories, one fact for all.

    + users: accounts that /etc/sysusers.d/embedfleet.conf declares
    + directories: path -> (octal mode, owner), parents before children
    """
    have: list[str] = host.get_fact(Accounts, users=list(users), directories=list(directories))
    if any(f"user {user}" not in have for user in users):
        yield StringCommand("systemd-sysusers /etc/sysusers.d/embedfleet.conf")
    wrong = {p: want for p, want in directories.items() if f"dir {p} {want[0]} {want[1]}" not in have}
    for path, (mode, owner) in wrong.items():
        yield StringCommand(
            "install -d -m", mode, "-o", QuoteString(owner), "-g", QuoteString(owner), QuoteString(path)
        )
    if not wrong and all(f"user {user}" in have for user in users):
        host.noop(f"{len(users)} accounts and {len(directories)} directories are right")


@operation()
def packages(names: Sequence[str], masked: Mapping[str, str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure distribution packages, without starting the services that some of them bring.

    + names: packages
    + masked: package -> its unit, masked before a package that we bring is installed (Debian would start it); a
      package that was there before keeps its service
    """
    have = host.get_fact(DebPackages)
    missing = [name for name in names if name not in have]
    if not missing:
        host.noop(f"{len(names)} packages are installed")
        return
    host.log(f"install {', '.join(missing)}")
    # A run that lost its connection leaves dpkg half-configured: finish it. It may also leave apt at work on the host, as
    # unattended-upgrades do: wait, since dpkg itself and `apt-get update` know no time-out for their locks.
    yield StringCommand(
        "n=0; until DEBIAN_FRONTEND=noninteractive dpkg --configure -a --force-confdef --force-confold && apt-get check -qq;",
        "do n=$((n+1)); [ $n -lt 60 ] || exit 1; echo 'waiting for another apt or dpkg'; sleep 5; done",
    )
    for name in missing:
        if name in masked:
            yield StringCommand("ln -sfn /dev/null", QuoteString(f"/etc/systemd/system/{masked[name]}"))
    yield from apt.packages._inner(
        packages=missing, update=True, no_recommends=True, extra_install_args="-o DPkg::Lock::Timeout=300"
    )


@operation()
def certificates(paths: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that the system trusts exactly these certificates of ours.

    + paths: files under /usr/local/share/ca-certificates/embedfleet-*.crt that an earlier operation wrote
    """
    have = host.get_fact(TrustedCertificates)
    gone = sorted(set(have) - set(paths))
    if not gone and all(have.get(path) for path in paths):
        host.noop(f"{len(paths)} certificates are trusted")
        return
    if gone:
        yield StringCommand("rm -f --", *(QuoteString(path) for path in gone))
    yield StringCommand("update-ca-certificates", "--fresh" if gone else "")
