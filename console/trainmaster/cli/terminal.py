"""Every command prints through `say`, `write`, `log_line` or the console of `console.py`.

Names, messages, figures and logs that others wrote can't command the terminal: see `api/printable.py`. Results for a
program (`-o json`, `render`) are made safe by their encoders.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

import typer

from trainmaster_operator.api.printable import printable

# Select Graphic Rendition: colours, and nothing that moves, asks or writes.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,64}m)")
_PLAIN_AGAIN = "\x1b[0m"
_called = "kubectl dtj"


def called() -> str:
    """Returns how the user calls this program, for commands in sentences."""
    return _called


def set_called(name: str) -> None:
    """Sets how the user calls this program."""
    global _called
    _called = name


def shows_colours() -> bool:
    """Returns whether results go to a terminal whose user wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal_width() -> int | None:
    """Returns how many columns the terminal has that results go to; None for a pipe or a file: lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, width: int | None, *, first: str = "", further: str = "") -> list[str]:
    """Returns a sentence in lines that break between words only, each behind its indentation."""
    if width is None:
        return [first + text]
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(text: str, *, error: bool = False) -> None:
    """Prints a message for a person. Its further lines are indented, so that none passes for a message of its own."""
    typer.echo(printable(text.rstrip("\n")).replace("\n", "\n  "), err=error)


def write(text: str) -> None:
    """Prints an encoder's text as it is."""
    typer.echo(text, nl=False)


def log_line(line: str, label: str = "") -> None:
    """Prints a line of a worker's log behind its label.

    A file or a pipe gets it unchanged. A terminal gets only colours of its control characters, and each part that would
    be written over (a progress bar's carriage returns) in a line of its own.
    """
    if not sys.stdout.isatty():
        # color: click would take escape sequences out. A kept log may hold surrogates, which no stream can encode.
        typer.echo(label + line.encode("utf-8", "replace").decode(), color=True)
        return
    for part in line.rstrip("\r").split("\r"):
        typer.echo(label + _with_colours(part), color=True)


def _with_colours(text: str) -> str:
    pieces = _COLOUR.split(text)
    if len(pieces) == 1:
        return printable(text)
    # Every second piece is a colour; the last one must not reach beyond its line.
    return "".join(piece if at % 2 else printable(piece) for at, piece in enumerate(pieces)) + _PLAIN_AGAIN
