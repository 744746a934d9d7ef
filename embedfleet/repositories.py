"""Package repositories as data: what ours look like, and what becomes of entries for the same place that others wrote. Pure.

Two entries for one URI with different keys make apt refuse everything ("Conflicting values set for option Signed-By",
NVIDIA/nvidia-docker#1631; NVIDIA/deepops#1166, #1167), so an entry of somebody else's is switched off, not doubled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from embedfleet.systems import System

#: What a line that we switched off begins with.
OFF = "# switched off by embedfleet, which has its own entry for this place: "

#: dpkg's name of an architecture, which apt's lists may have as $(ARCH).
DPKG_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}


@dataclass(frozen=True, repr=False)
class Repository:
    """A package repository with a pinned key.

    :param name: of its file on the host: embedfleet-<name>
    :param title: for people
    :param uri: of apt's flat repository, or of the folder that has rpm's repodata
    :param key_url: where the host gets the key
    :param fingerprints: of the primary keys that may sign; of a key with another one nothing is taken
    :param signed: what is signed: the packages, or the metadata alone (libnvidia-container's rpms)
    :param held: name patterns of packages that nobody but the deploy upgrades (dnf; apt has a file of its own for that)
    """

    name: str
    title: str
    uri: str
    key_url: str
    fingerprints: tuple[str, ...]
    signed: tuple[str, ...] = ("packages",)
    held: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The name alone: a URI may hold a mirror's password."""
        return self.name

    def key(self, system: System) -> str:
        """Where its key is on the host; the name has the fingerprints, so that another pin is another file."""
        short = "-".join(value[-8:].lower() for value in self.fingerprints)
        folder = {"apt": "/usr/share/keyrings", "dnf": "/etc/pki/rpm-gpg"}[system.manager]
        return f"{folder}/embedfleet-{self.name}-{short}.asc"

    def path(self, system: System) -> str:
        """Its file on the host."""
        place = {"apt": "/etc/apt/sources.list.d/{}.sources", "dnf": "/etc/yum.repos.d/{}.repo"}[system.manager]
        return place.format(f"embedfleet-{self.name}")

    def text(self, system: System) -> str:
        """That file's content."""
        if system.manager == "apt":
            lines = [f"# {self.title}; embedfleet writes this file", "Types: deb", f"URIs: {self.uri}", "Suites: /"]
            return "\n".join([*lines, f"Signed-By: {self.key(system)}", ""])
        checks = [
            f"gpgcheck={int('packages' in self.signed)}",
            f"repo_gpgcheck={int('metadata' in self.signed)}",
            f"gpgkey=file://{self.key(system)}",
        ]
        held = [f"excludepkgs={','.join(self.held)}"] if self.held else []
        head = [f"[embedfleet-{self.name}]", f"name={self.title}", f"baseurl={self.uri}", "enabled=1"]
        return "\n".join([*head, *checks, *held, ""])


def place(uri: str, machine: str) -> str:
    """Return what makes two URIs the same place: host and path, without scheme, default port, end slash, apt's and dnf's variables."""
    uri = uri.strip("\"'").replace("$(ARCH)", DPKG_ARCH.get(machine, machine))
    for variable in ("${basearch}", "$basearch", "${arch}", "$arch"):
        uri = uri.replace(variable, machine)
    try:
        parts = urlsplit(uri)
    except ValueError:  # somebody's, and no place of ours
        return uri
    host = re.sub(r":(80|443)$", "", parts.netloc.rpartition("@")[2].lower())
    return f"{host}{parts.path}".rstrip("/")


def without_password(uri: str) -> str:
    """Return a URI for people and logs: without user and password."""
    return re.sub(r"^([a-z+]+://)[^/@]*@", r"\1", uri)


def switched_off(files: Mapping[str, str], repositories: tuple[Repository, ...], machine: str) -> dict[str, str]:
    """Return the new text of every file that has an entry for a place of ours; the others stay as they are.

    :param files: path -> text of the host's own source files, ours not among them
    """
    ours = {place(repository.uri, machine) for repository in repositories}
    found = {}
    for path, text in files.items():
        edit = {".list": _one_line, ".sources": _deb822, ".repo": _ini}.get(path[path.rfind(".") :])
        new = edit(text, ours, machine) if edit else text
        if new != text:
            found[path] = new
    return found


def _one_line(text: str, ours: set[str], machine: str) -> str:
    lines = []
    for line in text.splitlines(keepends=True):
        entry = re.match(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)", line)
        lines.append(OFF + line if entry and place(entry[1], machine) in ours else line)
    return "".join(lines)


def _deb822(text: str, ours: set[str], machine: str) -> str:
    stanzas = re.split(r"(\n(?:[ \t]*\n)+)", text)
    for index, stanza in enumerate(stanzas):
        uris = re.search(r"(?im)^URIs:[ \t]*((?:.*)(?:\n[ \t]+\S.*)*)", stanza)
        if not uris or not any(place(uri, machine) in ours for uri in uris[1].split()):
            continue
        if re.search(r"(?im)^Enabled:[ \t]*(no|false|0)\b", stanza):
            continue
        others = [uri for uri in uris[1].split() if place(uri, machine) not in ours]
        if others:  # the stanza is of other places too: they stay
            stanzas[index] = stanza[: uris.start(1)] + " ".join(others) + stanza[uris.end(1) :]
        else:
            stanza = re.sub(r"(?im)^Enabled:.*\n?", "", stanza)
            stanzas[index] = re.sub(r"(?im)^(?=URIs:)", f"{OFF.strip().rstrip(':')}\nEnabled: no\n", stanza, count=1)
    return "".join(stanzas)


def _ini(text: str, ours: set[str], machine: str) -> str:
    parts = re.split(r"(?m)^(?=\[)", text)
    for index, part in enumerate(parts):
        uris = re.search(r"(?m)^baseurl\s*=\s*(.*)$", part)
        if (
            not uris
            or not any(place(uri, machine) in ours for uri in re.split(r"[\s,]+", uris[1]))
            or re.search(r"(?m)^enabled\s*=\s*0\s*$", part)
        ):
            continue
        part = re.sub(r"(?m)^enabled\s*=.*\n?", "", part)
        parts[index] = re.sub(r"(?m)^(?=baseurl)", f"{OFF.strip().rstrip(':')}\nenabled=0\n", part, count=1)
    return "".join(parts)
