"""A record holds the store's knowledge of one job, and draws the direct conclusions from each observation.

Views are small and frozen; only the store changes a record, because it knows when something is new.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from trainmaster_operator.api.parsing import InvalidJob, parse_spec
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, Resource
from trainmaster_operator.reconciling.observed.snapshot import (
    ChildView,
    InvalidSpec,
    Job,
    Observed,
    PodView,
    RefusedWrite,
    StreamView,
    termination_reports,
)
from trainmaster_operator.reconciling.transition import MAX_MESSAGE_CHARACTERS
from trainmaster_operator.rendering import Placement, worker_layout
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report, merge
from trainmaster_operator.wire.stream import Recovery, StallLine
from trainmaster_operator.wire.system import SystemSample
from trainmaster_operator.wire.values import mapping, text, whole

# Number of deleted StatefulSets to remember for each job; only one or two are being deleted at a time.
FORMER_SETS = 8
# Number of attempts whose reports are kept: the attempt in the status, the previous attempt, and newer attempts that
# the status doesn't contain yet. The number is limited because a pod's report may name any attempt.
REPORTED_ATTEMPTS = 4


@dataclass(frozen=True, order=True)
class JobKey:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class SpecVersion(NamedTuple):
    """Identifies a version of a job's spec, by the job's uid and generation."""

    uid: str
    generation: int


class ReadSpec(NamedTuple):
    """Holds a spec that was read, or the problem with it."""

    spec: JobSpec | None
    invalid: InvalidSpec | None


@dataclass(frozen=True)
class Versioned:
    """Holds an object's identity and version, to detect stale objects and for preconditions of writes."""

    uid: str
    resource_version: str


@dataclass(frozen=True)
class Pod:
    """Holds a pod with the job's label, and the uid of its controller, by which `Record.owns` decides."""

    view: PodView
    version: Versioned
    controller: str | None


@dataclass
class LookupResults:
    """Holds the results of lookups for one job. A result is None if the object doesn't exist or can't be read."""

    # The topology domain of each node.
    domains: dict[str, str | None] = field(default_factory=dict)
    # Kueue's flavors and the values of priority classes, by name.
    flavors: dict[str, Placement | None] = field(default_factory=dict)
    priorities: dict[str, int | None] = field(default_factory=dict)
    # Why the kubelet killed a container, by the pod's uid and the time of the container's end.
    kills: dict[tuple[str, float], str | None] = field(default_factory=dict)
    # The last lines of the first init container that failed, by the pod's uid, its name and the time of its end.
    init_output: dict[tuple[str, str, float], str] = field(default_factory=dict)
    # Uids of the pods that a list was read for, because no watch had shown them.
    listed_pods: set[str] = field(default_factory=set)

    def merge(self, more: LookupResults) -> bool:
        """Merge new results into these; returns whether anything changed."""
        before = [each.copy() for each in vars(self).values()]
        for name, found in vars(more).items():
            getattr(self, name).update(found)
        return before != [*vars(self).values()]


@dataclass(frozen=True)
class Snapshot:
    """Holds `decide`'s input for one job, and data that the executor needs for writes."""

    job: Job
    observed: Observed
    version: Versioned
    raw_status: Mapping[str, Any]


class ProgressView(NamedTuple):
    """Holds the last reports of an attempt's ranks, by worker and rank, and the newest report's arrival time.

    The reports aren't copied, so read them before the next message arrives.
    """

    attempt: int
    at: float
    workers: Mapping[int, Mapping[int, RankProgress]]

    @property
    def ranks(self) -> int:
        return sum(map(len, self.workers.values()))


class SystemView(NamedTuple):
    """Holds the last sample of each worker's system in an attempt, and the newest one's arrival time."""

    attempt: int
    at: float
    workers: dict[int, SystemSample]


@dataclass
class Record:
    """Holds the knowledge of one job."""

    job: Job | None = None
    job_version: Versioned | None = None
    # Arrival time of the job's first object (seconds since the epoch).
    since: float = field(default_factory=time.time)
    # The API server's status in its JSON form, so that only differences are written.
    raw_status: Mapping[str, Any] = field(default_factory=dict)
    # The version that `job.spec` was parsed from.
    parsed: SpecVersion | None = None
    # While a large job's spec is read separately: the job's newest object, without the spec.
    without_spec: Mapping[str, Any] | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    children: dict[tuple[str, str], tuple[ChildView, Versioned]] = field(default_factory=dict)
    reports: dict[tuple[int, int], Report] = field(default_factory=dict)
    reported_attempts: set[int] = field(default_factory=set)
    progress: dict[int, Mapping[int, RankProgress]] = field(default_factory=dict)
    # By worker, the times of its recovery from the fault before this attempt.
    recoveries: dict[int, Recovery] = field(default_factory=dict)
    progress_attempt: int = 0
    progress_at: float | None = None
    system: SystemView | None = None
    stall: StallLine | None = None
    stream: StreamView = field(default_factory=StreamView)
    refusals: dict[str, RefusedWrite] = field(default_factory=dict)
    lookups: LookupResults = field(default_factory=LookupResults)
    # By worker, the last state of its removed pod, which shows the pod's node and the cause of the removal.
    gone: dict[int, Pod] = field(default_factory=dict)
    # The uids and names of the job's removed StatefulSets; their pods outlive them for a while.
    former_sets: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=FORMER_SETS))

    def version(self, resource: Resource, name: str) -> Versioned | None:
        """Returns the newest known version of an object of the job."""
        if resource == JOBS:
            return self.job_version
        if resource == PODS:
            pod = self.pods.get(name)
            return pod.version if pod else None
        child = self.children.get((resource.child_kind, name))
        return child[1] if child else None

    def merge_report(self, report: Report) -> bool:
        """Merge a report into the known report of its worker and attempt; returns whether the known report changed."""
        known = self.reports.get((report.attempt, report.worker))
        holds = merge(known, report)
        if holds == known:
            return False
        self.reports[report.attempt, report.worker] = holds
        if report.attempt not in self.reported_attempts:
            self.reported_attempts.add(report.attempt)
            if len(self.reported_attempts) > REPORTED_ATTEMPTS:
                self.drop_reports({min(self.reported_attempts)})
        return True

    def own_sets(self) -> dict[str, tuple[str, range]]:
        """Returns, by uid, the name and the workers' indexes of each StatefulSet whose pods are the job's workers.

        Such a StatefulSet is controlled by the job and has the name of one of the job's groups. Owners and labels prove
        nothing, because any client that may create StatefulSets can write them. A name is unique, however: if another
        client has taken it, our create is refused.
        """
        if self.job is None or self.job.spec is None:
            return {}
        groups = worker_layout(self.job.identity, self.job.spec)
        ends = [*(group.first_index for group in groups[1:]), MAX_INDEX]
        indexes = {group.set_name: range(group.first_index, end) for group, end in zip(groups, ends, strict=True)}
        sets = [*self.former_sets]
        sets += [(view.uid, name) for (_, name), (view, _) in self.children.items() if self._is_own_set(view)]
        return {uid: (name, indexes[name]) for uid, name in sets if name in indexes}

    def owns(self, pod: Pod, sets: Mapping[str, tuple[str, range]]) -> bool:
        """Returns whether one of the job's StatefulSets created the pod, and the pod's name is a worker's.

        Labels prove nothing, because any client that may create a pod can write any labels into it.
        """
        name, indexes = sets.get(pod.controller or "", ("", range(0)))
        view = pod.view
        return view.worker in indexes and view.name == f"{name}-{view.worker}"

    def own_pods(self) -> list[PodView]:
        """Returns the pods of the job's workers, by index."""
        sets = self.own_sets()
        return sorted((pod.view for pod in self.pods.values() if self.owns(pod, sets)), key=lambda view: view.worker)

    def remove_set(self, view: ChildView) -> None:
        """Remember a StatefulSet of the job that was removed, or whose name another object has taken."""
        if self._is_own_set(view):
            self.former_sets.append((view.uid, view.name))

    def _is_own_set(self, view: ChildView) -> bool:
        uid = self.job_version.uid if self.job_version is not None else None
        return view.kind == "StatefulSet" and uid is not None and view.owner_uid == uid

    def merge_all_termination_reports(self) -> None:
        """Merge the reports of all workers' containers, in case pods were known before their job or StatefulSet."""
        sets = self.own_sets()
        for pod in self.pods.values():
            if self.owns(pod, sets):
                self.merge_termination_reports(pod)

    def merge_termination_reports(self, pod: Pod) -> None:
        for report in termination_reports(pod.view):
            self.merge_report(report)

    def is_past(self, attempt: int) -> bool:
        """Returns whether an attempt is too old for decisions."""
        return self.job is not None and attempt < self.job.status.attempt - 1

    def drop_reports(self, attempts: Set[int]) -> None:
        if attempts:
            self.reported_attempts -= attempts
            self.reports = {place: report for place, report in self.reports.items() if place[0] not in attempts}

    def remove_pod(self, pod: Pod) -> bool:
        """Remember a removed pod; returns whether the pod belonged to the job."""
        if owned := self.owns(pod, self.own_sets()):
            self.gone[pod.view.worker] = pod
        return owned

    def without_job(self) -> Record:
        """Returns the record of a deleted job, whose objects may still exist."""
        return Record(since=self.since, pods=self.pods, children=self.children)

    def snapshot(self, listed: frozenset[str]) -> Snapshot | None:
        """Returns `decide`'s input; None without a job. `listed` contains the kinds whose objects are all known."""
        if self.job is None or self.job_version is None:
            return None
        pods = [_without_anothers(view, self.job) for view in self.own_pods()]
        observed = Observed(
            since=self.since,
            children=tuple(view for _, (view, _) in sorted(self.children.items())),
            pods=tuple(pods),
            reports=tuple(report for _, report in sorted(self.reports.items())),
            progress={worker: dict(ranks) for worker, ranks in self.progress.items()},
            recoveries=dict(self.recoveries),
            progress_attempt=self.progress_attempt,
            progress_at=self.progress_at,
            stall=self.stall,
            stream=self.stream,
            **{name: found.copy() for name, found in vars(self.lookups).items()},
            listed=listed,
            refused_writes=tuple(problem for _, problem in sorted(self.refusals.items())),
            gone={pod.view.uid: pod.view for pod in self.gone.values()},
        )
        return Snapshot(self.job, observed, self.job_version, self.raw_status)


def spec_version(metadata: Mapping[str, Any]) -> SpecVersion:
    """Returns the version of the spec of an object with this metadata."""
    return SpecVersion(text(metadata.get("uid"), 64), whole(metadata.get("generation")) or 1)


def read_spec(raw: Mapping[str, Any], name: str) -> ReadSpec:
    """Returns the spec of the job called `name`. The function is pure, so large specs can be read in a thread."""
    spec = raw.get("spec") or {}
    try:
        return ReadSpec(parse_spec(spec, name), None)
    except InvalidJob as error:
        ttl = whole(mapping(mapping(spec).get("runPolicy")).get("ttlSecondsAfterFinished"))
        return ReadSpec(error.spec, InvalidSpec(error.shortened(MAX_MESSAGE_CHARACTERS), ttl))


def is_newer(new: Versioned, known: Versioned) -> bool:
    """Returns whether `new` is later than `known`. A version that isn't a number counts as later.

    Both belong to objects of the same name, which may have different uids. kopf keeps events in order only within a
    uid, so the last event of a deleted object can arrive after the first event of its successor. Versions of one
    resource type are comparable (KEP-5504).
    """
    if new.resource_version == known.resource_version:
        return new.uid != known.uid
    if new.resource_version.isdecimal() and known.resource_version.isdecimal():
        return int(new.resource_version) > int(known.resource_version)
    return True


def _without_anothers(view: PodView, job: Job) -> PodView:
    """Drops an assignment that was signed for another job, because any client that may patch a pod can copy one."""
    is_anothers = view.assignment is not None and view.assignment.job != job.uid
    return replace(view, assignment=None) if is_anothers else view
