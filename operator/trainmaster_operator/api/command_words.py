"""Checks the words of command and args for damage by word processors and chats, and lists torchrun's options.

A program accepts any text as an argument, so only obvious mistakes are refused: a complete command line in place of the
program's name, and options that begin with another dash instead of a hyphen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster_operator.api.problems import Problem, typographic_quotes
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.api.values import show

# If such a name is followed by a space, the text is a command line. Paths of other programs may contain a space.
_PROGRAM = re.compile(r"(?:\S*/)?(?:python[0-9.]*|bash|sh|torchrun|accelerate|deepspeed|uv|env|conda|nohup|srun)")
# Hyphens, dashes and the minus sign, except ASCII's hyphen.
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_DASHED = re.compile(rf"[-{_DASHES}]*[{_DASHES}][-{_DASHES}]*[A-Za-z]")
_QUOTED_OPTION = re.compile(rf"[\u201c-\u201f\u2018-\u201a\xab\xbb][-{_DASHES}]+[A-Za-z]\S*")
_OPTION = re.compile(r"[^=]*")
_SPACES = {"\u00a0": "a no-break space", "\u3000": "a wide space", "\u200b": "a zero-width space", "\ufeff": "a mark"}


def check_words(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems with the words of command and args."""
    command = spec.command or []
    for position, word in enumerate(command):
        # A text of several words may contain such quotes on purpose.
        message = _misread(word) if re.search(r"\s", word) else typographic_quotes(word) or _misread(word)
        if message is None and position == 0:
            message = _no_program(word)
        if message is not None:
            yield Problem(f"spec.command[{position}]", word, message)
    for position, word in enumerate(spec.args):
        message = _misread(word)
        if message is not None:
            yield Problem(f"spec.args[{position}]", word, message)


def _no_program(word: str) -> str | None:
    if not word.strip():
        return f"{show(word)} is not a program; use one, such as python"
    first, *rest = word.split()
    if rest and _PROGRAM.fullmatch(first):
        return f"{show(word)} is a whole command line in one word; write each word as an item, such as {_items(word)}"
    return None


def _items(line: str) -> str:
    words = line.split()
    more = ", ..." if len(words) > 3 else ""
    return f"[{', '.join(words[:3])}{more}]"[:100]


def _misread(word: str) -> str | None:
    """Returns the problem with an option that begins with a wrong dash or contains a wrong space, or None."""
    if _QUOTED_OPTION.fullmatch(word):
        return typographic_quotes(word)
    if _DASHED.match(word):
        return f"{show(word)} begins with a dash that is not a hyphen; write - or -- instead"
    name = _OPTION.match(word)
    found = next((space for space in _SPACES if name is not None and space in name[0]), None)
    if found is not None and word.startswith("-"):
        return f"{show(word)} has {_SPACES[found]} (U+{ord(found):04X}) in an option's name; remove it"
    return None


# torchrun's options (torch 2.13, torch/distributed/run.py): those without a value, then those with a value.
FLAGS = frozenset({"standalone", "use_env", "module", "no_python", "run_path", "virtual_local_rank"})
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
_VALUES = """
nnodes nproc_per_node node_rank rdzv_backend rdzv_endpoint rdzv_id rdzv_conf master_addr master_port local_addr
max_restarts monitor_interval start_method event_log_handler role log_dir redirects tee local_ranks_filter logs_specs
duplicate_stdout_filters duplicate_stderr_filters numa_binding signals_to_handle
"""
VALUES = frozenset(_VALUES.split())


def option_of(word: str) -> str:
    """Returns an option's name without dashes and value, such as nproc_per_node for --nproc-per-node=2."""
    return _SHORT.get(word, word.removeprefix("--").replace("-", "_"))
