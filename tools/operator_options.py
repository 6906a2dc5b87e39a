"""This module makes the table in docs/operating.md from the options of `trainmaster operator run`."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.core import TyperGroup, TyperOption

from trainmaster.cli.commands.operator import app

_PAGE = Path(__file__).resolve().parent.parent / "docs/operating.md"
# The table stands between these two lines of the page.
_BEGIN, _END = "<!-- made by `make generate`: options -->\n", "<!-- end of options -->\n"


def operating_page() -> str:
    """Returns the whole page, with the table as the options are now."""
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    return before + _BEGIN + options_table() + _END + rest.partition(_END)[2]


def options_table() -> str:
    """Returns the table of all options that `--help` shows."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    options = [option for option in command.commands["run"].params if isinstance(option, TyperOption)]
    rows = [_row(option) for option in options if not option.hidden and option.envvar]
    return "\n".join(["| option | variable | what | default |", "|---|---|---|---|", *rows, ""])


def _row(option: TyperOption) -> str:
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    default = option.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    cells = (
        ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts)),
        ", ".join(f"`{name}`" for name in variables),
        option.help or "",
        "" if default is None else f"`{default}`",
    )
    return f"| {' | '.join(cells)} |"
