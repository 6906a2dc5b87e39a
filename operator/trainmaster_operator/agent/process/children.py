"""This module starts and reaps processes, and finds leftover processes.

The agent is PID 1 of its container, so every orphan becomes its child. Elsewhere (in tests, or in a pod with a shared
process namespace) the agent makes itself the subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). So the agent finds all
processes below it by their ancestry. Process groups and sessions don't suffice for this, because torchrun gives each
rank its own session.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.planner.classification import Ending

# A child starts with these signals in their initial state. torchrun handles the first four itself, so for its ranks
# they are in this state anyway.
_RESET_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
_RESET_SIGNALS += [signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ]
_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox")
_PR_SET_CHILD_SUBREAPER = 36
# Linux, include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info). The first version of the struct begins with the
# mask of the requested fields (64 bits). It ends with the exit status in the form of wait(2) (32 bits).
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_BYTES = 64
# These launchers set these variables for each rank: torchrun
# (torch.distributed.elastic.agent.server.local_elastic_agent), accelerate, which uses torchrun, and deepspeed
# (deepspeed.launcher.launch).
_SET_BY_LAUNCHERS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
    *("LOCAL_SIZE", "CROSS_RANK"),
)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, if the agent isn't PID 1."""
    if os.getpid() == 1:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Returns the path that execvp(3) would execute for `name` in this environment; raises LaunchError."""
    candidates, problem = [name], "does not exist"
    if "/" not in name:
        candidates = [os.path.join(folder or ".", name) for folder in environ.get("PATH", os.defpath).split(":")]
        problem = "is in no folder of PATH"
    for candidate in candidates:
        try:
            mode = os.stat(candidate).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode):
            problem = "is a folder"
        elif not os.access(candidate, os.X_OK):
            problem = "is not executable"
        else:
            return candidate
    raise LaunchError(f"command not found: {name!r} {problem}; check spec.command and the image")


def spawn(
    program: str,
    arguments: tuple[str, ...],
    environ: Mapping[str, str],
    streams: Mapping[int, int],
    *,
    in_session: bool = False,
) -> int:
    """Start a process in its own process group or session; returns its pid.

    `streams` maps the child's descriptors to the agent's. Raises LaunchError if the kernel refuses to start it (no such
    interpreter, not executable, out of processes).
    """
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in streams.items()
    ]
    if 0 not in streams:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    apart: dict[str, Any] = {"setsid": True} if in_session else {"setpgroup": 0}
    try:
        return os.posix_spawn(
            program, arguments, environ, file_actions=actions, setsigdef=_RESET_SIGNALS, setsigmask=[], **apart
        )
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot execute {program!r}: {getattr(error, 'strerror', None) or error}") from None


@contextlib.contextmanager
def output_streams() -> Iterator[tuple[tuple[int, int], dict[int, int]]]:
    """Yields the reading ends of a child's stdout and stderr, and `streams` for `spawn`, closed afterwards."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        yield (out_read, err_read), {1: out_write, 2: err_write}
    finally:
        os.close(out_write)
        os.close(err_write)


def reap() -> dict[int, Ending]:
    """Reap all children that have ended since the last call, including orphans."""
    ended: dict[int, Ending] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = Ending.of(os.waitstatus_to_exitcode(found[1]))
    return ended


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def spare_core(pid: int) -> None:
    """Prevent a process's core file by limiting it to 1 byte; core handlers respect this limit too (core(5))."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (1 if hard != 0 else 0, hard))


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


class Process(NamedTuple):
    """Process is a line of the process table."""

    pid: int
    parent: int
    session: int
    name: str
    state: str


def process_table() -> dict[int, Process]:
    """Returns all visible processes, zombies included, by pid."""
    table: dict[int, Process] = {}
    for pid in _all_pids():
        name, fields = stat_of(pid)
        if len(fields) > 3:
            table[pid] = Process(pid, int(fields[1]), int(fields[3]), name, fields[0])
    return table


def stat_of(pid: int) -> tuple[str, list[str]]:
    """Returns a process's name, and the fields of its stat from the third one on (proc(5)); empty if it is gone."""
    # The name is in parentheses and may contain any character.
    head, _, tail = read_text(f"/proc/{pid}/stat").rpartition(")")
    return head.partition("(")[2], tail.split()


def descendants(root: int) -> list[int]:
    """Returns the pids of all living processes below `root`, parents before children."""
    table = process_table()
    below: dict[int, list[int]] = {}
    for process in table.values():
        below.setdefault(process.parent, []).append(process.pid)
    found = list(below.get(root, []))
    for pid in found:
        found.extend(below.get(pid, []))
    return [pid for pid in found if table[pid].state != "Z"]


def session_members(leaders: Collection[int]) -> list[int]:
    """Returns the pids of all living processes in the sessions of these leaders."""
    # Session 0 contains the kernel's own processes, and processes of other PID namespaces.
    wanted = {pid for pid in leaders if pid > 1}
    return [each.pid for each in process_table().values() if each.session in wanted and each.state not in "ZX"]


def rank_processes(root: int) -> dict[int, int]:
    """Returns the pids, by local rank, of the ranks that a user's own launcher (`root`) has started.

    A rank's environment contains its number. The launcher's environment may contain a number from the manifest, which
    the launcher's other children inherit, so only a process with different values is a rank. A rank's own children
    (such as loaders) have its values; the rank precedes them in `descendants`.
    """
    outside, found = _initial_environment(root), dict[int, int]()
    for pid in descendants(root):
        own = _initial_environment(pid)
        local_rank = own.get("LOCAL_RANK", "")
        differs = any(own.get(name) != outside.get(name) for name in _SET_BY_LAUNCHERS)
        if differs and "RANK" in own and local_rank.isascii() and local_rank.isdigit():
            found.setdefault(int(local_rank), pid)
    return found


def _initial_environment(pid: int) -> dict[str, str]:
    pairs = (variable.partition("=") for variable in read_text(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in pairs}


def signal_target(pid: int, number: int = signal.SIGTERM) -> int:
    """Returns the process that should get a signal for the rank `pid`.

    If `pid` is a shell that waits for a program, the shell handles SIGTERM only after the program has ended, so the
    program would never save its checkpoint. So the program gets the signal, unless the shell has a trap for it.
    """
    table = process_table()
    while pid in table and table[pid].name in _SHELLS and not catches(pid, number):
        below = [process.pid for process in table.values() if process.parent == pid and process.state != "Z"]
        if len(below) != 1:
            break
        pid = below[0]
    return pid


def status_of(pid: int) -> dict[str, str]:
    """Returns the lines of /proc/<pid>/status by name; empty if the process is gone."""
    pairs = (line.partition(":") for line in read_text(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def process_state(pid: int) -> str:
    """Returns the kernel's letter for a process: R, S, D, T (stopped), t (traced), Z; X if it is gone."""
    return status_of(pid).get("State", "X")[:1]


def catches(pid: int, number: int) -> bool:
    """Returns whether a process has a handler for a signal."""
    return bool(int(status_of(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def zombie_ending(pid: int) -> Ending | None:
    """Returns the ending of a zombie that isn't our child; None if it can't be read."""
    _, fields = stat_of(pid)
    # The exit code is field 52 in proc(5). `fields` begins with the third.
    if len(fields) < 50 or fields[0] not in "ZX":
        return None
    return Ending.of(os.waitstatus_to_exitcode(int(fields[49])))


def reaped_ending(pidfd: int) -> Ending | None:
    """Returns the ending of a process that its parent has reaped; None before Linux 6.15 or in some sandboxes."""
    asked = _PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder)
    try:
        info = fcntl.ioctl(pidfd, _PIDFD_GET_INFO, asked.ljust(_PIDFD_INFO_BYTES, b"\0"))
    except OSError:
        return None
    if not int.from_bytes(info[:8], sys.byteorder) & _PIDFD_INFO_EXIT:
        return None
    return Ending.of(os.waitstatus_to_exitcode(int.from_bytes(info[60:64], sys.byteorder)))


def times_of(pid: int) -> int:
    """Returns the processor time of a process in clock ticks; 0 if it is gone."""
    _, fields = stat_of(pid)
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def leftovers(state_dir: str) -> list[int]:
    """Returns the processes of an earlier agent's attempts, whose environment names the state folder and an attempt.

    There are none if the container has its own PID namespace, because the kernel kills the namespace's processes when
    its PID 1 ends.
    """
    found = []
    for pid in set(_all_pids()) - {os.getpid()}:
        variables = _initial_environment(pid)
        if variables.get("TRAINMASTER_STATE_DIR") == state_dir and "TRAINMASTER_ATTEMPT" in variables:
            found.append(pid)
    return found


def private_bytes(pid: int) -> int:
    """Returns a process's unshared memory [bytes]; 0 if the kernel doesn't show it (proc.rst, smaps_rollup)."""
    lines = (line.split() for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines())
    return 1024 * sum(int(line[1]) for line in lines if line[0] in ("Private_Clean:", "Private_Dirty:"))


def read_text(path: str, limit: int = -1) -> str:
    """Returns the content of a kernel file; empty if it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""
