"""This module starts the warm process, sends it orders, and watches it, all in the loop's thread.

The process may hang, end or refuse an order at any time. If it doesn't answer an order in time, it is killed, because
it must not fork the ranks of an obsolete attempt later. The stage's sources are copied into a folder, because the job's
Python may differ from the agent's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from trainmaster_operator.agent.connection import JsonLines
from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.loop import READ, Loop, Timer
from trainmaster_operator.agent.planner import events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.kernel import free_memory
from trainmaster_operator.agent.process.output import Printers, Pump
from trainmaster_operator.agent.process.state_folder import write_atomically
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.agent.warm import stage
from trainmaster_operator.agent.warm.command import script_path, warm_command
from trainmaster_operator.agent.warm.stage import CHANNEL, EXIT_DEAF, EXIT_PROBED, MARK, PROBE, PROBE_PROGRAM, VARIABLE
from trainmaster_operator.wire.joining import Modules, module_names
from trainmaster_operator.wire.values import ProtocolError

ORDER_SECONDS = 5.0
"""The limit for an answer while the process imports nothing."""
IMPORT_SECONDS = 60.0
"""The limit for an answer while the process imports torch or learned modules. Ranks would have to import them too."""
PRELOAD_SECONDS = 120.0
"""The limit for the first answer if the process also imports the modules in spec.warmStart.preload."""
MIN_FREE_BYTES = 805_306_368
"""The process is only started if this much memory is free. torch and its compiler take 0.4 GiB, most of which is shared
with ranks."""
LOOK_SECONDS = 1.0
"""The time between two checks of the free memory."""
SHORT_BYTES = 134_217_728
"""If less memory is free, the warm process is killed. Without this, the kernel might kill the whole container
(memory.oom.group)."""
MAX_ANSWER_BYTES = 1_048_576
_MEBIBYTE = 1 << 20
MODULES_FILE = "modules"
"""The name of the file of learned modules in the warm process's folder. In an attempt's folder, a file with this name
and a rank's number contains the rank's answer."""
_REQUIRED = "torch"
"""Without torch a warm process saves almost nothing."""


class WarmProcess:
    """WarmProcess handles one process at a time. It puts `WarmProcessEnded`; an order's result goes to the caller."""

    def __init__(
        self,
        loop: Loop,
        settings: AgentSettings,
        command: Sequence[str],
        printers: Printers,
        put: Callable[[events.Event], None],
    ) -> None:
        self._loop, self._settings, self._command, self._printers = loop, settings, command, printers
        self._put = put
        self._form = warm_command(command)
        self._folder = os.path.join(settings.state_dir, "warm")
        self._environ: Mapping[str, str] = {}
        self._own_variables: frozenset[str] = frozenset()
        self._path = ""
        """The folder that Python will put first on sys.path."""
        self._probe_pid = 0
        self.pid = 0
        self.was_killed = False
        """Whether the agent itself has ended the process."""
        self._channel: Optional[socket.socket] = None
        self._answers = JsonLines(MAX_ANSWER_BYTES)
        self._pumps: list[Pump] = []
        self._ready = False
        self._unsent = b""
        """The present order, until it is sent."""
        self._orders = 0
        self._answered: Optional[Callable[[str], None]] = None
        """The function that takes the answer to the present order; None if no order is unanswered."""
        self._timer: Optional[Timer] = None
        self._left_out: set[str] = set()
        """Modules that the next process doesn't import, because they or modules that they import can't be forked."""
        self._problems: set[str] = set()
        """The modules whose problems were already printed."""
        self._verdict = events.FAILED
        """The verdict that the event will contain if the process ends now."""
        self._importing = False
        """Whether the process is importing learned modules."""
        self.modules: Optional[Modules] = None
        """The learned modules; None if there are none yet."""
        self.reason = "it was not started"
        """Why there is no warm process; empty if there is one, or one is starting."""
        self.lacks_torch = False
        """Whether the reason is that torch is missing."""
        loop.call_later(LOOK_SECONDS, self._look)

    def start(self, environ: Mapping[str, str], own_variables: frozenset[str]) -> None:
        """Start the process in this environment, which doesn't contain the variables that differ between ranks."""
        self._environ, self._own_variables = environ, own_variables
        self.was_killed, self._verdict, self.lacks_torch = False, events.FAILED, False
        form = self._form
        if isinstance(form, str):
            self._end(form, events.HOPELESS)
            return
        self._path, problem = script_path(form, os.getcwd())
        free = free_memory(self._settings.cgroup_root)
        if problem:
            self._end(problem, events.HOPELESS)
            return
        if free is not None and free < MIN_FREE_BYTES:
            missing = f"{free // _MEBIBYTE} MiB of memory are left, and a warm process gets none below"
            self._end(f"{missing} {MIN_FREE_BYTES // _MEBIBYTE} MiB", events.LACKING)
            return
        self.reason = ""
        try:
            write_stage(self._folder)
            self._read_modules()
            self._probe_pid = self._spawn((*form.interpreter, "-c", PROBE_PROGRAM, self._folder), PROBE, {})
        except (LaunchError, OSError) as error:
            self._end(f"it cannot be started: {error}", events.LACKING)

    def learn(self, names: Sequence[str]) -> None:
        """Import the modules that one of this worker's ranks has imported; puts `ModulesLearned` afterwards."""
        if self._channel is None:
            return
        path = os.path.join(self._folder, "later.json")
        try:
            write_atomically(path, json.dumps(list(names)))
            self._channel.send(json.dumps({"type": "import", "path": path}).encode() + b"\n")
        except OSError:
            # The process is about to end, or hangs. The next order to fork will show this.
            return
        self._importing = bool(names)

    def preload(self, modules: Modules) -> None:
        """Import the modules that another worker has learned."""
        if self.modules is None:
            self._keep(modules)
            self.learn(modules.names)

    def fork(self, order: Mapping[str, Any], folder: str, answered: Callable[[str], None]) -> None:
        """Order the process to fork an attempt's ranks (`RankStarts.order`); `folder` is the attempt's folder.

        `answered` is called once, with an empty text, or the reason why there are no ranks.
        """
        self._orders += 1
        modules_file = os.path.join(folder, MODULES_FILE) if self.modules is None else ""
        order = {"type": "fork", "number": self._orders, "modulesFile": modules_file, **order}
        self._unsent, self._answered = json.dumps(order).encode() + b"\n", answered
        patience = IMPORT_SECONDS if self._importing or not self._ready else ORDER_SECONDS
        if self._settings.preload and not self._ready:
            patience = PRELOAD_SECONDS
        self._timer = self._loop.call_later(patience, lambda: self._fail("the warm process didn't answer in time"))
        self._send_order()

    @property
    def needs_launcher(self) -> bool:
        """Returns whether the command requires torchrun to start the ranks, on every worker of the job."""
        return isinstance(self._form, str)

    def store_command(self) -> tuple[str, ...]:
        """Returns the command line of a process that serves torch's store if no warm process can fork it.

        Raises OSError if the state folder can't be written.
        """
        assert not isinstance(self._form, str), "torchrun serves it where there is a launcher"
        write_stage(self._folder)
        store = os.path.join(self._folder, stage.PACKAGE, "store.py")
        return (*self._form.interpreter, store, *filter(None, (self._path,)))

    @property
    def pids(self) -> set[int]:
        """Returns the processes outside any attempt."""
        return {pid for pid in (self._probe_pid, self.pid) if pid}

    @property
    def busy(self) -> bool:
        """Returns whether an order is unanswered."""
        return self._answered is not None

    def private_bytes(self) -> Optional[int]:
        """Returns the process's unshared memory [bytes]; None if there is no process."""
        return children.private_bytes(self.pid) if self.pid else None

    def kill(self, verdict: str = events.KILLED) -> None:
        """Kill the process. `verdict`: the verdict in the event of its end."""
        if self.pids:
            self.was_killed, self._verdict = True, verdict
            children.send(self.pids, signal.SIGKILL)
            self._put(events.WarmProcessKilled())

    def process_ended(self, pid: int, ending: Ending) -> None:
        if pid == self._probe_pid:
            self._probe_pid = 0
            self._probed(ending)
        elif pid == self.pid:
            self._read(0)
            self.pid = 0
            self._end(self.reason or f"the warm process has ended {_how(ending)}", self._verdict)

    def _probed(self, ending: Ending) -> None:
        """Start the process itself if the probe has shown that this Python stops before it runs the user's program.

        Only the probe's own exit codes are answers, because a probe may be killed, or end for lack of memory.
        """
        if self.was_killed:
            # The agent has killed the probe, so the process may no longer be needed.
            self._end("it was ended while it started", self._verdict)
        elif ending.exit_code == EXIT_DEAF:
            self._end("this Python doesn't import sitecustomize from PYTHONPATH", events.HOPELESS)
        elif ending.exit_code != EXIT_PROBED:
            self._end(f"the probe of this Python has ended {_how(ending)}", events.FAILED)
        else:
            self._start_process()

    def _start_process(self) -> None:
        later = [] if self.modules is None else list(self.modules.names)
        config = {
            "pythonPath": self._environ.get("PYTHONPATH"),
            "path": self._path,
            "ownVariables": sorted(self._own_variables),
            "leftOut": sorted(self._left_out),
            "required": [_REQUIRED],
            "preload": list(self._settings.preload),
            "later": later,
        }
        self._importing = bool(later)
        path = os.path.join(self._folder, "config.json")
        ours, theirs = socket.socketpair()
        try:
            write_atomically(path, json.dumps(config))
            self.pid = self._spawn(tuple(self._command), path, {CHANNEL: theirs.fileno()})
        except (LaunchError, OSError) as error:
            ours.close()
            self._end(f"it cannot be started: {error}", events.LACKING)
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._channel = ours
        self._loop.watch(ours.fileno(), READ, self._read)
        self._send_order()

    def _spawn(self, arguments: tuple[str, ...], value: str, streams: Mapping[int, int]) -> int:
        environ = dict(self._environ)
        # An empty entry would be the working directory.
        environ["PYTHONPATH"] = ":".join(filter(None, (self._folder, environ.get("PYTHONPATH"))))
        environ[VARIABLE] = value
        # The next agent finds leftover processes of this agent by this variable and the state folder's.
        environ[MARK] = "warm"
        with children.output_streams() as (ends, outputs):
            for name, fd, printer in zip(("out", "err"), ends, self._printers):
                path = os.path.join(self._folder, f"warm.{name}.log")
                self._pumps.append(Pump(self._loop, fd, "[warm]: ", printer, path))
            program = children.find_program(arguments[0], environ)
            return children.spawn(program, arguments, environ, {**outputs, **streams})

    def _look(self) -> None:
        """Kill the process if memory is short."""
        self._loop.call_later(LOOK_SECONDS, self._look)
        free = None if self.was_killed or not self.pid else free_memory(self._settings.cgroup_root)
        if free is not None and free < SHORT_BYTES:
            self.reason = f"{free // _MEBIBYTE} MiB of memory were left beside the warm process, which was ended for it"
            self._printers.say(self.reason)
            self.kill(events.HOPELESS)

    def _read(self, _events: int) -> None:
        channel = self._channel
        if channel is None:
            return
        while True:
            try:
                data = channel.recv(65_536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._loop.unwatch(channel.fileno())
                break
            try:
                for answer in self._answers.feed(data):
                    self._handle(answer)
            except ProtocolError:
                self.kill(events.FAILED)
                return

    def _handle(self, answer: Mapping[str, Any]) -> None:
        kind = answer["type"]
        if kind == "ready":
            self._ready = True
        elif kind == "imported":
            self._importing = False
            if self.modules is None:
                modules = Modules(module_names(answer["names"]))
                self._keep(modules)
                self._put(events.ModulesLearned(modules))
        elif kind == "forked":
            # The answer to an earlier order is ignored. It may arrive after all ranks of that order were announced.
            if answer["number"] == self._orders:
                self.answer(answer["reason"])
        elif kind == "failed":
            self._verdict, self.lacks_torch = events.LACKING, bool(answer["lacks"])
            self.reason = f"{answer['name']} cannot be imported before a fork: {answer['problem']}"
            self._printers.say(self.reason)
        elif kind == "unforkable":
            self._leave_out(answer["problems"], answer["leftOut"])

    def _leave_out(self, problems: Mapping[str, str], names: Sequence[str]) -> None:
        """Leave these modules out of the next process. The present process can't fork ranks any more."""
        for name, problem in problems.items():
            if name not in self._problems:
                self._problems.add(name)
                self._printers.say(f"importing {name} {problem}, so ranks import it themselves")
        self._left_out.update(names)
        if _REQUIRED in self._left_out:
            self._verdict = events.HOPELESS
        first, *others = problems
        more = f", and {len(others)} more modules can't be forked" if others else ""
        self.reason = f"importing {first} {problems[first]}{more}"
        self.answer(self.reason)

    def _read_modules(self) -> None:
        """Read the modules that an earlier agent in this pod may have learned."""
        path = os.path.join(self._folder, MODULES_FILE)
        with contextlib.suppress(OSError, ValueError, ProtocolError), open(path, encoding="utf-8") as file:
            modules = Modules(module_names(json.load(file)))
            if self.modules is None:
                self.modules = modules
                self._put(events.ModulesLearned(modules))

    def _keep(self, modules: Modules) -> None:
        self.modules = modules
        with contextlib.suppress(OSError):  # without the file, the next agent in this pod learns the modules again
            write_atomically(os.path.join(self._folder, MODULES_FILE), json.dumps(list(modules.names)))

    def _send_order(self) -> None:
        if self._answered is None or not self._unsent or self._channel is None:
            return
        order, self._unsent = self._unsent, b""
        try:
            complete = self._channel.send(order) == len(order)
        except OSError:
            complete = False
        if not complete:
            self._fail("the warm process takes no orders")

    def _fail(self, reason: str) -> None:
        self.reason = reason
        self.kill(events.FAILED)

    def answer(self, reason: str = "") -> None:
        """Pass on the answer to the present order. `reason`: why there are no ranks; empty: all were announced."""
        answered, self._answered = self._answered, None
        if self._timer is not None:
            self._timer.cancel()
        if answered is not None:
            answered(reason)

    def _end(self, reason: str, verdict: str) -> None:
        """Record that there is no warm process any more."""
        self.reason = reason
        self._ready = self._importing = False
        if self._channel is not None:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None
        self._answers = JsonLines(MAX_ANSWER_BYTES)
        for pump in self._pumps:
            pump.close()
        self._pumps.clear()
        self.answer(reason)
        self._put(events.WarmProcessEnded(verdict))


def _how(ending: Ending) -> str:
    return f"by signal {ending.signal}" if ending.signal else f"with exit code {ending.exit_code}"


def write_stage(folder: str) -> None:
    """Write the stage's package, and `sitecustomize` beside it."""
    package = os.path.join(folder, stage.PACKAGE)
    os.makedirs(package, exist_ok=True)
    places = {name: os.path.join(package, f"{name}.py") for name in stage.SOURCES}
    places["sitecustomize"] = os.path.join(folder, "sitecustomize.py")
    loader: Any = stage.__loader__
    # In the zipapp the bytecode is in a separate folder.
    sources = stage.__name__.replace(".", "/") if hasattr(loader, "archive") else stage.__path__[0]
    for name, path in places.items():
        source = loader.get_data(f"{sources}/{name}.py")
        # A file that needn't change isn't written, so that Python's cached bytecode for it stays valid.
        if children.read_text(path) != source.decode():
            write_atomically(path, source.decode())
