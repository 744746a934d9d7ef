"""What a rule that refuses a host says, before it is a Problem of that host."""

from __future__ import annotations

from collections.abc import Iterator

#: setting, reason, cure, whether it refuses, why it matters, source
Found = Iterator[tuple[str, str, str, bool, str, str]]


def refusal(
    setting: str, reason: str, cure: str, *, matters: str = "", source: str = "", fatal: bool = True
) -> tuple[str, str, str, bool, str, str]:
    """Return one finding of a rule."""
    return setting, reason, cure, fatal, matters, source
