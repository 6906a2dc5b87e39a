"""The kubelet's Event says why it killed a worker's container: a container's status only has the signal's exit code.

The kubelet reports in an Event of the pod (reason Killing, pkg/kubelet/kuberuntime) that a probe failed. It is read
before the pass that decides on such ends, so that the failure's record names the probe, and several count once: one
list, and only where containers ended by SIGKILL or SIGTERM and their agents reported nothing about that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.controller.apiserver.cluster import Cluster, RawObject
from trainmaster_operator.controller.apiserver.errors import ClusterError
from trainmaster_operator.controller.cache.lookup_results import LookupResults
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import event_time
from trainmaster_operator.controller.lookups.lookup import Lookup, list_events
from trainmaster_operator.reconciling.observed.situation import CLOCK_SLACK
from trainmaster_operator.reconciling.observed.snapshot import ContainerEnd, PodView
from trainmaster_operator.wire.report import EXIT_KILLED, EXIT_TERMINATED
from trainmaster_operator.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Seconds that the decision waits for the reason at most: without it the job recovers too.
PATIENCE = 5.0


class Kill(NamedTuple):
    """Names the end of a worker's container by a signal (seconds since the epoch)."""

    pod_uid: str
    started_at: float
    finished_at: float


def _needed(snapshot: Snapshot) -> Collection[Kill]:
    if snapshot.job.status.completion_time is not None:
        return ()
    return [
        Kill(pod.uid, end.started_at or 0.0, end.finished_at)
        for pod in snapshot.observed.pods
        if (end := _end_to_explain(pod)) is not None
        and end.finished_at is not None
        and (pod.uid, end.finished_at) not in snapshot.observed.kills
    ]


def _end_to_explain(pod: PodView) -> ContainerEnd | None:
    container = pod.worker_container
    end = (container.end or container.last_end) if container is not None else None
    if end is None or pod.deleting or end.exit_code not in (EXIT_KILLED, EXIT_TERMINATED) or end.reason == "OOMKilled":
        return None
    return end if end.report is None or end.report.state == "Stopped" else None


async def _read(cluster: Cluster, key: JobKey, kills: Collection[Kill]) -> Mapping[Kill, str | None]:
    """Reads the kubelets' events on kills of these pods; of the whole namespace where there are several."""
    uids = [kill.pod_uid for kill in kills]
    about = f"involvedObject.uid={uids[0]}" if len(uids) == 1 else "involvedObject.kind=Pod"
    try:
        async with asyncio.timeout(PATIENCE):
            events = await list_events(cluster, key.namespace, f"{about},reason=Killing")
    except (ClusterError, TimeoutError) as error:
        problem = str(error) or "no answer in time"
        logger.info("%s: why %d containers were killed can't be read: %s", key, len(uids), problem)
        events = []
    return {kill: _reason(events, kill) for kill in kills}


def _reason(events: list[RawObject], kill: Kill) -> str | None:
    newest = max((event for event in events if _is_about(event, kill)), key=event_time, default=None)
    return None if newest is None else f"the kubelet: {text(newest.get('message'), 300)}"


def _is_about(event: Mapping[str, Any], kill: Kill) -> bool:
    """Returns whether an event names this end, and a probe: others report that the pod itself was stopped."""
    involved = mapping(event.get("involvedObject"))
    container = (kill.pod_uid, f"spec.containers{{{WORKER_CONTAINER}}}")
    if (involved.get("uid"), involved.get("fieldPath")) != container or "probe" not in text(event.get("message")):
        return False
    return kill.started_at - CLOCK_SLACK <= event_time(event) <= kill.finished_at + CLOCK_SLACK


def _record(store: Store, key: JobKey, answers: Mapping[Kill, str | None]) -> None:
    kills = {(kill.pod_uid, kill.finished_at): reason for kill, reason in answers.items()}
    store.record_lookups(key, LookupResults(kills=kills))


KILLED_CONTAINERS = Lookup("killed containers", _needed, _read, _record, before_decision=True)
