"""An attempt's ranks are forked here, and become what a launcher would have started; so is what serves their store."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, NoReturn

from . import CHANNEL
from .anew import collect_as_before, listen_for_learning, print_stacks_when_asked, reopen, start_anew
from .store import serve_store
from .this_process import descriptors, fork, set_oom_score

STORE = "store"
"""The name by which the process that serves the store is announced."""
STORE_SECONDS = 60.0
"""How long a rank waits for the store; after that torch's own client goes on trying."""


class Forks:
    """Forks knows what the process was before it imported anything, which its ranks are again."""

    def __init__(self, config: dict[str, Any], oom_score: str, open_before: set[int], *, collects: bool) -> None:
        self._own_variables: list[str] = config["ownVariables"]
        """The variables that are each rank's own."""
        self._oom_score = oom_score
        self._open_before = open_before
        self._collects = collects
        self._folder = os.getcwd()
        self._umask = os.umask(0)
        os.umask(self._umask)

    def fork(self, order: dict[str, Any]) -> str | None:
        """Fork an attempt's ranks. Returns None in a rank; else an empty text, or the reason why there are none."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        try:
            pid = fork()
        except OSError as error:
            return f"cannot fork: {error.strerror}"
        if pid == 0:
            # Ranks are forked from a process that leaves at once, so that they become the agent's own children.
            self._fork_ranks(order)
            return None
        _, status = os.waitpid(pid, 0)
        return "" if status == 0 else "cannot fork all ranks"

    def _fork_ranks(self, order: dict[str, Any]) -> None:
        """Returns only in a rank."""
        between = os.getpid()
        go_read, go_write = os.pipe()
        announced = []
        processes = [(str(rank["localRank"]), rank) for rank in order["ranks"]]
        distributed = hasattr(sys.modules.get("torch.distributed"), "TCPStore")
        if distributed and order["store"] is not None:
            # Before the ranks, which wait for it.
            processes.insert(0, (STORE, order["store"]))
        for name, told in processes:
            try:
                pid = fork()
            except OSError:
                # The ranks that are there end: nobody will ever let them go.
                os._exit(1)
            if pid == 0:
                os.close(go_write)
                self._become(told)
                # Before its pid was announced, and before the agent is its parent, a rank does nothing.
                if not os.read(go_read, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                os.close(go_read)
                while os.getppid() == between:
                    time.sleep(0.0001)
                if name == STORE:
                    _serve_store(told["environ"])
                print_stacks_when_asked()
                if order["modulesFile"]:
                    listen_for_learning(f"{order['modulesFile']}.{name}")
                if distributed and "TRAINMASTER_JOINS" not in told["environ"]:
                    _wait_for_store(told["environ"])
                return
            announced.append(f"{name} {pid}\n")
        fd = os.open(order["announcements"], os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, "".join(announced).encode())
        os.write(go_write, b"." * len(announced))
        os._exit(0)

    def _become(self, rank: dict[str, Any]) -> None:
        """Make of this process what the launcher would have started."""
        os.setsid()
        os.close(CHANNEL)
        for fd, path in ((1, rank["stdout"]), (2, rank["stderr"])):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(opened, fd)
            os.close(opened)
        for fd in descriptors() - self._open_before:
            reopen(fd)
        for name in self._own_variables:
            os.environ.pop(name, None)
        os.environ.update(rank["environ"])
        os.chdir(self._folder)
        os.umask(self._umask)
        set_oom_score(self._oom_score)
        start_anew()
        collect_as_before(collects=self._collects)


def _serve_store(environ: dict[str, str]) -> NoReturn:
    """Leave without the end of an interpreter, which would be the warm process's once more."""
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
