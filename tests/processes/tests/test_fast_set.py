"""tests/fast_set.py fails a test below `unit` that starts a process or opens a socket, in whatever way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).resolve().parents[2]
ASYNCIO = "import asyncio; asyncio.run(asyncio.sleep(0))"
BIND = "import socket; socket.socket().bind(('127.0.0.1', 0))"
FIXTURE = """
import socket, pytest

@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]

def test_it(port):
    assert port
"""


def case(body: str) -> str:
    return f"def test_it():\n    {body}\n"


#: For each test's file, its source, and what it is accused of.
CASES: dict[str, tuple[str, str]] = {
    "tests/unit/api/test_nothing.py": (case("assert True"), ""),
    "tests/unit/api/test_an_asyncio_loop.py": (case(ASYNCIO), ""),
    "tests/unit/test_a_process.py": (case("import subprocess; subprocess.run(['true'])"), "Popen"),
    "tests/unit/test_a_fork.py": (case("import os; os.fork() or os._exit(0); os.wait()"), "fork"),
    "local/tests/unit/test_a_socket.py": (case(BIND), "socket.bind"),
    "tests/unit/test_a_fixture_that_listens.py": (FIXTURE, "socket.bind"),
    "tests/processes/test_in_its_place.py": (case(BIND), ""),
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns pytest's message about each test that failed, by its file."""
    folder = tmp_path_factory.mktemp("tree")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    (folder / "conftest.py").write_text("pytest_plugins = ['fast_set']\n")
    shutil.copy(TESTS / "fast_set.py", folder)
    for path, (source, _) in CASES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml=report.xml", "tests", "local"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ElementTree.parse(folder / "report.xml").iter("testcase")
    found = {f"{one.attrib['classname'].replace('.', '/')}.py": one.find("failure") for one in cases}
    assert set(found) == set(CASES)
    return {path: failure.attrib["message"] for path, failure in found.items() if failure is not None}


@pytest.mark.parametrize("path", CASES)
def test_the_fast_set_is_held_to_its_rule(complaints: dict[str, str], path: str) -> None:
    _, done = CASES[path]
    assert (path in complaints) == bool(done)
    if done:
        assert done in complaints[path] and "Move it to tests/processes." in complaints[path]
