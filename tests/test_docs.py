"""Links between the pages of the documentation lead to something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")


def text_of(page: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text())


def anchors_of(page: Path) -> set[str]:
    """As forges and the site make them: lower case, hyphens for spaces, letters, digits and hyphens only."""
    titles = re.findall(r"(?m)^#+ (.+)$", text_of(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    broken = []
    for path, anchor in LINK.findall(text_of(page)):
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken


def test_every_page_has_a_place_on_the_site() -> None:
    placed = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in placed] == []
