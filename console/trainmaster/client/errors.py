"""Defines the errors of this package. Every message is one sentence, written for people."""

from __future__ import annotations


class ClientError(Exception):
    """ClientError is the base of this package's own exceptions."""


class NoCluster(ClientError):
    """There is no kubeconfig, or nothing answers at its address."""


class JobNotFound(ClientError):
    """There is no such job, or the custom resource isn't installed."""


class JobExists(ClientError):
    """A job of this name already exists."""


class InvalidRequest(ClientError):
    """The API server refused the request, or an argument has a wrong type."""


class NotAllowed(ClientError):
    """The user lacks a permission, which the message names."""


class NotKnown(NotAllowed):
    """The API server doesn't know the user: a token or a certificate may have expired."""


class WaitTimeout(ClientError):
    """The job didn't reach the expected state in time. `phase` is the job's last known phase."""

    def __init__(self, message: str, phase: str) -> None:
        super().__init__(message)
        self.phase = phase
