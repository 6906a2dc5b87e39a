"""`trainmaster` starts as a separate program, and loads nothing heavy before it has to."""

from __future__ import annotations

import subprocess
import sys


def test_version() -> None:
    result = subprocess.run([sys.executable, "-m", "trainmaster.cli.main", "--version"], capture_output=True, text=True)
    assert result.stdout == "trainmaster 0.1.0\n"


def test_help_needs_nothing_heavy() -> None:
    """Completion and --help answer at once, because they load neither the models nor a client."""
    program = (
        "import sys; from trainmaster.cli import main; "
        "heavy = {'pydantic', 'kopf', 'kubernetes', 'jinja2', 'yaml', 'aiohttp'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_everything_but_the_operator_runs_without_the_operators_packages() -> None:
    """The base install contains neither kopf, nor kubernetes, nor cryptography, nor a local cluster."""
    program = """
import importlib, pkgutil, sys
missing = ("kopf", "kubernetes", "cryptography", "trainmaster_local", "torch", "mcp", "pyarrow")
sys.modules.update(dict.fromkeys(missing))
import trainmaster
names = {module.name for module in pkgutil.walk_packages(trainmaster.__path__, "trainmaster.")}
for name in sorted(names - {"trainmaster.cli.assistant"}):
    importlib.import_module(name)
print(len(names))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout) > 100


def test_the_operator_says_what_to_install_where_it_is_missing() -> None:
    program = "import sys; sys.modules['kopf'] = None; from trainmaster.cli.main import app; app()"
    command = [sys.executable, "-c", program, "operator", "run", "-A"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        1,
        "error: the operator isn't installed: pip install 'trainmaster[operator]'\n",
    )


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
