"""Pages of documentation keep to their width, and the paths that they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs.snippets import slugs

ROOT = Path(__file__).resolve().parents[3]
WIDTH = 120
# A path in a page may begin in one of these folders, or in the page's own.
BASES = (
    "",
    "operator/trainmaster_operator",
    "console/trainmaster",
    "operator/trainmaster_operator/agent",
    "operator/trainmaster_operator/reconciling",
    "images/trainer",
    "local/trainmaster_local",
)
PAGES = sorted(
    page
    for folder, pattern in (
        ("", "*.md"),
        ("docs", "**/*.md"),
        *((name, "**/*.md") for name in ("bench", "images", "local")),
    )
    for page in (ROOT / folder).glob(pattern)
)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of a page, without code, tables and headings."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "#")):
            yield number, line


def paths(page: Path) -> set[str]:
    """Returns the source files and templates that a page names, each in its own code span."""
    return set(re.findall(r"`([a-z_]+(?:/[\w.-]+)+\.(?:py|sh|md|j2|pyz|toml|yaml))`", page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_one_width(page: Path) -> None:
    assert [number for number, line in prose(page) if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    folders = [page.parent, *(ROOT / base for base in BASES)]
    missing = {name for name in paths(page) if not any((folder / name).exists() for folder in folders)}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_where_a_page_links_to_is_there(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    for name, anchor in targets:
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in slugs(target), f"{name}#{anchor}"


def test_every_page_is_reachable_from_the_readme() -> None:
    found, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in found:
            found.add(page)
            names = re.findall(r"\]\((?!https?:)([^)#\s]+\.md)(?:#[^)\s]+)?\)", page.read_text())
            waiting += [(page.parent / name).resolve() for name in names]
    assert {str(page.relative_to(ROOT)) for page in {*(ROOT / "docs").rglob("*.md")} - found} == set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_map_names_every_page(page: Path) -> None:
    assert page.name == "README.md" or f"]({page.name})" in (ROOT / "docs" / "README.md").read_text()
