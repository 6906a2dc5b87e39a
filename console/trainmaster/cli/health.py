"""Shows beside the jobs since when the API server hasn't answered, and since when no operator has been seen."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from trainmaster.cli.terminal import called, say
from trainmaster.client import ClientError, JobClient, NoCluster, TrainingJob, WaitTimeout
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.operator_sign import OperatorSign, Silence
from trainmaster.client.patience import Outage, PatientTransport
from trainmaster.client.view import view_of
from trainmaster_operator.api.printable import one_line

# Seconds between two looks for the operator while jobs are watched.
LOOK_SECONDS = 5.0
# Seconds after which a job without an operator is reported. A living operator accepts a job within a second.
UNSEEN_SECONDS = 10.0


def say_silence(jobs: JobClient, shown: Sequence[TrainingJob]) -> None:
    """Prints since when no operator has been seen, if jobs that need one were shown."""
    try:
        found = run(OperatorSign(Blocking(jobs.transport)).look_twice([job.raw for job in shown]))
    except ClientError:
        # The jobs were shown, so the API server has just answered.
        return
    if found is not None:
        say(found.sentence(datetime.now(UTC)), error=True)


def patient(jobs: JobClient, until: float = math.inf) -> JobClient:
    """Returns a client that repeats reads during an outage, until a time (time.monotonic), and prints that it does."""
    outage = Outage(lambda sentence: say(sentence, error=True))
    return JobClient(jobs.namespace, transport=PatientTransport(jobs.transport, outage, until))


def wait_for(
    jobs: JobClient, job: TrainingJob, reached: Callable[[TrainingJob], bool], timeout: float | None = None
) -> TrainingJob:
    """Waits until `reached` is True for a job, during outages too. Raises WaitTimeout and JobNotFound.

    If no operator accepts the job, prints what to look at.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    jobs = patient(jobs, until)
    if not view_of(job.raw).is_accepted and (timeout is None or timeout > UNSEEN_SECONDS):
        try:
            jobs.wait(job.name, until=lambda each: view_of(each.raw).is_accepted, timeout=UNSEEN_SECONDS)
        except WaitTimeout:
            say(view_of(job.raw).obstacle(called()), error=True)
        timeout = None if timeout is None else max(0.0, until - time.monotonic())
    return jobs.wait(job.name, until=reached, timeout=timeout)


class Health:
    """Health watches the API server and the operator during a live view.

    `jobs` is the view's client, which repeats reads during an outage. `shown` are the jobs that the view shows now.
    """

    def __init__(self, jobs: JobClient, *, is_drawn: bool) -> None:
        """With `is_drawn`, the picture contains the sentences; otherwise an outage's begin and end are printed."""
        # A watch is silent during an outage, so the looks for the operator find outages, too.
        self._outage, self._look_outage = Outage(), Outage()
        self._sign = OperatorSign(Blocking(jobs.transport))
        self._silence: Silence | None = None
        shown = JobClient(jobs.namespace, transport=PatientTransport(jobs.transport, self._outage))
        self.jobs = shown if is_drawn else patient(jobs)
        self.shown: Sequence[TrainingJob] = ()
        if is_drawn:
            threading.Thread(target=self._look, daemon=True).start()

    def seen(self, changes: Iterable[tuple[TrainingJob, bool]]) -> Iterator[tuple[TrainingJob, bool]]:
        """Passes on changes of jobs, and keeps the present state of the jobs."""
        known: dict[str, TrainingJob] = {}
        for job, is_deleted in changes:
            known.pop(job.uid, None)
            if not is_deleted:
                known[job.uid] = job
            self.shown = list(known.values())
            yield job, is_deleted

    def beside(self, picture: RenderableType) -> RenderableType:
        """Returns a picture below the sentences about what is stale."""
        now = datetime.now(UTC)
        silence = self._silence
        outage = self._outage.sentence(now) or self._look_outage.sentence(now)
        found = [outage, "" if silence is None else silence.sentence(now)]
        lines = [Text(one_line(sentence), style="bold yellow") for sentence in found if sentence]
        return Group(*lines, picture) if lines else picture

    def _look(self) -> None:
        while True:
            if self.shown:
                try:
                    with self._look_outage.asking():
                        self._silence = run(self._sign.look([job.raw for job in self.shown]))
                except NoCluster as error:
                    self._silence = None
                    self._look_outage.begins(error)
                except ClientError:
                    self._silence = None
                else:
                    self._look_outage.ends()
            time.sleep(LOOK_SECONDS if self.shown else min(1.0, LOOK_SECONDS))
