"""This worker's part of an attempt: what comes before its ranks, then the ranks, observed.

There is one part at a time. It is begun with an assignment, and tells the worker how it went: `outcome` when it has
ended or a better cause was found, `gone` when nothing of it runs any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.agent.errors import LaunchError
from trainmaster.agent.hang.observation import Observation
from trainmaster.agent.hang.stall import StallWatch
from trainmaster.agent.loop import Loop
from trainmaster.agent.network.resolve import lookup_hosts
from trainmaster.agent.process.children import Ending
from trainmaster.agent.process.classification import Outcome, stopped
from trainmaster.agent.process.output import Printer
from trainmaster.agent.process.preparation import MasterContact, Preparation, SetupEnvironment
from trainmaster.agent.process.run import Run
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.reasons import EXIT_BY_REASON


class Listeners(NamedTuple):
    """Who hears of what."""

    outcome: Callable[[Outcome], None]
    gone: Callable[[], None]
    launched: Callable[[Mapping[str, str]], None]
    """The launcher runs, in this environment."""
    up: Callable[[], None]
    """All ranks are up."""
    progress: Callable[[dict[str, Any]], None]
    tell_lead: Callable[[dict[str, Any]], bool]
    leave_lead: Callable[[], bool]
    """Look for another lead; False where none is joined."""


class Part:
    """See the module. Everything may be called at any time; what there is nothing to do for does nothing."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        command: Sequence[str],
        environ: Mapping[str, str],
        printers: tuple[Printer, Printer],
        contact: Callable[[], MasterContact],
        listeners: Listeners,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._command = command
        self._printers = printers
        self._contact = contact
        self._listeners = listeners
        self._setup = SetupEnvironment(settings.setup, environ)
        self._preparation: Preparation | None = None
        self._run: Run | None = None
        self._stall: StallWatch | None = None
        """Of the newest attempt that was launched, as the observation is."""
        self.observation: Observation | None = None
        """It outlives its run."""

    @property
    def preparing(self) -> bool:
        """Whether it has begun and its launcher hasn't been started yet."""
        return self._preparation is not None

    @property
    def running(self) -> bool:
        """Whether the launcher was started and not everything of it has gone."""
        return self._run is not None

    @property
    def ranks(self) -> dict[str, dict[str, Any]]:
        """What is known of each rank of the newest attempt that was launched."""
        return self.observation.ranks if self.observation is not None else {}

    def begin(self, assignment: Assignment, node_rank: int) -> None:
        """Prepare, and start the ranks as soon as they can."""

        def launch(environ: Mapping[str, str]) -> None:
            self._preparation = None
            self._launch(assignment, node_rank, environ)

        def failed(outcome: Outcome) -> None:
            self._preparation = None
            self._listeners.outcome(outcome)

        self._preparation = Preparation(
            self._loop, self._settings, self._setup, self._contact, self._printers, launch, failed
        )
        self._preparation.begin()

    def stop(self, grace: float, delay: float = 0.0) -> None:
        """End it: after `delay` ranks get SIGTERM, and SIGKILL when `grace` is over (seconds)."""
        if self._run is not None:
            self._run.stop(grace, delay)
        elif self._preparation is not None:
            self._end_preparation(stopped(None))

    def fail(self, outcome: Outcome) -> None:
        """End it with a cause that was found outside."""
        if self._run is not None:
            self._run.fail(outcome)
        elif self._preparation is not None:
            self._end_preparation(outcome)

    def child_ended(self, pid: int, ending: Ending) -> None:
        """A child of the agent was reaped."""
        if self._preparation is not None:
            self._preparation.child_ended(pid, ending)
        if self._run is not None:
            self._run.child_ended(pid, ending)

    def look_once_more(self) -> None:
        """Take in the rest of the ranks' progress, before their end is told of."""
        if self._run is not None and self.observation is not None:
            self.observation.finish()

    def told(self, attempt: int, line: dict[str, Any]) -> bool:
        """What the lead says of a stall; False where no rank of this attempt can have stalled."""
        stall = self._stall if self._run is not None and attempt == self._run.attempt else None
        if stall is None or stall.over:
            return False
        stall.told(line)
        return True

    def _end_preparation(self, outcome: Outcome) -> None:
        if self._preparation is not None:
            self._preparation.cancel()
            self._preparation = None
            self._listeners.outcome(outcome)

    def _launch(self, assignment: Assignment, node_rank: int, environ: Mapping[str, str]) -> None:
        address = lookup_hosts(self._settings.hosts_file, assignment.master)
        if assignment.master == assignment.hosts[node_rank]:
            # Rank 0 doesn't wait for its own name: DNS, or the hosts file, may not have it for a while, and its store
            # would look for itself in vain.
            address = self._settings.pod_ip or address
        if address:
            assignment = assignment._replace(hosts=(address, *assignment.hosts[1:]))
        heard = self._listeners
        run = Run(self._loop, self._settings, assignment, node_rank, self._printers, heard.outcome, self._gone)
        try:
            run.start(self._command, environ)
        except LaunchError as error:
            heard.outcome(launch_error(str(error)))
        except OSError as error:
            heard.outcome(launch_error(f"cannot write {error.filename}: {error.strerror}"))
        else:
            self._run = run
            observation = Observation(self._loop, self._settings, run, heard.up, heard.progress, lambda: stall.begin())
            stall = StallWatch(self._loop, self._settings, run, observation, heard.tell_lead, heard.leave_lead)
            self.observation, self._stall = observation, stall
            heard.launched(environ)

    def _gone(self) -> None:
        if self.observation is not None:
            self.observation.finish()
        self._run = None
        self._listeners.gone()


def launch_error(error: str) -> Outcome:
    """The outcome of what couldn't be started."""
    return Outcome("Failed", None, EXIT_BY_REASON["LaunchError"], None, "LaunchError", error[-2_000:])
