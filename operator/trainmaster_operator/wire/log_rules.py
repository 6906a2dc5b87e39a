"""Log rules read a rank's progress from its output. This module defines their patterns' groups and the presets' names.

The operator and the agent both check a pattern before they use it. A pattern's groups must be fields of a rank's
progress, and matching must not take exponential time.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Optional

GROUPS = (
    *("step", "totalSteps", "epoch", "loss", "gradNorm", "learningRate", "samplesPerSecond"),
    *("stepSeconds", "stepsPerSecond", "computeSeconds", "etaSeconds"),
)
"""A pattern's groups: fields of a rank's progress, and `stepsPerSecond`, the inverse of `stepSeconds`."""
AUTO, NONE = "auto", "none"
FRAMEWORKS = ("huggingface", "lightning", "deepspeed", "torchtune", "tqdm")
PRESETS = (AUTO, *FRAMEWORKS, NONE)
"""A job may name one of these presets instead of a pattern. AUTO recognises lines that only training prints, NONE
recognises no lines, and the others recognise a framework's lines."""
MAX_PATTERN_CHARACTERS = 500
_EXAMPLE = r"(?P<step>\d+)"


def check_pattern(pattern: str) -> Optional[str]:
    """Returns a pattern's problem and its remedy, worded to follow the pattern in a message; None if there is none."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"is too long; use at most {MAX_PATTERN_CHARACTERS} characters"
    try:
        names = compile_pattern(pattern).groupindex
        tree = _parser().parse(pattern, re.ASCII)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        return f"is not a regular expression of Python: {error.msg}{where}; correct it"
    except (RecursionError, OverflowError, ValueError):
        return "is not a regular expression of Python; correct it"
    if not names:
        return f"has no named group, so it says nothing; name what it finds, such as {_EXAMPLE}"
    unknown = next((name for name in names if name not in GROUPS), None)
    if unknown is not None:
        return f"has a group {unknown!r}, which is no field of progress; use {', '.join(GROUPS[:-1])} or {GROUPS[-1]}"
    return _too_costly(tree, repeated=False)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose classes for digits and word characters match only ASCII."""
    return re.compile(pattern, re.ASCII)


def _too_costly(tree: Any, *, repeated: bool) -> Optional[str]:
    """Returns why a match could take exponential time, or None.

    If a repeated part of a pattern matches a text in several ways, the number of ways to match at least doubles with
    every repetition (Kirrage, Rathnayake and Thielecke, "Static Analysis for Regular Expression Denial-of-Service
    Attacks", 2013). The check also refuses some harmless patterns, such as `(a|b)*`, which can be written as `[ab]*`.
    """
    for operator, argument in tree:
        name = str(operator)
        if name in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP"):
            return "has a possessive quantifier or an atomic group, which Python 3.9 lacks; write it without"
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, body = argument
            if repeated and least != most:
                return "repeats what is itself repeated, which can take forever on a line; repeat only one of the two"
            problem = _too_costly(body, repeated=repeated or int(most) > 1)
            if problem is not None:
                return problem
        elif name == "BRANCH" and repeated:
            return "repeats alternatives, which can take forever on a line; use a set, such as [ab]*"
        else:
            for each in _trees(argument):
                problem = _too_costly(each, repeated=repeated)
                if problem is not None:
                    return problem
    return None


def _trees(argument: Any) -> list[Any]:
    """Returns the patterns in the argument of a group, an assertion or alternatives."""
    if hasattr(argument, "data") and hasattr(argument, "state"):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [tree for each in argument for tree in _trees(each)]
    return []


def _parser() -> Any:
    """Returns Python's own parser of patterns, whose module was renamed in Python 3.11."""
    return getattr(re, "_parser", None) or import_module("sre_parse")
