"""Every package's docstring lists its modules, and every folder of tests has the name of the package that it tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOPS = (
    "operator/trainmaster_operator",
    "console/trainmaster",
    "local/trainmaster_local",
    "images/trainer/trainloop",
    "tools",
    "bench",
)
PACKAGES = sorted(init.parent for top in TOPS for init in (ROOT / top).rglob("__init__.py"))
# Folders of tests, and the folders with packages of the same names.
TESTS = {
    "tests/unit": ("operator/trainmaster_operator", "console/trainmaster", ""),
    "tests/processes": ("operator/trainmaster_operator", "console/trainmaster", ""),
    "local/tests/unit": ("local/trainmaster_local",),
}


def docstring(path: Path) -> str:
    """Returns a module's docstring, or an empty text."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def named(text: str) -> set[str]:
    """Returns the words in a text's code spans."""
    return {word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", span)}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_names_what_is_in_it(package: Path) -> None:
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert modules | packages <= named(docstring(package / "__init__.py"))


@pytest.mark.parametrize("tests", TESTS)
def test_a_folder_of_tests_is_named_for_a_room(tests: str) -> None:
    folders = {path.parent.relative_to(ROOT / tests) for path in (ROOT / tests).rglob("test_*.py")}
    rooms = [ROOT / room for room in TESTS[tests]]
    assert {str(folder) for folder in folders if not any((room / folder).is_dir() for room in rooms)} == set()


@pytest.mark.parametrize("tests", ["tests", "local/tests"])
def test_a_test_file_says_what_it_tests(tests: str) -> None:
    files = [path for path in (ROOT / tests).rglob("test_*.py") if "data" not in path.parts]
    silent = {str(path.relative_to(ROOT)) for path in files if not docstring(path).split("\n\n")[0].endswith(".")}
    assert files and silent == set()


@pytest.mark.parametrize(
    "room",
    sorted(path.parent for top in TOPS[:2] for path in (ROOT / top).glob("*/__init__.py")),
    ids=lambda path: path.name,
)
def test_which_test_file_tests_a_module_is_written_down(room: Path) -> None:
    rows = re.findall(
        r"^\| `([\w/]+)` \| (.+) \|$", docstring(ROOT / "tests/unit" / room.name / "__init__.py"), re.MULTILINE
    )
    modules = {str(path.relative_to(room).with_suffix("")) for path in room.rglob("[!_]*.py")}
    assert {module for module, _ in rows} == modules
    folders = [ROOT / "tests" / folder for folder in (f"unit/{room.name}", f"processes/{room.name}", "")]
    for name in re.findall(r"`([\w/]+)`", " ".join(files for _, files in rows)):
        assert any((folder / f"{name}.py").exists() for folder in folders), name
