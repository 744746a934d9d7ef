"""What package sources a host has, in one round trip."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyinfra.api import FactBase, StringCommand

#: Where the files are kept as they were before we switched something off in them; uninstall.py puts them back.
REPLACED = "/var/lib/embedfleet/replaced"
#: The same files as we left them, which tells whether somebody changed them since.
WRITTEN = "/var/lib/embedfleet/written"
#: Takes our words in $f back, $off being what a line that we switched off begins with; stanzas have a line of words and one that
#: switches them off.
UNDO = 'sed -i -e "s|^$off||" -e "/^# switched off by embedfleet/{N;d}" "$f"'

#: Ids of keys that were not in rpm's database before dnf took them for a repository of ours.
KEYS = "/var/lib/embedfleet/keys.ours"

_SCRIPT = r"""
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources /etc/yum.repos.d/*.repo; do
  [ -f "$f" ] && [ "$(wc -c <"$f")" -lt 100000 ] && { echo "@@file $f"; cat "$f"; echo; echo "@@end"; }
done
for f in /usr/share/keyrings/embedfleet-* /etc/pki/rpm-gpg/embedfleet-*; do [ -s "$f" ] && echo "@@key $f"; done
for f in /var/lib/apt/lists/*Release; do [ -e "$f" ] && echo "@@list ${f##*/}"; done
true
"""


@dataclass(frozen=True)
class Sources:
    """Package sources.

    :param files: path -> text of every file that names repositories
    :param keys: key files of ours
    :param lists: names of the Release files that apt has
    """

    files: dict[str, str] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()


class PackageSources(FactBase[Sources]):
    """Files that name repositories, keys of ours, and lists that were fetched."""

    default = Sources

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT)

    def process(self, output: list[str]) -> Sources:
        return parse(list(output))


def parse(output: list[str]) -> Sources:
    """Parse the script's lines; the one empty line before each end is the script's own."""
    files: dict[str, str] = {}
    named: dict[str, set[str]] = {"key": set(), "list": set()}
    path, lines = "", []  # type: tuple[str, list[str]]
    for line in output:
        if line.startswith("@@file "):
            path, lines = line.removeprefix("@@file "), []
        elif line == "@@end" and path:
            text = "\n".join(lines)
            files[path] = text if not lines or lines[-1] == "" else text + "\n"
            path = ""
        elif path:
            lines.append(line)
        else:
            kind, _, value = line.removeprefix("@@").partition(" ")
            named.get(kind, set()).add(value)
    return Sources(files, frozenset(named["key"]), frozenset(named["list"]))
