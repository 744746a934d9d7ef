"""What GRUB would boot: the default entry of the guest's own grub.cfg. Pure; disk.py reads the files.

The rig is the machine's boot loader (as Xen's pygrub is), so that what is changed inside the guest, its command line or its
initramfs, counts at its next boot and not before.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass, field

GRUB_CFG = "/boot/grub/grub.cfg"
GRUB_ENV = "/boot/grub/grubenv"

_OPENS = re.compile(r"^(menuentry|submenu)\s+(.*)\{$")
_DEFAULT = re.compile(r'^set default="?([^"]*)"?$')


class BootError(Exception):
    """A machine with this configuration would not get past its boot loader."""


@dataclass
class Entry:
    """One entry of the menu; a submenu has children, an entry to boot has a kernel."""

    title: str = ""
    id: str = ""
    linux: list[str] = field(default_factory=list)
    initrd: str = ""
    children: list[Entry] = field(default_factory=list)


@dataclass(frozen=True)
class Boot:
    """What is loaded, with paths in the guest."""

    kernel: str
    initrd: str
    cmdline: str


def parse(text: str) -> tuple[str, list[Entry]]:
    """(the default, with variables in it; the menu) of a grub.cfg that grub-mkconfig wrote."""
    root = Entry()
    open_blocks: list[Entry] = [root]
    defaults: list[str] = []
    for line in (raw.strip() for raw in text.splitlines()):
        if match := _OPENS.match(line):
            entry = _titled(shlex.split(match[2]))
            open_blocks[-1].children.append(entry)
            open_blocks.append(entry)
        elif line.endswith("{"):  # a function: its block counts, its content does not
            open_blocks.append(Entry())
        elif line == "}":
            if len(open_blocks) == 1:
                raise BootError(f"{GRUB_CFG} closes a block that it did not open")
            open_blocks.pop()
        elif match := _DEFAULT.match(line):
            defaults.append(match[1])
        elif words := re.match(r"(linux|initrd)\s+(.+)$", line):
            if words[1] == "linux":
                open_blocks[-1].linux = shlex.split(words[2])
            else:
                open_blocks[-1].initrd = words[2].strip()
    if len(open_blocks) != 1:
        raise BootError(f"{GRUB_CFG} is cut off")
    # grub-mkconfig writes `set default` twice: for an entry to boot once (grub-reboot, not played here), then the lasting one
    lasting = [word for word in defaults if word != "${next_entry}"]
    return (lasting[-1] if lasting else "0"), root.children


def _titled(words: list[str]) -> Entry:
    ids = [after for word, after in itertools.pairwise(words) if word == "$menuentry_id_option"]
    return Entry(title=words[0] if words else "", id=ids[0] if ids else "")


def environment(block: str) -> dict[str, str]:
    """The variables of a grubenv file."""
    pairs = (line.split("=", 1) for line in block.splitlines() if "=" in line and not line.startswith("#"))
    return {words[0]: words[1] for words in pairs}


def choose(default: str, menu: list[Entry]) -> Entry:
    """The entry that `default` names: indexes, ids or titles, with `>` into submenus."""
    entries, chosen = menu, None
    for part in default.split(">"):
        named = [entry for entry in entries if part in (entry.id, entry.title)]
        if not named and part.isdigit() and int(part) < len(entries):
            named = [entries[int(part)]]
        chosen = named[0] if named else None
        entries = chosen.children if chosen else []
    if chosen is None and menu:
        chosen = menu[0]  # as GRUB does with a default that is not there
    while chosen is not None and not chosen.linux and chosen.children:
        chosen = chosen.children[0]
    if chosen is None or not chosen.linux:
        raise BootError(f"{GRUB_CFG} has no entry that boots Linux")
    return chosen


def default_boot(grub_cfg: str, grubenv: str = "") -> Boot:
    """What boots when nobody touches a key."""
    default, menu = parse(grub_cfg)
    if default == "${saved_entry}":
        default = environment(grubenv).get("saved_entry", "0")
    entry = choose(default, menu)
    kernel, *words = entry.linux
    return Boot(kernel, entry.initrd, " ".join(f'"{word}"' if " " in word else word for word in words))


def starter(kernel: str, initrd: str, cmdline: str) -> str:
    """The grub.cfg of a new image: grub-mkconfig needs the running machine's disk, so the first one is written for it."""
    return (
        "# until the first update-grub\n"
        'set default="0"\n'
        "menuentry 'Debian GNU/Linux' {\n"
        f"\tlinux\t{kernel} {cmdline}\n"
        f"\tinitrd\t{initrd}\n"
        "}\n"
    )
