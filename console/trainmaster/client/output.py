"""What a job's workers print comes from their pods, and from what the operator kept when these are gone."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainmaster.client.blocking import AsyncTransport
from trainmaster.client.errors import JobNotFound, NotAllowed
from trainmaster.client.job import has_index, items_of, worker_index
from trainmaster_operator.api.evidence import AttemptEvidence, Stacks, attempt_of, evidence_name, stacks_name
from trainmaster_operator.api.kept_logs import KeptLog, kept_workers, logs_name, stamped_line
from trainmaster_operator.wire.names import JOB_NAME_LABEL


@dataclass(frozen=True)
class Output:
    """Output reads the pods and what is kept of them in one namespace."""

    transport: AsyncTransport
    namespace: str

    async def pods(self, name: str) -> list[Mapping[str, Any]]:
        """Returns the job's pods as raw objects, by worker. Pods with its label but no index are left out."""
        answer = await self.transport.request(
            "GET",
            f"/api/v1/namespaces/{self.namespace}/pods",
            query={"labelSelector": f"{JOB_NAME_LABEL}={name}"},
        )
        return sorted(filter(has_index, items_of(answer)), key=worker_index)

    async def log(self, name: str, worker: int, *, follow: bool, tail: int | None) -> AsyncGenerator[str, None]:
        """Yields a worker's output line by line: what was kept of its earlier pods, and its pod's. Raises JobNotFound.

        With both `follow` and `tail`, it begins with the pod's.
        """
        pod = next((pod for pod in await self.pods(name) if worker_index(pod) == worker), None)
        lines: AsyncGenerator[str, None] = (
            self._kept(name, worker) if pod is None else self._of_pod(name, pod, follow, tail)
        )
        last = deque[str](maxlen=tail)
        async with aclosing(lines):
            async for line in lines:
                if follow or tail is None:
                    yield line
                else:
                    last.append(line)
        for line in last:
            yield line

    async def _of_pod(
        self, name: str, pod: Mapping[str, Any], follow: bool, tail: int | None
    ) -> AsyncGenerator[str, None]:
        worker = worker_index(pod)
        kept = None if follow and tail is not None else (await self.kept_logs_or_none(name)).get(worker)
        raws = self.pod_log(pod["metadata"]["name"], follow=follow, tail=tail, timestamps=True)
        try:
            async with aclosing(raws):
                async for raw in raws:
                    time, text = stamped_line(raw)
                    if kept is not None:
                        for line in kept.before(text, None if time is None else round(time * 1_000)).lines:
                            yield line
                        kept = None
                    yield text
            # The pod has printed nothing, or its log has just gone with its container.
            for line in () if kept is None else kept.lines:
                yield line
            return
        except JobNotFound:
            # The job has ended meanwhile: its pods go when their logs are kept.
            pass
        async for line in self._kept(name, worker):
            yield line

    async def pod_log(
        self,
        pod: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        timestamps: bool = False,
        since: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yields the log of a worker's container line by line, or of the container before. Raises JobNotFound."""
        query = {"container": "worker"}
        if follow:
            query["follow"] = "true"
        if previous:
            query["previous"] = "true"
        if tail is not None:
            query["tailLines"] = str(tail)
        if timestamps:
            query["timestamps"] = "true"
        if since is not None:
            query["sinceTime"] = datetime.fromtimestamp(int(since), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        async with aclosing(self.transport.lines(path, query=query, read_seconds=None)) as lines:
            async for line in lines:
                yield line.decode("utf-8", "replace")

    async def kept_logs(self, name: str) -> dict[int, KeptLog]:
        """Returns what the operator kept of the workers' output when their pods went, by worker."""
        data = await self._config_map(logs_name(name))
        logs = {worker: KeptLog.parse(data, worker) for worker in kept_workers(data)}
        return {worker: log for worker, log in logs.items() if log is not None}

    async def kept_logs_or_none(self, name: str) -> dict[int, KeptLog]:
        """Returns what was kept, nothing for those who may read pods' logs and no ConfigMaps."""
        try:
            return await self.kept_logs(name)
        except NotAllowed:
            return {}

    async def evidence(self, name: str) -> list[AttemptEvidence]:
        """Returns the evidence of the attempts that failed, oldest first; also after the pods are gone."""
        data = await self._config_map(evidence_name(name))
        parsed = (AttemptEvidence.parse(text) for key, text in data.items() if attempt_of(key) is not None)
        return sorted((one for one in parsed if one is not None), key=lambda one: one.attempt)

    async def stacks(self, name: str) -> Stacks | None:
        """Returns the answer to the newest request for stacks; None where there is none."""
        return Stacks.parse(await self._config_map(stacks_name(name)))

    async def _kept(self, name: str, worker: int) -> AsyncGenerator[str, None]:
        log = (await self.kept_logs(name)).get(worker)
        if log is None:
            raise JobNotFound(f"Job {name} has no worker {worker}, and nothing was kept of one.")
        for line in log.lines:
            yield line

    async def _config_map(self, name: str) -> dict[str, str]:
        try:
            found = await self.transport.request("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except JobNotFound:
            return {}
        return dict(found.get("data") or {})
