"""Every command prints through `say`, `write`, `log_line` or the console of `console.py`.

`write` prints results for programs (`-o json`, `render`), which their encoders have made safe. The other functions and
the console keep untrusted texts from controlling the terminal (`api/printable.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

import typer

from trainmaster_operator.api.printable import printable

# Matches Select Graphic Rendition, which only sets colours: it can't move the cursor, query the terminal or write text.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,64}m)")
_PLAIN_AGAIN = "\x1b[0m"
_called = "kubectl dtj"


def called() -> str:
    """Returns the name by which the user called this program, for commands in messages."""
    return _called


def set_called(name: str) -> None:
    global _called
    _called = name


def shows_colours() -> bool:
    """Returns whether results go to a terminal whose user wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal_width() -> int | None:
    """Returns the terminal's width in columns, or None for a pipe or a file, where lines aren't wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, width: int | None, *, first: str = "", further: str = "") -> list[str]:
    """Wraps a sentence into lines that break only between words, each with its indentation."""
    if width is None:
        return [first + text]
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def say(text: str, *, error: bool = False) -> None:
    """Prints a message for a person. All lines but the first are indented, so that none looks like another message."""
    typer.echo(printable(text.rstrip("\n")).replace("\n", "\n  "), err=error)


def write(text: str) -> None:
    """Prints an encoder's text unchanged."""
    typer.echo(text, nl=False)


def log_line(line: str, label: str = "") -> None:
    """Prints a line of a worker's log behind its label.

    A file or a pipe gets the line unchanged. In a terminal, control characters other than colours are made visible,
    and each part that would be overwritten (a progress bar's carriage returns) gets its own line.
    """
    if not sys.stdout.isatty():
        # Without `color`, click would remove escape sequences. A kept log may contain surrogates, which no stream
        # can encode.
        typer.echo(label + line.encode("utf-8", "replace").decode(), color=True)
        return
    for part in line.rstrip("\r").split("\r"):
        typer.echo(label + _with_colours(part), color=True)


def _with_colours(text: str) -> str:
    pieces = _COLOUR.split(text)
    if len(pieces) == 1:
        return printable(text)
    # Every second piece is a colour. The last colour must end with the line.
    return "".join(piece if at % 2 else printable(piece) for at, piece in enumerate(pieces)) + _PLAIN_AGAIN
