"""`trainmaster` and `kubectl dtj` take options before and after a command, and share help, names and usage errors."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.unit.cli.dtj_command import JOBS, run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.cli import dtj, main
from trainmaster.cli.commands import SECTIONS, module_of

TEAM = JOBS.replace("default", "team")
NAMES = [name for names in SECTIONS.values() for name in names]


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "team", "status", "reviews", "-o", "name"),
        ("--namespace=team", "status", "reviews", "-o", "name"),
        ("status", "reviews", "-n", "team", "-o", "name"),
        ("-n", "other", "status", "-n", "team", "reviews", "-o", "name"),
    ],
    ids=" ".join,
)
def test_an_option_of_the_connection_stands_before_or_behind_the_command(
    transport: FakeTransport, words: tuple[str, ...]
) -> None:
    transport.answers = {f"GET {TEAM}/reviews": job()}
    assert run(*words).output == "distributedtrainingjob.trainmaster.dev/reviews\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-n", "a", "validate", "x"), "'validate' doesn't take --namespace of the connection; leave it out"),
        (("--context", "c", "local", "up"), "'up' doesn't take --context of the connection; leave it out"),
        (("statu",), "No such command 'statu'. Did you mean 'status', 'restart'?"),
        (("status", "--foo"), "No such option: --foo"),
        (("wait",), "Missing argument 'NAME'."),
    ],
    ids=str,
)
def test_no_option_is_ignored_and_wrong_usage_is_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    error, see = result.stderr.splitlines()
    assert error == f"error: {sentence}"
    assert see.startswith("See 'kubectl dtj ") and see.endswith("--help' for usage.")


@pytest.mark.parametrize(("app", "name"), [(main.app, "trainmaster"), (dtj.app, "kubectl dtj")])
def test_the_help_lists_all_commands_by_section_and_names_the_program(app: main.Program, name: str) -> None:
    shown = CliRunner().invoke(app, []).output
    assert shown.startswith(f"Usage: {name} [OPTIONS] COMMAND")
    lines = shown.splitlines()
    for section, commands in SECTIONS.items():
        begin = lines.index(f"{section}:") + 1
        assert [line.split()[0] for line in lines[begin:] if line[2:3].strip()][: len(commands)] == list(commands)
    assert "..." not in shown[shown.index(next(iter(SECTIONS))) :], "a sentence is cut"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_under_both_names(name: str) -> None:
    for app, program in ((main.app, "trainmaster"), (dtj.app, "kubectl dtj")):
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: {program} {name} ")


def test_every_module_of_commands_is_registered() -> None:
    import pkgutil

    from trainmaster.cli import commands

    found = {f"{commands.__name__}.{module.name}" for module in pkgutil.iter_modules(commands.__path__)}
    # The command is below `history`.
    found.discard(module_of("history-server"))
    assert found == {module_of(name) for name in NAMES}


@pytest.mark.parametrize(
    ("command", "words"),
    [("submit", "[FILE | -- COMMAND...]"), ("push", "NAME DIR"), ("why", "[NAME]"), ("wait", "NAME...")],
)
def test_a_usage_line_has_brackets_once(command: str, words: str) -> None:
    assert run(command, "--help").output.startswith(f"Usage: kubectl dtj {command} [OPTIONS] {words}\n")
