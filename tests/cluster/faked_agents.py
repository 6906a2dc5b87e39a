"""One faked worker's agent and ranks; `faked_workers` creates them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster_local.inside import Container, Exit, FakeRuntime
from trainmaster_operator.agent.authority import Authority
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.assignment import Assignment, parse_text
from trainmaster_operator.wire.names import JOB_NAME_LABEL, JOB_UID_LABEL
from trainmaster_operator.wire.names import POD_INDEX_LABEL as INDEX_LABEL
from trainmaster_operator.wire.report import EXIT_BY_REASON
from trainmaster_operator.wire.signing import job_token
from trainmaster_operator.wire.values import ProtocolError

if TYPE_CHECKING:
    from tests.cluster.faked_workers import FakedWorkers

STOP_SECONDS = 0.01
ENDED = ("Finished", "Failed", "Stopped")


@dataclass(frozen=True)
class Fail:
    """Makes a rank fail after `after` seconds of training."""

    attempt: int
    worker: int
    after: float = 0.05
    code: int = 1
    reason: str = "Error"


@dataclass(frozen=True)
class Script:
    """Describes what a job's ranks do: they train for `seconds` (in the first attempt: `first_seconds`), or fail
    before.

    If `able`, they can continue in a continued attempt, which trains for `seconds` once more.
    """

    seconds: float = 0.2
    first_seconds: float | None = None
    faults: Sequence[Fail] = ()
    able: bool = False


@dataclass
class Run:
    """Records a rank's part in an attempt, on the monotonic clock."""

    job: str
    attempt: int
    worker: int
    pod: str
    started: float
    workers: int
    # It starts in order to join an attempt that the others continue.
    preparing: bool = False
    joined: float | None = None
    stopped: float | None = None
    state: str = "Starting"


@dataclass
class Timings:
    """Holds the agents' times (seconds), as in docs/protocol.md, "The sure way"; tests without streams shorten them."""

    unacknowledged: float = 3.0
    bystander: float = 3.0
    forgotten: float = 30.0
    # The time for which ranks that can continue outlive the loss of one.
    continued: float = 3.0
    prepared: float = 0.1
    # Long, because hundreds of jobs start together here.
    rendezvous: float = 60.0


def settings_of(variables: Mapping[str, dict[str, Any]], secret: Callable[[str, str], str]) -> AgentSettings:
    """Returns the settings that the real agent would read in a container with these variables."""
    environ = {"TRAINMASTER_WORKER": "0"}
    for name, variable in variables.items():
        reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if reference is not None:
            environ[name] = secret(reference["name"], reference["key"])
        elif "value" in variable:
            environ[name] = variable["value"]
    return read_settings(environ)


class Agent:
    """Fakes the agent of one container."""

    def __init__(self, home: FakedWorkers, pod: dict[str, Any], runtime: FakeRuntime, container: Container) -> None:
        self.home, self.runtime, self.container = home, runtime, container
        metadata = pod["metadata"]
        self.uid, self.pod, self.namespace = metadata["uid"], metadata["name"], metadata["namespace"]
        labels = metadata["labels"]
        self.job, self.job_uid = f"{self.namespace}/{labels[JOB_NAME_LABEL]}", labels[JOB_UID_LABEL]
        self.worker = int(labels[INDEX_LABEL])
        self.node = pod["spec"].get("nodeName", "")
        self.assignment: Assignment | None = None
        self.run: Run | None = None
        self.report: dict[str, Any] | None = None
        self.acknowledged = 0
        self.streams: set[asyncio.Queue[bytes]] = set()
        self.sequence = 0
        self.kept: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
        self.alive = True
        worker = next(one for one in pod["spec"]["containers"] if one["name"] == "worker")
        self.settings = settings_of({variable["name"]: variable for variable in worker["env"]}, self._secret)
        # All workers of a job have the same settings here, so an assignment that one has verified is valid for all.
        self.authority = home.authorities.setdefault(self.settings, Authority(self.settings))

    def _secret(self, name: str, key: str) -> str:
        """Returns a variable's value from a Secret; empty if that is missing."""
        found = self.home.cluster.api.peek("secrets", name, self.namespace) or {}
        return base64.b64decode((found.get("data") or {}).get(key, "")).decode()

    @property
    def token(self) -> str:
        return job_token(self.settings.agents_secret, self.settings.job_uid)

    def read(self, text: str) -> Assignment | None:
        """Returns an assignment if the real agent's code would accept it."""
        try:
            self.authority.read(json.loads(text))
        except ProtocolError as error:
            self.home.refused.append(f"{self.pod}: {error}")
            return None
        return Assignment.parse(parse_text(text))

    def take_text(self, text: str) -> None:
        assignment = self.read(text)
        if assignment is not None:
            self.take(assignment)

    @property
    def _script(self) -> Script:
        return self.home.script.get(self.job, self.home.default)

    @property
    def saved(self) -> dict[str, Any]:
        return self.home.saved.setdefault(self.uid, {})

    @property
    def ip(self) -> str:
        pod = self.home.pods.get(self.uid) or {}
        return str((pod.get("status") or {}).get("podIP") or "")

    def peers(self) -> list[Agent]:
        return [agent for agent in self.home.agents.values() if agent.job_uid == self.job_uid and agent.alive]

    def take(self, assignment: Assignment) -> None:
        """Take an assignment: the highest attempt wins, and Hold wins over Run."""
        if not self.alive or (self.assignment is not None and _order(assignment) <= _order(self.assignment)):
            return
        self.assignment = assignment
        self.home.publish_worker(self)
        self._bring()

    def _bring(self) -> None:
        assignment = self.assignment
        if assignment is None or not self.alive:
            return
        held = assignment.state == "Hold"
        place = assignment.node_rank(self.worker, self.uid)
        continues = None if held or place is None else assignment.continues
        if self.run is not None and continues is not None and continues <= self.run.attempt < assignment.attempt:
            self.run.stopped, self.run.state = time.monotonic(), "Continued"
            self._begin(assignment, preparing=place in assignment.absent)
            return
        if self.run is not None:
            if self.run.attempt < assignment.attempt or held:
                self.home.later(STOP_SECONDS, self._stop, self.run)
            return
        last = self.saved.get("report")
        if last is not None and last["attempt"] == assignment.attempt:
            if last["state"] not in ENDED:
                last = self.saved["report"] = self._new_report("Failed", attempt=last["attempt"], reason="AgentLost")
            self._publish(last)
            return
        if held or place is None or (last is not None and last["attempt"] > assignment.attempt):
            return
        if continues is not None and place not in assignment.absent:
            self._publish(self._new_report("Failed", attempt=assignment.attempt, reason="AgentLost"))
            return
        self._begin(assignment, preparing=continues is not None)

    def _begin(self, assignment: Assignment, *, preparing: bool) -> None:
        """Start ranks, or have the living ones form another group."""
        workers = len(assignment.workers)
        run = Run(self.job, assignment.attempt, self.worker, self.uid, time.monotonic(), workers, preparing)
        self.run = run
        self.home.record.append(run)
        self._publish(self._new_report("Starting"))
        if preparing:
            self.home.later(self.home.timings.prepared, self._wait_to_join, run)
            return
        self.home.later(self.home.timings.rendezvous, self._give_up, run)
        self.home.rendezvous(self, assignment)

    def _wait_to_join(self, run: Run) -> None:
        if self.run is run and self.alive:
            self._publish(self._new_report("Starting", ready=True))

    def _give_up(self, run: Run) -> None:
        if self.run is run and run.joined is None:
            self.end("Failed", reason="MasterUnreachable", error="no connection to the master", culprit=False)

    def _stop(self, run: Run) -> None:
        if self.run is run:
            self.end("Stopped", reason="Stopped", culprit=False)
            self._bring()

    def end(self, state: str, **fields: Any) -> None:
        """End the ranks."""
        run = self.run
        if run is None:
            return
        report = self._new_report(state, **fields)
        self.run = None
        run.stopped, run.state = time.monotonic(), state
        self._publish(report)
        if state == "Failed" and fields.get("culprit", True):
            # The leader sends `stop` to all others; those that don't get it see a broken connection.
            wait = self.home.timings.continued if self._script.able else STOP_SECONDS
            for peer in self.peers():
                if peer.run is not None and peer.run.attempt == run.attempt:
                    self.home.later(wait, peer._stop, peer.run)

    def join(self, run: Run) -> None:
        """Join, once all ranks of the attempt are up."""
        run.joined = time.monotonic()
        self._publish(self._new_report("Running", able=self._script.able))

    def lose_peer(self, run: Run) -> None:
        if self.run is run:
            self.end("Failed", reason="Error", exitCode=1, error="Connection reset by peer", culprit=False)

    def _new_report(self, state: str, **fields: Any) -> dict[str, Any]:
        attempt = self.run.attempt if self.run is not None else 0
        code = {"Finished": 0, "Failed": 1}.get(state)
        said = {"attempt": attempt, "worker": self.worker, "uid": self.uid, "state": state, "exitCode": code}
        return {**said, "rank": None, "node": self.node, "at": round(time.time(), 3), "culprit": True, **fields}

    def _publish(self, report: dict[str, Any]) -> None:
        self.report = self.saved["report"] = report
        self.home.deliver(self, report)
        if report["state"] in ("Finished", "Failed") and self.saved.get("exited") != report["attempt"]:
            timings = self.home.timings
            bystander = not report["culprit"] or report.get("reason") == "AgentLost"
            wait = timings.unacknowledged if self.home.is_watched(self) else 0.05
            self.home.later(max(wait, timings.bystander if bystander else 0.0), self._exit_unless_acknowledged, report)

    def _exit_unless_acknowledged(self, report: dict[str, Any]) -> None:
        newer = self.assignment is not None and (
            self.assignment.attempt > report["attempt"] or self.assignment.state == "Hold"
        )
        if not self.alive or self.report is not report or newer:
            return
        if self.acknowledged >= report["attempt"]:
            if not self.home.is_watched(self, within=self.home.timings.forgotten):
                self._exit(report)
            elif report["state"] == "Failed":
                self.home.later(1.0, self._exit_unless_acknowledged, report)
            return
        if self.home.is_watched(self, within=self.home.timings.unacknowledged):
            self.home.deliver(self, report)
            self.home.later(0.5, self._exit_unless_acknowledged, report)
        else:
            self._exit(report)

    def _exit(self, report: dict[str, Any]) -> None:
        self.saved["exited"] = report["attempt"]
        code = EXIT_BY_REASON.get(report.get("reason") or "") or report["exitCode"] or 0
        message = json.dumps(report, separators=(",", ":"))
        self.runtime.end(self.container, Exit(code, time.time(), message=message))

    def die(self) -> None:
        """End the container, and the ranks with it."""
        self.alive = False
        run, self.run = self.run, None
        for queue in list(self.streams):
            queue.put_nowait(b"")
        self.home.gone(self, run)

    def keep(self, report: dict[str, Any]) -> None:
        """As the leader, keep a worker's report and publish it to the operator."""
        key = (report["attempt"], report["worker"])
        if key in self.kept and self.kept[key][1] is report:
            return
        self.sequence += 1
        self.kept[key] = (self.sequence, report)
        self.say({"type": "report", "seq": self.sequence, "report": report})

    def say(self, line: dict[str, Any]) -> None:
        for queue in self.streams:
            queue.put_nowait(json.dumps(line).encode() + b"\n")

    def worker_line(self) -> dict[str, Any]:
        seen = self.assignment.attempt if self.assignment is not None else 0
        return {"worker": self.worker, "uid": self.uid, "seen": seen, "connected": self.alive}


def _order(assignment: Assignment) -> tuple[int, bool]:
    return assignment.attempt, assignment.state == "Hold"
