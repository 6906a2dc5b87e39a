"""Why pods that a StatefulSet should have don't exist: quotas, webhooks, missing service accounts.

A StatefulSet's status doesn't say so; its controller only tells an Event (reason FailedCreate,
pkg/controller/statefulset/stateful_pod_control.go). So when pods stay missing, the set's events are read, and the
newest refusal becomes a `Problem` in the job's snapshot, in the API server's own words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trainmaster.controller.apiserver.cluster import EVENTS, STATEFUL_SETS, Cluster
from trainmaster.controller.apiserver.errors import ClusterError
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.store import Store
from trainmaster.controller.cache.views import event_time
from trainmaster.reconciling.observed.snapshot import ChildView, Problem
from trainmaster.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Seconds that pods may be missing before anybody asks why: making a few hundred takes that long.
PATIENCE = 3.0
# Seconds between two looks at a job's events.
LOOK_SECONDS = 5.0


class MissingPods:
    """Looks into a job's events while pods are missing."""

    def __init__(self, cluster: Cluster, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        # By job uid: when pods began to miss, and when it was looked last.
        self._since: dict[str, float] = {}
        self._looked: dict[str, float] = {}

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._since.pop(uid, None)
        self._looked.pop(uid, None)

    async def look(self, key: JobKey, snapshot: Snapshot) -> float | None:
        """Ask why pods are missing, if it is time; returns the seconds until the next look, None when none is."""
        job = snapshot.job
        sets = [
            child
            for child in snapshot.observed.children
            if child.kind == STATEFUL_SETS.kind and child.owner_uid == job.uid and not child.deleting
        ]
        present = dict.fromkeys((child.name for child in sets), 0)
        for pod in snapshot.observed.pods:
            if pod.set_name in present:
                present[pod.set_name] += 1
        lacking = [child for child in sets if present[child.name] < (child.replicas or 0)]
        for child in sets:
            if child not in lacking:
                self._store.clear_refusal(key, _action(child))
        if not lacking:
            self.forget(job.uid)
            return None
        now = self._clock()
        due = max(self._since.setdefault(job.uid, now) + PATIENCE, self._looked.get(job.uid, 0.0) + LOOK_SECONDS)
        if now < due:
            return due - now
        self._looked[job.uid] = now
        for child in lacking:
            await self._ask(key, child)
        return LOOK_SECONDS

    async def _ask(self, key: JobKey, child: ChildView) -> None:
        selector = f"involvedObject.kind={STATEFUL_SETS.kind},involvedObject.name={child.name},reason=FailedCreate"
        try:
            events = [
                event
                async for page in self._cluster.pages(EVENTS, key.namespace, field_selector=selector)
                for event in page
                if mapping(event.get("involvedObject")).get("uid") == child.uid
            ]
        except ClusterError as error:
            logger.info("%s: the events of StatefulSet %s can't be read: %s", key, child.name, error)
            return
        if events:
            newest = max(events, key=event_time)
            message = text(newest.get("message"))
            self._store.record_refusal(key, Problem(_action(child), "FailedCreate", message, event_time(newest)), 0.0)


def _action(child: ChildView) -> str:
    return f"create the pods of StatefulSet {child.name}"
