"""`trainmaster` as a program of its own: it starts, and loads nothing heavy before it has to."""

from __future__ import annotations

import subprocess
import sys


def test_version() -> None:
    result = subprocess.run([sys.executable, "-m", "trainmaster.cli.main", "--version"], capture_output=True, text=True)
    assert result.stdout == "trainmaster 0.1.0\n"


def test_help_needs_nothing_heavy() -> None:
    """Completion and --help answer at once: neither the models nor a client are loaded for them."""
    program = (
        "import sys; from trainmaster.cli import main; "
        "heavy = {'pydantic', 'kopf', 'kubernetes', 'jinja2', 'yaml', 'aiohttp'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_wrong_usage_is_a_line_without_a_box_where_there_is_no_terminal() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.dtj", "status", ""], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "error: Invalid value for 'NAME': '' is no name of a job: it has small letters, digits and '-', such as "
        "bert-mrpc",
        "See 'kubectl dtj status --help' for usage.",
    ]
