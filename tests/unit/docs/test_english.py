"""Pages, docstrings and help texts are in plain English: sentences with usual words, and help in one line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CODE = ("operator", "console", "local", "images/trainer/trainloop", "tools", "bench", "tests")
# The words of these pages are those of fields and commands in the code.
GENERATED = ("docs/commands.md", "docs/reference.md", "docs/reasons.md", "docs/training-reference.md")
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "bench/*.md", "images/**/*.md", "local/*.md", "operator/*.md")
    for page in ROOT.glob(pattern)
    if str(page.relative_to(ROOT)) not in GENERATED
)
HELP_WIDTH = 79
# Each retired word, as a pattern, with what to write instead.
RETIRED = {
    r"told|tells": "report, show, assign, inform",
    r"(?:go|goes|going|gone|went) on": "continue, resume",
    r"sa(?:y|ys|id) so": "report it, name it",
    r"anew": "again; recreate",
    r"no more than": "at most",
    r"also not": "not ... either",
    r"(?:is|are|was|were) to be": "must be, will be",
    r"stand(?:s|ing)? in(?! for)": "is in",
    r"(?<!that )ha(?:s|ve) it": "contains it, lists it",
    r"comes to": "reaches, gets",
    r"all that (?:is|was|are|were)": "everything",
    r"who(?:m)?ever": "anyone who",
    r"for ever": "forever",
    r"amid": "during",
    r"(?:done|made) again": "repeated",
}
_RETIRED = re.compile(rf"\b(?:{'|'.join(f'({pattern})' for pattern in RETIRED)})\b", re.IGNORECASE)
# A sentence that begins so has a relative clause as its subject, or is a fragment; a question may.
_CLAUSE = re.compile(r"(?:^\W*|[.:;] )(Who|Whom|Whoever|Whatever|Of|Also)\b(?!.*\?)")
_BEGINNINGS = ("Who", "Whom", "What", "Whatever", "Whoever", "Of", "Also")
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def hits(line: str) -> list[str]:
    """Returns what is wrong in a line, and what to write instead."""
    text = _QUOTED.sub("``", line)
    better = list(RETIRED.values())
    retired = [f"{match[0]!r}: write {better[(match.lastindex or 1) - 1]}" for match in _RETIRED.finditer(text)]
    return retired + [f"begins with {word!r}: write a subject and a verb" for word in _CLAUSE.findall(text)]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yields a page's numbered lines outside of code blocks."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("#"):
            yield number, line


def constant(nodes: list[ast.expr]) -> list[str]:
    """Returns the constant strings among expressions."""
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@cache
def texts(folder: str) -> list[tuple[str, str, str]]:
    """Returns the place, kind and text of each docstring, help text and description below a folder."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        where = path.relative_to(ROOT)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                found.append((f"{where}:{node.body[0].lineno}", "docstring", text))
            elif isinstance(node, ast.keyword) and node.arg in ("help", "description"):
                found += [(f"{where}:{node.value.lineno}", node.arg, text) for text in constant([node.value])]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "option":
                found += [(f"{where}:{node.lineno}", "help", text) for text in constant(node.args[:1])]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_english(page: Path) -> None:
    where = page.relative_to(ROOT)
    found = [f"{where}:{number}: {hit}" for number, line in prose(page) for hit in hits(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", CODE)
def test_docstrings_and_help_are_in_plain_english(folder: str) -> None:
    found = [f"{where}: {hit}" for where, _, text in texts(folder) for line in text.splitlines() for hit in hits(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", CODE)
def test_a_docstring_begins_with_a_sentence(folder: str) -> None:
    found = [
        f"{where}: {text.splitlines()[0]!r}: begin with a verb or a noun, and end the sentence"
        for where, kind, text in texts(folder)
        if kind == "docstring"
        and (text.split()[0] in _BEGINNINGS or text.split("\n\n")[0].rstrip()[-1] not in ".:?!`|")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", CODE)
def test_help_fits_in_a_line(folder: str) -> None:
    found = [
        f"{where}: {len(text)} columns, {HELP_WIDTH} are the limit: {text}"
        for where, kind, text in texts(folder)
        if kind == "help" and len(text) > HELP_WIDTH
    ]
    assert not found, "\n".join(found)
