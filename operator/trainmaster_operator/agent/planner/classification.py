"""This module finds the reason for a rank's end, and whether it was the cause or a consequence of another end.

This module classifies each worker's end. The operator chooses the culprit among all workers' reports: first an
out-of-memory kill or a signal, then an error that isn't a broken connection, then a broken connection.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import NamedTuple, Optional

from trainmaster_operator.wire.limits import MAX_ERROR_CHARACTERS
from trainmaster_operator.wire.report import EXIT_BY_REASON, EXIT_DIVERGED, Report
from trainmaster_operator.wire.values import last_lines

# gloo, NCCL, TCPStore and plain sockets print these texts on the side that only lost its peer. torch's exception for
# NCCL's errors (DistBackendError) is missing, because wrong usage and lack of memory raise it too. The patterns aren't
# compiled here, so that an agent's start doesn't wait for it: `re` compiles them at their first use.
_BROKEN_CONNECTION = (
    r"(?i)connection (?:reset|refused|closed|aborted|was closed|timed out)|broken ?pipe"
    r"|(?:Connection\w*|BrokenPipe)Error"
    r"|peer closed|remote process (?:has )?(?:exited|closed)|ncclRemoteError|communicator was aborted|by remote peer"
    r"|connect to \S+<\d+>|no route to host|completion from peer|timeout in communicator initialization"
    r"|DistNetworkError|socket (?:closed|timeout)|recvValue failed|sendBytes failed|failed to recv"
    r"|Watchdog caught collective operation timeout|heartbeat monitor|Application timeout caused pair closure"
    r"|store .*(?:timed out|timeout)|wait timeout after|connectFullMesh|EOFError|HCCL.*(?:timeout|remote)"
)
_MASTER_UNREACHABLE = (
    r"(?is)client socket has timed out.*while trying to connect to|gaierror|could not be resolved|"
    r"Name or service not known|failed to connect to .*:\d+ after"
)
# A script must report these by both the exception's name and the exit code, because either alone may mean something
# else (70 is EX_SOFTWARE of sysexits.h).
_NAMED_BY_EXCEPTION = {
    2: ("ConfigError", "Usage"),
    EXIT_BY_REASON["PreflightMismatch"]: ("PreflightMismatch", "PreflightMismatch"),
    EXIT_DIVERGED: ("Diverged", "Diverged"),
}
# torch's C++ code appends these frames to an error. c10::Error appends its own frames; pybind11 appends those of the
# Python function that C++ had called (such as a communication hook of DDP). They would crowd out the error itself.
_NATIVE_FRAMES = (
    r"(?m)^\n?(?:At:|Exception raised from .*\(most recent call first\):)\n"
    r"(?:(?:  \S.*\(\d+\): .*|frame #\d+: .*)(?:\n|\Z))+"
)
# torch appends this constant advice to a device's error (torch 2.11 to 2.15: c10/cuda/CUDAMiscFunctions.cpp,
# CUDADeviceAssertionHost.cpp; ROCm's builds say HIP).
_ADVICE = (
    r"(?m)^(?:Search for `\w+' in https?://\S+ for more information\."
    r"|(?:CUDA|HIP) kernel errors might be asynchronously reported at some other API call,.*"
    r"|For debugging consider passing \w+=\d.*|For more detailed error information, run with CUDA_LOG_FILE=stderr"
    r"|Compile with `TORCH_USE_\w+_DSA` to enable device-side assertions\."
    r"|Device-side assertion(?: tracking was not enabled|s (?:disabled because|were explicitly omitted)).*"
    r")[ \t]*(?:\n|\Z)"
)
ASSERTION = r"(?m)^.*(?:thread: \[\d+,\d+,\d+\] A|Device-side a)ssertion [`'].+[`'] failed.*$"
"""A kernel on a GPU prints this when its assertion fails. The later Python exception doesn't name the assertion."""
_UNCAUGHT = "what():"
_ASSERTED = "device-side assert triggered"
FATAL_ERROR = "Fatal Python error:"
"""The beginning of faulthandler's output at a fatal signal. The reason is printed before it, the stacks after it."""
# The agent never sends these fatal signals, and no peer's end causes them.
_OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGKILL})


class Ending(NamedTuple):
    """Ending is a process's end: an exit code, or a signal. For a signal, `exit_code` is 128 + the signal's number."""

    exit_code: int
    signal: Optional[int] = None

    @classmethod
    def of(cls, code: int) -> Ending:
        """Returns the ending for an exit code, or for a signal's negative number."""
        return cls(128 - code, -code) if code < 0 else cls(code)


def stopped(report: Report, ending: Ending | None = None) -> Report:
    """Returns the report of ranks that the agent stopped; `ending`: how they exited, if known."""
    code, number = (None, None) if ending is None else ending
    return report._replace(state="Stopped", exit_code=code, signal=number, reason="Stopped", culprit=False)


def failed(report: Report, reason: str, error: str, rank: int | None = None) -> Report:
    """Returns the report of a failure that the agent itself found, with the exit code for the reason."""
    return report._replace(
        state="Failed",
        rank=rank,
        exit_code=EXIT_BY_REASON[reason],
        reason=reason,
        error=error,
        # If the master is unreachable, it may be the one at fault.
        culprit=reason != "MasterUnreachable",
    )


def classify(report: Report, ending: Ending, rank: int | None, error: str, oom_kills: int) -> Report:
    """Classify a rank that ended by itself with a failure. `oom_kills`: the cgroup's count during the attempt."""
    report = report._replace(state="Failed", rank=rank, exit_code=ending.exit_code, signal=ending.signal)
    if ending.signal == signal.SIGKILL and oom_kills > 0:
        kills = "kill" if oom_kills == 1 else "kills"
        memory = f"killed by the kernel for memory: {oom_kills} such {kills} in this container during the attempt"
        text = f"{error}\n{memory}" if error else memory
        return report._replace(reason="OOMKilled", error=last_lines(text, MAX_ERROR_CHARACTERS))
    if ending.signal is not None:
        # NCCL's watchdog often aborts its process after a peer is lost.
        said_before, mark, stack = error.partition(FATAL_ERROR)
        if _UNCAUGHT in said_before:
            # C++ printed the reason for the abort, which is more important than Python's stacks, so it comes last.
            error = f"{mark}{stack}\n{said_before.rstrip()}".lstrip()
        culprit = ending.signal in _OWN_SIGNALS or not broken_connection(said_before)
        text = last_lines(f"{error}\nkilled by {signal_name(ending.signal)}".lstrip(), MAX_ERROR_CHARACTERS)
        return report._replace(reason="Signal", error=text, culprit=culprit)
    exception, reason = _NAMED_BY_EXCEPTION.get(ending.exit_code, ("", ""))
    if exception and re.search(rf"^\W*(?:[\w.]+\.)?{exception}\b", error, re.MULTILINE):
        return report._replace(reason=reason, error=error)
    if re.search(_MASTER_UNREACHABLE, error):
        return report._replace(reason="MasterUnreachable", error=error, culprit=False)
    culprit = not broken_connection(error)
    return report._replace(reason="Error", error=_own_error(error) if culprit else error, culprit=culprit)


def broken_connection(error: str) -> bool:
    """Returns whether the end of a text means that a peer disconnected.

    If the text ends with an exception, the exception counts, or the first one of a chain: cleaning up after an error
    often fails on a connection. Else only the last lines count, because a rank may log a warning about a connection,
    and fail for another reason much later.
    """
    # Imported here, so that an agent's start doesn't wait for the patterns.
    from trainmaster_operator.wire.tracebacks import cause_lines

    lines = cause_lines(error) or [line for line in error.splitlines() if line.strip()][-6:]
    return bool(re.search(_BROKEN_CONNECTION, "\n".join(lines)))


def _own_error(error: str) -> str:
    """Returns an error without an exception that only followed from it: cleaning up failed on a connection."""
    from trainmaster_operator.wire.tracebacks import before_handling

    own, later = before_handling(error)
    return own if later and re.search(_BROKEN_CONNECTION, later) else error


def conclusion(text: str) -> str:
    """Returns a text's end (MAX_ERROR_CHARACTERS) without the additions of torch and Python to an error."""
    from trainmaster_operator.wire.tracebacks import condensed

    return condensed(without_additions(text).strip("\n").rstrip(), MAX_ERROR_CHARACTERS)


def without_additions(text: str) -> str:
    """Returns a text without torch's prefixes, native frames and advice, and without Python's carets."""
    from trainmaster_operator.wire.tracebacks import cleaned

    return re.sub(_ADVICE, "", re.sub(_NATIVE_FRAMES, "", cleaned(text)))


def with_assertion(error: str, printed: Callable[[], str]) -> str:
    """Returns the error. If an assertion in a GPU's kernel failed, the assertion's line precedes the exception.

    `printed` returns the rank's output, which contains that line.
    """
    at = error.rfind(_ASSERTED)
    if at < 0 or re.search(ASSERTION, error):
        return error
    lines = re.findall(ASSERTION, printed())
    start = error.rfind("\n", 0, at) + 1
    return f"{error[:start]}{lines[-1]}\n{error[start:]}" if lines else error


def is_superseded(one: Report, other: Report) -> bool:
    """Returns whether `other` describes the cause better than `one`; both are reports of one worker's ranks."""
    return _weight(other) > _weight(one)


def _weight(report: Report) -> int:
    if report.state != "Failed":
        return 0
    if not report.culprit:
        return 1
    return 3 if report.reason in ("OOMKilled", "Signal", "Hung") else 2


def signal_name(number: int) -> str:
    """Returns `SIGKILL` for 9; the number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
