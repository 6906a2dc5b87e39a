"""Converts a container's command line into the job's command, args, launcher and processesPerWorker.

If the command line starts torchrun, the program that torchrun runs becomes the job's program, and torchrun's options
become the job's fields. Trainmaster starts torchrun itself, with a new rendezvous in each attempt.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmaster.converting.fields import POD, Draft, Field, Path, Target
from trainmaster_operator.api.parsing import is_shell
from trainmaster_operator.api.pod_template import REFERENCE, attempt_variable
from trainmaster_operator.wire.names import POD_INDEX_LABEL, TORCHRUN_MODULES, is_python

# A shell text without these characters is a single command, which shlex can split.
_NOT_ONE_COMMAND = re.compile(r"[;&|<>`(){}*?!~\[\]\n#]|\$\(")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")

# A range such as --nnodes=2:4.
_RANGE = re.compile(r"(\d{1,6}):(\d{1,6})")
# torchrun's options (torch 2.13, torch/distributed/run.py): those without a value, then those with a value.
FLAGS = frozenset({"standalone", "use_env", "module", "no_python", "run_path", "virtual_local_rank"})
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
_VALUES = """
nnodes nproc_per_node node_rank rdzv_backend rdzv_endpoint rdzv_id rdzv_conf master_addr master_port local_addr
max_restarts monitor_interval start_method event_log_handler role log_dir redirects tee local_ranks_filter logs_specs
duplicate_stdout_filters duplicate_stderr_filters numa_binding signals_to_handle
"""
VALUES = frozenset(_VALUES.split())
# These options change how a rank starts. If one is set, torchrun stays in the command.
_OF_RANKS = {"run_path", "virtual_local_rank", "numa_binding", "signals_to_handle"}
# If a shell text contains one of these options, the text fixes torchrun's rendezvous.
RENDEZVOUS = re.compile(r"--(nnodes|node[-_]rank|rdzv[-_]\w+|master[-_]\w+|standalone)\b")


@dataclass(frozen=True)
class Command:
    """Command contains a container's command and args without torchrun, and the meaning of torchrun's options."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    # Whether the command line starts torchrun once in each worker.
    by_torchrun: bool = False
    # Whether the command is a shell text that starts torchrun.
    in_a_script: bool = False
    processes: str | None = None
    # The minimum and maximum in --nnodes=2:4.
    nodes: tuple[int, int] | None = None
    max_restarts: int | None = None
    # Options that Trainmaster replaces.
    left_out: tuple[str, ...] = ()
    # The shell, if it reads a profile first (bash -lc).
    login_shell: str = ""

    @property
    def is_python(self) -> bool:
        """Returns whether the command is [python, script.py] or [python, -m, module], which can start warm."""
        words = (*self.command, *self.args)
        return (
            len(words) > 1
            and is_python(words[0])
            and (words[1].endswith(".py") or (words[1] == "-m" and len(words) > 2))
        )


def text_of(read: Command) -> str:
    """Returns the words of command and args, joined by spaces."""
    return " ".join((*read.command, *read.args))


def read_command(command: Sequence[str], args: Sequence[str]) -> Command:
    """Returns the meaning of a container's command and args."""
    words = [*command, *args]
    begin = _after_torchrun(words)
    if begin is not None:
        return _of_torchrun(words, begin, len(command))
    # The text of a shell's -c option.
    text = words[2] if len(words) == 3 and is_shell(words[:2]) else ""
    if "torchrun" not in text and not any(module in text for module in TORCHRUN_MODULES):
        return Command(tuple(command), tuple(args))
    inner = _words(text)
    begin = _after_torchrun(inner) if inner else None
    if begin is None:
        return Command(tuple(command), tuple(args), in_a_script=True)
    login = " ".join(words[:2]) if "l" in words[1] else ""
    return replace(_of_torchrun(inner, begin, len(inner)), login_shell=login)


def _after_torchrun(words: Sequence[str]) -> int | None:
    """Returns the index of torchrun's first option, or None if the words don't start torchrun."""
    if words and posixpath.basename(words[0]) == "torchrun":
        return 1
    if words and is_python(words[0]):
        at = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-u")), len(words))
        if list(words[at : at + 1]) == ["-m"] and len(words) > at + 1 and words[at + 1] in TORCHRUN_MODULES:
            return at + 2
    return None


def option_of(word: str) -> str:
    """Returns an option's name without dashes and value, such as nproc_per_node for --nproc-per-node=2."""
    return _SHORT.get(word, word.removeprefix("--").replace("-", "_"))


def _of_torchrun(words: Sequence[str], begin: int, of_command: int) -> Command:
    """Returns the program after torchrun's options. The first `of_command` words are the command, the others args."""
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
            # Newer versions of torch may have this option. Whether it takes a value is unknown.
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
    # The script becomes part of the command, even if it is in args.
    last = max(at + 1, of_command)
    nodes = _RANGE.fullmatch(options.get("nnodes", ""))
    restarts = options.get("max_restarts", "")
    return Command(
        (*program, *words[at:last]),
        tuple(words[last:]),
        by_torchrun=True,
        processes=options.get("nproc_per_node"),
        nodes=None if nodes is None else (int(nodes[1]), int(nodes[2])),
        max_restarts=int(restarts) if restarts.isdecimal() else None,
        left_out=tuple(
            spelled[option][0].partition("=")[0]
            for option in options
            if option not in _OF_RANKS | {"module", "no_python", "nproc_per_node", "max_restarts"}
            and not (option == "nnodes" and nodes is not None)
        ),
    )


def _words(text: str) -> list[str]:
    """Splits a shell text with one command into words, and writes variables in the container's syntax: $(NAME)."""
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


def by_shell(words: Sequence[str]) -> list[str]:
    """Returns a command whose shell expands the variables that Kubernetes would replace before an attempt sets them.

    In a shell's own text, only the form of the variables changes. Other commands get a shell.
    """
    if len(words) >= 3 and is_shell(words[:2]):
        text = REFERENCE.sub(lambda found: f"${{{found[1]}}}" if attempt_variable(found[0]) else found[0], words[2])
        return [*words[:2], text, *words[3:]]
    return ["sh", "-c", " ".join(["exec", *map(_shell_word, words)])]


def _shell_word(word: str) -> str:
    """Returns a word of a container's command as a word of a shell's text in such a command."""
    parts, begin = [], 0
    for found in REFERENCE.finditer(word):
        parts += [_literal(word[begin : found.start()]), f'"${{{found[1]}}}"' if found[1] else _literal("$")]
        begin = found.end()
    return "".join([*parts, _literal(word[begin:])]) or "''"


def _literal(text: str) -> str:
    # Kubernetes replaces $$ by $.
    return shlex.quote(text).replace("$", "$$") if text else ""


_PROCESSES: Path = ("spec", "processesPerWorker")
_OWN_COUNT = re.compile(r"\$[({]?(NPROC_PER_NODE|PET_NPROC_PER_NODE)[)}]?")
# The Job controller sets this variable.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def convert_program(container: Field, draft: Draft, *, torch: bool) -> None:
    """Puts a container's command and args into the job, and chooses the launcher."""
    command, args = container.get("command"), container.get("args")
    words = _texts(command), _texts(args)
    if words[0] is None or words[1] is None:
        draft.keep(command, ("spec", "command"))
        draft.keep(args, ("spec", "args"))
        return
    read = read_command(words[0], words[1])
    remarks = _remarks(read)
    in_quotes = is_shell(read.command[:2]) and "'" in text_of(read)
    if read.command and not in_quotes and attempt_variable(text_of(read)):
        read = replace(read, command=tuple(by_shell((*read.command, *read.args))), args=())
        remarks.append("a shell gives the program each attempt's variables")
    remark = "; ".join(remarks)
    for name, field, made in (("command", command, read.command), ("args", args, read.args)):
        path = ("spec", name)
        if made:
            draft.set(path, list(made))
        if made or field.value:
            # torchrun's script moves from args to the command.
            field.became(Target(path if made else ("spec", "command")), remark=remark)
        field.dropped("it is empty")
    text = text_of(read)
    # A single rank needs no launcher, but with torchrun it can start warm after a fault.
    starts_warm = torch and read.is_python and draft.at(("spec", "resources", "gpus")) in (None, 0, 1)
    if not read.by_torchrun and not starts_warm and (read.command or read.args):
        draft.set(("spec", "launcher"), "exec")
    _keep_processes(read, command or args, draft)
    if read.in_a_script and RENDEZVOUS.search(text):
        command.overruled(
            "the script gives torchrun a rendezvous of its own, which a next attempt can't use; take --nnodes, "
            "--node_rank, --rdzv_* and --master_* out: PET_* variables have them"
        )
    if INDEX_VARIABLE in text:
        index = {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX_LABEL}']"}}
        place: Path = (*POD, "containers", 0, "env")
        draft.set((*place, 0), {"name": INDEX_VARIABLE, "valueFrom": index})


def keep_processes(field: Field, draft: Draft) -> None:
    """Puts a number of processes, or torchrun's keyword for such a number, into the job."""
    value, given = str(field.value), draft.at(_PROCESSES)
    if given is not None:
        field.dropped(f"spec.processesPerWorker is {given} already")
    elif value.isdecimal() and len(value) < 10:
        draft.keep(field, _PROCESSES, int(value))
    elif value in ("auto", "gpu"):
        draft.keep(field, _PROCESSES, "auto")
    else:
        field.refused("the number of a node's cores isn't known here; set spec.processesPerWorker to a number")


def _keep_processes(read: Command, field: Field, draft: Draft) -> None:
    asked = read.processes
    if asked is not None and asked.isdecimal() and len(asked) < 10:
        draft.set(_PROCESSES, int(asked))
    elif asked is not None and asked not in ("auto", "gpu") and not _OWN_COUNT.fullmatch(asked):
        field.overruled(f"--nproc_per_node={asked} isn't known here; set spec.processesPerWorker to a number")
    if read.max_restarts is not None:
        draft.set(("spec", "failurePolicy", "maxRestarts"), read.max_restarts)
    if read.nodes is not None:
        draft.set(("spec", "elastic"), {"minWorkers": read.nodes[0], "maxWorkers": read.nodes[1]})


def _remarks(read: Command) -> list[str]:
    remarks = []
    if read.by_torchrun:
        remarks.append("torchrun is the launcher")
    if read.login_shell:
        remarks.append(f"without {read.login_shell}: what its profile sets is lost, and belongs in the image")
    if read.left_out:
        remarks.append(f"without {', '.join(read.left_out)}: each attempt has a rendezvous of its own")
    return remarks


def _texts(field: Field) -> list[str] | None:
    """Returns a list of texts, or None for anything else."""
    value = field.plain() if field else []
    return value if isinstance(value, list) and all(isinstance(word, str) for word in value) else None
