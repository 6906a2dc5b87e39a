"""Kubernetes Events about jobs, for `kubectl describe` and `kubectl events`.

Core v1 Events, because both commands read those; the API server shows them in events.k8s.io too. The rules against
floods are client-go's (tools/record/events_cache.go): an event that was recorded already is counted up instead of
recorded again, and each job has a budget of 25 at once, refilled with one in five minutes.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.controller.apiserver.cluster import EVENTS, Cluster
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.reconciling.decision import JobEvent
from trainmaster_operator.reconciling.observed.snapshot import Job

logger = logging.getLogger(__name__)

COMPONENT = "trainmaster"
# The API's own limit of a note is 1,024 bytes (events.k8s.io/v1).
MAX_MESSAGE_BYTES = 1_024
BURST = 25
REFILL_SECONDS = 300.0
# Events of the same text within this time are one.
REPEAT_SECONDS = 600.0
REMEMBERED = 4_096


@dataclass
class _Recorded:
    name: str
    count: int
    at: float


@dataclass
class _Budget:
    tokens: float
    at: float


class EventRecorder:
    """Records events. Never raises: an event that can't be written is logged, and the job goes on."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._instance = socket.gethostname()
        self._recorded: OrderedDict[tuple[str, str, str], _Recorded] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    async def record(self, job: Job, event: JobEvent) -> None:
        """Write an event, or count up the one that is the same."""
        now = self._clock()
        # kubectl prints messages as they are, a line of a table each.
        message = one_line(event.message).encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
        place = (job.uid, event.reason, message)
        recorded = self._recorded.get(place)
        try:
            if recorded is not None and now - recorded.at < REPEAT_SECONDS:
                recorded.count += 1
                recorded.at = now
                await self._cluster.patch(
                    EVENTS, job.namespace, recorded.name, {"count": recorded.count, "lastTimestamp": to_whole_text(now)}
                )
                return
            if not self._spend(job.uid, now):
                logger.info("Event not recorded, %s has had too many: %s %s", job.name, event.reason, message)
                return
            name = f"{job.name}.{uuid.uuid4().hex[:16]}"
            await self._cluster.create(EVENTS, job.namespace, self._body(job, event, name, message, now))
        except NotFound:
            # The event has expired, or the namespace is gone.
            self._recorded.pop(place, None)
            return
        except ClusterError as error:
            logger.warning("Event %s of %s/%s not written: %s", event.reason, job.namespace, job.name, error)
            return
        self._recorded[place] = _Recorded(name, 1, now)
        while len(self._recorded) > REMEMBERED:
            self._recorded.popitem(last=False)

    def _spend(self, uid: str, now: float) -> bool:
        budget = self._budgets.setdefault(uid, _Budget(BURST, now))
        budget.tokens = min(BURST, budget.tokens + max(0.0, now - budget.at) / REFILL_SECONDS)
        budget.at = now
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        if budget.tokens < 1:
            return False
        budget.tokens -= 1
        return True

    def _body(self, job: Job, event: JobEvent, name: str, message: str, now: float) -> dict[str, Any]:
        time = to_whole_text(now)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": job.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": job.namespace,
                "name": job.name,
                "uid": job.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": message,
            "source": {"component": COMPONENT},
            "reportingComponent": f"trainmaster.dev/{COMPONENT}",
            "reportingInstance": self._instance,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
