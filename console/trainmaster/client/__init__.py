"""The Python SDK submits, waits for, reads and steers training jobs.

1. Start with `jobs`, which defines `JobClient`. `errors` defines the client's exceptions. `job` defines the objects
   that the client returns, and the checks of arguments.
2. `async_jobs` defines `AsyncJobClient`, whose methods both clients share; `watching` and `metrics` implement some of
   these methods. `blocking` runs the methods without an event loop. `log_reader` reads a job's output as one stream,
   `output` reads the logs of single pods, and `time_order` sorts the lines of several logs by time.
3. `functions` defines `train`, which makes a job from a function. `view` computes the figures and sentences that
   describe a job.
4. `transport` sends the requests; `asynchronous` sends them from coroutines. `server` finds the API server, its TLS
   settings, proxy and credentials. `answers` turns HTTP answers into results and errors. `objects` reads values from
   raw objects. `permission` asks whether a user may do something. `sentences` writes messages about suspended jobs.
   `patience` repeats reads during an outage of the API server, and `operator_sign` finds since when no operator has
   been seen.
5. `history` reads recorded jobs.
6. `code` uploads the user's code, so that no image must be built for it.
7. `gathering` reads a job and the objects around it, from which `diagnosis` explains the job's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.client.async_jobs import AsyncJobClient
from trainmaster.client.errors import (
    ClientError,
    InvalidRequest,
    JobExists,
    JobNotFound,
    NoCluster,
    NotAllowed,
    NotKnown,
    WaitTimeout,
)
from trainmaster.client.job import TrainingJob, require_name, worker_index
from trainmaster.client.jobs import JobClient
from trainmaster.client.metrics import JobMetrics, RankMetrics
from trainmaster.client.server import find_server
from trainmaster.client.transport import HttpTransport

if TYPE_CHECKING:
    from trainmaster.client.functions import JobHandle, TrainOptions, train

__all__ = [
    "AsyncJobClient",
    "ClientError",
    "HttpTransport",
    "InvalidRequest",
    "JobClient",
    "JobExists",
    "JobHandle",
    "JobMetrics",
    "JobNotFound",
    "NoCluster",
    "NotAllowed",
    "NotKnown",
    "RankMetrics",
    "TrainOptions",
    "TrainingJob",
    "WaitTimeout",
    "find_server",
    "require_name",
    "train",
    "worker_index",
]

_OF_FUNCTIONS = ("JobHandle", "TrainOptions", "train")


def __getattr__(name: str) -> Any:
    """Imports `functions` on first use, so that commands that don't need it start faster."""
    if name not in _OF_FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainmaster.client import functions

    return getattr(functions, name)
