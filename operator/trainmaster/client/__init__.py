"""The Python SDK submits, waits for, reads and steers training jobs.

`jobs` has `JobClient`, which everybody starts from; `errors` is the tree of what it raises. `transport` sends the
requests and is what tests replace: `server` finds where to (with `tls`, `proxies` and `authorization`), and `answers`
makes results and errors of what comes back.
"""

from trainmaster.client.errors import (
    ClientError,
    InvalidRequest,
    JobExists,
    JobNotFound,
    NoCluster,
    NotAllowed,
    WaitTimeout,
)
from trainmaster.client.jobs import JobClient, TrainingJob, require_name, worker_index

__all__ = [
    "ClientError",
    "InvalidRequest",
    "JobClient",
    "JobExists",
    "JobNotFound",
    "NoCluster",
    "NotAllowed",
    "TrainingJob",
    "WaitTimeout",
    "require_name",
    "worker_index",
]
