"""Operators start in tenths of a second and can be killed like any process: they are forked from one with all imports.

Tests that kill an operator at each of its writes use them; `operator_under_test` starts it as users do.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.cluster.forkserver import context, log_to
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.controller import wiring
from trainmaster_operator.controller.app import Operator
from trainmaster_operator.controller.settings import OperatorSettings
from trainmaster_operator.controller.watching.watcher import Watcher, WatchEvent
from trainmaster_operator.reconciling import decide
from trainmaster_operator.serving.logs import set_up

# Once, for all operators that are forked.
zipapp_bytes()


def _main(settings: OperatorSettings, log: Path, disorder: int | None) -> None:
    log_to(log)
    set_up(settings.log_format, settings.log_level)
    if disorder is not None:
        disorderly = random.Random(disorder)
        wiring.Watcher = lambda *a, receive, **k: Watcher(*a, receive=_Disorder(receive, disorderly), **k)  # type: ignore[assignment,misc]

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        # The number of tasks, for tests that look for leaks.
        loop.add_signal_handler(signal.SIGUSR1, lambda: print(f"tasks: {len(asyncio.all_tasks())}", flush=True))
        await Operator(settings, decide).run(stop)

    asyncio.run(run())


class _Disorder:
    """Delivers events as no API server should: some twice, some late (so in another order), some never."""

    def __init__(self, receive: Callable[[WatchEvent], None], random_: random.Random) -> None:
        self._receive_event, self._random = receive, random_

    def __call__(self, event: WatchEvent) -> None:
        chance = self._random.random()
        if chance < 0.15 and event[0] is not None:
            return
        if chance < 0.4:
            loop = asyncio.get_running_loop()
            loop.call_later(self._random.uniform(0.0, 0.4), self._receive_event, event)
            if chance > 0.3:
                return
        self._receive_event(event)


class ForkedOperator:
    """Runs an operator's process; `kill` is SIGKILL."""

    def __init__(self, settings: OperatorSettings, log: Path, disorder: int | None = None) -> None:
        """If `disorder` is set, it is a seed: events then come twice, late, in another order, or never."""
        arguments = (settings, log, disorder)
        self.process: BaseProcess = context.Process(target=_main, args=arguments, daemon=True)
        self.process.start()

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        """Send SIGTERM, and wait until it has ended."""
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(5)
