"""Keeps the evidence of every attempt that failed: all reports, stacks, the end of the culprit's log.

It is in the ConfigMap `<job>-evidence` (api/evidence.py), owned by the job: it outlives the pods and goes with the
job. It is written in the background, SETTLE_SECONDS after an attempt's end, when all workers have reported; nothing
ever waits for it, but what lets pods go: the end of the job, and the operator's own replacing of a pod. Bounded:
ATTEMPT_BYTES an attempt, TOTAL_BYTES a job; the first attempt and the newest ones are kept. Evidence of stalls comes
on the leader's stream before the report of the hang, and is held here until then. Where the job or the operator doesn't
let output be kept, it has no logs, stacks and errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trainmaster_operator.api.evidence import AttemptEvidence, attempt_of, clean, evidence_key, evidence_name
from trainmaster_operator.api.kept_logs import KeptLog, lines_of_attempt
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import since
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, Cluster, whole
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import owner_uid
from trainmaster_operator.controller.keeping.logs import allows_logs
from trainmaster_operator.controller.keeping.owned_config_map import owned_config_map
from trainmaster_operator.controller.keeping.pod_logs import TAIL_LINES
from trainmaster_operator.controller.watching.watched import EVIDENCE_CONTENT
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView
from trainmaster_operator.wire.evidence import RankState
from trainmaster_operator.wire.limits import MAX_ENVIRONMENT, MAX_EVIDENCE_BYTES
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine
from trainmaster_operator.wire.values import last_lines

logger = logging.getLogger(__name__)

# All workers' reports and a settled cause are there by then.
SETTLE_SECONDS = 3.0
# At the job's end the pods hold GPUs while it is written, and a restart waits for a pod that is to be replaced.
LAST_WRITE_SECONDS = 3.0
ATTEMPT_BYTES = 64 * 1024
TOTAL_BYTES = 448 * 1024
# What is held in memory of one job's stalls until it is written.
HELD_BYTES = 512 * 1024
# An operator that comes back writes the evidence of a failure that is younger than this.
OLD_SECONDS = 60.0
LOG_BYTES = 12 * 1024
# Of a container's log so much is read: the next attempt may have printed behind the one that failed.
READ_BYTES = 1024 * 1024
# Of how many workers an attempt's evidence is kept: all of it is one ConfigMap.
KEPT_WORKERS = 64
WRITES = 3


class Tail(Protocol):
    """Reads the end of a worker's log."""

    async def __call__(self, namespace: str, pod: PodView, limit: int) -> str: ...


class OnKept(Protocol):
    """Gets each attempt's evidence that was written, as JSON."""

    def __call__(self, job: Job, attempt: int, evidence: str) -> None: ...


@dataclass
class _Kept:
    """Holds what is known of one job's newest failure, and of stalls that may become one."""

    stalls: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    size: int = 0
    # Of the failure that was written last, or is about to be: `_recorded`.
    recorded: tuple[int, str, str, bool] | None = None
    task: asyncio.Task[None] | None = None
    # By attempt: what was known at its end, until it is written.
    early: dict[int, AttemptEvidence] = field(default_factory=dict)
    # (attempt, whether its culprit's pod was among them) of what was written because pods were about to be deleted.
    secured: set[tuple[int, bool]] = field(default_factory=set)


class EvidenceKeeper:
    """Keeps evidence from every status that is written; see the module."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        tail: Tail,
        *,
        keep_output: bool = True,
        settle_seconds: float = SETTLE_SECONDS,
        on_kept: OnKept | None = None,
    ) -> None:
        self._cluster = cluster
        self._on_kept = on_kept
        self._store = store
        self._tail = tail
        self._keep_output = keep_output
        self._settle_seconds = settle_seconds
        self._jobs: dict[str, _Kept] = {}

    def record_stall(self, uid: str, line: EvidenceLine) -> None:
        """Record a worker's evidence of a stall, from the stream. Only so much is held of a job."""
        kept = self._jobs.setdefault(uid, _Kept())
        for old in [attempt for attempt in kept.stalls if attempt < line.attempt - 1]:
            kept.size -= sum(map(_size, kept.stalls.pop(old).values()))
        ranks = kept.stalls.setdefault(line.attempt, {})
        for rank, state in line.ranks.items():
            data = _kept_state(state)
            before = _size(ranks[rank]) if rank in ranks else 0
            after = _size(data)
            if kept.size + after - before <= HELD_BYTES:
                ranks[rank] = data
                kept.size += after - before

    def record_failure(self, key: JobKey, snapshot: Snapshot, status: JobStatus) -> None:
        """Record a status that was written: if it has a new failure, its evidence is written a little later."""
        failure = status.failures[0] if status.failures else None
        if failure is None:
            return
        kept = self._jobs.setdefault(snapshot.job.uid, _Kept())
        recorded = _recorded(failure)
        if kept.recorded == recorded:
            return
        first = kept.recorded is None or kept.recorded[0] != failure.attempt
        if kept.recorded is None and not since(time.time(), failure.failed_at) < OLD_SECONDS:
            # A failure of before this operator; whoever could report more of it has long gone on.
            kept.recorded = recorded
            return
        kept.recorded = recorded
        if not first and kept.task is not None and not kept.task.done():
            # The cause was corrected, or the job came back, before it was written; the task reads the status then.
            return
        before = kept.task
        early = kept.early[failure.attempt] = self._gather(snapshot, failure, {})
        kept.task = asyncio.create_task(
            self._later(key, snapshot, failure, early, before), name=f"evidence {key} attempt {failure.attempt}"
        )

    async def last(self, key: JobKey, snapshot: Snapshot, status: JobStatus) -> None:
        """Write what there is: the job is about to end, and never waits for this for long."""
        failure = status.failures[0] if status.failures else None
        kept = self._jobs.get(snapshot.job.uid)
        if kept is not None and kept.task is not None and not kept.task.done():
            kept.task.cancel()
        if failure is None or snapshot.job.deleting:
            return
        kept = self._jobs.setdefault(snapshot.job.uid, _Kept())
        kept.recorded = _recorded(failure)
        # Attempts that ended a moment before this one may not have been written yet.
        earlier = [
            known for known in status.failures if known.attempt in kept.early and known.attempt < failure.attempt
        ]
        for each in (failure, *earlier):
            if await self._write_now(key, snapshot, each, with_log=False):
                self._written(snapshot.job.uid, each.attempt)

    async def before_deletion(self, key: JobKey, snapshot: Snapshot, pod_uid: str) -> None:
        """Write what is only known as long as a pod is there, which the operator is about to delete.

        Never in the way of that for long, and once for all pods of an attempt but its culprit's.
        """
        failure = snapshot.job.status.failures[0] if snapshot.job.status.failures else None
        if failure is None or snapshot.job.deleting:
            return
        culprits = any(pod.uid == pod_uid and pod.name == failure.pod for pod in snapshot.observed.pods)
        kept = self._jobs.setdefault(snapshot.job.uid, _Kept())
        if (failure.attempt, culprits) in kept.secured:
            return
        kept.secured = {known for known in kept.secured if known[0] == failure.attempt} | {(failure.attempt, culprits)}
        await self._write_now(key, snapshot, failure, with_log=culprits)

    async def add_output(self, job: Job, attempt: int, worker: int, log: KeptLog) -> None:
        """Add what a worker's pod printed last to the evidence of the attempt that it ended. Raises ClusterError.

        `attempt`: the newest one that there was when the pod began to end.
        """
        for failure in () if job.deleting else job.status.failures:
            if failure.worker == worker and failure.attempt <= attempt:
                text = _end_of_attempt(log.lines, failure.attempt, attempt, begins=not log.cut)
                if text and self._keeps_output(job):
                    record = failure.model_dump(by_alias=True, exclude_none=True, mode="json")
                    await self._write(job, AttemptEvidence(failure.attempt, record, logs={worker: text}))
                return

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        kept = self._jobs.pop(uid, None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    async def close(self) -> None:
        """End; what wasn't written yet is written by the next operator, from the same status and stream."""
        tasks = [kept.task for kept in self._jobs.values() if kept.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _later(
        self,
        key: JobKey,
        snapshot: Snapshot,
        failure: Failure,
        early: AttemptEvidence,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            # One write of a job at a time.
            await asyncio.wait({before})
        await asyncio.sleep(self._settle_seconds)
        now = self._store.snapshot(key)
        if now is not None and now.job.uid == snapshot.job.uid:
            failures = {known.attempt: known for known in reversed(now.job.status.failures)}
            failure = failures.get(failure.attempt, failure)
        else:
            now = snapshot
        logs = await self._log(key, now, failure)
        gathered = _with_early(self._gather(now, failure, logs), early)
        try:
            await self._write(snapshot.job, gathered)
            self._written(snapshot.job.uid, failure.attempt)
        except ClusterError as error:
            logger.warning("%s: the evidence of attempt %d can't be kept: %s", key, failure.attempt, error)
            if (kept := self._jobs.get(snapshot.job.uid)) is not None:
                kept.early.pop(failure.attempt, None)

    def _gather(self, snapshot: Snapshot, failure: Failure, logs: Mapping[int, str]) -> AttemptEvidence:
        reports = [report for report in snapshot.observed.reports if report.attempt == failure.attempt and report.ended]
        pods = {pod.worker: pod for pod in snapshot.observed.pods}
        # The culprit first, then who failed too: there may be thousands.
        reports.sort(key=lambda report: (report.worker != failure.worker, report.state != "Failed", report.worker))
        kept_reports = reports[:KEPT_WORKERS]
        workers = {report.worker: _worker_evidence(report, pods.get(report.worker)) for report in kept_reports}
        kept = self._jobs.get(snapshot.job.uid)
        ranks = kept.stalls.get(failure.attempt, {}) if kept is not None else {}
        record = failure.model_dump(by_alias=True, exclude_none=True, mode="json")
        return AttemptEvidence(failure.attempt, record, workers, ranks, logs)

    def _written(self, uid: str, attempt: int) -> None:
        """Forget what was written."""
        kept = self._jobs.get(uid)
        if kept is not None:
            kept.size -= sum(map(_size, kept.stalls.pop(attempt, {}).values()))
            kept.early.pop(attempt, None)

    async def _log(self, key: JobKey, snapshot: Snapshot, failure: Failure) -> dict[int, str]:
        """Read the end of what the culprit printed in the attempt, while its own pod is there."""
        if not self._keeps_output(snapshot.job):
            return {}
        uids = {
            report.uid
            for report in snapshot.observed.reports
            if (report.attempt, report.worker) == (failure.attempt, failure.worker) and report.uid
        }
        if known_reason(failure.reason).strength is Strength.DISRUPTION:
            return {}
        for pod in snapshot.observed.pods:
            same = pod.name == failure.pod and (not uids or pod.uid in uids)
            if same and pod.worker == failure.worker and pod.worker_container is not None:
                try:
                    text = await self._tail(key.namespace, pod, READ_BYTES)
                except (ClusterError, TimeoutError) as error:
                    logger.info("%s: the log of %s isn't kept: %s", key, pod.name, error)
                    continue
                newest = max(snapshot.job.status.attempt, failure.attempt)
                lines = text.removesuffix("\n").split("\n")
                if log := _end_of_attempt(lines, failure.attempt, newest, begins=len(lines) < TAIL_LINES):
                    return {pod.worker: log}
        return {}

    async def _write_now(self, key: JobKey, snapshot: Snapshot, failure: Failure, *, with_log: bool) -> bool:
        """Write what there is while something waits for it; returns whether that was done in time."""
        try:
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                logs = await self._log(key, snapshot, failure) if with_log else {}
                kept = self._jobs.get(snapshot.job.uid)
                early = kept.early.get(failure.attempt) if kept is not None else None
                await self._write(snapshot.job, _with_early(self._gather(snapshot, failure, logs), early))
        except (ClusterError, TimeoutError) as error:
            logger.warning("%s: the evidence of attempt %d can't be kept: %s", key, failure.attempt, error)
            return False
        return True

    def _keeps_output(self, job: Job) -> bool:
        return self._keep_output and allows_logs(job)

    async def _write(self, job: Job, evidence: AttemptEvidence) -> None:
        """Add an attempt to the ConfigMap, and say so. Raises ClusterError."""
        written = await self._added(job, evidence)
        if written is not None and self._on_kept is not None:
            self._on_kept(job, evidence.attempt, written)

    async def _added(self, job: Job, evidence: AttemptEvidence) -> str | None:
        """Add an attempt to the ConfigMap; returns what was written, None where nothing was. Raises ClusterError."""
        if not self._keeps_output(job):
            evidence = without_output(evidence)
        for _ in range(WRITES):
            try:
                found = await self._cluster.get(whole(CONFIG_MAPS), job.namespace, evidence_name(job.name))
            except NotFound:
                try:
                    body = _body(job, fitted(evidence))
                    await self._cluster.create(CONFIG_MAPS, job.namespace, body)
                    return str(body["data"][evidence_key(evidence.attempt)])
                except AlreadyExists:
                    continue
            if owner_uid(found["metadata"]) != job.uid:
                logger.info("%s/%s: %s belongs to somebody else", job.namespace, job.name, evidence_name(job.name))
                return None
            data = {str(name): str(text) for name, text in (found.get("data") or {}).items()}
            known = AttemptEvidence.parse(data.get(evidence_key(evidence.attempt), ""))
            changes = room_for(data, fitted(_merged(known, evidence)))
            if not changes:
                return None
            version = found["metadata"].get("resourceVersion")
            body = {"metadata": {"uid": found["metadata"]["uid"], "resourceVersion": version}, "data": changes}
            try:
                await self._cluster.patch(CONFIG_MAPS, job.namespace, evidence_name(job.name), body)
                return changes[evidence_key(evidence.attempt)]
            except Conflict:
                continue
        return None


def _end_of_attempt(lines: Sequence[str], attempt: int, newest: int, *, begins: bool) -> str:
    """Returns the end of what was printed in an attempt, of a container's log that other attempts share.

    `begins`: its first line is there.
    """
    own = lines_of_attempt(lines, attempt, newest=newest, whole=begins)
    return clean("".join(f"{line}\n" for line in KeptLog(tuple(own)).ending(LOG_BYTES).lines), LOG_BYTES)


def _recorded(failure: Failure) -> tuple[int, str, str, bool]:
    """Returns what makes a failure another one to write: also that it is known how long the way back took."""
    return failure.attempt, failure.reason, failure.failed_at, failure.recovery is not None


_PRINTED = frozenset({"error", "environment"})
"""What a rank has printed, or may have, of a worker's entry."""


def without_output(evidence: AttemptEvidence) -> AttemptEvidence:
    """Returns who failed, when and how, without anything that the workers printed."""
    return replace(
        evidence,
        ranks={rank: {**data, "text": ""} for rank, data in evidence.ranks.items()},
        workers={
            worker: {name: value for name, value in entry.items() if name not in _PRINTED}
            for worker, entry in evidence.workers.items()
        },
        logs={},
    )


def fitted(evidence: AttemptEvidence, limit: int = ATTEMPT_BYTES) -> AttemptEvidence:
    """Returns the same evidence in at most `limit` bytes of JSON: texts are shortened, the culprit's last."""
    culprit_rank, culprit = evidence.failure.get("rank"), evidence.failure.get("worker")
    for share in (16_000, 8_000, 4_000, 2_000, 1_000, 400, 100, 0):
        if len(evidence.to_json()) <= limit:
            break
        evidence = replace(
            evidence,
            ranks={
                rank: {**data, "text": str(data.get("text", ""))[: share * (4 if rank == culprit_rank else 1)]}
                for rank, data in evidence.ranks.items()
                if share or rank == culprit_rank
            },
            workers={
                worker: {
                    **entry,
                    "error": last_lines(str(entry.get("error", "")), share or 2_000),
                }
                for worker, entry in evidence.workers.items()
                if share or worker == culprit
            },
            logs={worker: text[-4 * share or -1_000 :] for worker, text in evidence.logs.items()},
        )
    return evidence


def room_for(data: Mapping[str, str], evidence: AttemptEvidence, limit: int = TOTAL_BYTES) -> dict[str, str | None]:
    """Returns the changes of the data that add an attempt: older ones make room, but not the first."""
    key, text = evidence_key(evidence.attempt), evidence.to_json()
    if data.get(key) == text:
        return {}
    changes: dict[str, str | None] = {key: text}
    others = sorted((attempt, name) for name in data if name != key and (attempt := attempt_of(name)) is not None)
    size = len(text) + sum(len(data[name]) for _, name in others)
    for _, name in others[1:] + others[:1]:
        if size <= limit:
            break
        changes[name] = None
        size -= len(data[name])
    return changes


def _with_early(gathered: AttemptEvidence, early: AttemptEvidence | None) -> AttemptEvidence:
    """Adds what was known at the attempt's end, of a pod that has been replaced since."""
    if early is None:
        return gathered
    workers = {worker: {**early.workers.get(worker, {}), **entry} for worker, entry in gathered.workers.items()}
    return replace(gathered, workers={**early.workers, **workers})


def _merged(known: AttemptEvidence | None, evidence: AttemptEvidence) -> AttemptEvidence:
    """Adds what an earlier operator kept of the attempt, where this one knows nothing."""
    if known is None:
        return evidence
    return AttemptEvidence(
        evidence.attempt,
        evidence.failure,
        {**known.workers, **evidence.workers},
        {**known.ranks, **evidence.ranks},
        {**evidence.logs, **known.logs},
    )


def _kept_state(state: RankState) -> dict[str, Any]:
    """Returns a rank's state for a person; the limit that it was over is in the failure's message."""
    shown = state._replace(state=clean(state.state, 1), text=clean(state.text, MAX_EVIDENCE_BYTES))
    return shown._replace(limit_seconds=0.0, limit="", patient=False).to_wire()


def _worker_evidence(report: Report, pod: PodView | None) -> dict[str, Any]:
    same = pod is not None and (not report.uid or pod.uid == report.uid)
    entry = {
        "pod": pod.name if pod is not None and same else None,
        "node": clean(report.node, 253) or (pod.node if pod is not None and same else None),
        "state": report.state,
        "reason": clean(report.reason, 64) or None,
        "rank": report.rank,
        "exitCode": report.exit_code,
        "signal": report.signal,
        "culprit": report.culprit,
        "error": clean(report.error, 2_000),
        "environment": clean(report.environment, MAX_ENVIRONMENT) or None,
        "at": report.at,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _size(data: Mapping[str, Any]) -> int:
    return len(json.dumps(data))


def _body(job: Job, evidence: AttemptEvidence) -> dict[str, Any]:
    data = {evidence_key(evidence.attempt): evidence.to_json()}
    return owned_config_map(job, evidence_name(job.name), EVIDENCE_CONTENT, data)
