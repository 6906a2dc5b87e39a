"""Why a rank ended, and whether it was the cause or only suffered from another's end.

The operator chooses the culprit among all workers' reports (DESIGN.md, section 4: an out-of-memory kill or a signal,
then an error that isn't a broken connection, then a broken connection); this module delivers each worker's fact.
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import NamedTuple, Optional

from trainmaster.agent.process.children import Ending
from trainmaster.wire.limits import MAX_ERROR_CHARACTERS
from trainmaster.wire.states import WorkerState

MAX_ERROR_FILE_BYTES = 262_144

# What gloo, NCCL, TCPStore and plain sockets say on the side that only lost its peer.
_BROKEN_CONNECTION = re.compile(
    r"connection (?:reset|refused|closed|aborted|was closed|timed out)|broken ?pipe|(?:Connection\w*|BrokenPipe)Error"
    r"|peer closed|remote process (?:has )?(?:exited|closed)|ncclRemoteError|ncclSystemError|communicator was aborted"
    r"|DistNetworkError|DistBackendError|socket (?:closed|timeout)|recvValue failed|sendBytes failed|failed to recv"
    r"|Watchdog caught collective operation timeout|heartbeat monitor|Application timeout caused pair closure"
    r"|store .*(?:timed out|timeout)|wait timeout after|connectFullMesh|EOFError|HCCL.*(?:timeout|remote)",
    re.IGNORECASE,
)
_MASTER_UNREACHABLE = re.compile(
    r"client socket has timed out.*while trying to connect to|gaierror|could not be resolved|"
    r"Name or service not known|failed to connect to .*:\d+ after",
    re.IGNORECASE | re.DOTALL,
)
# What a script says by an exception of this name *and* this exit code: either alone may mean something else (70 is
# EX_SOFTWARE of sysexits.h).
_NAMED_BY_EXCEPTION = {
    2: ("ConfigError", "Usage"),
    67: ("PreflightMismatch", "PreflightMismatch"),
    70: ("Diverged", "Diverged"),
}
# What torch's C++ parts add after an error: c10::Error its own frames, pybind11 those of the Python function that C++
# had called (a communication hook of DDP, say). They would push the error itself out of what is kept.
_NATIVE_FRAMES = re.compile(
    r"^(?:(?:\[rank\d+\]: ?)?\n)?(?:\[rank\d+\]: ?)?(?:At:|Exception raised from .*\(most recent call first\):)\n"
    r"(?:(?:\[rank\d+\]: ?)?(?:  \S.*\(\d+\): .*|frame #\d+: .*)(?:\n|\Z))+",
    re.MULTILINE,
)
FATAL_ERROR = "Fatal Python error:"
"""How faulthandler begins what it prints at a fatal signal: the reason stands before it, the stacks after it."""
# Fatal signals that the agent never sends, and that no peer's end causes.
_OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGKILL})


class Outcome(NamedTuple):
    """How this worker's part of an attempt ended; becomes a report."""

    state: WorkerState
    rank: Optional[int] = None
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    reason: str = ""
    error: str = ""
    culprit: bool = True


FINISHED = Outcome("Finished", exit_code=0)


def stopped(ending: Ending | None) -> Outcome:
    """The agent was told to stop; `ending`: how the ranks then left, where known."""
    if ending is None:
        return Outcome("Stopped", reason="Stopped", culprit=False)
    return Outcome("Stopped", None, ending.exit_code, ending.signal, "Stopped", culprit=False)


def judge_failure(ending: Ending, rank: int | None, error: str, oom_kills: int) -> Outcome:
    """Classify a rank that ended by itself with anything but 0. `oom_kills`: the cgroup's count during the attempt."""
    if ending.signal == signal.SIGKILL and oom_kills > 0:
        kills = "kill" if oom_kills == 1 else "kills"
        note = f"killed by the kernel for memory: {oom_kills} such {kills} in this container during the attempt"
        text = f"{error}\n{note}" if error else note
        return Outcome("Failed", rank, ending.exit_code, ending.signal, "OOMKilled", text[-MAX_ERROR_CHARACTERS:])
    if ending.signal is not None:
        # An abort is often the NCCL watchdog's answer to a lost peer.
        said_before, _, _ = error.partition(FATAL_ERROR)
        culprit = ending.signal in _OWN_SIGNALS or not broken_connection(said_before)
        text = f"{error}\nkilled by {signal_name(ending.signal)}".lstrip()[-MAX_ERROR_CHARACTERS:]
        return Outcome("Failed", rank, ending.exit_code, ending.signal, "Signal", text, culprit)
    exception, reason = _NAMED_BY_EXCEPTION.get(ending.exit_code, ("", ""))
    if exception and re.search(rf"^\W*(?:[\w.]+\.)?{exception}\b", error, re.MULTILINE):
        return Outcome("Failed", rank, ending.exit_code, None, reason, error)
    if _MASTER_UNREACHABLE.search(error):
        return Outcome("Failed", rank, ending.exit_code, None, "MasterUnreachable", error, False)
    return Outcome("Failed", rank, ending.exit_code, None, "Error", error, not broken_connection(error))


def broken_connection(error: str) -> bool:
    """Whether a text's conclusion is that a peer went away.

    Only its last lines count: a rank may log a warning about a connection and fail of something else much later.
    """
    lines = [line for line in error.splitlines() if line.strip()]
    return bool(_BROKEN_CONNECTION.search("\n".join(lines[-6:])))


def conclusion(text: str) -> str:
    """The end of a text, at most MAX_ERROR_CHARACTERS, without the frames that torch's C++ parts add to an error."""
    return _NATIVE_FRAMES.sub("", text).rstrip()[-MAX_ERROR_CHARACTERS:]


def more_telling(one: Outcome, other: Outcome) -> bool:
    """Whether `other` says more about the cause than `one`, of two ranks of the same worker."""
    return _weight(other) > _weight(one)


def _weight(outcome: Outcome) -> int:
    if outcome.state != "Failed":
        return 0
    if not outcome.culprit:
        return 1
    return 3 if outcome.reason in ("OOMKilled", "Signal", "Hung") else 2


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_error_file(path: str) -> str:
    """The exception in torch's error file (`torch.distributed.elastic.multiprocessing.errors.record`), or ""."""
    try:
        with open(path, "rb") as file:
            message = json.loads(file.read(MAX_ERROR_FILE_BYTES))["message"]
        if isinstance(message, str):
            return conclusion(message)
        text = f"{message['extraInfo']['py_callstack']}\n{message['message']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return conclusion(text)


def oom_kill_count(cgroup_root: str) -> int:
    """How often the kernel has killed for memory in this container's cgroup; 0 where it can't be read.

    cgroup v2: `memory.events` (Documentation/admin-guide/cgroup-v2.rst); v1: `memory.oom_control`.
    """
    own = _own_cgroups()
    for path in (
        os.path.join(cgroup_root, own.get("", "").lstrip("/"), "memory.events"),
        os.path.join(cgroup_root, "memory.events"),
        os.path.join(cgroup_root, "memory", own.get("memory", "").lstrip("/"), "memory.oom_control"),
        os.path.join(cgroup_root, "memory", "memory.oom_control"),
    ):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill" and value.strip().isdigit():
                        return int(value)
        except OSError:
            continue
    return 0


def _own_cgroups() -> dict[str, str]:
    """This process's cgroup by controller ("" for the unified one), from /proc/self/cgroup (cgroups(7))."""
    own: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                for controller in controllers.split(","):
                    own[controller] = path
    except (OSError, ValueError):
        return own
    return own
