"""Errors are an HTTP status and a sentence, `{"sentence": "…"}`; nothing else of an exception gets out."""

from __future__ import annotations

from aiohttp import web

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

UNKNOWN = (
    "The cluster doesn't know this token: it may have expired, or be another cluster's. Make one with "
    "`kubectl create token SERVICEACCOUNT -n NAMESPACE`, or log in anew."
)
_STATUSES: tuple[tuple[type[ClientError], int], ...] = (
    (NotAllowed, 403),
    (JobNotFound, 404),
    (JobExists, 409),
    (InvalidRequest, 400),
    (WaitTimeout, 504),
    (NoCluster, 502),
)
MAX_SENTENCE = 2_000


class Refused(Exception):
    """A request is answered with this status and sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers or {}

    def answer(self, mode: str) -> web.Response:
        """Returns the answer; where nobody is known, the page asks for a token, or on a laptop for another start."""
        known = {"mode": mode} if self.status == 401 else {}
        return web.json_response({"sentence": self.sentence, **known}, status=self.status, headers=self.headers)


def refused(error: ClientError, *, laptop: bool) -> Refused:
    """Returns what answers for an error of the API server.

    401 asks the page for another token. On a laptop the kubeconfig is what expired, and no token helps.
    """
    if isinstance(error, NotKnown):
        return Refused(403, sentence_of(error)) if laptop else Refused(401, UNKNOWN)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return Refused(status, sentence_of(error))


def sentence_of(error: ClientError) -> str:
    """Returns an error in a sentence."""
    return str(error)[:MAX_SENTENCE]
