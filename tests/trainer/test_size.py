"""A run with default settings imports few enough lines (`run`, `trainer`) to read in an evening, and docs/training.md
lists the size of its modules.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.trainer.ranks import environment, exit_codes, free_port, start_command, trainloop

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "images" / "trainer" / "trainloop"

#: Lines of code of the loop proper. A module is one idea, so code in it that only some runs use counts too.
LIMIT = 3_850
#: Lines of code of all modules.
WHOLE_LIMIT = 11_440
#: Lines of code of the library beside the loop, which any script may use.
LIBRARY = ("recovery", "continuing")
LIBRARY_LIMIT = 3_599
#: Tokens that don't make a line count as code.
_NOTHING = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """Returns how many lines contain code; blank lines, comments and docstrings don't count."""
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


#: A rank of a run with default settings, which prints the modules that it has imported.
RANK = """
import json, sys
from trainloop.__main__ import leave, main
assert main(sys.argv[1:]) == 0
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.startswith("trainloop.")]))
leave(0)
"""
OPTIONS = [
    *("steps=2", "batch.size=8", "evaluation.every_steps=1", "checkpoint.every_steps=1", "metrics.plot=false"),
    *("checkpoint.export=false", "task.name=tests.trainer.toy:Toy", "task.options.double=false"),
]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the sources that one of two ranks imports, by path in the package. The run trains a user's own task with
    default settings, evaluates and saves. The report and the export, which come once after the last step, are left out.
    """
    folder, port = tmp_path_factory.mktemp("run"), free_port()
    options = [*OPTIONS, f"checkpoint.path={folder}", f"metrics.path={folder}"]
    arguments = [part for option in options for part in ("--set", option)]
    # Only the first starts as a clean Python, which is slow; its peer is forked.
    peer = start_command(folder / "peer", trainloop, *arguments, **environment(1, 2, port))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environment(0, 2, port)}
    command = [sys.executable, "-c", RANK, *arguments]
    first = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (first.returncode, exit_codes([peer])) == (0, [0])
    files = {Path(file).relative_to(PACKAGE) for file in json.loads(first.stdout.splitlines()[-1])}
    return {str(file): (PACKAGE / file).read_text() for file in sorted({*files, Path("__main__.py")})}


def test_a_line_of_code_has_more_than_a_comment_or_a_docstring() -> None:
    function = 'def f(a,  # one\n      b):\n    """Two\n    lines."""\n    # three\n    return """x\n\n    y"""\n'
    assert lines_of_code(f'"""A module."""\n\nimport os\n\n\n{function}') == 6
    assert lines_of_code('class A:\n    """One."""\n\n    x = 1\n    """No docstring."""\n') == 3


def test_the_loop_proper_stays_under_its_limit(loop: dict[str, str]) -> None:
    sizes = {path: lines_of_code(source) for path, source in loop.items() if path.partition("/")[0] not in LIBRARY}
    largest = ", ".join(f"{path} {size}" for path, size in sorted(sizes.items(), key=lambda one: -one[1])[:5])
    total = sum(sizes.values())
    assert {"trainer.py", "data.py", "checkpoints/snapshots.py", "parallel/strategies.py"} <= sizes.keys()
    assert total < LIMIT, f"the loop proper has {total} lines of code, {LIMIT} are its limit; the largest: {largest}"


def test_the_library_beside_the_loop_stays_under_its_own_limit() -> None:
    files = (file for room in LIBRARY for file in (PACKAGE / room).rglob("*.py"))
    total = sum(lines_of_code(file.read_text()) for file in files)
    assert 0 < total < LIBRARY_LIMIT


def test_all_of_trainloop_stays_under_its_limit() -> None:
    assert sum(lines_of_code(file.read_text()) for file in PACKAGE.rglob("*.py")) < WHOLE_LIMIT


def test_the_guide_to_the_code_has_every_module_with_its_size(loop: dict[str, str]) -> None:
    """The table is in docs/training.md, "Reading the code"; sizes may be off by a tenth."""
    rows = re.findall(r"^\| (\d+) \| (`.+?`) \|", (ROOT / "docs" / "training.md").read_text(), flags=re.MULTILINE)
    named = {name: int(size) for size, names in rows for name in re.findall(r"`(.+?)`", names)}
    sizes = {
        str(file.relative_to(PACKAGE).with_suffix("")): len(file.read_text().splitlines())
        for file in PACKAGE.rglob("*.py")
    }
    assert {path.removesuffix(".py") for path, source in loop.items() if lines_of_code(source)} <= named.keys()
    for size, names in rows:
        lines = sum(sizes[name] for name in re.findall(r"`(.+?)`", names))
        assert lines == pytest.approx(int(size), rel=0.1), f"{names} have {lines} lines"


def test_the_guide_says_how_much_all_of_it_is(loop: dict[str, str]) -> None:
    guide = " ".join((ROOT / "docs" / "training.md").read_text().split())
    said = re.search(r"under (\d,\d+) lines of code.*? trainloop has (\d+,\d+)", guide)
    assert said and int(said[1].replace(",", "")) == LIMIT
    everything = sum(lines_of_code(file.read_text()) for file in PACKAGE.rglob("*.py"))
    assert everything == pytest.approx(int(said[2].replace(",", "")), rel=0.05)
