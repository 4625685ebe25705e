"""Test that the pages name existing pages, headings, make targets, commands, and options."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from boundarymorph.cli.main import app
from boundarymorph.notices import Slug
from boundarymorph.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")


def text_of(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text())


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of headings: lowercase letters, digits, and hyphens for spaces."""
    titles = re.findall(r"(?m)^#+ (.+)$", text_of(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_links_lead_to_existing_files_and_headings(page: Path) -> None:
    broken = []
    for path, anchor in LINK.findall(text_of(page)):
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken


def test_every_page_is_in_the_site_navigation() -> None:
    placed = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in placed] == []


def test_every_setting_is_described_in_the_running_page() -> None:
    """A row such as `cache.*` describes all settings of a section."""
    page = (ROOT / "docs" / "running.md").read_text()
    assert [name for name in Settings.model_fields if not re.search(rf"`{name}[`.]", page)] == []


def test_every_warning_slug_is_described_in_the_api_page() -> None:
    """Programs look up there which slugs they may match."""
    section = (ROOT / "docs" / "api.md").read_text().partition("\n## Warnings\n")[2]
    listed = [slug for row in re.findall(r"(?m)^\| (`.*?) \|", section) for slug in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(slug for slug in listed if slug != "slug") == sorted(get_args(Slug))


CODE = re.compile(r"(?ms)^[ ]*```[^\n]*\n(.*?)^[ ]*```|`([^`\n]+)`")


def code_of(page: Path) -> str:
    """Return the code blocks and spans of a page, one command per line."""
    parts = "\n".join(block or span for block, span in CODE.findall(page.read_text()))
    return re.sub(r"\\\n\s*", " ", parts)


def commands_of(page: Path, program: str) -> list[list[str]]:
    """Return the words after a program in each code line that begins with it."""
    lines = re.findall(rf"(?m)^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*{program}((?: .*)?)$", code_of(page))
    return [re.split(r" (?:#|\||&&|>|<|&$)|;", line)[0].split() for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_named_in_pages_exist(page: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = {word for words in commands_of(page, "make") for word in words[:1] if re.fullmatch("[a-z-]+", word)}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_named_in_pages_exist(page: Path) -> None:
    unknown = []
    for words in commands_of(page, "boundarymorph"):
        command: Any = get_command(app)
        for place, word in enumerate(words):
            if hasattr(command, "commands") and not any(before.startswith("-") for before in words[: place + 1]):
                if word not in command.commands:
                    unknown.append(" ".join(words))
                    break
                command = command.commands[word]
            elif word.startswith("-"):
                known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
                if word.partition("=")[0] not in known | {"--help"}:
                    unknown.append(f"{word} of {' '.join(words)}")
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_named_in_pages_exist(page: Path) -> None:
    modules = re.findall(r"python -m ((?:load_tests|tests)[\w.]+)", code_of(page))
    assert [module for module in modules if not (ROOT / f"{module.replace('.', '/')}.py").exists()] == []


def test_extras_named_in_pages_match_the_project() -> None:
    there = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    pages = "".join(page.read_text() for page in PAGES)
    named = {extra for found in re.findall(r"\bboundarymorph\[([\w,]+)\]", pages) for extra in found.split(",")}
    assert named == there - {"dev"}, "of the packages that users install"
