"""Command lines that start torchrun become the program that it starts, and what its options ask for.

Trainmaster starts torchrun itself and gives it a rendezvous of its own in each attempt.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainmaster_operator.api.torchrun_words import FLAGS, VALUES, option_of
from trainmaster_operator.wire.names import TORCHRUN_MODULES, is_python

_SHELL = re.compile(r"(ba|da|z|k)?sh")
_SHELL_OPTION = re.compile(r"-[a-z]*c")
# A text without these is one command, whose words are those that shlex finds.
_NOT_ONE_COMMAND = re.compile(r"[;&|<>`(){}*?!~\[\]\n#]|\$\(")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")

# With one of these the command stays torchrun's: they change how a rank is started.
_OF_RANKS = {"run_path", "virtual_local_rank", "numa_binding", "signals_to_handle"}
# Options of a script's torchrun that would hold it to one rendezvous.
RENDEZVOUS = re.compile(r"--(nnodes|node[-_]rank|rdzv[-_]\w+|master[-_]\w+|standalone)\b")


@dataclass(frozen=True)
class Command:
    """Command is a container's command and args without a launcher of their own; the rest is what its options say."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    # The command line starts torchrun, once in each worker.
    by_torchrun: bool = False
    # The command is a shell's text that starts torchrun somewhere.
    in_a_script: bool = False
    processes: str | None = None
    # --nnodes=2:4.
    least: int | None = None
    most: int | None = None
    max_restarts: int | None = None
    # Options that were left out, because Trainmaster does what they ask for.
    left_out: tuple[str, ...] = field(default=())
    # A shell that reads a profile first, as bash -lc does; empty where there was none.
    login_shell: str = ""

    @property
    def is_python(self) -> bool:
        """Returns whether it is [python, script.py] or [python, -m, module], which can start warm."""
        words = (*self.command, *self.args)
        return (
            len(words) > 1
            and is_python(words[0])
            and (words[1].endswith(".py") or (words[1] == "-m" and len(words) > 2))
        )


def read_command(command: Sequence[str], args: Sequence[str]) -> Command:
    """Returns what a container's command and args start."""
    words = [*command, *args]
    begin = _after_torchrun(words)
    if begin is not None:
        return _of_torchrun(words, begin, len(command))
    text = _shell_text(words)
    if text is None or ("torchrun" not in text and not any(module in text for module in TORCHRUN_MODULES)):
        return Command(tuple(command), tuple(args))
    inner = _words(text)
    begin = _after_torchrun(inner) if inner else None
    if begin is None:
        return Command(tuple(command), tuple(args), in_a_script=True)
    login = " ".join(words[:2]) if "l" in words[1] else ""
    return replace(_of_torchrun(inner, begin, len(inner)), login_shell=login)


def _after_torchrun(words: Sequence[str]) -> int | None:
    """Returns where torchrun's options begin; None where the words don't start it."""
    if words and posixpath.basename(words[0]) == "torchrun":
        return 1
    if words and is_python(words[0]):
        at = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-u")), len(words))
        if list(words[at : at + 1]) == ["-m"] and len(words) > at + 1 and words[at + 1] in TORCHRUN_MODULES:
            return at + 2
    return None


def _of_torchrun(words: Sequence[str], begin: int, of_command: int) -> Command:
    """Returns the program behind torchrun's options; `of_command` words belong to the command, the others to args."""
    options: dict[str, str] = {}
    spelled: dict[str, list[str]] = {}
    at = begin
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        name, given, value = words[at].partition("=")
        option = option_of(name)
        used = [words[at]]
        if option in VALUES and not given:
            at += 1
            value = words[at] if at < len(words) else ""
            used.append(value)
        elif option not in VALUES | FLAGS:
            # An option of a newer torch: whether it takes a value isn't known.
            return Command(tuple(words[:of_command]), tuple(words[of_command:]), by_torchrun=True)
        options[option], spelled[option] = value, used
        at += 1
    stays = [option for option in options if option in _OF_RANKS]
    if stays:
        kept = [word for option in options if option in _OF_RANKS | {"module", "no_python"} for word in spelled[option]]
        program = ["torchrun", *kept]
    elif "no_python" in options:
        program = []
    else:
        python = words[0] if is_python(words[0]) else "python"
        program = [python, "-m"] if "module" in options else [python]
    # The script belongs to the command, even where all that follows torchrun stands in args.
    last = max(at + 1, of_command)
    least, most = _range(options.get("nnodes", ""))
    restarts = options.get("max_restarts", "")
    return Command(
        (*program, *words[at:last]),
        tuple(words[last:]),
        by_torchrun=True,
        processes=options.get("nproc_per_node"),
        least=least,
        most=most,
        max_restarts=int(restarts) if restarts.isdecimal() else None,
        left_out=tuple(
            spelled[option][0].partition("=")[0]
            for option in options
            if option not in _OF_RANKS | {"module", "no_python", "nproc_per_node", "max_restarts"}
            and not (option == "nnodes" and most is not None)
        ),
    )


def _range(nodes: str) -> tuple[int | None, int | None]:
    """Returns the bounds of --nnodes=2:4; none for one number."""
    found = re.fullmatch(r"(\d{1,6}):(\d{1,6})", nodes)
    return (None, None) if found is None else (int(found[1]), int(found[2]))


def _shell_text(words: Sequence[str]) -> str | None:
    """Returns the text that a shell is given with -c."""
    if len(words) == 3 and _SHELL.fullmatch(posixpath.basename(words[0])) and _SHELL_OPTION.fullmatch(words[1]):
        return words[2]
    return None


def _words(text: str) -> list[str]:
    """Returns the words of a shell's text that is one command, with variables as a container's: $(NAME)."""
    line = text.strip().replace("\\\n", " ")
    if _NOT_ONE_COMMAND.search(line.replace("${", "$").replace("}", "")):
        return []
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    if words and words[0] == "exec":
        words = words[1:]
    if not words or _ASSIGNMENT.match(words[0]) or "'" in line:
        return []
    return [_VARIABLE.sub(lambda found: f"$({found[1] or found[2]})", word) for word in words]
