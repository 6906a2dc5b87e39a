"""Makes the table in docs/operating.md from the options of `trainmaster-operator run`."""

from __future__ import annotations

from dataclasses import Field
from pathlib import Path
from typing import Any

from trainmaster_operator.api.options import Option, option_name, options_of, variables
from trainmaster_operator.controller.settings import OperatorSettings

_PAGE = Path(__file__).resolve().parent.parent / "docs/operating.md"
# The table is between these two lines of the page.
_BEGIN, _END = "<!-- made by `make generate`: options -->\n", "<!-- end of options -->\n"


def operating_page() -> str:
    """Returns the whole page, with a table of the current options."""
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    return before + _BEGIN + options_table() + _END + rest.partition(_END)[2]


def options_table() -> str:
    """Returns the table of all options that `--help` shows."""
    rows = [_row(field, option) for field, option in options_of(OperatorSettings) if not option.hidden]
    head = ["| option | variable | meaning | default |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _row(field: Field[Any], option: Option) -> str:
    name, default = option_name(field, option), field.default
    flags = [f"--{name}", *([f"-{option.short}"] if option.short else [])]
    if isinstance(default, bool):
        flags, default = [*flags, f"--no-{name}"], "on" if default else "off"
    help = option.help
    if option.default_text:
        help, default = f"{help.removesuffix('.')}; default: {option.default_text}.", None
    cells = (
        ", ".join(f"`{flag}`" for flag in flags),
        ", ".join(f"`{variable}`" for variable in variables(field, option)),
        help,
        "" if default in (None, ()) else f"`{default}`",
    )
    return f"| {' | '.join(cells)} |"
