"""tests/fast_set.py fails a test below `unit` that starts a process or opens a socket, however it does that."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        pytest.param("tests/unit/api/test_it.py", case("assert True"), None, id="nothing"),
        pytest.param("tests/unit/api/test_it.py", case(ASYNCIO), None, id="an asyncio loop"),
        pytest.param(
            "tests/unit/test_it.py", case("import subprocess; subprocess.run(['true'])"), "Popen", id="process"
        ),
        pytest.param(
            "tests/unit/test_it.py", case("import os; os.fork() or os._exit(0); os.wait()"), "fork", id="fork"
        ),
        pytest.param("local/tests/unit/test_it.py", case(BIND), "socket.bind", id="bind"),
        pytest.param("tests/unit/test_it.py", FIXTURE, "socket.bind", id="a fixture that listens"),
        pytest.param("tests/processes/test_it.py", case(BIND), None, id="in its place"),
    ],
)
def test_the_fast_set_is_held_to_its_rule(tmp_path: Path, path: str, source: str, complaint: str | None) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['fast_set']\n")
    shutil.copy(TESTS / "fast_set.py", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if complaint else 0), done.stdout + done.stderr
    if complaint:
        assert complaint in done.stdout and "Move it to tests/processes." in done.stdout
