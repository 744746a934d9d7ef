"""Pages that are generated are current, and what the README names is there."""

from __future__ import annotations

import re
from pathlib import Path

from embedfleet import matrix_page, settings_page

ROOT = Path(__file__).parents[2]


def test_settings_page_is_current() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page(), "run: make docs"


def test_platform_matrix_is_current() -> None:
    assert matrix_page.PAGE.read_text(encoding="utf-8") == matrix_page.page(), "run: make docs"


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
