"""Keeps the evidence of every attempt that failed: all reports, stacks, and the end of the culprit's log.

The evidence is in the ConfigMap `<job>-evidence` (api/evidence.py). It is written in the background, SETTLE_SECONDS
after an attempt's end, when all workers have reported. Only the removal of pods waits for the write: at the end of the
job, and when the operator replaces a pod. The evidence of an attempt is limited to ATTEMPT_BYTES, and that of a job to
TOTAL_BYTES; the first attempt and the newest ones are kept. Evidence of stalls arrives on the leader's stream before
the report of the hang, and is held here until that report arrives. If the job or the operator doesn't allow output to
be kept, the evidence contains no logs, stacks or errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster_operator.api.evidence import AttemptEvidence, attempt_of, clean, evidence_key, evidence_name
from trainmaster_operator.api.kept_logs import KeptLog, lines_of_attempt
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import since
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus
from trainmaster_operator.controller.apiserver.errors import ClusterError
from trainmaster_operator.controller.background import end_tasks
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keeping.config_maps import Data, JobConfigMaps, kept_state
from trainmaster_operator.controller.keeping.logs import PodLogs
from trainmaster_operator.controller.watching.resync import EVIDENCE_CONTENT
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView
from trainmaster_operator.wire.limits import MAX_ENVIRONMENT
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine
from trainmaster_operator.wire.values import last_lines

logger = logging.getLogger(__name__)

# Seconds after an attempt's end. By then all workers have reported, and the cause is settled.
SETTLE_SECONDS = 3.0
# Limit in seconds on a write that delays something: at the job's end, the pods still hold GPUs, and before a pod is
# replaced, a restart waits.
LAST_WRITE_SECONDS = 3.0
ATTEMPT_BYTES = 64 * 1024
TOTAL_BYTES = 448 * 1024
# Limit on the bytes of one job's evidence of stalls, which is held in memory until it is written.
HELD_BYTES = 512 * 1024
# A new operator writes the evidence of a failure only if the failure is younger than this.
OLD_SECONDS = 60.0
LOG_BYTES = 12 * 1024
# Limit on the workers in an attempt's evidence, because one ConfigMap holds all evidence of a job.
KEPT_WORKERS = 64
# The fields of a worker's entry that may contain a rank's output.
_PRINTED = frozenset({"error", "environment"})


@dataclass
class _Kept:
    """Holds one job's newest failure, and stalls that may become failures."""

    # By attempt and rank.
    stalls: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    size: int = 0
    # The newest failure that was or soon will be written, as `_version_of` returns it.
    recorded: tuple[int, str, str, bool] | None = None
    task: asyncio.Task[None] | None = None
    # By attempt, the evidence that existed at the attempt's end, until it is written.
    early: dict[int, AttemptEvidence] = field(default_factory=dict)
    # The attempts whose evidence was written before pods were deleted, each with whether the culprit's pod is included.
    secured: set[tuple[int, bool]] = field(default_factory=set)

    def forget_stalls(self, attempt: int) -> None:
        self.size -= sum(map(_size, self.stalls.pop(attempt, {}).values()))


@dataclass(eq=False)
class EvidenceKeeper:
    """Keeps the evidence of the failures in written statuses.

    `on_kept` is called with each attempt's written evidence, as JSON.
    """

    config_maps: JobConfigMaps
    store: Store
    pod_logs: PodLogs
    settle_seconds: float = SETTLE_SECONDS
    on_kept: Callable[[Job, int, str], None] | None = None
    _jobs: dict[str, _Kept] = field(default_factory=dict, init=False)

    def record_stall(self, uid: str, line: EvidenceLine) -> None:
        """Record a worker's evidence of a stall from the stream. At most HELD_BYTES are held for a job."""
        kept = self._jobs.setdefault(uid, _Kept())
        for old in [attempt for attempt in kept.stalls if attempt < line.attempt - 1]:
            kept.forget_stalls(old)
        ranks = kept.stalls.setdefault(line.attempt, {})
        for rank, state in line.ranks.items():
            data = kept_state(state)
            more = _size(data) - (_size(ranks[rank]) if rank in ranks else 0)
            if kept.size + more <= HELD_BYTES:
                ranks[rank] = data
                kept.size += more

    def record_failure(self, key: JobKey, snapshot: Snapshot, status: JobStatus) -> None:
        """Check a written status for a new failure, whose evidence is then written a little later."""
        failure = status.failures[0] if status.failures else None
        if failure is None:
            return
        kept = self._jobs.setdefault(snapshot.job.uid, _Kept())
        before, kept.recorded = kept.recorded, _version_of(failure)
        if before == kept.recorded:
            return
        if before is None and since(time.time(), failure.failed_at) >= OLD_SECONDS:
            # The attempt failed before this operator started, and no worker can report more about it.
            return
        if before is not None and before[0] == failure.attempt and kept.task is not None and not kept.task.done():
            # The cause was corrected, or the job recovered, before the write. The waiting task reads the new status.
            return
        kept.early[failure.attempt] = self._gather(kept, snapshot, failure, {})
        kept.task = asyncio.create_task(
            self._later(kept, key, snapshot, failure, kept.task), name=f"evidence {key} attempt {failure.attempt}"
        )

    async def last(self, key: JobKey, snapshot: Snapshot, status: JobStatus) -> None:
        """Write the known evidence before the job ends, in at most LAST_WRITE_SECONDS."""
        failure = status.failures[0] if status.failures else None
        kept = self._jobs.setdefault(snapshot.job.uid, _Kept())
        if kept.task is not None:
            kept.task.cancel()
        if failure is None or snapshot.job.deleting:
            return
        kept.recorded = _version_of(failure)
        # Attempts that ended a moment earlier may not be written yet.
        earlier = [one for one in status.failures if one.attempt in kept.early and one.attempt < failure.attempt]
        for each in (failure, *earlier):
            if await self._write_attempt(kept, key, snapshot, each, LAST_WRITE_SECONDS, with_log=False):
                kept.forget_stalls(each.attempt)

    async def before_deletion(self, key: JobKey, snapshot: Snapshot, pod_uid: str) -> None:
        """Write the evidence that would be lost when the operator deletes a pod.

        This takes at most LAST_WRITE_SECONDS. One write serves all pods of an attempt, except the culprit's pod.
        """
        failure = snapshot.job.status.failures[0] if snapshot.job.status.failures else None
        if failure is None or snapshot.job.deleting:
            return
        culprits = any(pod.uid == pod_uid and pod.name == failure.pod for pod in snapshot.observed.pods)
        kept = self._jobs.setdefault(snapshot.job.uid, _Kept())
        if (failure.attempt, culprits) in kept.secured:
            return
        kept.secured = {one for one in kept.secured if one[0] == failure.attempt} | {(failure.attempt, culprits)}
        await self._write_attempt(kept, key, snapshot, failure, LAST_WRITE_SECONDS, with_log=culprits)

    async def add_output(self, job: Job, attempt: int, worker: int, log: KeptLog) -> None:
        """Add a pod's last output to the evidence of the attempt in which the pod ended. Raises ClusterError.

        `attempt` is the attempt that was the newest when the pod began to end.
        """
        for failure in () if job.deleting else job.status.failures:
            if failure.worker == worker and failure.attempt <= attempt:
                text = _end_of_attempt(log, failure.attempt, attempt)
                if text and self.config_maps.allow_output(job):
                    await self._write(job, AttemptEvidence(failure.attempt, _to_wire(failure), logs={worker: text}))
                return

    def forget(self, uid: str) -> None:
        kept = self._jobs.pop(uid, None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    async def close(self) -> None:
        """End without writing; the next operator writes the missing evidence, from the same status and stream."""
        await end_tasks(kept.task for kept in self._jobs.values())

    async def _later(
        self, kept: _Kept, key: JobKey, snapshot: Snapshot, failure: Failure, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            # Only one write of a job's evidence runs at a time.
            await asyncio.wait({before})
        await asyncio.sleep(self.settle_seconds)
        now = self.store.snapshot(key)
        if now is not None and now.job.uid == snapshot.job.uid:
            snapshot = now
            failure = next((one for one in now.job.status.failures if one.attempt == failure.attempt), failure)
        if await self._write_attempt(kept, key, snapshot, failure, None, with_log=True):
            kept.forget_stalls(failure.attempt)
        kept.early.pop(failure.attempt, None)

    def _gather(self, kept: _Kept, snapshot: Snapshot, failure: Failure, logs: Mapping[int, str]) -> AttemptEvidence:
        reports = [report for report in snapshot.observed.reports if report.attempt == failure.attempt and report.ended]
        pods = {pod.worker: pod for pod in snapshot.observed.pods}
        # The culprit comes first, then other failed workers, because there may be thousands of reports, and only some
        # are kept.
        reports.sort(key=lambda report: (report.worker != failure.worker, report.state != "Failed", report.worker))
        workers = {one.worker: _worker_evidence(one, pods.get(one.worker)) for one in reports[:KEPT_WORKERS]}
        return AttemptEvidence(failure.attempt, _to_wire(failure), workers, kept.stalls.get(failure.attempt, {}), logs)

    async def _log(self, key: JobKey, snapshot: Snapshot, failure: Failure) -> dict[int, str]:
        """Read the end of the culprit's output in the attempt, if the culprit's pod still exists."""
        disrupted = known_reason(failure.reason).strength is Strength.DISRUPTION
        if disrupted or not self.config_maps.allow_output(snapshot.job):
            return {}
        uids = {
            report.uid
            for report in snapshot.observed.reports
            if (report.attempt, report.worker) == (failure.attempt, failure.worker) and report.uid
        }
        for pod in snapshot.observed.pods:
            same = pod.name == failure.pod and (not uids or pod.uid in uids)
            if same and pod.worker == failure.worker and pod.worker_container is not None:
                try:
                    # The next attempt may already have printed more.
                    log = await self.pod_logs.read(key.namespace, pod, complete=True)
                except (ClusterError, TimeoutError) as error:
                    logger.info("%s: the log of %s isn't kept: %s", key, pod.name, error)
                    continue
                newest = max(snapshot.job.status.attempt, failure.attempt)
                if text := _end_of_attempt(log, failure.attempt, newest):
                    return {pod.worker: text}
        return {}

    async def _write_attempt(
        self, kept: _Kept, key: JobKey, snapshot: Snapshot, failure: Failure, seconds: float | None, with_log: bool
    ) -> bool:
        """Write the known evidence; returns whether the write succeeded within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                logs = await self._log(key, snapshot, failure) if with_log else {}
                gathered = self._gather(kept, snapshot, failure, logs)
                await self._write(snapshot.job, _merged(kept.early.get(failure.attempt), gathered))
        except (ClusterError, TimeoutError) as error:
            logger.warning("%s: the evidence of attempt %d can't be kept: %s", key, failure.attempt, error)
            return False
        return True

    async def _write(self, job: Job, evidence: AttemptEvidence) -> None:
        """Add an attempt to the ConfigMap. Raises ClusterError."""
        if not self.config_maps.allow_output(job):
            evidence = without_output(evidence)
        key = evidence_key(evidence.attempt)

        def change(data: Data) -> dict[str, str | None]:
            return room_for(data, fitted(_merged(AttemptEvidence.parse(data.get(key, "")), evidence)))

        written = await self.config_maps.write(job, evidence_name(job.name), EVIDENCE_CONTENT, change)
        if written and self.on_kept is not None:
            self.on_kept(job, evidence.attempt, written[key])


def _end_of_attempt(log: KeptLog, attempt: int, newest: int) -> str:
    """Returns the end of an attempt's output, from a container's log that several attempts share."""
    own = lines_of_attempt(log.lines, attempt, newest=newest, whole=not log.cut)
    return clean("".join(f"{line}\n" for line in KeptLog(tuple(own)).ending(LOG_BYTES).lines), LOG_BYTES)


def _version_of(failure: Failure) -> tuple[int, str, str, bool]:
    """Returns the values of a failure that require another write when they change, e.g. when the recovery is known."""
    return failure.attempt, failure.reason, failure.failed_at, failure.recovery is not None


def _to_wire(failure: Failure) -> dict[str, Any]:
    return failure.model_dump(by_alias=True, exclude_none=True, mode="json")


def without_output(evidence: AttemptEvidence) -> AttemptEvidence:
    """Returns the same evidence without the workers' output."""
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
    """Shortens the evidence to at most `limit` bytes of JSON; the culprit's texts are shortened last."""
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
                worker: {**entry, "error": last_lines(str(entry.get("error", "")), share or 2_000)}
                for worker, entry in evidence.workers.items()
                if share or worker == culprit
            },
            logs={worker: text[-4 * share or -1_000 :] for worker, text in evidence.logs.items()},
        )
    return evidence


def room_for(data: Mapping[str, str], evidence: AttemptEvidence, limit: int = TOTAL_BYTES) -> dict[str, str | None]:
    """Returns the changes that add an attempt to the data; older attempts, except the first, are removed if needed."""
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


def _merged(earlier: AttemptEvidence | None, evidence: AttemptEvidence) -> AttemptEvidence:
    """Adds the attempt's earlier evidence: about pods that were replaced since, or from an earlier operator."""
    if earlier is None:
        return evidence
    workers = {worker: {**earlier.workers.get(worker, {}), **entry} for worker, entry in evidence.workers.items()}
    return replace(
        evidence,
        workers={**earlier.workers, **workers},
        ranks={**earlier.ranks, **evidence.ranks},
        logs={**evidence.logs, **earlier.logs},
    )


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
