"""An attempt's ranks are forked here, and become what a launcher would have started."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from . import CHANNEL
from .anew import collect_as_before, listen_for_learning, reopen, start_anew
from .this_process import descriptors, set_oom_score

MASTER_SECONDS = 0.25
"""How long a rank waits for rank 0 to listen; a program that makes its group later, or none, starts so much later."""


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
            pid = os.fork()
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
        for rank in order["ranks"]:
            try:
                pid = os.fork()
            except OSError:
                # The ranks that are there end: nobody will ever let them go.
                os._exit(1)
            if pid == 0:
                os.close(go_write)
                self._become(order, rank)
                # Before its pid was announced, and before the agent is its parent, a rank does nothing.
                if not os.read(go_read, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                os.close(go_read)
                while os.getppid() == between:
                    time.sleep(0.0001)
                _give_way_to_master(rank["environ"])
                return
            announced.append(f"{rank['localRank']} {pid}\n")
        fd = os.open(order["announcements"], os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, "".join(announced).encode())
        os.write(go_write, b"." * len(announced))
        os._exit(0)

    def _become(self, order: dict[str, Any], rank: dict[str, Any]) -> None:
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
        if order["modulesFile"]:
            listen_for_learning(f"{order['modulesFile']}.{rank['localRank']}")


def _give_way_to_master(environ: dict[str, str]) -> None:
    """Wait a moment for rank 0 to listen: forked ranks are all there within milliseconds, and a client of torch's store
    that comes too early tries again after half a second or more (torch 2.13, TCPStore.cpp).
    """
    import socket

    until = time.monotonic() + MASTER_SECONDS
    while environ["RANK"] != "0" and time.monotonic() < until:
        try:
            socket.create_connection((environ["MASTER_ADDR"], int(environ["MASTER_PORT"])), MASTER_SECONDS).close()
        except OSError:
            time.sleep(0.005)
        else:
            return
