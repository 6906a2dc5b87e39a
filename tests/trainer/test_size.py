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

#: Lines of code of the loop proper. What doesn't fit replaces something, or becomes what only some runs import.
LIMIT = 3000
#: What every run imports, with what these import at their top, is the loop proper.
ROOTS = ("__main__.py", "run.py")
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


def imported(source: str) -> set[str]:
    """Returns the modules of trainloop that a module imports at its top, by path in the package."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "trainloop":
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    paths = {name.replace(".", "/").removeprefix("trainloop").removeprefix("/") for name in names}
    files = {each for path in paths for each in (f"{path}.py", f"{path}/__init__.py".removeprefix("/"))}
    return {each for each in files if (PACKAGE / each).is_file()}


def loop() -> dict[str, str]:
    """Returns the sources of the loop proper, by path in the package."""
    found: dict[str, str] = {}
    wanted = set(ROOTS)
    while wanted:
        found |= {path: (PACKAGE / path).read_text() for path in wanted}
        wanted = {each for path in wanted for each in imported(found[path])} - found.keys()
    return found


def test_a_line_of_code_has_more_than_a_comment_or_a_docstring() -> None:
    function = 'def f(a,  # one\n      b):\n    """Two\n    lines."""\n    # three\n    return """x\n\n    y"""\n'
    assert lines_of_code(f'"""A module."""\n\nimport os\n\n\n{function}') == 6
    assert lines_of_code('class A:\n    """One."""\n\n    x = 1\n    """No docstring."""\n') == 3


def test_the_loop_proper_stays_under_its_limit() -> None:
    sizes = {path: lines_of_code(source) for path, source in loop().items()}
    largest = ", ".join(f"{path} {size}" for path, size in sorted(sizes.items(), key=lambda one: -one[1])[:5])
    total = sum(sizes.values())
    assert {"trainer.py", "data.py", "checkpoints/snapshots.py", "parallel/strategies.py"} <= sizes.keys()
    assert total < LIMIT, f"the loop proper has {total} lines of code, {LIMIT} are its limit; the largest: {largest}"


def test_the_guide_to_the_code_has_every_module_with_its_size() -> None:
    """docs/training.md, "Reading the code"; a tenth more or less is still true."""
    rows = re.findall(r"^\| (\d+) \| (`.+?`) \|", (ROOT / "docs" / "training.md").read_text(), flags=re.MULTILINE)
    named = {name: int(size) for size, names in rows for name in re.findall(r"`(.+?)`", names)}
    sizes = {
        str(file.relative_to(PACKAGE).with_suffix("")): len(file.read_text().splitlines())
        for file in PACKAGE.rglob("*.py")
    }
    maps = {path.removesuffix(".py") for path, source in loop().items() if not lines_of_code(source)}
    assert {path.removesuffix(".py") for path in loop()} - maps <= named.keys()
    for size, names in rows:
        lines = sum(sizes[name] for name in re.findall(r"`(.+?)`", names))
        assert lines == pytest.approx(int(size), rel=0.1), f"{names} have {lines} lines"
