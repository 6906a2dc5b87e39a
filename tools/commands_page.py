"""Makes docs/commands.md from the commands: each one's `--help` text and options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from trainmaster.cli.commands import SECTIONS
from trainmaster.cli.connection import OPTIONS
from trainmaster.cli.main import app

_INTRODUCTION = """\
# Commands

Look up a command and its options here. (`make generate` makes this page from the commands in
`console/trainmaster/cli/commands/`.) `kubectl dtj` and `trainmaster` are the same commands by two names. Exit codes: 0
done, 1 failed or refused, 2 wrong usage, 3 timed out, 130 interrupted. An error is one sentence on stderr.

Commands that ask a cluster take kubectl's options of the connection, before or after the command (the later one wins):

"""
_OPERATOR_RUN = "Its options are in [operating.md](operating.md).\n\n"


def commands_page() -> str:
    """Returns the whole page."""
    root: Any = typer.main.get_command(app)
    connection = [parameter for parameter in root.params if parameter.name in OPTIONS]
    parts = [_INTRODUCTION, _options(root, connection)]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n\n")
        parts += [text for name in names for text in _command(root.get_command(None, name), name)]
    return "".join(parts).rstrip("\n") + "\n"


def _command(command: Any, name: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for child, inner in command.commands.items():
            yield from _command(inner, f"{name} {child}")
        return
    context = typer.Context(command, info_name=name)
    # Names of values in angle brackets would be read as HTML.
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"### {name}\n`kubectl dtj {name} {usage}`\n{inspect.cleandoc(command.help or '')}\n\n"
    if name == "operator run":
        yield _OPERATOR_RUN
        return
    connected = {parameter.name for parameter in command.params} >= OPTIONS.keys()
    yield _options(command, [each for each in command.params if not (connected and each.name in OPTIONS)])


def _options(command: Any, parameters: list[Any]) -> str:
    context = typer.Context(command)
    records = [record for parameter in parameters if (record := parameter.get_help_record(context)) is not None]
    if not records:
        return ""
    lines = [_line(names.replace("|", " or "), help.replace("|", " or ")) for names, help in records]
    return "\n".join([*lines, "", ""])


def _line(names: str, help: str) -> str:
    return textwrap.fill(f"- `{names}`: {help}", 120, subsequent_indent="  ", break_on_hyphens=False)
