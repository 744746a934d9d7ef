"""Everything of embedfleet that a host has, whatever state it is in: what uninstall.py has to take away."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api import FactBase, StringCommand

from embedfleet.facts.packages import STREAM
from embedfleet.facts.repositories import KEYS, REPLACED
from embedfleet.facts.state import ROOT
from embedfleet.systems import SYSTEMS

#: Folders and files of ours. /var/lib/embedfleet holds the record of what else was brought, so it goes last.
RECORD = "/var/lib/embedfleet"
PATHS = (
    ROOT,
    "/etc/embedfleet",
    "/var/log/embedfleet",
    "/var/cache/embedfleet",
    "/run/embedfleet-locks",
    "/run/embedfleet-vllm",
    "/run/embedfleet-candidate",
    "/usr/local/sbin/embedfleetctl",
)
#: Files of ours in folders that are others' too. The driver's patterns are last, so that no daily upgrade comes before.
SHARED = (
    "/etc/apt/sources.list.d/embedfleet-*",
    "/etc/yum.repos.d/embedfleet-*",
    "/usr/share/keyrings/embedfleet-*",
    "/etc/pki/rpm-gpg/embedfleet-*",
    "/etc/modprobe.d/embedfleet-*",
    "/etc/apt/preferences.d/embedfleet-*",
    "/etc/apt/apt.conf.d/*embedfleet-*",
)
UNITS = "/etc/systemd/system"
_ANCHORS = " ".join(sorted({f"{system.anchors}/embedfleet-*" for system in SYSTEMS}))


@dataclass(frozen=True)
class Installed:
    """What is there.

    :param units: unit files of ours, and links that enable or mask one for us
    :param running: units of ours that systemd has loaded and that are not inactive
    :param accounts: accounts that a deploy made
    :param groups: groups that a deploy made
    :param unknown: why it cannot be told what is there; "" where it can
    :param packages: installed packages that a deploy brought
    :param paths: folders and files
    :param certificates: authorities of the site that a deploy had the system trust
    :param replaced: others' package sources in which a deploy switched something off; the originals are kept in REPLACED
    :param stream: whether a deploy enabled a dnf module stream of the driver
    :param keys: in rpm's database, which came with a repository of ours
    :param record: whether the record of accounts and packages is still there
    """

    units: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    stream: bool = False
    keys: tuple[str, ...] = ()
    record: bool = False
    unknown: str = ""


# No temporary files: this also runs in a dry run, and on a full disk. What the package manager does not tell is unknown, never
# "none". An account is ours by the record and by what systemd-sysusers wrote as its name.
_LISTED = {
    "apt": "dpkg-query -W -f '${db:Status-Status} ${Package}\\n'",
    "dnf": "rpm -qa --qf 'installed %{NAME}\\n'",
}
_MANUAL = {"apt": "apt-mark showmanual", "dnf": "dnf -q --disablerepo='*' repoquery --userinstalled --qf '%{name}'"}
_SCRIPT = rf"""
r={RECORD}; export LC_ALL=C; nl='
'
for f in {UNITS}/embedfleet-* {UNITS}/*.wants/embedfleet-*; do [ -e "$f" ] || [ -L "$f" ] || continue; echo "unit $f"; done
systemctl list-units --all --plain --no-legend 'embedfleet-*' 2>/dev/null | while read -r u _ a _; do [ "$a" = inactive ] || echo "running $u"; done
for a in $(cat $r/accounts.ours 2>/dev/null); do case $a in
  user:*) getent passwd "${{a#user:}}" | cut -d: -f5 | grep -q '^embedfleet' && echo "account ${{a#user:}}" ;;
  group:*) getent group "${{a#group:}}" >/dev/null && echo "group ${{a#group:}}" ;; esac; done
if [ -s $r/packages.ours ]; then
  own=" @OWN@ $(echo $(cat $r/packages.asked 2>/dev/null)) "
  if all=$(@LISTED@) && [ -n "$all" ] && manual=$(@MANUAL@); then
    for p in $(cat $r/packages.ours); do
      case $nl$all$nl in *"$nl"config-files\ "$p$nl"*) echo "package $p"; continue ;; *"$nl"not-installed\ "$p$nl"*) continue ;; *\ "$p$nl"*) ;; *) continue ;; esac
      case "$own" in *" $p "*) ;; *) case $nl$manual$nl in *"$nl$p$nl"*) continue ;; esac ;; esac
      echo "package $p"
    done
    [ -L {UNITS}/nginx.service ] && grep -qx nginx $r/packages.ours && echo "unit {UNITS}/nginx.service"
  else echo "unknown the package manager does not tell what is installed"; fi
fi
for f in {" ".join(PATHS)}; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  if [ -L "$f" ] || grep -q " $f[ /]" /proc/self/mounts; then
    [ -n "$(find "$f/" ! -type d ! -path '*/lost+found/*' -print 2>/dev/null | head -n 1)" ] || continue
  fi
  echo "path $f"
done
for f in {" ".join(SHARED)}; do [ -e "$f" ] && echo "path $f"; done
[ -e {REPLACED} ] && find {REPLACED} -type f | sed 's|^{REPLACED}|replaced |'
[ -e {STREAM} ] && echo stream
for i in $(cat {KEYS} 2>/dev/null); do rpm -q gpg-pubkey 2>/dev/null | sed -n "/^gpg-pubkey-$i-/s/^/key /p"; done
for f in {_ANCHORS}; do [ -e "$f" ] && echo "certificate $f"; done
[ -e $r ] && echo record
echo end
"""


class EmbedfleetInstalled(FactBase[Installed]):
    """What of ours is on the host, in one round trip."""

    default = Installed

    def command(self, manager: str, own: list[str]) -> StringCommand:
        """:param own: packages that a deploy asks for by name; others of ours that somebody asked for since are theirs"""
        script = _SCRIPT.replace("@LISTED@", _LISTED[manager]).replace("@MANUAL@", _MANUAL[manager])
        return StringCommand(script.replace("@OWN@", " ".join(own)))

    def process(self, output: list[str]) -> Installed:
        return parse(list(output))


def parse(output: list[str]) -> Installed:
    """Parse `kind value` lines."""
    found: dict[str, list[str]] = {}
    for line in output:
        kind, _, value = line.strip().partition(" ")
        found.setdefault(kind, []).append(value)

    def of(kind: str) -> tuple[str, ...]:
        return tuple(found.get(kind, ()))

    return Installed(
        units=of("unit"),
        running=of("running"),
        accounts=of("account"),
        groups=of("group"),
        packages=of("package"),
        paths=of("path"),
        certificates=of("certificate"),
        replaced=of("replaced"),
        stream="stream" in found,
        keys=of("key"),
        record="record" in found,
        unknown="; ".join(of("unknown")) if "end" in found else "the host did not answer to the end",
    )
