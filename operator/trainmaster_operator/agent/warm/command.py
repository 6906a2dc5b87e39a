"""This module decides from a command whether its ranks can start without a launcher, and be forked.

Ranks can only be forked if the interpreter imports `sitecustomize` from PYTHONPATH, and if the agent knows which folder
the interpreter later puts first on `sys.path` (https://docs.python.org/3/using/cmdline.html).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, Union

from trainmaster_operator.agent.process.launcher import starts_torchrun
from trainmaster_operator.wire.names import is_python

# These modules start ranks themselves.
_LAUNCHERS = ("accelerate.commands.launch", "deepspeed.launcher.runner", "deepspeed.launcher.launch")
_PLAIN_FLAGS = "bBdOPqRsu"
_FLAGS_WITH_VALUE = "WX"
_REFUSED_FLAGS = {
    "E": "ignores PYTHONPATH",
    "I": "ignores PYTHONPATH",
    "S": "leaves out the site module",
    "c": "is not a script",
    "i": "waits for a person",
    "v": "prints every import",
}


class WarmCommand(NamedTuple):
    """WarmCommand is a command whose ranks start without a launcher, either forked from a warm process or cold."""

    interpreter: tuple[str, ...]
    """Python and its flags."""
    script: str
    """The script's path; empty if the command names a module instead."""


def warm_command(command: Sequence[str]) -> Union[WarmCommand, str]:
    """Returns how a command's ranks start without a launcher, or the reason why they can't.

    The decision depends only on the command's words, which are the same on every worker. So all workers of a job decide
    alike.
    """
    if not is_python(command[0]):
        return f"{os.path.basename(command[0])!r} is not Python"
    if starts_torchrun(command):
        return "the command starts torchrun itself"
    flags, words = _split(command[1:])
    for flag in flags:
        letter = flag[1:2]
        why = _REFUSED_FLAGS.get(letter, "" if letter in _PLAIN_FLAGS + _FLAGS_WITH_VALUE else "is not known")
        if why:
            return f"Python's flag -{letter} {why}"
        if flag.startswith("-Ximporttime"):
            return "Python's flag -X importtime measures imports"
    interpreter = (command[0], *flags)
    if not words or words[0] == "-":
        return "the command has no script"
    if words[0] == "-m":
        if len(words) < 2:
            return "the command has no module"
        if words[1] in _LAUNCHERS:
            return f"{words[1]} starts the ranks itself"
        return WarmCommand(interpreter, "")
    return WarmCommand(interpreter, words[0])


def script_path(command: WarmCommand, folder: str) -> tuple[str, str]:
    """Returns the folder that Python puts first on sys.path for a command, and why its ranks can't be forked.

    `folder` is the working directory. The first text is empty if Python puts no folder first; the second is empty if
    the command's ranks can be forked.
    """
    safe = "-P" in command.interpreter
    if not command.script:
        return "" if safe else folder, ""
    script = os.path.join(folder, command.script)
    if os.path.isdir(script):
        return script, ""
    path = "" if safe else os.path.dirname(os.path.realpath(script))
    if not script.endswith((".py", ".pyw")) and not os.path.isfile(script):
        return path, f"{command.script!r} is not a file"
    return path, f"{command.script!r} is an archive" if _is_archive(script) else ""


def _split(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns Python's flags (one letter each, with its value), and the words from the script or `-m` on."""
    flags: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            flags.append(word)
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter == "m":
                return tuple(flags), ("-m", *([letters] if letters else []), *rest)
            if letter in _FLAGS_WITH_VALUE:
                flags.append(f"-{letter}{letters or (rest.pop(0) if rest else '')}")
                break
            flags.append(f"-{letter}")
    return tuple(flags), tuple(rest)


def _is_archive(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            # Python finds an archive by the directory at the file's end. This simpler check suffices, because a file
            # that begins like this is meant to be an archive.
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False
