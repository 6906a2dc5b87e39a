"""The container runtime starts and stops containers for the kubelet.

`ProcessRuntime` runs them as processes through the `shim`; `FakeRuntime` (in `fake`) only pretends. Both raise
`StartError` if a container's program can't be started, and complete `Container.exited` exactly once.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

logger = logging.getLogger(__name__)

SIGTERM = 15
SIGKILL = 9
LEFT_SECONDS = 20.0


@dataclass(frozen=True)
class ContainerConfig:
    """A container has this configuration.

    Paths are the host's. `memory` is in bytes; 0 means no limit. With an empty `log` the output is captured.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str = ""
    memory: int = 0
    pod_uid: str = ""
    name: str = ""


@dataclass(frozen=True)
class Exit:
    """A container's end has these facts.

    `code` is 128 + signal for a signal, as containerd reports; `at` is in seconds since the epoch. `output` is captured
    output; `message` is a termination message without a file (faked containers).
    """

    code: int
    at: float
    signal: int = 0
    out_of_memory: bool = False
    output: str = ""
    message: str = ""


class StartError(Exception):
    """The program couldn't be started; the text is the part after `exec: ` in runc's words."""


@dataclass
class Container:
    """This is a running (or ended) container. `started_at` is in seconds since the epoch."""

    id: str
    started_at: float
    exited: asyncio.Future[Exit] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Runtime(Protocol):
    """A runtime starts containers and sends them signals."""

    async def start(self, config: ContainerConfig) -> Container: ...

    def signal(self, container: Container, number: int) -> None:
        """Sends a signal: SIGKILL reaches every process of the container, any other signal its first one."""

    async def close(self) -> None:
        """Kills all containers and waits until they have ended."""


def start_problem(code: int, program: str) -> str:
    """Returns runc's message about a program that can't be executed (`libcontainer/init_linux.go`, Go's `os/exec`)."""
    if code == errno.ENOENT and "/" in program:
        return f'exec: "{program}": stat {program}: no such file or directory'
    if code == errno.ENOENT:
        return f'exec: "{program}": executable file not found in $PATH'
    if code in (errno.EACCES, errno.EPERM):
        return f'exec: "{program}": permission denied'
    return f'exec: "{program}": {os.strerror(code).lower()}'


class ProcessRuntime:
    """This runtime runs containers as processes.

    It starts its shim with the first container, and a new one if that is killed.
    """

    def __init__(self) -> None:
        self._shim: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting: dict[str, asyncio.Future[float]] = {}
        self._running: dict[str, Container] = {}
        self._lock = asyncio.Lock()
        self._closed = False
        self._held: IO[str] | None = None

    def hold(self, path: Path) -> None:
        """Locks a file (flock(2)) until this runtime's last container has ended, even if this process is killed.

        Waits for the containers of an earlier runtime: they end with that runtime, but a process in a driver's call may
        take long to end. Raises OSError after `LEFT_SECONDS`.
        """
        deadline = time.monotonic() + LEFT_SECONDS
        file = path.open("a")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    problem = f"containers of an earlier cluster still run after {LEFT_SECONDS:.0f} s; end them first"
                    raise OSError(errno.EBUSY, f"{problem} (lsof {path})") from None
            time.sleep(0.02)
        self._held = file

    async def start(self, config: ContainerConfig) -> Container:
        identity = uuid.uuid4().hex + uuid.uuid4().hex
        started: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        container = Container(identity, 0.0)
        self._starting[identity] = started
        self._running[identity] = container
        try:
            await self._connect()
            self._send(
                {
                    "op": "start",
                    "id": identity,
                    "argv": list(config.argv),
                    "env": dict(config.env),
                    "cwd": config.cwd,
                    "log": config.log,
                    "memory": config.memory,
                }
            )
            container.started_at = await started
        except OSError as error:
            self._running.pop(identity, None)
            raise StartError(start_problem(error.errno or errno.EIO, config.argv[0])) from error
        finally:
            self._starting.pop(identity, None)
        return container

    def signal(self, container: Container, number: int) -> None:
        if container.id in self._running and self._writer is not None:
            self._send({"op": "signal", "id": container.id, "signal": number, "all": number == SIGKILL})

    async def close(self) -> None:
        self._closed = True
        if self._shim is not None and self._writer is not None:
            # When the socket closes, the shim kills all containers and then ends.
            self._writer.close()
            await self._shim.wait()
            if self._reading is not None:
                await self._reading
        if self._held is not None:
            self._held.close()

    async def _connect(self) -> None:
        async with self._lock:
            if self._writer is not None or self._closed:
                return
            ours, theirs = socket.socketpair()
            shim = Path(__file__).with_name("shim.py")
            with theirs:
                descriptors = [theirs.fileno(), *([self._held.fileno()] if self._held else [])]
                self._shim = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", str(shim), *map(str, descriptors),
                    pass_fds=descriptors, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
            self._reading = asyncio.create_task(self._read(reader))

    def _send(self, request: dict[str, object]) -> None:
        if self._writer is None:
            raise ConnectionError(errno.ECONNRESET, "the container shim is gone")
        self._writer.write(json.dumps(request).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._event(json.loads(line))
        except ConnectionError as error:
            logger.warning("container shim: %s", error)
        self._writer = None
        if self._running and not self._closed:
            logger.warning("container shim ended; %d containers ended with it", len(self._running))
        for identity in list(self._running):
            self._ended(identity, Exit(128 + SIGKILL, time.time(), signal=SIGKILL))

    def _event(self, event: dict[str, object]) -> None:
        identity = str(event["id"])
        kind = event["event"]
        starting = self._starting.get(identity)
        at = float(str(event.get("at", 0.0)))
        if kind == "started" and starting and not starting.done():
            starting.set_result(at)
        elif kind == "failed" and starting and not starting.done():
            starting.set_exception(OSError(int(str(event["errno"])), str(event["error"])))
        elif kind == "exited":
            code, number = int(str(event["code"])), int(str(event["signal"]))
            self._ended(identity, Exit(code, at, number, bool(event["oom"]), str(event["output"])))
        elif kind == "lost":
            self._ended(identity, Exit(128 + SIGKILL, at, signal=SIGKILL))

    def _ended(self, identity: str, exit_: Exit) -> None:
        container = self._running.pop(identity, None)
        starting = self._starting.get(identity)
        if starting and not starting.done():
            starting.set_exception(OSError(errno.ESRCH, "killed while it started"))
        if container and not container.exited.done():
            container.exited.set_result(exit_)
