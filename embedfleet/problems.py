"""What can stop a host, said so that somebody on call can act on it.

Every refusal in the project is a `Problem`: which host, which setting, why, and what cures it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Problem:
    """One reason why a host cannot be deployed, or should be looked at.

    :param host: name of the host in the inventory
    :param setting: the setting (or fact) that is at odds with the host, as written in group_data
    :param reason: what is wrong, one sentence
    :param cure: what the operator does about it
    :param fatal: False for a warning, which stops nothing
    :param matters: why it matters, where the reason alone does not say
    :param source: the report or document behind it
    """

    host: str
    setting: str
    reason: str
    cure: str
    fatal: bool = True
    matters: str = ""
    source: str = ""

    def as_dict(self) -> dict[str, str | bool]:
        """Return the problem for JSON output."""
        return asdict(self)


class Refused(Exception):
    """A host is refused. Carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"{p.host}: {p.setting}: {p.reason}" for p in self.problems))


def render(problems: Iterable[Problem], width: int = 118) -> str:
    """Return `problems` as a readable block, what many hosts share once, fatal ones last (what people see of a terminal)."""
    hosts: dict[Problem, list[str]] = {}
    for problem in problems:
        hosts.setdefault(replace(problem, host=""), []).append(problem.host)
    lines: list[str] = []
    for problem in sorted(hosts, key=lambda p: (p.fatal, hosts[p], p.setting)):
        whose = sorted(hosts[problem])
        names = ", ".join(whose[:5]) + (f" and {len(whose) - 5} more" if len(whose) > 5 else "")
        lines.append(f"{'FAILED ' if problem.fatal else 'warning'}  {names}  {problem.setting}")
        said = [("what" if problem.matters else "why", problem.reason), ("why", problem.matters)]
        for label, text in (*said, ("cure", problem.cure), ("see", problem.source)):
            if not text:
                continue
            pad = f"    {label + ':':6}"
            first, *rest = text.splitlines() or [""]
            lines.extend(
                textwrap.wrap(
                    first,
                    width,
                    initial_indent=pad,
                    subsequent_indent=" " * len(pad),
                    break_on_hyphens=False,
                    break_long_words=False,
                )
                or [pad]
            )
            lines.extend(" " * len(pad) + line for line in rest)  # log excerpts keep their own lines
    return "\n".join(lines)
