"""A bad answer from the history, or from a proxy in front of it, becomes one sentence."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest

from trainmaster.client import ClientError, InvalidRequest, JobNotFound, NoCluster, NotAllowed
from trainmaster.client.answers import Answer
from trainmaster.client.history.finding import NO_SUCH_PATH, HistoryErrors, NoWay

DIRECT = HistoryErrors("https://history")
PROXIED = HistoryErrors("https://cluster", proxied=True)


def status(code: int, message: str, **more: Any) -> Answer:
    body = {"kind": "Status", "code": code, "message": message, **more}
    return Answer(code, {}, json.dumps(body).encode())


NO_SERVICE = status(404, 'services "trainmaster-history" not found', details={"kind": "services"})
FORBIDDEN = status(403, 'services "http:trainmaster-history:" is forbidden: User "ann" cannot get "services/proxy"')


@pytest.mark.parametrize(
    ("reader", "answer", "kind", "sentence"),
    [
        (DIRECT, status(403, "ann may not list jobs"), NotAllowed, "ann may not list jobs"),
        (DIRECT, status(404, "No job x was recorded"), JobNotFound, "No job x was recorded"),
        (DIRECT, status(400, "points: 'x' is no number"), InvalidRequest, "points: 'x' is no number"),
        (DIRECT, status(401, "Unauthorized"), NotAllowed, "The history at https://history doesn't know you"),
        (DIRECT, status(503, "starting"), NoCluster, "can't answer now (HTTP 503): starting; try again."),
        (DIRECT, Answer(502, {}, b"Bad Gateway"), NoCluster, "can't answer now (HTTP 502): Bad Gateway"),
        (
            DIRECT,
            Answer(404, {"Content-Type": "text/html"}, b"<html>nothing here"),
            NoCluster,
            "What answers at https://history is no history (HTTP 404, text/html '<html>nothing here')",
        ),
        (
            PROXIED,
            NO_SERVICE,
            NoCluster,
            "that the cluster at https://cluster announces isn't there (services",
        ),
        (
            PROXIED,
            status(404, NO_SUCH_PATH),
            NoCluster,
            "that the cluster at https://cluster announces isn't there",
        ),
        (PROXIED, status(404, "No job x was recorded"), JobNotFound, "No job x was recorded"),
        (PROXIED, FORBIDDEN, NoWay, "; --history or TRAINMASTER_HISTORY names one elsewhere"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value[:30],
)
def test_a_refusal_is_a_sentence(reader: HistoryErrors, answer: Answer, kind: type[ClientError], sentence: str) -> None:
    error = reader.refusal(answer, "/v1/jobs")
    assert type(error) is kind
    assert sentence in str(error)


def test_what_is_no_json_is_no_history() -> None:
    with pytest.raises(NoCluster, match="is no history"):
        DIRECT.decoded(Answer(200, {}, b"<html>"))
    with pytest.raises(NoCluster, match="is no history"):
        DIRECT.decoded(Answer(200, {}, b"[1]"))


def test_a_connection_that_fails_is_the_historys() -> None:
    assert "The history at https://history doesn't answer: refused" in str(DIRECT.unreachable(OSError("refused")))
    assert "The answer of the history at https://history broke off" in str(DIRECT.broken_off(TimeoutError("late")))
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    untrusted.verify_message = "self-signed certificate"
    assert "(--history-ca)" in str(DIRECT.untrusted(untrusted))
    assert "kubeconfig's certificate-authority" in str(PROXIED.untrusted(untrusted))
