"""Defines the errors of this package.

    ClientError
    ├── NoCluster          no kubeconfig, or nothing answers at its address
    ├── JobNotFound        no such job (or the custom resource isn't installed)
    ├── JobExists          a job of that name exists already
    ├── InvalidRequest     the API server refused it, or an argument has a wrong type
    ├── NotAllowed         the user lacks a permission; the text names it
    │   └── NotKnown       the API server doesn't know this token or certificate (any more)
    └── WaitTimeout        the job hasn't reached the state in time; `.phase` is the phase it was in

Every message is one sentence, written for people.
"""

from __future__ import annotations


class ClientError(Exception):
    """ClientError is the base of this package's own exceptions."""


class NoCluster(ClientError):
    """No cluster can be reached."""


class JobNotFound(ClientError):
    """There is no such job."""


class JobExists(ClientError):
    """A job of that name already exists."""


class InvalidRequest(ClientError):
    """The API server refused the request, or a check refused it before it was sent."""


class NotAllowed(ClientError):
    """The user isn't allowed to make this request."""


class NotKnown(NotAllowed):
    """The API server doesn't know the user: a token or a certificate may have expired."""


class WaitTimeout(ClientError):
    """The job hasn't reached the state in time."""

    def __init__(self, message: str, phase: str) -> None:
        super().__init__(message)
        self.phase = phase
