"""The machine's own Debian mirror, read from its apt configuration, for images bootstrapped from it."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.targets.host import run

#: Settings of the machine's apt which an image needs too in order to reach the same mirror.
CARRIED = re.compile(
    r'^(Acquire::(?:https?::Proxy|https?::Pipeline-Depth|Check-Valid-Until|Check-Date|Retries)) "(.+)";$'
)


@dataclass(frozen=True)
class AptSource:
    """sources.list lines for mmdebstrap (none: its own default) and apt options for the image."""

    lines: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    @property
    def https(self) -> bool:
        return any(" https://" in line for line in self.lines)


def _entries(etc_apt: Path) -> list[tuple[str, list[str]]]:
    """(URI, suites) of every enabled binary source that offers `main`, both file formats."""
    found: list[tuple[str, list[str]]] = []
    for path in [etc_apt / "sources.list", *sorted(etc_apt.glob("sources.list.d/*.list"))]:
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
            match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.+)", line.strip())
            if match and "main" in match[3].split():
                found.append((match[1], [match[2]]))
    for path in sorted(etc_apt.glob("sources.list.d/*.sources")):
        text = "\n".join(line for line in path.read_text(errors="replace").splitlines() if not line.startswith("#"))
        for stanza in re.split(r"\n\s*\n", text):
            values = {key.lower(): value.split() for key, value in re.findall(r"(?m)^([\w-]+):[ \t]*(.*)$", stanza)}
            if values.get("enabled") == ["no"] or "deb" not in values.get("types", []):
                continue
            if "main" in values.get("components", []):
                found += [(uri, values.get("suites", [])) for uri in values.get("uris", [])]
    return found


def debian_source(
    suite: str, etc_apt: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> AptSource:
    """Sources for Debian `suite` from the mirror that this machine uses for its own Debian packages."""
    options: list[str] = []
    if shutil.which("apt-config"):
        matches = (CARRIED.match(line) for line in run(["apt-config", "dump"]).splitlines())
        options = [f'{match[1]} "{match[2]}"' for match in matches if match]
    if not re.search(r"(?m)^ID=debian$", os_release.read_text()):
        return AptSource([], options)  # Ubuntu's mirror doesn't carry Debian: mmdebstrap knows where Debian is
    codename = match[1] if (match := re.search(r"(?m)^VERSION_CODENAME=(\w+)", os_release.read_text())) else suite
    entries = _entries(etc_apt)
    main = next(
        (uri for uri, suites in entries if {codename, "stable", "testing", "unstable", "sid"} & set(suites)), None
    )
    security = next((uri for uri, suites in entries if any(name.endswith("-security") for name in suites)), None)
    if main is None:
        return AptSource([], options)
    lines = [f"deb {main} {suite} main", f"deb {main} {suite}-updates main"]
    if security:
        lines.append(f"deb {security} {suite}-security main")
    return AptSource(lines, options)
