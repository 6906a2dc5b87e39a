"""Why the kubelet killed a worker's container: a container's status only has the signal's exit code.

The kubelet says in an Event of the pod (reason Killing, pkg/kubelet/kuberuntime) that a probe failed. It is read before
the pass that decides on such ends, so that the failure's record names the probe, and several count once: one list, and
only where containers ended by SIGKILL or SIGTERM and their agents had nothing to say about that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from trainmaster.api.pod_template import WORKER_CONTAINER
from trainmaster.controller.apiserver.cluster import EVENTS, Cluster, RawObject
from trainmaster.controller.apiserver.errors import ClusterError
from trainmaster.controller.cache.lookup_results import LookupResults
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.store import Store
from trainmaster.controller.cache.views import event_time
from trainmaster.reconciling.observed.snapshot import ContainerEnd, PodView
from trainmaster.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Seconds that the decision waits for the reason at most: without it the job recovers too.
PATIENCE = 5.0
# 128 + SIGKILL: the agent didn't obey SIGTERM; 128 + SIGTERM: it did.
KILLED, OBEYED = 137, 143
# Seconds by which the kubelet's two clocks may differ: an event's time and a container's, both in whole seconds.
CLOCK_SLACK = 2.0


class KilledContainers:
    """Asks once for each end."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store

    async def look(self, key: JobKey, snapshot: Snapshot) -> bool:
        """Ask why the containers of this job's pods were killed that have ended now; whether anything was asked."""
        ends = [
            (pod, end)
            for pod in snapshot.observed.pods
            if (end := _end_to_explain(pod)) is not None
            and end.finished_at is not None
            and (pod.uid, end.finished_at) not in snapshot.observed.kills
        ]
        if not ends or snapshot.job.status.completion_time is not None:
            return False
        said = await self._ask(key, [pod.uid for pod, _ in ends])
        found = {(pod.uid, end.finished_at or 0.0): _reason(said, pod, end) for pod, end in ends}
        self._store.record_lookups(key, LookupResults(kills=found))
        return True

    async def _ask(self, key: JobKey, uids: list[str]) -> list[RawObject]:
        """The kubelets' events on kills of these pods; of the whole namespace where there are several."""
        about = f"involvedObject.uid={uids[0]}" if len(uids) == 1 else "involvedObject.kind=Pod"
        pages = self._cluster.pages(EVENTS, key.namespace, field_selector=f"{about},reason=Killing")
        try:
            async with asyncio.timeout(PATIENCE):
                return [event async for page in pages for event in page]
        except (ClusterError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
            logger.info("%s: why %d containers were killed can't be read: %s", key, len(uids), problem)
            return []


def _reason(events: list[RawObject], pod: PodView, end: ContainerEnd) -> str | None:
    its = [event for event in events if _is_of(event, pod, end)]
    newest = max(its, key=event_time, default=None)
    return None if newest is None else f"the kubelet: {text(newest.get('message'), 300)}"


def _end_to_explain(pod: PodView) -> ContainerEnd | None:
    container = pod.worker_container
    end = (container.end or container.last_end) if container is not None else None
    if end is None or pod.deleting or end.exit_code not in (KILLED, OBEYED) or end.reason == "OOMKilled":
        return None
    return end if end.report is None or end.report.state == "Stopped" else None


def _is_of(event: Mapping[str, Any], pod: PodView, end: ContainerEnd) -> bool:
    """Whether an event tells of this end, and of a probe: others say that the pod itself was stopped."""
    involved = mapping(event.get("involvedObject"))
    is_its = (involved.get("uid"), involved.get("fieldPath")) == (pod.uid, f"spec.containers{{{WORKER_CONTAINER}}}")
    if not is_its or "probe" not in text(event.get("message")):
        return False
    earliest, latest = (end.started_at or 0.0) - CLOCK_SLACK, (end.finished_at or 0.0) + CLOCK_SLACK
    return earliest <= event_time(event) <= latest
