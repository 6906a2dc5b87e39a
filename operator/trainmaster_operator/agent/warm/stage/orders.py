"""The warm process handles the agent's orders in a loop, which begins when the interpreter imports `sitecustomize`."""

from __future__ import annotations

import gc
import json
import os
import select
import sys
from typing import Any

from . import CHANNEL, EXIT_PROBED, MARK, PACKAGE, PROBE, VARIABLE
from .forkable import Imports, describe_error
from .forking import Forks
from .this_process import oom_score, set_oom_score

_SITECUSTOMIZE = "sitecustomize"
OOM_SCORE = 800
"""With this score the kernel kills the warm process first when memory is short (proc(5), oom_score_adj)."""
SCOUT_NICENESS = 19
"""The niceness of a warm process that can't fork ranks any more, so that it gives way to ranks."""
IDLE_SECONDS = 5.0
"""If the warm process gets no orders for this long, it collects its garbage, which takes 0.2 s."""


def enter(path: str, native: frozenset[str], *, collects: bool) -> None:
    """Run the stage. Returns only in a rank, without a trace of the stage.

    `path` is sitecustomize's path, `native` contains the modules that Python itself had imported before, and
    `collects` is whether this Python collects garbage automatically.
    """
    config_file = os.environ.pop(VARIABLE, "")
    os.environ.pop(MARK, None)
    if config_file == PROBE:
        os._exit(EXIT_PROBED)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    for known in (folder, os.path.join(folder, PACKAGE)):
        sys.path_importer_cache.pop(known, None)
    if config_file:
        # Even after an error, this process must not become the user's program.
        try:
            with open(config_file, encoding="utf-8") as file:
                config = json.load(file)
            os.environ.pop("PYTHONPATH", None)
            if config["pythonPath"] is not None:
                os.environ["PYTHONPATH"] = config["pythonPath"]
            WarmLoop(config, native, collects=collects).serve()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    # This imports the image's own `sitecustomize`. If there is none, `site` expects the resulting ImportError.
    sys.modules.pop(_SITECUSTOMIZE, None)
    __import__(_SITECUSTOMIZE)


class WarmLoop:
    """WarmLoop imports and forks. Before it forks, it imports everything ordered, because ranks would take longer."""

    def __init__(self, config: dict[str, Any], native: frozenset[str], *, collects: bool) -> None:
        self._config = config
        self._later: list[str] = config["later"]
        self._orders: list[dict[str, Any]] = []
        """Orders to fork, which wait for pending imports."""
        self._littered = True
        """Whether there may be garbage."""
        self._received = b""
        self._imported: list[str] = []
        """The learned modules that were imported here because of an order."""
        self._imports = Imports(config, native)
        self._blame = self._imports.blame
        self._reported = False
        """Whether the agent was informed that this process can't fork ranks."""
        self._oom_score = oom_score()
        self._forks = Forks(config, self._oom_score, self._blame.open_before, collects=collects)
        os.set_inheritable(CHANNEL, False)

    def serve(self) -> None:
        """Import modules and fork ranks as ordered. Returns only in a rank."""
        set_oom_score(str(min(1000, int(self._oom_score or 0) + OOM_SCORE)))
        for name in self._config["required"]:
            self._import(name, required=True)
        for name in self._config["preload"]:
            self._import(name, users=True)
        self._blame.settle()
        self._give_way()
        if not self._blame.problems:
            self._send({"type": "ready"})
        while True:
            order = self._receive()
            if order is None:
                if self._later:
                    self._import_later()
                elif self._orders and self._fork(self._orders.pop(0)):
                    return
                elif self._blame.problems:
                    self._report_problems()
                    os._exit(0)
            elif order["type"] == "fork":
                self._orders.append(order)
            elif order["type"] == "import":
                with open(order["path"], encoding="utf-8") as file:
                    self._later.extend(json.load(file))

    def _import(self, name: str, *, required: bool = False, users: bool = False) -> None:
        try:
            self._imports.add(name, required=required, users=users)
        except BaseException as error:
            lacks = self._imports.lacks(name, error)
            self._send({"type": "failed", "name": name, "problem": describe_error(error), "lacks": lacks})
            os._exit(0)
        self._give_way()

    def _give_way(self) -> None:
        """Leave the processors to cold-starting ranks, once this process can't fork ranks."""
        if self._blame.problems and not self._reported:
            self._report_problems()
            os.nice(SCOUT_NICENESS)

    def _report_problems(self) -> None:
        self._reported = True
        self._send({"type": "unforkable", "problems": self._blame.problems, "leftOut": self._blame.left_out()})

    def _import_later(self) -> None:
        name = self._later.pop(0)
        if self._imports.is_missing(name):
            self._import(name)
            self._imported.append(name)
        if not self._later:
            self._littered = True
            self._blame.settle()
            self._give_way()
            unforkable = set(self._blame.left_out())
            self._send({"type": "imported", "names": [each for each in self._imported if each not in unforkable]})

    def _fork(self, order: dict[str, Any]) -> bool:
        """Fork an attempt's ranks; returns True in a rank, False here."""
        reason: str | None = "a module that it has imported can't be forked" if self._blame.problems else ""
        reason = reason or self._blame.at_fork() or self._imports.outdated() or self._forks.fork(order)
        if reason is not None:
            self._send({"type": "forked", "number": order["number"], "reason": reason})
        return reason is None

    def _receive(self) -> dict[str, Any] | None:
        """Returns the next order; None if there is none, but there is other work to do."""
        while b"\n" not in self._received:
            busy = self._later or self._orders or self._blame.problems
            if (busy or self._littered) and not select.select([CHANNEL], [], [], 0 if busy else IDLE_SECONDS)[0]:
                if busy:
                    return None
                # Without this garbage, ranks have fewer objects to collect and memory pages to copy.
                gc.collect()
                self._littered = False
            data = os.read(CHANNEL, 1 << 20)
            if not data:
                os._exit(0)
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(CHANNEL, data) :]
