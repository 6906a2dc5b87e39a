"""`JobClient` submits, watches and steers DistributedTrainingJobs from Python.

    jobs = JobClient()
    jobs.submit(manifest)
    job = jobs.wait("bert-mrpc", timeout=3600)
    print(job.phase, job.status.progress)

`JobClient` runs the methods of `AsyncJobClient` without an event loop (see `blocking`).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from trainmaster.client.async_jobs import AsyncJobClient
from trainmaster.client.blocking import Blocking, iterate, run
from trainmaster.client.server import server_for
from trainmaster.client.transport import HttpTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")


def _returns(
    method: Callable[Concatenate[AsyncJobClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[JobClient, P], T]:
    """Makes a method of `JobClient` from a coroutine that returns a value."""

    @functools.wraps(method)
    def call(self: JobClient, /, *args: P.args, **options: P.kwargs) -> T:
        return run(method(self.asynchronous, *args, **options))

    return call


def _yields(
    method: Callable[Concatenate[AsyncJobClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[JobClient, P], Iterator[T]]:
    """Makes a method of `JobClient` from an asynchronous generator."""

    @functools.wraps(method)
    def call(self: JobClient, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        return iterate(method(self.asynchronous, *args, **options))

    # `help` then shows the blocking method's return type.
    vars(call)["__signature__"] = inspect.signature(method).replace(return_annotation="Iterator")
    return call


class JobClient:
    """JobClient reads and changes the jobs of one namespace.

    Threads may share a client. Its methods raise ClientErrors with a one-sentence message.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        if transport is None:
            server = server_for(kubeconfig, context)
            transport, namespace = HttpTransport(server), namespace or server.namespace
        self.transport = transport
        # The coroutines of this inner client block, so never await them in an event loop.
        self.asynchronous = AsyncJobClient(namespace, transport=Blocking(transport))
        self.namespace = self.asynchronous.namespace

    submit = _returns(AsyncJobClient.submit)
    get = _returns(AsyncJobClient.get)
    list = _returns(AsyncJobClient.list)
    delete = _returns(AsyncJobClient.delete)
    suspend = _returns(AsyncJobClient.suspend)
    resume = _returns(AsyncJobClient.resume)
    scale = _returns(AsyncJobClient.scale)
    restart = _returns(AsyncJobClient.restart)
    merge = _returns(AsyncJobClient.merge)
    watch = _yields(AsyncJobClient.watch)
    watch_all = _yields(AsyncJobClient.watch_all)
    wait = _returns(AsyncJobClient.wait)
    metrics = _returns(AsyncJobClient.metrics)
    pods = _returns(AsyncJobClient.pods)
    logs = _yields(AsyncJobClient.logs)
    pod_log = _yields(AsyncJobClient.pod_log)
    kept_logs = _returns(AsyncJobClient.kept_logs)
    stacks = _returns(AsyncJobClient.stacks)
    events = _returns(AsyncJobClient.events)
    watch_events = _yields(AsyncJobClient.watch_events)
    evidence = _returns(AsyncJobClient.evidence)
    history = _returns(AsyncJobClient.history)
