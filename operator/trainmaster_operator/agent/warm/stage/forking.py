"""This module forks an attempt's ranks and the process that serves their store, as if a launcher had started them.

A forked rank renews its random numbers, its caches and its files, so that it is in the same state as a started rank.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import stat
import sys
import time
from typing import Any, NoReturn

from . import CHANNEL, LEARN_SIGNAL
from .forkable import packaged_modules
from .store import serve_store
from .this_process import descriptors, fork, set_oom_score

STORE = "store"
"""The name by which the process that serves the store is announced to the agent."""
STORE_SECONDS = 60.0
"""How long a rank waits for the store. After that torch's own client keeps trying."""
STACKS_DESCRIPTOR = 500
"""The lowest descriptor for the file of stacks."""


class Forks:
    """Forks remembers the process's state before the first import, to restore it in ranks."""

    def __init__(self, config: dict[str, Any], oom_score: str, open_before: set[int], *, collects: bool) -> None:
        self._own_variables: list[str] = config["ownVariables"]
        self._oom_score, self._open_before, self._collects = oom_score, open_before, collects
        self._folder, self._umask = os.getcwd(), os.umask(0)
        os.umask(self._umask)

    def fork(self, order: dict[str, Any]) -> str | None:
        """Fork an attempt's ranks. Returns None in a rank; else an empty text, or the reason why none were forked."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        try:
            pid = fork()
        except OSError as error:
            return f"cannot fork: {error.strerror}"
        if pid == 0:
            # A process in between forks the ranks and exits at once, so that they become the agent's own children.
            self._fork_ranks(order)
            return None
        _, status = os.waitpid(pid, 0)
        return "" if status == 0 else "cannot fork all ranks"

    def _fork_ranks(self, order: dict[str, Any]) -> None:
        """Fork the ranks; returns only in a rank."""
        between = os.getpid()
        go_read, go_write = os.pipe()
        announced = []
        distributed = hasattr(sys.modules.get("torch.distributed"), "TCPStore")
        for process in order["processes"]:
            name, environ = process["name"], process["environ"]
            if name == STORE and not distributed:
                continue
            try:
                pid = fork()
            except OSError:
                # The ranks that were already forked end by themselves, because no process releases them.
                os._exit(1)
            if pid == 0:
                os.close(go_write)
                self._become(process)
                # A rank waits here until its pid is announced and the agent is its parent.
                if not os.read(go_read, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                os.close(go_read)
                while os.getppid() == between:
                    time.sleep(0.0001)
                if name == STORE:
                    _serve_store(environ)
                print_stacks_when_asked()
                if order["modulesFile"]:
                    listen_for_learning(f"{order['modulesFile']}.{name}")
                if distributed and "TRAINMASTER_JOINS" not in environ:
                    _wait_for_store(environ)
                return
            announced.append(f"{name} {pid}\n")
        fd = os.open(order["announcements"], os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, "".join(announced).encode())
        os.write(go_write, b"." * len(announced))
        os._exit(0)

    def _become(self, process: dict[str, Any]) -> None:
        """Give this process the state of a process that a launcher has started."""
        os.setsid()
        os.close(CHANNEL)
        for fd, path in ((1, process["stdout"]), (2, process["stderr"])):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(opened, fd)
            os.close(opened)
        for fd in descriptors() - self._open_before:
            reopen(fd)
        for name in self._own_variables:
            os.environ.pop(name, None)
        os.environ.update(process["environ"])
        os.chdir(self._folder)
        os.umask(self._umask)
        set_oom_score(self._oom_score)
        renew()
        # These calls put Python's garbage collector into the state that it has after a start, in which all imported
        # objects are old. They move all objects out of the collector's reach, reset its counts, and move the objects
        # back into the oldest generation.
        gc.freeze()
        gc.unfreeze()
        if self._collects:
            gc.enable()


def _serve_store(environ: dict[str, str]) -> NoReturn:
    """Serve the store; exit without finalizing the interpreter, which belongs to the warm process."""
    try:
        serve_store(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
    except SystemExit as end:
        os._exit(int(end.code or 0))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _wait_for_store(environ: dict[str, str]) -> None:
    """Wait for the attempt's store to listen, as torchrun does before it starts ranks."""
    import socket

    address = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
    until, pause = time.monotonic() + STORE_SECONDS, 0.002
    while time.monotonic() < until:
        try:
            socket.create_connection(address, 1.0).close()
        except OSError:
            time.sleep(pause)
            pause = min(0.05, pause * 1.2)
        else:
            return


def renew() -> None:
    """Seed random generators from the system again, and drop caches about folders and about this process.

    Python's `random` seeds itself after a fork (os.register_at_fork).
    """
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch.random")
    if torch is not None:
        torch.default_generator.seed()
    threading = sys.modules.get("threading")
    if threading is not None:
        # Python still has the thread id of the process that has forked this one.
        threading.main_thread()._set_native_id()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
    logging = vars(sys.modules.get("logging", object))
    if "_startTime" in logging:
        # %(relativeCreated)d is relative to this time, in nanoseconds from Python 3.13 on.
        logging["_startTime"] = time.time_ns() if isinstance(logging["_startTime"], int) else time.time()
    for finder in (*sys.meta_path, *sys.path_importer_cache.values()):
        invalidate = getattr(finder, "invalidate_caches", None)
        if invalidate is not None:
            invalidate()
    _keep_default_group()


def _keep_default_group() -> None:
    """Keep the first default process group for the lifetime of the process, as in a rank that was started.

    In a started rank, DDP's first step imports torch.distributed.nn.functional, whose functions then keep the group as
    a default argument. In a forked rank, torch.distributed.nn.functional was imported before the group existed. Without
    such a reference to the group, a rank may hang at its end: DDP's reducer joins gloo's threads while it holds
    Python's lock (the GIL), and one of the threads waits for this lock (torch 2.13).
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    update = getattr(c10d, "_update_default_pg", None)
    if "torch.distributed.nn.functional" not in sys.modules or update is None:
        return
    kept: list[object] = []

    def update_and_keep(group: object) -> None:
        if not kept and group is not None:
            kept.append(group)
        update(group)

    c10d._update_default_pg = update_and_keep  # type: ignore[union-attr]


def reopen(fd: int) -> None:
    """Open this process's own copy of a file that a fork has shared, because sharing includes the file's position."""
    import fcntl

    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        flags, at = fcntl.fcntl(fd, fcntl.F_GETFL), os.lseek(fd, 0, os.SEEK_CUR)
        opened = os.open(f"/proc/self/fd/{fd}", flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL))
    except OSError:
        return
    os.lseek(opened, at, os.SEEK_SET)
    os.dup2(opened, fd, inheritable=os.get_inheritable(fd))
    os.close(opened)


def print_stacks_when_asked() -> None:
    """Print the stacks of all threads at SIGUSR2, to the file that the agent reads (process/stacks.py).

    A program can still use the signal itself, because `getsignal` returns the default. The file's descriptor is higher
    than those that a program uses or expects to get.
    """
    import faulthandler
    import fcntl

    named, rank = os.environ.get("TRAINMASTER_STACKS_FILE"), os.environ.get("RANK")
    if not named or not rank:
        return
    try:
        opened = os.open(f"{named}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            kept = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, STACKS_DESCRIPTOR)
        finally:
            os.close(opened)
    except OSError:
        # The file can't be made, or the limit of descriptors is too low.
        return
    faulthandler.register(signal.SIGUSR2, file=kept, all_threads=True, chain=False)


def listen_for_learning(path: str) -> None:
    """Answer the agent's signal once with this rank's modules, in a file."""

    def answer(_number: int, _frame: object) -> None:
        signal.signal(LEARN_SIGNAL, signal.SIG_DFL)
        temporary = f"{path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(packaged_modules(), file)
        os.replace(temporary, path)

    signal.signal(LEARN_SIGNAL, answer)
    signal.siginterrupt(LEARN_SIGNAL, False)
