"""`AsyncJobClient` submits, watches and steers jobs from coroutines; `JobClient` runs the same methods.

async with AsyncJobClient() as jobs:
    async for job in jobs.watch("bert-mrpc"):
        print(job.phase)
"""

from __future__ import annotations

import builtins
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Self

from trainmaster.client.errors import InvalidRequest, JobNotFound, WaitTimeout
from trainmaster.client.job import (
    OPTIONAL_TEXT,
    TrainingJob,
    collection_path,
    items_of,
    label_query,
    require,
    require_count,
    require_name,
    require_name_text,
    require_namespace,
    require_seconds,
)
from trainmaster.client.log_reader import LogReader, Selection, labelled, may_have_several
from trainmaster.client.metrics import JobMetrics, job_metrics
from trainmaster.client.objects import at
from trainmaster.client.output import Output
from trainmaster.client.transport import AsyncTransport
from trainmaster.client.watching import events_path, read_job, wait_for_job, watch_job, watch_jobs, watch_objects
from trainmaster_operator.api.evidence import Stacks, stacks_name
from trainmaster_operator.api.limits import check_size
from trainmaster_operator.api.times import to_micro_text
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.wire.names import RESTART_ANNOTATION, STACKS_ANNOTATION

FIELD_MANAGER = "trainmaster-client"
# Interval between checks for requested stacks (seconds). The ranks take a few tenths of a second to write them.
STACKS_POLL_SECONDS = 0.2
_STRICT = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}


class AsyncJobClient(Output):
    """AsyncJobClient reads and changes the jobs of one namespace.

    Its methods raise ClientErrors with a one-sentence message. It opens its own connections, so close it or use
    `async with`.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        self._close: Callable[[], Any] | None = None
        if transport is None:
            # Imported here, because aiohttp takes half a second to import and the synchronous client doesn't need it.
            from trainmaster.client.asynchronous import AiohttpTransport
            from trainmaster.client.server import server_for

            server = server_for(kubeconfig, context)
            namespace = namespace or server.namespace
            transport = own = AiohttpTransport(server)
            self._close = own.close
        super().__init__(transport, namespace or "default")
        require_namespace(self.namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        if self._close is not None:
            await self._close()

    async def submit(self, manifest: Mapping[str, Any], *, replace: bool = False) -> TrainingJob:
        """Creates a job; with `replace`, uses server-side apply. Raises JobExists and InvalidRequest."""
        require("manifest", manifest, Mapping, "the job as a mapping, such as yaml.safe_load makes of a file's text")
        body = {"apiVersion": API_VERSION, "kind": KIND, **manifest}
        problem = check_size(body["spec"]) if isinstance(body.get("spec"), Mapping) else None
        if problem is not None:
            # The API server would accept the job, but the operator would then refuse it.
            raise InvalidRequest(str(problem))
        if not replace:
            path = collection_path(self.namespace)
            return TrainingJob.of(await self.transport.request("POST", path, query=_STRICT, body=body))
        path = self._path(str(at(body, "metadata", "name") or ""))
        return await self._patch(path, body, "application/apply-patch+yaml", force="true")

    async def get(self, name: str) -> TrainingJob:
        """Returns one job. Raises JobNotFound."""
        require_name(name)
        return await read_job(self.transport, self.namespace, name)

    async def list(self, *, all_namespaces: bool = False, selector: str | None = None) -> list[TrainingJob]:
        """Returns the jobs of one or all namespaces, sorted by namespace and name. `selector` is a label selector."""
        path = collection_path(None if all_namespaces else self.namespace)
        answer = await self.transport.request("GET", path, query=label_query(selector))
        jobs = [TrainingJob.of(item) for item in items_of(answer)]
        return sorted(jobs, key=lambda job: (job.namespace, job.name))

    async def delete(self, name: str) -> None:
        """Deletes a job; the garbage collector then deletes the objects that belong to it."""
        await self.transport.request("DELETE", self._path(name), query={"propagationPolicy": "Background"})

    async def suspend(self, name: str) -> TrainingJob:
        """Saves a checkpoint, stops the job and frees its resources. Raises InvalidRequest if the job has ended."""
        return await self._set_suspend(name, "suspend", suspend=True)

    async def resume(self, name: str) -> TrainingJob:
        """Resumes a suspended job. Raises InvalidRequest if the job has ended."""
        return await self._set_suspend(name, "resume", suspend=False)

    async def scale(self, name: str, workers: int) -> TrainingJob:
        """Changes the number of workers."""
        require("workers", workers, int, "a whole number")
        return await self.merge(name, {"spec": {"workers": workers}})

    async def restart(self, name: str) -> TrainingJob:
        """Restarts all ranks in their pods, from a checkpoint. Raises InvalidRequest if the job has ended."""
        job = await self.get(name)
        if job.finished:
            raise InvalidRequest(
                f"Job {name} has ended ({job.phase}), and ended jobs never train again: submit it again."
            )
        # People can read a timestamp, and its microseconds make each request different.
        return await self.merge(name, {"metadata": {"annotations": {RESTART_ANNOTATION: to_micro_text(time.time())}}})

    async def merge(self, name: str, patch: Mapping[str, Any]) -> TrainingJob:
        """Changes a job by a merge patch."""
        require("patch", patch, Mapping, "a mapping with the fields that change")
        return await self._patch(self._path(name), patch, "application/merge-patch+json")

    def watch(self, name: str) -> AsyncGenerator[TrainingJob, None]:
        """Yields the job's state now and after each change, until the job is deleted. Reopens a broken watch."""
        require_name(name)
        return watch_job(self.transport, self.namespace, name)

    def watch_all(
        self, *, all_namespaces: bool = False, selector: str | None = None
    ) -> AsyncGenerator[tuple[TrainingJob, bool], None]:
        """Yields all jobs, then each new, changed or deleted job, forever. The flag is True if the job was deleted."""
        return watch_jobs(self.transport, None if all_namespaces else self.namespace, selector)

    async def wait(
        self,
        name: str,
        *,
        until: Callable[[TrainingJob], bool] = lambda job: job.finished,
        timeout: float | None = None,
    ) -> TrainingJob:
        """Waits until `until` is True for a job (by default, until its end). Raises WaitTimeout and JobNotFound."""
        require_name(name)
        require_seconds("timeout", timeout)
        if not callable(until):
            raise InvalidRequest(f"until is of type {type(until).__name__}: give a function of a job, or leave it out")
        return await wait_for_job(self.transport, self.namespace, name, until, timeout)

    async def metrics(self, name: str) -> JobMetrics:
        """Returns each rank's current step, loss, samples per second and seconds per step. Raises JobNotFound."""
        pods = await self.pods(name)
        if not pods:
            await self.get(name)
        return await job_metrics(self.transport, self.namespace, pods)

    def logs(
        self, name: str, worker: int | None = None, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[str, None]:
        """Yields the output of one worker line by line, or of all workers sorted by time. Raises JobNotFound.

        With several workers, each line begins with its rank's or worker's label. If the pods are gone, the output that
        the operator kept is read. `follow` waits for new lines until the job has ended. `tail` limits the output to
        each worker's last lines.
        """
        require_name_text(name)
        require_count("worker", worker)
        require_count("tail", tail)
        return self._logs(name, worker, follow=follow, tail=tail)

    async def events(self, *, all_namespaces: bool = False) -> builtins.list[Mapping[str, Any]]:
        """Returns the raw Events about all objects of the namespace, or of all namespaces."""
        return items_of(await self.transport.request("GET", events_path(None if all_namespaces else self.namespace)))

    def watch_events(self, *, all_namespaces: bool = False) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yields the existing raw Events as ADDED, then each added, changed or deleted Event, forever."""
        return watch_objects(self.transport, events_path(None if all_namespaces else self.namespace))

    async def stacks(self, name: str, *, timeout: float = 15.0) -> Stacks:
        """Returns the stacks of all running ranks, without stopping them. Raises InvalidRequest and WaitTimeout."""
        require_seconds("timeout", timeout)
        job = await self.get(name)
        if job.phase not in ("Starting", "Running"):
            raise InvalidRequest(f"Job {name} is {job.phase}: there are no ranks that could be asked for their stacks.")
        request = secrets.token_hex(8)
        await self.merge(name, {"metadata": {"annotations": {STACKS_ANNOTATION: request}}})
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            found = Stacks.parse(await self._config_map(stacks_name(name)))
            if found is not None and found.request == request:
                return found
            await self.transport.sleep(STACKS_POLL_SECONDS)
        raise WaitTimeout(
            f"Nobody has answered for job {name} within {timeout:g} s: an operator passes the question on, while it "
            "watches the job's agents.",
            job.phase,
        )

    async def history(
        self, name: str, *, uid: str | None = None, history: str | None = None, token: str | None = None
    ) -> dict[str, builtins.list[Any]]:
        """Returns a job's recorded curves as columns (docs/history-exports.md), even after the job is deleted.

        Raises JobNotFound if the job wasn't recorded. `uid` selects an earlier job with the same name. `history` is the
        address of a history service; the default is the cluster's own. `token` is needed if the kubeconfig contains no
        token.
        """
        from trainmaster.client.history import curves, history_beside

        require_name(name)
        for argument, value in (("uid", uid), ("history", history), ("token", token)):
            require(argument, value, OPTIONAL_TEXT, "text")
        async with history_beside(self.transport, history, token) as reader:
            return await curves(reader, self.namespace, name, uid=uid)

    async def _logs(
        self, name: str, worker: int | None, *, follow: bool, tail: int | None
    ) -> AsyncGenerator[str, None]:
        job = await read_job(self.transport, self.namespace, name)
        selection = Selection(workers=None if worker is None else frozenset([worker]), tail=tail)
        reader = LogReader(self, job, selection)
        follows = follow and not reader.is_over
        several = worker is None and may_have_several(job)
        async with aclosing(labelled(reader.lines(follow=follow), several=several)) as lines:
            async for line in lines:
                yield line
        if worker is not None and not follows and not reader.pods and not reader.kept:
            raise JobNotFound(f"Job {name} has no worker {worker}, and nothing was kept of one.")

    async def _set_suspend(self, name: str, verb: str, *, suspend: bool) -> TrainingJob:
        job = await self.get(name)
        if job.finished:
            raise InvalidRequest(
                f"Job {name} has ended ({job.phase}): there is nothing to {verb}, and nothing was changed."
            )
        if job.to_be_suspended == suspend:
            return job
        return await self.merge(name, {"spec": {"runPolicy": {"suspend": suspend}}})

    async def _patch(self, path: str, body: Mapping[str, Any], content_type: str, **query: str) -> TrainingJob:
        query = {**_STRICT, **query}
        return TrainingJob.of(
            await self.transport.request("PATCH", path, query=query, body=body, content_type=content_type)
        )

    def _path(self, name: str) -> str:
        require_name(name)
        return f"{collection_path(self.namespace)}/{name}"
