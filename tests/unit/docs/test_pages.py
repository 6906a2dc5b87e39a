"""The pages of documentation: their width, and the paths of the repository that docs/architecture.md names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WIDTH = 120
FOLDERS = ("", "docs", "bench", "images", "local", "tests")
PAGES = sorted(
    page for folder in FOLDERS for page in (ROOT / folder).glob("*.md" if folder in ("", "docs") else "**/*.md")
)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of a page that are neither code, a table nor a heading."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "#")):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_one_width(page: Path) -> None:
    assert [number for number, line in prose(page) if len(line) > WIDTH] == []
