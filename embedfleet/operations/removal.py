"""Take embedfleet off a host again. Each operation looks at what is there, so an interrupted run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.facts.installed import RECORD
from embedfleet.facts.packages import STREAM
from embedfleet.facts.repositories import KEYS, REPLACED, UNDO, WRITTEN
from embedfleet.operations.driver import INITRAMFS
from embedfleet.operations.shell import Told, locked
from embedfleet.operations.system import SETTLE
from embedfleet.repositories import OFF
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
        # By pattern, since a job may have ended, or begun, since it was looked at. Jobs first, so that none starts what was
        # stopped; the gateway last, so that clients see it close, not break.
        for pattern in ("embedfleet-job-*", "embedfleet-vllm@*", "embedfleet-candidate@*", "embedfleet-*"):
            yield Told("systemctl stop", QuoteString(pattern), setting="units", cure="systemctl status 'embedfleet-*'")
        yield StringCommand("systemctl reset-failed 'embedfleet-*' 2>/dev/null || :")
    if files:
        yield StringCommand("rm -f --", *(QuoteString(path) for path in files))
        yield StringCommand("systemctl daemon-reload")
    if not running and not files:
        host.noop("no unit of ours")


# What a deploy brought and nobody else needs: marked as dependencies, ours are what the package manager calls unneeded. With apt
# others' recommendations do not count, since before the deploy they were not followed either; dnf has no such choice. What something
# else depends on by now stays. No glob, no autoremove: what was unneeded before embedfleet came is none of its business.
_APT = r"""
set -e; export LC_ALL=C DEBIAN_FRONTEND=noninteractive
@SETTLE@
of() { dpkg-query -W -f '${db:Status-Status} ${Package}\n' $mine 2>/dev/null | sed -n "s/^$1 //p"; }
# what gave way to another package of ours left its configuration
left=$(of config-files); [ -z "$left" ] || dpkg --purge $left
mine=$(of '[a-bd-z][a-z-]*'); [ -n "$mine" ] || exit 0
apt-mark auto $mine >/dev/null
o='-o APT::AutoRemove::SuggestsImportant=0 -o APT::AutoRemove::RecommendsImportant=0 -o DPkg::Lock::Timeout=300 -o APT::Protect-Kernels=false --fix-broken'
free=$(apt-get $o -s --purge autoremove)
free=$(printf '%s\n' "$free" | sed -n 's/^\(Purg\|Remv\) \([^ ]*\).*/\2/p' | sed 's/:.*//')
remove() {
  apt-get $o -y -q purge "$@"
  case " $* " in *" nginx-common "*) ;; *) return 0 ;; esac
  # Debian's nginx leaves its welcome page, purged or not
  rm -f /var/www/html/index.nginx-debian.html
  for d in /var/www/html /var/www; do
    dpkg -S "$d" >/dev/null 2>&1 || [ ! -d "$d" ] || rmdir --ignore-fail-on-non-empty "$d"
  done
}
"""
_DNF = r"""
set -e; export LC_ALL=C
mine=$(rpm -q --qf '%{NAME}\n' $mine | grep -v ' is not installed$' || :); [ -n "$mine" ] || exit 0
dnf -q -y --disablerepo='*' mark remove $mine >/dev/null
free=$(dnf -q --disablerepo='*' repoquery --unneeded --qf '%{name}')
remove() { dnf -q -y --disablerepo='*' --noautoremove remove "$@"; }
"""
# Daemons of the driver that a deploy enabled: rpm's packages leave the links of such behind.
_REMOVE = r"""
for u in nvidia-persistenced nvidia-fabricmanager nvidia-imex; do
  case " $(echo $mine) " in *" $u "* | *" nvidia-fabric-manager "*) systemctl disable -q --now $u.service 2>/dev/null || : ;; esac
done
go= kept=
for p in $mine; do case " "$(echo $free)" " in *" $p "*) go="$go $p" ;; *) kept="$kept $p" ;; esac; done
[ -z "$kept" ] || echo "#> kept, as others need them:$kept"
[ -z "$go" ] || remove $go
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
    script = {"apt": _APT.replace("@SETTLE@", SETTLE), "dnf": _DNF}[system.manager]
    cure = "repair the package manager on the host (dpkg --audit, dnf check), then run uninstall.py again"
    yield locked(f"mine='{' '.join(names)}'\n{script}{_REMOVE}", setting="packages", cure=cure)


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
def accounts(users: Sequence[str], groups: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that accounts and groups which a deploy made are gone; what was there before stays.

    + users: accounts
    + groups: groups; `userdel` takes one of the account's name along, so one that is not ours is put back
    """
    if not users and not groups:
        host.noop("no account of ours")
        return
    host.log(f"remove {', '.join(sorted({*users, *groups}))}")
    cure = "see who runs or is a member under that name (ps -u NAME, getent group), then run uninstall.py again"
    for name in users:
        back = "" if name in groups else 'getent group "$n" >/dev/null || groupadd -g "$g" "$n"; '
        yield Told(
            "set --", QuoteString(name), '; n=$1; g=$(getent group "$n" | cut -d: -f3); ! getent passwd "$n" >/dev/null || userdel "$n" || exit 1; ', back, "true",
            setting="accounts", cure=cure,
        )  # fmt: skip
    for name in groups:
        yield Told(
            "! getent group",
            QuoteString(name),
            ">/dev/null || groupdel",
            QuoteString(name),
            setting="accounts",
            cure=cure,
        )


@operation()
def sources(replaced: Sequence[str], stream: bool, keys: Sequence[str]) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure that others' package sources are as they were, and that no module stream of ours is enabled.

    + replaced: files in which a deploy switched an entry off; one that somebody changed since keeps that change
    + stream: whether a deploy enabled a stream of nvidia-driver
    + keys: that dnf took into rpm's database for a repository of ours
    """
    if not (replaced or stream or keys):
        host.noop("no package source of others was changed")
        return
    for path in replaced:
        yield Told(
            StringCommand("p=", QuoteString(path), "; off=", QuoteString(OFF), f"; o={REPLACED}$p; w={WRITTEN}$p;", _separator=""),
            f'if cmp -s "$p" "$w"; then cp "$o" "$p"; elif [ -e "$p" ]; then {UNDO.replace("$f", "$p")};',
            'echo "#> $p was changed by others since: see that the entry there is as it should be"; fi; rm -f "$o" "$w"',
            setting="repositories", cure=f"compare it with {REPLACED}{path}, then run uninstall.py again",
        )  # fmt: skip
    if keys:
        host.log(f"distrust {', '.join(keys)}")
        yield Told(
            "rpm -e",
            *(QuoteString(key) for key in keys),
            f"&& rm -f {KEYS}",
            setting="repositories",
            cure="see `rpm -q gpg-pubkey`",
        )
    if stream:
        # a stream that is reset leaves a file that says so
        yield Told(
            f"dnf -q -y module reset nvidia-driver && rm -f /etc/dnf/modules.d/nvidia-driver.module {STREAM}",
            setting="repositories",
            cure="see `dnf module list` on the host, then run uninstall.py again",
        )


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
    # /opt/embedfleet may be a link, or have disks of its own below it (the cure for too little room): such are emptied and stay.
    yield Told(
        "for p in", *(QuoteString(name) for name in names),
        r'''; do
  real=$(readlink -f "$p"); mounts=$(awk -v p="$real" '$2 == p || index($2, p "/") == 1 {print $2}' /proc/self/mounts)
  if [ -z "$mounts" ] && ! [ -L "$p" ]; then rm -rf --one-file-system -- "$p" || exit 1; continue; fi
  for m in "$real" $mounts; do find "$m" -xdev -mindepth 1 ! -path "$m/lost+found*" ! -type d -delete || exit 1; done
  for m in "$real" $mounts; do find "$m" -xdev -depth -mindepth 1 -type d ! -path "$m/lost+found*" -exec rmdir --ignore-fail-on-non-empty {} + 2>/dev/null; done
done; true''',
        setting="files", cure="see what keeps them (lsof +D, mount), then run uninstall.py again",
    )  # fmt: skip
    if any(name.startswith("/etc/modprobe.d/") for name in names):
        host.log("rebuild the initramfs without our blacklist")
        yield Told(INITRAMFS, setting="files", cure="see why the initramfs cannot be built (room in /boot?)")


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
