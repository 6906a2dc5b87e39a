"""The store holds the operator's knowledge by job, from watches, lists, its own writes and the agents' streams.

Each job has one `Record`, found by namespace and name: it holds the job, its pods and its other children as small
frozen views. Everything runs in the event loop's thread, so there are no locks.

**Staleness.** The watch lags behind our own writes. Therefore each write's answer is recorded like a watch event, and
an object is only replaced by a newer one. resourceVersions are compared as integers (official since Kubernetes 1.35,
KEP-5504). After `status.attempt = 2` was written, no pass sees 1 again, however late the watch is.

**Deletions.** A deleted uid never returns, even if a late event still shows the object. A relist after 410 misses
deletions, so `resync` regularly compares the store with a list (mark and sweep).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import CHILDREN, JOBS, PODS, STATEFUL_SETS, Resource
from trainmaster_operator.controller.cache.job_objects import JobObjects, Unreadable, unforeseen
from trainmaster_operator.controller.cache.records import (
    JobKey,
    LookupResults,
    Pod,
    ProgressView,
    ReadSpec,
    Record,
    Snapshot,
    SpecVersion,
    SystemView,
    Versioned,
    is_newer,
)
from trainmaster_operator.controller.cache.views import child_view, controller_of, label, owner_uid, pod_view
from trainmaster_operator.reconciling.observed.snapshot import ChildView, Job, PodView, RefusedWrite, StreamView
from trainmaster_operator.wire.names import JOB_NAME_LABEL
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ProgressLine, StallLine, SystemLine
from trainmaster_operator.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Number of deleted uids to remember. Late events come within minutes, and a uid takes only 100 bytes.
TOMBSTONES = 20_000
_NOTHING = Record()


class Store:
    """Holds a record of each job.

    `changed` is called with a job's key whenever `decide`'s input has changed. `keys` verify the operator's own
    assignments. `read_large` requests a large job's spec, which `large_jobs` reads and passes to `record_spec`.
    """

    def __init__(
        self,
        changed: Callable[[JobKey], None],
        keys: SigningKeys,
        *,
        read_large: Callable[[JobKey], None] | None = None,
        count_unreadable: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self._changed = changed
        self._keys = keys
        self._records: dict[JobKey, Record] = {}
        self._listed: frozenset[str] = frozenset()
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._unreadable = Unreadable(count_unreadable)
        self._jobs = JobObjects(changed, self._unreadable, read_large)

    def __len__(self) -> int:
        return len(self._records)

    def jobs(self) -> Iterator[Job]:
        return (record.job for record in list(self._records.values()) if record.job is not None)

    def upsert(self, resource: Resource, raw: Mapping[str, Any]) -> None:
        """Insert or update an object from a watch, a list or the answer to a write. Never raises."""
        try:
            self._upsert(resource, raw)
        except Exception as error:
            # All received objects pass through here. An object that no reader can handle must not end its source (a
            # watch, a list, a sweep, a pass over another job).
            problem = unforeseen("job" if resource == JOBS else "object", error)
            self._unreadable.report(resource, raw, problem, error)
            if resource == JOBS:
                self._upsert_unreadable_job(raw, problem)

    def _upsert(self, resource: Resource, raw: Mapping[str, Any]) -> None:
        metadata = mapping(raw.get("metadata"))
        key, version = _key(resource, metadata), _version(metadata)
        if key is None or version.uid in self._tombstones or not self.wants(resource, metadata):
            return
        if resource == JOBS:
            self._upsert_job(key, raw, version)
        elif resource == PODS:
            self._upsert_pod(key, raw, version)
        elif resource.child_kind in CHILDREN:
            self._upsert_child(key, resource, raw, version)

    def wants(self, resource: Resource, metadata: Mapping[str, Any]) -> bool:
        """Returns whether an object may belong to a job; other objects are never stored.

        A label isn't enough, because any client that may create an object can write a job's label into it. So a pod
        must be controlled by a StatefulSet, and any other object by its job. `Record.owns` decides later which pods
        belong to the job, because pods may be known before their job.
        """
        if resource == JOBS:
            return True
        key = _key(resource, metadata)
        if key is None:
            return False
        if self.version(key, resource, text(metadata.get("name"))) is not None:
            return True
        controller = controller_of(metadata)
        if resource == PODS:
            return controller.get("kind") == STATEFUL_SETS.kind
        return controller.get("kind") == JOBS.kind and controller.get("name") == key.name

    def delete(self, resource: Resource, raw: Mapping[str, Any]) -> None:
        """Remove an object that a watch reports as deleted. `raw` only needs the metadata."""
        metadata = mapping(mapping(raw).get("metadata"))
        key = _key(resource, metadata)
        if key is not None:
            if resource == PODS and raw.get("status"):
                # The object's last change may arrive only with the deletion.
                self.upsert(resource, raw)
            self.remove(resource, key, text(metadata.get("name")), _version(metadata).uid)

    def remove(self, resource: Resource, key: JobKey, name: str, uid: str) -> None:
        """Remove a deleted object, by name and uid."""
        self._remember_deleted(uid)
        record = self._records.get(key)
        known = self.version(key, resource, name)
        if record is None or known is None or known.uid != uid:
            return
        news = True
        if resource == JOBS:
            record = self._records[key] = record.without_job()
        elif resource == PODS:
            news = record.remove_pod(record.pods.pop(name))
        else:
            record.remove_set(record.children.pop((resource.child_kind, name))[0])
        if record.job is None and not record.pods and not record.children:
            del self._records[key]
        if news:
            self._changed(key)

    def known(self, resource: Resource) -> Iterator[tuple[JobKey, str, Versioned]]:
        """Yields the job's key, the name and the version of each object of a type, for the sweep."""
        for key, record in list(self._records.items()):
            if resource == JOBS:
                if record.job_version is not None:
                    yield key, key.name, record.job_version
            elif resource == PODS:
                for name, pod in list(record.pods.items()):
                    yield key, name, pod.version
            else:
                for (kind, name), (_, version) in list(record.children.items()):
                    if kind == resource.child_kind:
                        yield key, name, version

    def version(self, key: JobKey, resource: Resource, name: str) -> Versioned | None:
        """Returns the newest known version of an object of the job."""
        return self._known(key).version(resource, name)

    def child(self, key: JobKey, resource: Resource, name: str) -> tuple[ChildView, Versioned] | None:
        """Returns the last known state of a child of the job."""
        return self._known(key).children.get((resource.child_kind, name))

    def agent_config_maps(self) -> frozenset[tuple[str, str]]:
        """Returns the namespace and name of each ConfigMap from which a StatefulSet's pods mount the agent."""
        return frozenset(
            (key.namespace, view.agent.name)
            for key, record in self._records.items()
            for view, _ in record.children.values()
            if view.agent is not None
        )

    def record_report(self, key: JobKey, report: Report) -> bool:
        """Record a worker's report from the stream; returns whether the report is new."""
        record = self._records.get(key)
        if record is None or record.is_past(report.attempt) or not record.merge_report(report):
            return False
        self._changed(key)
        return True

    def record_progress(self, key: JobKey, line: ProgressLine, now: float, most_ranks: int) -> bool | None:
        """Record some ranks' progress; returns whether it is the attempt's first, or None if the progress is too old.

        Progress doesn't request a pass, because it arrives every second and is written to the status only every few
        seconds. A worker's recovery from a fault requests one pass.
        """
        attempt, worker, ranks = line.attempt, line.worker, line.ranks
        record = self._records.get(key)
        if record is None or attempt < record.progress_attempt:
            return None
        first = attempt > record.progress_attempt or not record.progress
        if attempt > record.progress_attempt:
            record.progress_attempt = attempt
            record.progress.clear()
            record.recoveries.clear()
        # A worker with many ranks sends several lines, which are merged. If they name more ranks than the worker has,
        # only the newest line is kept.
        together = {**record.progress.get(worker, {}), **ranks}
        record.progress[worker] = together if len(together) <= most_ranks else dict(ranks)
        record.progress_at = now
        if line.recovery is not None:
            before = record.recoveries.get(worker)
            record.recoveries[worker] = line.recovery
            if line.recovery.first_step is not None and (before is None or before.first_step is None):
                self._changed(key)
        return first

    def record_system(self, key: JobKey, line: SystemLine, now: float) -> None:
        """Record a sample of a worker's system. Samples of earlier attempts are dropped."""
        record = self._records.get(key)
        if record is None or (record.system is not None and line.attempt < record.system.attempt):
            return
        is_same = record.system is not None and record.system.attempt == line.attempt
        workers = record.system.workers if record.system is not None and is_same else {}
        workers[line.worker] = line.sample
        record.system = SystemView(line.attempt, now, workers)

    def record_stall(self, key: JobKey, line: StallLine | None) -> bool:
        """Record a leader's line about the ranks' silence; returns whether it is new. None: there is no silence."""
        record = self._records.get(key)
        found = line if line is not None and line.since else None
        if record is None or record.stall == found:
            return False
        record.stall = found
        self._changed(key)
        return True

    def record_stream(self, key: JobKey, stream: StreamView) -> bool:
        """Record the state of the leader's stream and its workers; returns whether that state is new."""
        record = self._records.get(key)
        if record is None or record.stream == stream:
            return False
        record.stream = stream
        self._changed(key)
        return True

    def refusal(self, key: JobKey, action: str) -> RefusedWrite | None:
        """Returns the current refusal of an action of this job."""
        return self._known(key).refusals.get(action)

    def record_refusal(self, key: JobKey, problem: RefusedWrite, retry_at: float) -> None:
        """Record a refused write; `decide` runs again if the refusal is new."""
        record = self._records.get(key)
        if record is None:
            return
        known = record.refusals.get(problem.action)
        is_same = known is not None and (known.reason, known.message) == (problem.reason, problem.message)
        failures = known.failures + 1 if known is not None else 1
        kept = known if known is not None and is_same else problem
        record.refusals[problem.action] = replace(kept, retry_at=retry_at, failures=failures)
        if not is_same:
            self._changed(key)

    def clear_refusal(self, key: JobKey, action: str) -> None:
        """Forget an action's refusal after its success."""
        record = self._records.get(key)
        if record is not None and record.refusals.pop(action, None) is not None:
            self._changed(key)

    def record_listed(self, resource: Resource) -> None:
        """Record that all objects of an optional type are known, and repeat writes refused without the type."""
        is_news = resource.child_kind not in self._listed
        self._listed |= {resource.child_kind}
        for key, record in list(self._records.items()):
            refused = [action for action, one in record.refusals.items() if one.reason == "NotInstalled"]
            for action in refused:
                del record.refusals[action]
            if refused or is_news:
                self._changed(key)

    def record_lookups(self, key: JobKey, found: LookupResults) -> None:
        record = self._records.get(key)
        if record is not None and record.lookups.merge(found):
            self._changed(key)

    def is_large(self, key: JobKey) -> bool:
        """Returns whether the job is decided on in the thread for large jobs."""
        job = self._known(key).job
        return job is not None and job.large

    def awaits_spec(self, key: JobKey) -> bool:
        """Returns whether the job's spec still has to be read separately."""
        return self._known(key).without_spec is not None

    def record_spec(self, key: JobKey, of: SpecVersion, read: ReadSpec) -> None:
        """Record a large job's spec. An older generation's spec is dropped, because the newest was requested too."""
        record = self._records.get(key)
        if record is not None:
            self._jobs.set_spec(key, record, of, read)

    def record_unreadable(self, key: JobKey, error: Exception) -> None:
        record = self._records.get(key)
        if record is not None and record.without_spec is not None:
            problem = unforeseen("job", error)
            self._unreadable.report(JOBS, record.without_spec, problem, error)
            self._jobs.set_unreadable(key, record, record.without_spec, problem)

    def snapshot(self, key: JobKey) -> Snapshot | None:
        """Returns `decide`'s input; None if the job doesn't exist.

        Pods and children of an earlier job of the same name don't belong to this job. Such pods are left out. Such
        children are included with their owner's uid, so that `decide` waits until they are garbage-collected.
        """
        return self._known(key).snapshot(self._listed)

    def pods(self, key: JobKey) -> Sequence[PodView]:
        """Returns the pods of a job's workers, by index."""
        return self._known(key).own_pods()

    def progress(self, key: JobKey) -> ProgressView | None:
        """Returns the last reports of a job's ranks; None if there are none."""
        record = self._known(key)
        if record.progress_at is None:
            return None
        return ProgressView(record.progress_attempt, record.progress_at, record.progress)

    def system(self, key: JobKey) -> SystemView | None:
        """Returns the last samples of the job's workers; None if there are none."""
        return self._known(key).system

    def _known(self, key: JobKey) -> Record:
        """Returns a job's record for reading, or an empty record if the job isn't known."""
        return self._records.get(key, _NOTHING)

    def _record(self, key: JobKey) -> Record:
        return self._records.setdefault(key, Record())

    def _upsert_job(self, key: JobKey, raw: Mapping[str, Any], version: Versioned) -> None:
        record = self._record(key)
        known = record.job_version
        if known is not None and not is_newer(version, known):
            return
        if known is not None and known.uid != version.uid:
            # It was deleted and created again between two events.
            self._remember_deleted(known.uid)
            record = self._records[key] = record.without_job()
        record.job_version = version
        self._jobs.set_job(key, record, raw)

    def _upsert_unreadable_job(self, raw: object, problem: str) -> None:
        """Insert or update a job, even if only its name is known."""
        whole_object = mapping(raw)
        metadata = mapping(whole_object.get("metadata"))
        key, version = _key(JOBS, metadata), _version(metadata)
        if key is None:
            return
        record = self._record(key)
        known = record.job_version
        if known is None or known == version or is_newer(version, known):
            record.job_version = version
            self._jobs.set_unreadable(key, record, whole_object, problem)

    def _upsert_pod(self, key: JobKey, raw: Mapping[str, Any], version: Versioned) -> None:
        view = pod_view(raw, self._keys)
        if view is None:
            return
        record = self._record(key)
        known = record.pods.get(view.name)
        if known is not None and not is_newer(version, known.version):
            return
        if known is not None and known.version.uid != version.uid:
            # It was deleted and created again between two events.
            record.remove_pod(known)
        pod = record.pods[view.name] = Pod(view, version, owner_uid(mapping(raw.get("metadata"))))
        sets = record.own_sets()
        owned, was_owned = record.owns(pod, sets), known is not None and record.owns(known, sets)
        if owned:
            record.merge_termination_reports(pod)
        if owned != was_owned or (owned and known is not None and known.view != view):
            self._changed(key)

    def _upsert_child(self, key: JobKey, resource: Resource, raw: Mapping[str, Any], version: Versioned) -> None:
        record = self._record(key)
        view = child_view(resource.child_kind, raw, self._keys)
        known = record.children.get((resource.child_kind, view.name))
        if known is not None and not is_newer(version, known[1]):
            return
        was_another = known is not None and known[1].uid != version.uid
        if known is not None and was_another:
            record.remove_set(known[0])
        record.children[resource.child_kind, view.name] = (view, version)
        if resource == STATEFUL_SETS and (known is None or known[0].owner_uid != view.owner_uid or was_another):
            # Pods may be known before their StatefulSet.
            record.merge_all_termination_reports()
        if known is None or known[0] != view:
            self._changed(key)

    def _remember_deleted(self, uid: str) -> None:
        self._tombstones[uid] = None
        while len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)


def _key(resource: Resource, metadata: Mapping[str, Any]) -> JobKey | None:
    name = text(metadata.get("name")) if resource == JOBS else label(metadata, JOB_NAME_LABEL)
    return JobKey(text(metadata.get("namespace")), name) if name else None


def _version(metadata: Mapping[str, Any]) -> Versioned:
    return Versioned(text(metadata.get("uid"), 64), text(metadata.get("resourceVersion"), 64))
