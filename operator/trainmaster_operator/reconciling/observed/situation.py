"""A situation holds the facts about one job at one moment, computed once for all policies.

`survey` combines the status with the observations: the workers, their pods, and each worker's report on the current
attempt. An agent's `Report` comes from a stream or a termination message. Without one, the container's status is used.

**Matching ends and attempts.** An agent serves many attempts, so an end without a message doesn't show its attempt.
When an attempt opens, the status records how often each worker's container has ended, so that no old end counts again.
A new end belongs to the attempt if it is later than the agent's own report on the attempt, or more than CLOCK_SLACK
later than the opening. An earlier end could belong to the previous attempt, so the operator waits for the restarted
agent's report. It also waits if the kubelet's probe killed an agent that hadn't reported on the attempt, because that
agent hung before the attempt opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from trainmaster_operator.api.times import since, to_seconds
from trainmaster_operator.api.v1alpha1 import (
    SUSPENDED_PHASES,
    TERMINAL_PHASES,
    Failure,
    JobIdentity,
    JobSpec,
    JobStatus,
)
from trainmaster_operator.reconciling.observed.gangs import admitted_spec
from trainmaster_operator.reconciling.observed.members import Members
from trainmaster_operator.reconciling.observed.snapshot import (
    START_FAILURES,
    ContainerEnd,
    Job,
    Observed,
    PodView,
    explained,
    is_unresponsive_report,
    reason_of,
)
from trainmaster_operator.rendering import GroupLayout, Settings, has_spares, worker_layout
from trainmaster_operator.wire.report import Report

# Phases in which the current attempt should run. In all other phases, its ranks are held.
RUN_PHASES = frozenset({"Pending", "Starting", "Running"})
# Tolerance in seconds, because the kubelet rounds times to seconds and uses another machine's clock.
CLOCK_SLACK = 2.0
# Seconds after a leader's hello during which the leader may still be sending earlier reports.
KEPT_REPORTS_SECONDS = 1.0
_BADLY = ("Failed", "Stopped")
# Without a stream, a container counts as up after running for this long.
UP_WITHOUT_REPORT_SECONDS = 10.0


@dataclass(frozen=True)
class Situation:
    """The facts about one job.

    `layout` lists the groups. `workers` are the global indexes of the current attempt's workers, in rank order.
    """

    # `job.spec` is the user's own spec. `spec` has the number of workers that Kueue admitted.
    job: Job
    spec: JobSpec
    observed: Observed
    now: float
    settings: Settings
    layout: tuple[GroupLayout, ...]
    workers: tuple[int, ...]
    pods: Mapping[int, PodView]
    # The last report of each worker on the current attempt.
    reports: Mapping[int, Report] = field(default_factory=dict)

    @property
    def status(self) -> JobStatus:
        return self.job.status

    @property
    def identity(self) -> JobIdentity:
        return self.job.identity

    @property
    def terminal(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    @property
    def suspended(self) -> bool:
        """Returns whether the job is suspended or queued, even if its pods still exist."""
        return self.status.phase in SUSPENDED_PHASES

    @property
    def running(self) -> bool:
        """Returns whether the current attempt should run, as opposed to being held."""
        return self.status.phase in RUN_PHASES and not self.held

    @property
    def held(self) -> bool:
        """Returns whether the current attempt is held until the next one opens.

        The phase is then Restarting, or Pending if the job gave up its nodes before any attempt ran.
        """
        return self.status.phase == "Restarting" or is_held_before_start(self.status)

    @property
    def starting(self) -> bool:
        return self.status.phase in ("Pending", "Starting", "Restarting")

    @property
    def stops_as_planned(self) -> bool:
        """Returns whether the job is being resized or restarted on request, or has given up its nodes for a while."""
        return bool(self.status.resizing or self.status.stopping or self.status.scheduling_backoff)

    @property
    def is_cause_open(self) -> bool:
        """Returns whether the operator waits for a better cause of the last failure before it ends the job."""
        return self.last_failure is not None and bool(self.last_failure.provisional)

    @property
    def lost_after(self) -> float:
        """Returns the seconds after which a silent node or worker counts as lost."""
        return self.spec.failure_policy.nodes.lost_after_seconds

    def after(self, moment: str | None, seconds: float) -> float:
        """Returns the time `seconds` after `moment`. If `moment` is in the future, the current time replaces it."""
        return self.now - since(self.now, moment) + seconds

    @cached_property
    def living(self) -> Mapping[int, PodView]:
        return {worker: pod for worker, pod in self.pods.items() if pod.alive}

    def healthy_pod(self, worker: int, without: frozenset[str] = frozenset()) -> PodView | None:
        """Returns a worker's pod if the pod lives and isn't being replaced, and its agent answers.

        `without` contains the uids of further pods that count as lost.
        """
        pod = self.living.get(worker)
        return None if pod is None or pod.uid in self.leaving | self.unresponsive | without else pod

    @cached_property
    def members(self) -> Members:
        return Members.of(self.workers, self.layout, self.status.absent_ranks)

    @cached_property
    def recorded_uids(self) -> Mapping[int, str]:
        """Returns the uid of each worker's pod from the status. For an absent worker, it is the lost pod's uid."""
        return {worker: uid for worker, uid in zip(self.workers, self.status.pod_uids, strict=False) if uid}

    @cached_property
    def worker_uids(self) -> Mapping[int, str]:
        """Returns the uid of each present worker's pod in the current attempt, if known."""
        return {worker: uid for worker, uid in self.recorded_uids.items() if worker not in self.members.absent}

    @cached_property
    def restart_counts(self) -> Mapping[int, int]:
        """Returns how often each worker's container had ended when the attempt was opened."""
        return dict(zip(self.workers, self.status.pod_restart_counts, strict=False))

    @property
    def code_digest(self) -> str | None:
        """Returns the digest of the code that the user wants to run, or None if the image contains the code."""
        return None if self.spec.code is None else self.spec.code.digest

    @property
    def has_spares(self) -> bool:
        return has_spares(self.layout)

    @property
    def last_failure(self) -> Failure | None:
        return self.status.failures[0] if self.status.failures else None

    @cached_property
    def finished(self) -> frozenset[int]:
        """Returns the workers whose ranks have all exited with 0 in the current attempt.

        A worker that finished before it learned of a continued attempt has finished the continued attempt too.
        """
        reports = [*self.reports.values(), *self.reports_before.values()]
        done = frozenset(report.worker for report in reports if report.state == "Finished")
        return done & frozenset(self.members.present)

    @cached_property
    def reports_before(self) -> Mapping[int, Report]:
        """Returns the reports on the previous attempt if the current attempt continues it, or an empty mapping."""
        return {} if self.status.continues is None else self.reports_of(self.status.attempt - 1)

    @cached_property
    def up(self) -> frozenset[int]:
        """Returns the workers whose ranks are or were up, according to reports, progress, or else their container."""
        up = {worker for worker, report in self.reports.items() if report.state in ("Running", "Finished")}
        if self.observed.progress_attempt == self.status.attempt:
            up.update(worker for worker in self.observed.progress if worker in self.pods)
        # Until the leader's reports arrive, running containers count as up.
        if not self.has_leaders_reports:
            up.update(worker for worker in self.pods if self.unreported_seconds(worker) >= UP_WITHOUT_REPORT_SECONDS)
        if self.status.continues is not None:
            # These workers kept their processes from the previous attempt.
            up.update(worker for worker in self.members.present if worker in self.pods)
        return frozenset(up & set(self.members.present))

    @property
    def has_leaders_reports(self) -> bool:
        """Returns whether a leader is connected and has had time to send its earlier reports after its hello."""
        stream = self.observed.stream
        return stream.connected and not 0 <= self.now - (stream.since or 0.0) < KEPT_REPORTS_SECONDS

    @cached_property
    def ended_before(self) -> Mapping[int, Report]:
        """Returns the reports of a continued attempt's workers whose ranks had ended before the attempt opened.

        If an agent didn't learn of the latest attempts, it may have exited with a report in any of them.
        """
        if self.status.continues is None:
            return {}
        ended = {worker: report for worker, report in self.reports_before.items() if report.state in _BADLY}
        for worker, uid in self.worker_uids.items():
            pod = self.pods.get(worker)
            end = pod.latest_end if pod is not None and pod.uid == uid and not pod.container_runs else None
            if end is not None and end.report is not None and end.report.attempt < self.status.attempt:
                ended[worker] = end.report._replace(worker=worker, uid=uid)
        return {
            worker: report._replace(attempt=self.status.attempt)
            for worker, report in ended.items()
            if worker in self.members.present
            and (not report.able or report.rank is None or report.rank in self.members.present_ranks(worker))
        }

    def unreported_seconds(self, worker: int) -> float:
        """Returns the seconds for which a worker's container has run in this attempt without a report, or 0."""
        pod = self.pods.get(worker)
        if pod is None or not pod.container_runs or worker in self.reports:
            return 0.0
        return max(self.now - self.assigned_since(pod), 0.0)

    def assigned_since(self, pod: PodView) -> float:
        """Returns when a pod's agent could first learn of the attempt.

        This is the attempt's opening or the container's start, whichever is later. Times in the future are ignored,
        because a clock was set back or another machine's clock is wrong. If no time is left, the result is
        UP_WITHOUT_REPORT_SECONDS ago.
        """
        opened = to_seconds(self.status.attempt_start_time)
        known = [at for at in (opened, pod.started_at) if at is not None and at <= self.now]
        return max(known, default=self.now - UP_WITHOUT_REPORT_SECONDS)

    @cached_property
    def joined_agents(self) -> frozenset[str]:
        """Returns the uids of the pods whose agents are connected to the leader."""
        return frozenset(agent.uid for agent in self.observed.stream.workers if agent.connected)

    def pod_name(self, worker: int) -> str | None:
        """Returns the name of a worker's pod, which may not exist."""
        names = (group.set_name for group in self.layout if worker in group.indexes)
        return next((f"{name}-{worker}" for name in names), None)

    @property
    def lacks_domains(self) -> bool:
        """Returns whether the topology decides the order of the ranks, and a pod's node hasn't been read yet."""
        if self.spec.scheduling.topology is None:
            return False
        nodes = {pod.node for pod in self.living.values() if pod.node is not None}
        return not nodes <= self.observed.domains.keys()

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Returns the uids of living pods that are being replaced."""
        return self.moving | self.crash_looping | self.displaced

    @cached_property
    def displaced(self) -> frozenset[str]:
        """Returns the uids of pods that are replaced while the attempt runs without them.

        Either a spare has taken the pod's place, or the other workers continue without it.
        """
        pods = (pod for worker, pod in self.living.items() if worker not in self.members.present)
        return frozenset(pod.uid for pod in pods) & {*self.status.replacing_pod_uids}

    @cached_property
    def crash_looping(self) -> frozenset[str]:
        """Returns the uids of pods that are replaced because the kubelet's back-off delays their containers."""
        if not self.held:
            return frozenset()
        pods = (pod for pod in self.living.values() if pod.worker_container is not None and not pod.container_runs)
        return frozenset(pod.uid for pod in pods) & {*self.status.replacing_pod_uids} - self.moving

    @cached_property
    def moving(self) -> frozenset[str]:
        """Returns the uids of pods that move to another node, because the last failure put their node in quarantine."""
        failure = self.last_failure
        if not self.held or failure is None or failure.attempt != self.status.attempt:
            return frozenset()
        if failure.node not in self.status.avoided_nodes:
            return frozenset()
        current = frozenset(self.worker_uids.values())
        return frozenset(pod.uid for pod in self.pods.values() if pod.node == failure.node and pod.uid in current)

    @cached_property
    def unresponsive(self) -> frozenset[str]:
        """Returns the uids of the attempt's pods whose agents don't answer, according to their peers.

        A pod counts until its container ends or its agent connects again (agent/hang/diagnosis.py).
        """
        failure = self.last_failure
        lost = {worker for worker, report in self.reports.items() if is_unresponsive_report(report)}
        if failure is not None and failure.worker is not None and failure.attempt == self.status.attempt:
            lost |= {failure.worker} if is_unresponsive_report(failure) else set()
        return frozenset(self.pods[worker].uid for worker in lost if self._is_unresponsive(worker))

    def _is_unresponsive(self, worker: int) -> bool:
        """Returns whether a worker's container hasn't ended since the opening, but its agent isn't connected."""
        pod = self.living.get(worker)
        if pod is None or not pod.container_runs or self.worker_uids.get(worker) != pod.uid:
            return False
        if pod.ends > self.restart_counts.get(worker, 0):
            return False
        stream = self.observed.stream
        return not (stream.connected and (pod.uid in self.joined_agents or stream.leader == worker))

    def with_status(self, status: JobStatus) -> Situation:
        """Returns a situation with equal observations and a new status."""
        return survey(replace(self.job, status=status), self.spec, self.observed, self.now, self.settings)

    def reports_of(self, attempt: int) -> Mapping[int, Report]:
        """Returns each worker's last report on an attempt.

        If a container ended without a report, the report is derived from this end.
        """
        latest: dict[int, Report] = {}
        workers = frozenset(self.workers)
        if attempt != self.status.attempt:
            workers |= frozenset(index for group in self.layout for index in group.indexes)
        for report in self.observed.reports:
            if report.attempt == attempt and report.worker in workers and self._is_from_worker(report, attempt):
                latest[report.worker] = report
        for worker, pod in self.pods.items():
            if worker in workers:
                known = latest.get(worker)
                silent = self._end_without_report(pod, attempt, known)
                if known is None or not known.ended:
                    if silent is not None:
                        latest[worker] = silent
                elif known.reason == "AgentLost" or known.state == "Stopped":
                    latest[worker] = explained(known, pod, self._kill_message(pod))
        return latest

    @cached_property
    def stalled_before_attempt(self) -> Mapping[int, int]:
        """Returns how often each container has ended, for the workers whose agents hung when the attempt opened."""
        return {
            worker: pod.ends
            for worker, pod in self.pods.items()
            if self.worker_uids.get(worker) == pod.uid
            and self.running
            and self._stalled_before_attempt(pod, self.reports.get(worker))
        }

    def _stalled_before_attempt(self, pod: PodView, known: Report | None) -> bool:
        """Returns whether the kubelet's probe ended a pod's agent before it had reported on the current attempt."""
        end = pod.latest_end
        if end is None or end.finished_at is None or self.status.attempt == 1 or not self._kill_message(pod):
            return False
        return known is None or known.at > end.finished_at

    def _is_of_attempt(self, pod: PodView, end: ContainerEnd, known: Report | None) -> bool:
        """Returns whether a container's end certainly belongs to the current attempt."""
        attempt, opened = self.status.attempt, to_seconds(self.status.attempt_start_time)
        if attempt == 1 or end.finished_at is None:
            return attempt == 1
        is_later = opened is not None and end.finished_at > opened + CLOCK_SLACK
        if is_later and not self._stalled_before_attempt(pod, known):
            return True
        of_agent = (report for report in self.observed.reports if (report.uid, report.attempt) == (pod.uid, attempt))
        return any(report.at <= end.finished_at for report in of_agent)

    def _kill_message(self, pod: PodView) -> str:
        """Returns the kubelet's message on the last end of a pod's container, if the kubelet killed it."""
        at = pod.latest_end.finished_at if pod.latest_end is not None else None
        return (self.observed.kills.get((pod.uid, at)) or "") if at is not None else ""

    def _is_from_worker(self, report: Report, attempt: int) -> bool:
        """Returns whether a report may come from the pod that the worker had in that attempt."""
        if attempt != self.status.attempt or not report.uid:
            return True
        pod = self.pods.get(report.worker)
        expected = self.worker_uids.get(report.worker) or (pod.uid if pod is not None else report.uid)
        return report.uid == expected

    def _end_without_report(self, pod: PodView, attempt: int, known: Report | None) -> Report | None:
        end = pod.latest_end
        if end is None or end.report is not None or end.reason in START_FAILURES:
            return None
        current = self.worker_uids if attempt == self.status.attempt else self.recorded_uids
        if current and current.get(pod.worker) != pod.uid:
            return None
        if pod.ends <= self.restart_counts.get(pod.worker, 0):
            return None
        if attempt != (self.status.attempt if self._is_of_attempt(pod, end, known) else self.status.attempt - 1):
            return None
        return Report(
            attempt=attempt,
            worker=pod.worker,
            uid=pod.uid,
            state="Failed",
            exit_code=end.exit_code,
            reason=reason_of(end),
            error="\n".join(filter(None, (end.message, self._kill_message(pod)))),
            at=end.finished_at or self.now,
            node=pod.node or "",
        )


def is_held_before_start(status: JobStatus) -> bool:
    """Returns whether a job that never ran has given up its nodes, and waits for all of them."""
    # After a scheduling backoff, an attempt only opens when all pods have nodes, and is Starting then.
    return status.phase == "Pending" and status.scheduling_backoffs > 0


def survey(job: Job, spec: JobSpec, observed: Observed, now: float, settings: Settings) -> Situation:
    """Returns the facts that the policies read."""
    spec = admitted_spec(job, job.spec or spec, observed)
    layout = worker_layout(job.identity, spec)
    ordered = spec.elastic is not None or spec.scheduling.topology is not None or has_spares(layout)
    first = tuple(index for group in layout for index in group.first_workers)
    workers = tuple(job.status.worker_order) if ordered and job.status.worker_order else first
    sets = {group.set_name for group in layout}
    pods = {pod.worker: pod for pod in observed.pods if pod.set_name in sets}
    situation = Situation(job, spec, observed, now, settings, layout, workers, pods)
    if situation.status.absent_ranks:
        situation = replace(situation, observed=_of_present_ranks(observed, situation.members))
    reports = situation.reports_of(job.status.attempt)
    return replace(situation, reports={**situation.ended_before, **reports})


def _of_present_ranks(observed: Observed, members: Members) -> Observed:
    """Returns the observations without the progress of absent ranks, which don't train yet."""
    absent = frozenset(members.absent_ranks)
    progress = {
        worker: {rank: found for rank, found in ranks.items() if rank not in absent}
        for worker, ranks in observed.progress.items()
        if worker not in members.absent
    }
    recoveries = {worker: found for worker, found in observed.recoveries.items() if worker not in members.absent}
    return replace(observed, progress=progress, recoveries=recoveries)
