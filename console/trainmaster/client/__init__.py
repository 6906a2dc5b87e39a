"""The Python SDK submits, waits for, reads and steers training jobs.

1. `jobs` has `JobClient`, which everybody starts from; `errors` is the tree of what it raises, `job` what it returns.
2. `async_jobs` has `AsyncJobClient` and what the methods of both do, with `watching`, `events`, `output` and `metrics`;
   `blocking` runs it without an event loop.
   `all_workers` has the output of all workers as one stream: `merging` puts lines in order, `arrivals` and `containers`
   are what it reads.
3. `functions` has `train`, which makes a job of a function, and `view` has the figures and sentences of a job.
4. `transport` sends the requests and is what tests replace; `asynchronous` sends them from coroutines. `server` finds
   where to (with `tls`, `proxies` and `authorization`), and `answers` makes results and errors of what comes back.
   `arguments` refuses what no method takes. `read_only` is a connection that can't write.
   `permission` asks what somebody may do, and `suspending` says what a suspended job loses.
5. `history` reads what was recorded of jobs.
6. `code` brings the user's code without an image: an archive, and what puts it where the pods mount it.
7. `gathering` reads all around a job, and `diagnosis` says from that why the job is as it is.
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
    """Returns what makes jobs of functions: a command that only asks the API server doesn't wait for its import."""
    if name not in _OF_FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainmaster.client import functions

    return getattr(functions, name)
