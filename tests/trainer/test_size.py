"""The loop proper stays small enough to be read in an evening, and docs/training.md says how large its modules are."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "images" / "trainer" / "trainloop"

#: Lines of code of the loop proper. What doesn't fit replaces something, or goes beside the loop.
LIMIT = 3000
#: What stands beside the loop: only runs that ask for it import it, and training is the same without it.
BESIDE = ("tasks/", "outputs.py", "report.py", "plots.py", "dry_run.py", "versions/")
#: The loop's part of a room that stands beside it.
LOOP = ("tasks/__init__.py",)
#: Tokens that make no line one of code.
_NOTHING = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """Returns how many lines have code on them: neither blank ones, comments nor docstrings count."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)), *_]:
                    docstrings |= set(range(first, last + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOTHING:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def is_beside(path: str) -> bool:
    """Returns whether a module (`tasks/hub.py`) stands beside the loop."""
    return path not in LOOP and path.startswith(BESIDE)


def loop() -> dict[str, str]:
    """Returns the sources of the loop proper, by path in the package."""
    files = {str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    return {path: source for path, source in files.items() if not is_beside(path)}


def test_a_line_of_code_has_more_than_a_comment_or_a_docstring() -> None:
    function = 'def f(a,  # one\n      b):\n    """Two\n    lines."""\n    # three\n    return """x\n\n    y"""\n'
    assert lines_of_code(f'"""A module."""\n\nimport os\n\n\n{function}') == 6
    assert lines_of_code('class A:\n    """One."""\n\n    x = 1\n    """No docstring."""\n') == 3


def test_the_loop_proper_stays_under_its_limit() -> None:
    sizes = {path: lines_of_code(source) for path, source in loop().items()}
    largest = ", ".join(f"{path} {size}" for path, size in sorted(sizes.items(), key=lambda one: -one[1])[:5])
    total = sum(sizes.values())
    assert total < LIMIT, f"the loop proper has {total} lines of code, {LIMIT} are its limit; the largest: {largest}"


def test_the_loop_imports_what_stands_beside_it_only_when_it_is_used() -> None:
    imported = {
        f"{path}: {node.module}"
        for path, source in loop().items()
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module
        if is_beside(node.module.removeprefix("trainloop.").replace(".", "/") + ".py")
    }
    assert imported == set()


def test_the_guide_says_what_stands_beside_the_loop_and_what_the_limit_is() -> None:
    guide = " ".join((ROOT / "docs" / "training.md").read_text().split())
    said = re.search(r"under (\d,\d+) lines of code .*?\. Beside it, not counted, stand (.+?)\.\s", guide)
    assert said and int(said[1].replace(",", "")) == LIMIT
    assert set(re.findall(r"`(\S+?)`", said[2])) == {*BESIDE, *LOOP}


def test_the_guide_to_the_code_has_every_module_with_its_size() -> None:
    """docs/training.md, "Reading the code"; a tenth more or less is still true."""
    rows = re.findall(r"^\| (\d+) \| (`.+?`) \|", (ROOT / "docs" / "training.md").read_text(), flags=re.MULTILINE)
    named = {name: int(size) for size, names in rows for name in re.findall(r"`(.+?)`", names)}
    sizes = {
        path.removesuffix(".py"): len(source.splitlines())
        for path, source in loop().items()
        if path in LOOP or not path.endswith("__init__.py")
    }
    assert named.keys() == sizes.keys()
    for size, names in rows:
        lines = sum(sizes[name] for name in re.findall(r"`(.+?)`", names))
        assert lines == pytest.approx(int(size), rel=0.1), f"{names} have {lines} lines"
