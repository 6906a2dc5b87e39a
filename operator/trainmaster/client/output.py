"""What a job's workers print comes from their pods, and from what the operator kept when these are gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainmaster.api.evidence import AttemptEvidence, attempt_of, evidence_name
from trainmaster.api.kept_logs import KeptLog, kept_workers, logs_name
from trainmaster.api.stacks import Stacks, stacks_name
from trainmaster.client.blocking import AsyncTransport
from trainmaster.client.errors import JobNotFound
from trainmaster.client.job import has_index, items_of, worker_index
from trainmaster.wire.names import JOB_NAME_LABEL


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
        """Yields a worker's output line by line, from the operator's copy when the pod is gone. Raises JobNotFound."""
        pod = next((pod for pod in await self.pods(name) if worker_index(pod) == worker), None)
        if pod is not None:
            try:
                async with aclosing(self.pod_log(pod["metadata"]["name"], follow=follow, tail=tail)) as lines:
                    async for line in lines:
                        yield line
                return
            except JobNotFound:
                # The job has ended meanwhile: its pods go when their logs are kept.
                pass
        for line in await self._kept(name, worker, tail):
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

    async def evidence(self, name: str) -> list[AttemptEvidence]:
        """Returns the evidence of the attempts that failed, oldest first; also after the pods are gone."""
        data = await self._config_map(evidence_name(name))
        parsed = (AttemptEvidence.parse(text) for key, text in data.items() if attempt_of(key) is not None)
        return sorted((one for one in parsed if one is not None), key=lambda one: one.attempt)

    async def stacks(self, name: str) -> Stacks | None:
        """Returns the answer to the newest request for stacks; None where there is none."""
        return Stacks.parse(await self._config_map(stacks_name(name)))

    async def _kept(self, name: str, worker: int, tail: int | None) -> Sequence[str]:
        log = (await self.kept_logs(name)).get(worker)
        if log is None:
            raise JobNotFound(f"Job {name} has no worker {worker}, and nothing was kept of one.")
        return log.lines if tail is None else log.lines[-tail:] if tail else ()

    async def _config_map(self, name: str) -> dict[str, str]:
        try:
            found = await self.transport.request("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except JobNotFound:
            return {}
        return dict(found.get("data") or {})
