"""The state folder contains the files that an agent leaves for the next agent, and those shared with its ranks.

The saved report names the attempt that was started here last. It is in the pod's emptyDir, so it outlives the agent's
process. It is written before the children start, and again after they have ended. An agent that finds a saved report
never runs its attempt again. Without this, every restart of the agent would run the attempt again: a StatefulSet's pods
have `restartPolicy: Always`, so the kubelet restarts the agent after every exit.

The files shared with ranks are described in docs/protocol.md, "Continuing" and "State in memory".
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable
from typing import Optional

from trainmaster_operator.agent.planner.classification import conclusion
from trainmaster_operator.agent.planner.state import SavedReport
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.report import Report

MAX_REPORT_BYTES = 65_536
REPORT = "saved-report.json"
MAX_ERROR_FILE_BYTES = 262_144
MAX_SECONDS_BYTES = 64


def read_report(state_dir: str) -> SavedReport | None:
    """Returns the saved report; None if nothing was ever started here, or the file is damaged."""
    try:
        with open(os.path.join(state_dir, REPORT), "rb") as file:
            data = json.loads(file.read(MAX_REPORT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    report = Report.read(data)
    return None if report is None else SavedReport(report, data.get("exited") is True)


def write_report(state_dir: str, report: Report, *, exited: bool = False) -> None:
    """Replace the saved report; after a crash either the old report or the new one exists. Raises OSError."""
    data = {**report.to_wire(), "exited": exited}
    write_atomically(os.path.join(state_dir, REPORT), json.dumps(data) + "\n")


def write_atomically(path: str, text: str) -> None:
    """Write a temporary file and rename it, without fsync, because a node's crash loses the emptyDir anyway.

    Raises OSError.
    """
    folder, name = os.path.split(path)
    # The name ends with the agent's pid, which is 1 in a pod. The names of ranks' files end with a rank's number.
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def prune_attempts(state_dir: str, keep: int) -> None:
    """Remove the folders of all but the newest `keep` attempts, because the emptyDir's size is limited."""
    attempts = sorted(
        int(name[8:]) for name in os.listdir(state_dir) if name.startswith("attempt-") and name[8:].isdigit()
    )
    for attempt in attempts[:-keep]:
        # `shutil.rmtree` isn't used, because its import would take several milliseconds of a start.
        for folder, folders, files in os.walk(os.path.join(state_dir, f"attempt-{attempt}"), topdown=False):
            links = {name for name in folders if os.path.islink(os.path.join(folder, name))}
            for name in {*files, *links}:
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def make_fifos(path: str, ranks: Iterable[int]) -> None:
    """Make the FIFOs that wake ranks. Raises OSError."""
    for rank in ranks:
        unlink(f"{path}.{rank}")
        os.mkfifo(f"{path}.{rank}", 0o600)


def write_group(path: str, assignment: Assignment, processes: int) -> None:
    """Write the ranks absent from an attempt's group, and its store's address. Raises OSError.

    `processes`: the ranks of this worker.
    """
    group = {
        "attempt": assignment.attempt,
        "absent": list(assignment.absent),
        "worldSize": assignment.world_size(processes),
        "master": assignment.master,
        "port": assignment.port,
    }
    write_atomically(path, json.dumps(group) + "\n")


def wake(path: str, data: bytes = b".") -> bool:
    """Write into a FIFO, without waiting; returns whether a process has opened the FIFO for reading."""
    with contextlib.suppress(OSError):  # there is no reader (ENXIO), or it hasn't read 64 KiB of wake-ups
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            os.write(fd, data)
            return True
        finally:
            os.close(fd)
    return False


def unlink(path: str) -> None:
    """Remove a file, if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def announce_stop(path: str, seconds: float) -> None:
    """Announce a planned stop to the ranks before SIGTERM, and the `seconds` that they have until SIGKILL."""
    with contextlib.suppress(OSError):  # on a full disk; the ranks then write their state at once, as after a failure
        write_atomically(f"{path}.planned", f"{seconds:.1f}")


def saving_seconds(path: str) -> Optional[float]:
    """Returns the seconds that a rank requests to write its state; 0: it has written it; None: no valid request."""
    try:
        # A rank may have left any kind of file, and opening a named pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            seconds = float(os.read(fd, MAX_SECONDS_BYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None
    return seconds if seconds >= 0 and math.isfinite(seconds) else None


def read_error_file(path: str) -> str:
    """Returns the text of torch's error file (`torch.distributed.elastic.multiprocessing.errors.record`), or ""."""
    try:
        with open(path, "rb") as file:
            message = json.loads(file.read(MAX_ERROR_FILE_BYTES))["message"]
        if isinstance(message, str):
            return conclusion(message)
        text = f"{message['extraInfo']['py_callstack']}\n{message['message']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return conclusion(text)
