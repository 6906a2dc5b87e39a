"""Identical failures in a row are one entry of `status.failures`, and a start that repeats its failure is hopeless.

Two failures are identical if their reason, exception and place are equal. An exception on another rank is the same
failure to its reader. Without an exception, the last line of the message is compared instead, and the worker too,
because a signal or a hang on another worker may have another cause.

If a program fails twice in the same way before its first step, with an exception that doesn't depend on the machine or
the network (DETERMINISTIC), the job fails at once. `status.unprovenSince` remembers that no attempt with the current
code has finished a step. A script that reports no progress may already have trained, so for such a script, only
failures within START_SECONDS count.
"""

from __future__ import annotations

import re

from trainmaster_operator.api.times import since
from trainmaster_operator.api.v1alpha1 import MAX_FAILURES, Failure
from trainmaster_operator.reconciling.observed.situation import Situation

# Exceptions that a program raises again if nothing else changes. A module's own exceptions count if their names end so,
# such as omegaconf's ConfigKeyError. OSError, RuntimeError and ConnectionError are missing, because the network, NCCL
# and the device raise them too.
DETERMINISTIC = (
    *("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"),
    *("NameError", "UnboundLocalError", "AttributeError", "TypeError", "NotImplementedError"),
    *("KeyError", "IndexError", "ValueError", "AssertionError", "ZeroDivisionError", "RecursionError"),
    *("UnicodeDecodeError", "UnicodeEncodeError", "JSONDecodeError", "ValidationError", "ConfigError"),
    *("FileNotFoundError", "FileExistsError", "NotADirectoryError", "IsADirectoryError", "PermissionError"),
)
_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)")
# argparse prints such a line as its last one, and exits with 2.
_USAGE = re.compile(r"\S{1,200}: error: ")
_USAGE_CODE = 2
# Words in a message that show a cause outside of the program, whatever the exception's class is.
_TRANSIENT = re.compile(
    r"NCCL|CUDA|rendezvous|timed? ?out|connect|unreachable|temporar|resolution|out of memory|too many requests"
    r"|\b(?:HTTP|status)\b.{0,20}\b(?:429|5\d\d)\b",
    re.IGNORECASE,
)
# The beginning of a failure's message, which names the worker (`policies.attribution`).
_WHO = re.compile(r"^worker \d+ \([^()]*\) (?:ended with exit code \d+: )?")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
# Seconds after its opening within which an attempt of a script without progress reports counts as starting.
START_SECONDS = 120.0


def is_same(one: Failure, other: Failure) -> bool:
    """Returns whether two failures are identical to their reader."""
    return _signature(one) == _signature(other)


def with_recorded(failures: list[Failure], newest: Failure) -> list[Failure]:
    """Returns the failures after a new one. If it is identical to the previous failure, both are one entry."""
    newest = newest.model_copy(update={"count": None, "first_attempt": None, "first_failed_at": None})
    before = failures[0] if failures else None
    if before is None or newest.provisional or before.provisional or not is_same(before, newest):
        return [newest, *failures][:MAX_FAILURES]
    counted = {
        "count": (before.count or 1) + 1,
        "first_attempt": before.first_attempt or before.attempt,
        "first_failed_at": before.first_failed_at or before.failed_at,
    }
    return [newest.model_copy(update=counted), *failures[1:]]


def without_newest(failures: list[Failure]) -> list[Failure]:
    """Returns the failures as they were before the newest one.

    An entry with a count contains the exact times of its first and its newest failure. The failure before the newest
    one is assumed one attempt earlier.
    """
    newest, count = failures[0], failures[0].count or 1
    if count == 1:
        return failures[1:]
    first = newest.first_attempt or newest.attempt - 1
    is_first = count == 2
    before = {
        "attempt": first if is_first else max(newest.attempt - 1, first),
        "failed_at": newest.first_failed_at or newest.failed_at if is_first else newest.failed_at,
        "count": None if is_first else count - 1,
        "recovery": None,
        **({"first_attempt": None, "first_failed_at": None} if is_first else {}),
    }
    return [newest.model_copy(update=before), *failures[1:]]


def repeats_start(situation: Situation, cause: Failure) -> Failure | None:
    """Returns the previous failure if this cause repeats it at the program's start, so that a restart is hopeless.

    The cause isn't recorded in the situation's status.
    """
    status, before = situation.status, situation.last_failure
    if before is None or status.unproven_since is None or before.attempt < status.unproven_since:
        return None
    if cause.reason != "Error" or not is_same(cause, before) or not is_deterministic(cause):
        return None
    return before if _is_start(situation, cause, before) else None


def is_deterministic(failure: Failure) -> bool:
    """Returns whether a program's exception depends only on its code, its arguments and its files."""
    text = _text(failure)
    if _TRANSIENT.search(text):
        return False
    if failure.exit_code == _USAGE_CODE and _USAGE.match(text):
        return True
    name = _CLASS.match(text)
    return name is not None and name[1].endswith(DETERMINISTIC)


def has_step(situation: Situation) -> bool:
    """Returns whether a rank has finished a step in the attempt of the observed progress."""
    ranks = (rank for by_rank in situation.observed.progress.values() for rank in by_rank.values())
    return any(rank.first_step_at is not None or (rank.step or 0) > (rank.start_step or 0) for rank in ranks)


def _is_start(situation: Situation, cause: Failure, before: Failure) -> bool:
    observed, published = situation.observed, situation.status.progress
    is_observed = observed.progress_attempt == cause.attempt
    if is_observed and has_step(situation):
        return False
    sections = [rank.section for ranks in observed.progress.values() for rank in ranks.values()] if is_observed else []
    if published is not None and published.attempt == cause.attempt:
        sections.append(published.section)
    if any(sections):
        return True
    is_current = cause.attempt == situation.status.attempt
    began = situation.status.attempt_start_time if is_current else before.failed_at
    return since(situation.now, began) <= START_SECONDS


def _signature(failure: Failure) -> tuple[object, ...]:
    text = _ADDRESS.sub("0x", _text(failure))
    known = failure.exception is not None or _CLASS.match(text) is not None
    return failure.reason, text, failure.location, None if known and failure.reason == "Error" else failure.worker


def _text(failure: Failure) -> str:
    """Returns the exception, or else the last line of the message without the worker that it names."""
    return failure.exception or _WHO.sub("", failure.message).rpartition(" | ")[2]
