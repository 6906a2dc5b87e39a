"""The Python SDK submits, waits for, reads and steers training jobs.

1. `jobs` has `JobClient`, which everybody starts from; `errors` is the tree of what it raises, `job` what it returns.
2. `async_jobs` has `AsyncJobClient` and what the methods of both do, with `watching`, `events`, `output` and `metrics`;
   `blocking` runs it without an event loop.
3. `transport` sends the requests and is what tests replace; `asynchronous` sends them from coroutines. `server` finds
   where to (with `tls`, `proxies` and `authorization`), and `answers` makes results and errors of what comes back.
"""

from trainmaster.client.async_jobs import AsyncJobClient
from trainmaster.client.errors import (
    ClientError,
    InvalidRequest,
    JobExists,
    JobNotFound,
    NoCluster,
    NotAllowed,
    WaitTimeout,
)
from trainmaster.client.job import TrainingJob, require_name, worker_index
from trainmaster.client.jobs import JobClient
from trainmaster.client.metrics import JobMetrics, RankMetrics

__all__ = [
    "AsyncJobClient",
    "ClientError",
    "InvalidRequest",
    "JobClient",
    "JobExists",
    "JobMetrics",
    "JobNotFound",
    "NoCluster",
    "NotAllowed",
    "RankMetrics",
    "TrainingJob",
    "WaitTimeout",
    "require_name",
    "worker_index",
]
