"""Everything of embedfleet that a host has, whatever state it is in: what uninstall.py has to take away."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api import FactBase, StringCommand

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
    "/etc/sysusers.d/embedfleet.conf",
)
UNITS = "/etc/systemd/system"
_ANCHORS = " ".join(sorted({f"{system.anchors}/embedfleet-*" for system in SYSTEMS}))


@dataclass(frozen=True)
class Installed:
    """What is there.

    :param units: unit files of ours, and links that enable or mask one for us
    :param running: units of ours that systemd has loaded and that are not inactive
    :param accounts: accounts that a deploy made
    :param packages: installed packages that a deploy brought
    :param paths: folders and files
    :param certificates: authorities of the site that a deploy had the system trust
    :param record: whether the record of accounts and packages is still there
    """

    units: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    record: bool = False

    @property
    def anything(self) -> bool:
        """Whether the host has anything of ours."""
        return self != Installed()


# A deploy that was killed between installing and recording left packages.before: what came since is ours.
_SCRIPT = f"""
r={RECORD}; export LC_ALL=C
list() {{ if command -v dpkg-query >/dev/null; then dpkg-query -W -f '${{db:Status-Status}} ${{Package}}\\n' | sed -n 's/^installed //p'
  else rpm -qa --qf '%{{NAME}}\\n'; fi | sort -u; }}
for f in {UNITS}/embedfleet-* {UNITS}/*.wants/embedfleet-*; do [ -e "$f" ] || [ -L "$f" ] || continue; echo "unit $f"; done
systemctl list-units --all --plain --no-legend 'embedfleet-*' 2>/dev/null | while read -r u _ a _; do [ "$a" = inactive ] || echo "running $u"; done
for a in $(cat $r/accounts.ours 2>/dev/null); do getent passwd "$a" >/dev/null && echo "account $a"; done
if [ -e $r/packages.before ] || [ -e $r/packages.ours ]; then
  list >/tmp/embedfleet-now.$$
  {{ [ -e $r/packages.before ] && comm -13 $r/packages.before /tmp/embedfleet-now.$$; cat $r/packages.ours 2>/dev/null; }} | sort -u |
    comm -12 - /tmp/embedfleet-now.$$ | sed 's/^/package /'
  rm -f /tmp/embedfleet-now.$$
  [ -L {UNITS}/nginx.service ] && grep -qx nginx $r/packages.* 2>/dev/null && echo "unit {UNITS}/nginx.service"
fi
for f in {" ".join(PATHS)}; do
  [ -e "$f" ] || continue; mountpoint -q "$f" && [ -z "$(ls -A -I lost+found "$f")" ] || echo "path $f"; done
for f in {_ANCHORS}; do [ -e "$f" ] && echo "certificate $f"; done
[ -e $r ] && echo record
echo end
"""


class EmbedfleetInstalled(FactBase[Installed]):
    """What of ours is on the host, in one round trip."""

    default = Installed

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT)

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
        packages=of("package"),
        paths=of("path"),
        certificates=of("certificate"),
        record="record" in found,
    )
