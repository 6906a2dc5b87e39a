"""Refuses code that lacks the job's script, because every attempt would fail.

A job is refused only if the failure is certain. For this, its command must be plain Python or torchrun with a relative
path to the script: Python looks for this path in the code's folder, which contains only the archive's files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.client.code.archive import IGNORE_FILES, Archive
from trainmaster.client.errors import InvalidRequest
from trainmaster.converting.commands import FLAGS, VALUES, option_of
from trainmaster_operator.wire.names import is_python

# Options of https://docs.python.org/3/using/cmdline.html. With -c and -m, there is no script.
_PYTHON_FLAGS, _PYTHON_FLAGS_WITH_VALUE = "bBdEiIOPqRsSuvx", "WX"
# With these options, torchrun runs no script, or looks for the script in another way than Python.
_NO_SCRIPT = {"module", "no_python", "use_env"}
# A user's container that names the agent's state folder (STATE_DIRECTORY) may write into the code's folder below it.
_STATE = re.compile("trainmaster.state")


def require_script(name: str, spec: Mapping[str, Any], archive: Archive) -> None:
    """Raises InvalidRequest if the job would certainly lack its script."""
    script = missing_script(spec, archive)
    if script is None:
        return
    folder = archive.folder
    code = f"the code of {folder}" if folder else "the code"
    is_named = any(each.path == script and each.reason not in IGNORE_FILES for each in archive.left_out)
    if folder and (Path(folder) / script).is_file() and not is_named:
        raise InvalidRequest(
            f"job {name} runs {script}, and {code} doesn't have it: .gitignore or .trainmasterignore leaves it out; "
            f"bring it back by a line !{script} in {posixpath.join(folder, '.trainmasterignore')}"
        )
    below = sorted((each for each in archive.sizes if each.endswith(f"/{script}")), key=len)
    such_as = f", such as {posixpath.join(folder, below[0][: -len(script) - 1])}" if below else ""
    raise InvalidRequest(
        f"job {name} runs {script}, and {code} doesn't have it; give the folder that has {script}{such_as}"
    )


def missing_script(spec: Mapping[str, Any], archive: Archive) -> str | None:
    """Returns the job's script if the archive certainly lacks it, or None."""
    if spec.get("setup") or _STATE.search(str(spec.get("podTemplate"))):
        # The setup or a container may create the script or change the working folder.
        return None
    script = _script([*_words(spec.get("command")), *_words(spec.get("args"))])
    if script is None or "$" in script or script.startswith("/") or ".." in script.split("/"):
        return None
    path = posixpath.normpath(script)
    folders = [path[:at] for at, letter in enumerate(path) if letter == "/"]
    # A link may lead to the script, and Python also runs a folder that contains __main__.py.
    known = any(each in archive.sizes for each in (path, *folders)) or any(
        each.startswith(f"{path}/") for each in archive.sizes
    )
    return None if known or path == "." else path


def _words(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else []


def _script(words: Sequence[str]) -> str | None:
    """Returns the script of a Python or torchrun command, or None if the script is unknown or missing."""
    program = posixpath.basename(words[0]) if words else ""
    if program != "torchrun" and not is_python(program):
        return None
    takes_next = _takes_next_in_torchrun if program == "torchrun" else _takes_next_in_python
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            return word or None
        takes = takes_next(word)
        if takes is None:
            return None
        if takes:
            del rest[:1]
    return None


def _takes_next_in_python(word: str) -> bool | None:
    """Returns whether the next word is the value of an option, or None if the command's script is unknown."""
    for at, letter in enumerate(word[1:], 2):
        if letter in _PYTHON_FLAGS_WITH_VALUE:
            return at == len(word)
        if letter not in _PYTHON_FLAGS:
            return None
    return False if word[1:] else None


def _takes_next_in_torchrun(word: str) -> bool | None:
    name, has_value, _ = word.partition("=")
    option = option_of(name)
    if option in VALUES | {"shutdown_timeout"}:
        return not has_value
    return None if option not in FLAGS - _NO_SCRIPT or has_value else False
