"""`Output` reads workers' pods, the logs of the pods' containers, and the output that the operator has kept.

A worker's output is in the logs of its current and its previous container. For example, if an agent reports by exiting,
the ranks' output is in the previous container's log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from trainmaster.client.errors import JobNotFound, NotAllowed
from trainmaster.client.job import (
    has_index,
    items_of,
    require,
    require_count,
    require_name_text,
    require_seconds,
    worker_index,
)
from trainmaster.client.objects import items, text
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.api.evidence import AttemptEvidence, attempt_of, evidence_name
from trainmaster_operator.api.kept_logs import KeptLog, kept_workers, logs_name
from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.wire.names import JOB_NAME_LABEL
from trainmaster_operator.wire.values import mapping, whole


class Output:
    """Output reads the pods of a namespace and the kept copies of their output. It is the base of `AsyncJobClient`."""

    def __init__(self, transport: AsyncTransport, namespace: str) -> None:
        self.transport = transport
        self.namespace = namespace

    async def pods(self, name: str) -> list[Mapping[str, Any]]:
        """Returns the job's pods as raw objects, sorted by worker, without pods that have no worker's index."""
        require_name_text(name)
        path, query = f"/api/v1/namespaces/{self.namespace}/pods", {"labelSelector": f"{JOB_NAME_LABEL}={name}"}
        answer = await self.transport.request("GET", path, query=query)
        return sorted(filter(has_index, items_of(answer)), key=worker_index)

    def pod_log(
        self,
        pod: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        timestamps: bool = False,
        since: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yields the log of a worker's current or previous container line by line. Raises JobNotFound.

        Raises InvalidRequest if the container hasn't started. A followed log ends when the container ends or the
        connection breaks. With `timestamps`, each line begins with its time (api/kept_logs.py). Lines before `since`
        (seconds since the epoch) are left out.
        """
        require("pod", pod, str, "the name of a pod as text")
        require_count("tail", tail)
        require_seconds("since", since)
        query = {"container": "worker"}
        for option, is_given in (("follow", follow), ("previous", previous), ("timestamps", timestamps)):
            if is_given:
                query[option] = "true"
        if tail is not None:
            query["tailLines"] = str(tail)
        if since is not None:
            # The kubelet accepts only whole seconds.
            query["sinceTime"] = to_whole_text(since)
        return self._decoded(f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log", query)

    async def kept_logs(self, name: str) -> dict[int, KeptLog]:
        """Returns the output that the operator kept before the pods were removed, by worker."""
        require_name_text(name)
        data = await self._config_map(logs_name(name))
        logs = {worker: KeptLog.parse(data, worker) for worker in kept_workers(data)}
        return {worker: log for worker, log in logs.items() if log is not None}

    async def evidence(self, name: str) -> list[AttemptEvidence]:
        """Returns the evidence of failed attempts, oldest first, even after the pods are gone."""
        require_name_text(name)
        data = await self._config_map(evidence_name(name))
        parsed = (AttemptEvidence.parse(value) for key, value in data.items() if attempt_of(key) is not None)
        return sorted((one for one in parsed if one is not None), key=lambda one: one.attempt)

    async def _decoded(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[str, None]:
        async with aclosing(self.transport.lines(path, query=query, read_seconds=None)) as lines:
            async for line in lines:
                yield line.decode("utf-8", "replace")

    async def _config_map(self, name: str) -> dict[str, str]:
        try:
            found = await self.transport.request("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except JobNotFound:
            return {}
        return dict(found.get("data") or {})


async def kept_logs_or_none(output: Output, name: str) -> dict[int, KeptLog]:
    """Returns the kept output, or an empty dict if the user may read pods' logs but not ConfigMaps."""
    try:
        return await output.kept_logs(name)
    except NotAllowed:
        return {}


class Container(NamedTuple):
    """Container identifies one run of a worker's container. Each run has its own log."""

    worker: int
    pod: str
    uid: str
    restarts: int

    @property
    def before(self) -> Container:
        """Returns the previous container of the same pod."""
        return self._replace(restarts=self.restarts - 1)


def container_of(pod: Mapping[str, Any]) -> Container:
    """Returns the current container of a worker's pod."""
    metadata = pod["metadata"]
    restarts = whole(_worker_status(pod).get("restartCount")) or 0
    return Container(worker_index(pod), metadata["name"], str(metadata.get("uid")), restarts)


def containers_of(pod: Mapping[str, Any]) -> list[Container]:
    """Returns the containers whose logs the kubelet may still store, the older one first."""
    container = container_of(pod)
    # While a container waits for its next start, its log is still that of the previous container.
    waits = "waiting" in mapping(_worker_status(pod).get("state"))
    return [container.before, container] if container.restarts > 0 and not waits else [container]


def has_started(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container has a log."""
    status = _worker_status(pod)
    if not status:
        return text(pod, "status", "phase") != "Pending"
    return "waiting" not in mapping(status.get("state")) or bool(status.get("restartCount"))


def runs(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container is running in a pod that isn't being deleted."""
    state = mapping(_worker_status(pod).get("state"))
    return "running" in state and not pod["metadata"].get("deletionTimestamp")


def _worker_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((each for each in items(pod, "status", "containerStatuses") if each.get("name") == "worker"), {})
