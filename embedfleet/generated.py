"""Pages that are made from the code: written by `make docs`, compared with --check."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(path: Path, page: Callable[[], str]) -> int:
    """Write a page, or with --check among the arguments say whether it is current; return the exit code."""
    if "--check" not in sys.argv:
        path.write_text(page(), encoding="utf-8")
        return 0
    if path.read_text(encoding="utf-8") == page():
        return 0
    print(f"docs/{path.name} is not current: make docs", file=sys.stderr)
    return 1
