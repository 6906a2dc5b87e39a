"""The Python SDK submits, waits for, reads and steers training jobs.

`jobs` has `JobClient`, which everybody starts from; `errors` is the tree of what it raises; `transport` finds
the cluster by the kubeconfig, sends the requests over the official client's connection, and is what tests replace.
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
