"""The setup line is a shell line that runs before the first attempt's ranks, and sets their environment."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.events import Event, SetupEnded
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.output import Printers, Pump
from trainmaster_operator.wire.limits import MAX_ERROR_CHARACTERS
from trainmaster_operator.wire.values import last_lines

MAX_ENVIRONMENT_BYTES = 4_194_304
MIN_QUOTE = 3
"""Output that contains a command of the setup line only counts as a quote if the command has this many characters."""


class SetupLine:
    """SetupLine runs the line, and puts `SetupEnded` once for each start that wasn't cancelled."""

    def __init__(
        self, loop: Loop, line: str, base: Mapping[str, str], printers: Printers, put: Callable[[Event], None]
    ) -> None:
        self._loop, self._line, self._base, self._printers, self._put = loop, line, base, printers, put
        self._pid = 0
        self._environment_fd = -1
        self._environment = bytearray()
        self._pumps: list[Pump] = []

    def start(self) -> None:
        self._environment.clear()
        try:
            self._spawn()
        except LaunchError as error:
            self._close()
            self._put(SetupEnded(None, error=f"spec.setup: {error}"))

    def cancel(self) -> None:
        self._close()
        if self._pid:
            self._pid = 0
            children.send(children.descendants(os.getpid()), signal.SIGKILL)

    def process_ended(self, pid: int, ending: Ending) -> None:
        if pid != self._pid:
            return
        self._read_environment(0)
        self._pid = 0
        if ending.exit_code != 0:
            self._put(SetupEnded(None, *ending, self._failure(ending)))
        else:
            pairs = (entry.partition(b"=") for entry in bytes(self._environment).split(b"\0") if b"=" in entry)
            environ = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
            if environ.get("TRAINMASTER_ATTEMPT") == "setup":
                del environ["TRAINMASTER_ATTEMPT"]
            self._put(SetupEnded(environ))
        self._close()

    def _failure(self, ending: Ending) -> str:
        text = "\n".join(filter(None, (pump.last_lines(MAX_ERROR_CHARACTERS) for pump in self._pumps)))
        text = _unquoted(text, self._line)
        sentence = f"spec.setup ended with exit code {ending.exit_code}; its output is in the worker's log"
        return last_lines(f"{text}\n{sentence}".strip(), MAX_ERROR_CHARACTERS)

    def _spawn(self) -> None:
        environ = {"TRAINMASTER_ATTEMPT": "setup", **self._base}
        try:
            shell = children.find_program("bash", environ)
        except LaunchError:
            shell = children.find_program("sh", environ)
        self._environment_fd, env_write = os.pipe()
        os.set_blocking(self._environment_fd, False)
        self._loop.watch(self._environment_fd, READ, self._read_environment)
        # `set -e` isn't used, because vendors' scripts are written for interactive shells, and many would exit at a
        # test that fails.
        script = f"{{ {self._line}\n}} || exit $?\nexec env -0 >&9"
        try:
            with children.output_streams() as (ends, streams):
                for fd, printer in zip(ends, self._printers):
                    self._pumps.append(Pump(self._loop, fd, "[setup]: ", printer))
                self._pid = children.spawn(shell, (shell, "-c", script), environ, {**streams, 9: env_write})
        finally:
            os.close(env_write)

    def _read_environment(self, _events: int) -> None:
        while self._environment_fd >= 0:
            try:
                data = os.read(self._environment_fd, 65_536)
            except BlockingIOError:
                return
            if not data:
                self._close_environment()
            elif len(self._environment) < MAX_ENVIRONMENT_BYTES:
                self._environment += data

    def _close(self) -> None:
        for pump in self._pumps:
            pump.close()
        self._pumps.clear()
        self._close_environment()

    def _close_environment(self) -> None:
        if self._environment_fd >= 0:
            self._loop.unwatch(self._environment_fd)
            os.close(self._environment_fd)
            self._environment_fd = -1


def _unquoted(text: str, line: str) -> str:
    """Returns the setup line's output, in which all lines are replaced that quote the setup line (as a syntax error).

    The line may contain secrets. Reports are copied into statuses, events and evidence, whose readers must not see
    these secrets.
    """
    parts = [part for part in map(str.strip, re.split(r"[\n;&|]+", line)) if len(part) >= MIN_QUOTE]
    return "\n".join(
        "(a line that quotes spec.setup)" if any(part in printed for part in parts) else printed
        for printed in text.split("\n")
    )
