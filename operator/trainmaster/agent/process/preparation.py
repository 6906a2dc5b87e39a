"""What comes before the ranks: the setup line's environment, and worker 0 within reach.

Both go on at the same time; the ranks start when both are there. Waiting for worker 0's *agent* rather than for the
master's port lets all workers import torch at the same time: with a wait for the port, which rank 0 opens only after
its import, every restart would take that second twice.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from trainmaster.agent.errors import LaunchError
from trainmaster.agent.loop import READ, Loop, Timer
from trainmaster.agent.process import children
from trainmaster.agent.process.children import Ending
from trainmaster.agent.process.classification import Outcome
from trainmaster.agent.process.output import Printer, Pump
from trainmaster.agent.settings import Settings
from trainmaster.wire.limits import MAX_ERROR_CHARACTERS

POLL_SECONDS = 0.02
RESOLVED_SECONDS = 2.0
"""With worker 0's name known but its agent silent for so long (a network policy may keep agents apart), the ranks start
all the same: their own rendezvous waits for the master too, only less patiently."""
MAX_ENVIRONMENT_BYTES = 4_194_304
MIN_QUOTE = 3
"""Characters of a command of the setup line from which on its appearance in a message is a quotation."""


class MasterContact(NamedTuple):
    """How far this worker has come on the way to worker 0's agent."""

    reached: bool
    resolved: bool
    problem: str = ""
    """Name, address, port and the last error, for a person."""


class SetupEnvironment:
    """The environment that the setup line leaves behind, found once in an agent's life."""

    def __init__(self, line: str, base: Mapping[str, str]) -> None:
        self.line = line
        self.base = base
        self.environ: Optional[dict[str, str]] = None if line else dict(base)


class Preparation:
    """Runs the setup line and waits for worker 0; calls back once, with the ranks' environment or with a failure."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        setup: SetupEnvironment,
        contact: Callable[[], MasterContact],
        printers: tuple[Printer, Printer],
        on_ready: Callable[[Mapping[str, str]], None],
        on_failed: Callable[[Outcome], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._setup = setup
        self._contact = contact
        self._printers = printers
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._begun = time.monotonic()
        self._resolved_at: float | None = None
        self._pid = 0
        self._environment_fd = -1
        self._environment = bytearray()
        self._pumps: list[Pump] = []
        self._timer: Timer | None = None
        self._done = False

    def begin(self) -> None:
        """Start; may call back at once."""
        if self._setup.environ is None:
            try:
                self._run_setup()
            except LaunchError as error:
                self._fail(Outcome("Failed", exit_code=65, reason="LaunchError", error=f"spec.setup: {error}"))
                return
        self._check()

    def cancel(self) -> None:
        """Give up; nothing is called back any more."""
        self._end()
        if self._pid:
            children.send(children.descendants(os.getpid()), signal.SIGKILL)

    def child_ended(self, pid: int, ending: Ending) -> None:
        """A child of the agent was reaped."""
        if self._done or pid != self._pid:
            return
        self._read_environment(0)
        self._pid = 0
        if ending.exit_code != 0:
            for pump in self._pumps:
                pump.drain()
            text = "\n".join(filter(None, (pump.last_lines(MAX_ERROR_CHARACTERS) for pump in self._pumps)))
            text = _unquoted(text, self._setup.line)
            sentence = f"spec.setup ended with exit code {ending.exit_code}; the worker's log has what it printed"
            self._fail(
                Outcome(
                    "Failed",
                    None,
                    ending.exit_code,
                    ending.signal,
                    "LaunchError",
                    f"{text}\n{sentence}".strip()[-2000:],
                )
            )
            return
        pairs = (entry.partition(b"=") for entry in bytes(self._environment).split(b"\0") if b"=" in entry)
        self._setup.environ = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
        self._check()

    def _run_setup(self) -> None:
        environ = dict(self._setup.base)
        environ["TRAINMASTER_ATTEMPT"] = environ.get("TRAINMASTER_ATTEMPT", "setup")
        try:
            shell = children.find_program("bash", environ)
        except LaunchError:
            shell = children.find_program("sh", environ)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._environment_fd, env_write = os.pipe()
        os.set_blocking(self._environment_fd, False)
        self._loop.watch(self._environment_fd, READ, self._read_environment)
        for fd, printer in ((out_read, self._printers[0]), (err_read, self._printers[1])):
            self._pumps.append(Pump(self._loop, fd, "[setup]: ", printer, None))
        try:
            # No `set -e`: vendors' scripts are written for a terminal, and many would end at a test that fails.
            script = f"{{ {self._setup.line}\n}} || exit $?\nexec env -0 >&9"
            streams = {1: out_write, 2: err_write, 9: env_write}
            self._pid = children.spawn(shell, (shell, "-c", script), environ, streams)
        finally:
            for fd in (out_write, err_write, env_write):
                os.close(fd)

    def _read_environment(self, _events: int) -> None:
        while self._environment_fd >= 0:
            try:
                data = os.read(self._environment_fd, 65_536)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(self._environment_fd)
                os.close(self._environment_fd)
                self._environment_fd = -1
            elif len(self._environment) < MAX_ENVIRONMENT_BYTES:
                self._environment += data

    def _check(self) -> None:
        if self._done:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        contact = self._contact()
        if contact.resolved and self._resolved_at is None:
            self._resolved_at = now
        patient = self._resolved_at is None or now - self._resolved_at < RESOLVED_SECONDS
        if contact.reached or not patient:
            if self._setup.environ is not None:
                environ = dict(self._setup.environ)
                if environ.get("TRAINMASTER_ATTEMPT") == "setup":
                    del environ["TRAINMASTER_ATTEMPT"]
                self._end()
                self._on_ready(environ)
            return
        if now - self._begun > self._settings.startup_timeout:
            waited = f"worker 0 is not within reach after {self._settings.startup_timeout:g} s: {contact.problem}"
            self._fail(Outcome("Failed", None, 66, None, "MasterUnreachable", waited, culprit=False))
            return
        self._timer = self._loop.call_later(POLL_SECONDS, self._check)

    def _fail(self, outcome: Outcome) -> None:
        self.cancel()
        self._on_failed(outcome)

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        for pump in self._pumps:
            pump.close()
        self._pumps.clear()
        if self._environment_fd >= 0:
            self._loop.unwatch(self._environment_fd)
            os.close(self._environment_fd)
            self._environment_fd = -1


def _unquoted(text: str, line: str) -> str:
    """What the setup line printed, without the lines in which the shell quotes it (as it does a syntax error).

    Reports go on into statuses, events and evidence, and the line may hold what isn't meant for their readers.
    """
    parts = [part for part in map(str.strip, re.split(r"[\n;&|]+", line)) if len(part) >= MIN_QUOTE]
    return "\n".join(
        "(a line that quotes spec.setup)" if any(part in printed for part in parts) else printed
        for printed in text.split("\n")
    )
