"""Python SDK: submit, wait for, read and steer training jobs (see `JobClient`)."""

from trainmaster.client.errors import (
    ClientError,
    InvalidRequest,
    JobExists,
    JobNotFound,
    NoCluster,
    NotAllowed,
    WaitTimeout,
)
from trainmaster.client.jobs import JobClient, TrainingJob, worker_index

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
    "worker_index",
]
