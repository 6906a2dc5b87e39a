"""Errors of a connection are sentences that name the remedy."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes.controller.fake_http import kubeconfig
from trainmaster.client import (
    AsyncJobClient,
    ClientError,
    InvalidRequest,
    JobClient,
    JobNotFound,
    NoCluster,
    NotAllowed,
    find_server,
)
from trainmaster.client.asynchronous import AiohttpTransport
from trainmaster.client.server import Fixed, Server
from trainmaster.client.transport import MOST_LOG_LINE, HttpTransport


def test_a_kubeconfig_that_isnt_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = r"^kubeconfig /none \(kubeconfig=\): doesn't exist; name a kubeconfig with kubeconfig= or KUBECONFIG\.$"
    for given in ("/none", Path("/none")):
        with pytest.raises(NoCluster, match=sentence):
            JobClient(kubeconfig=given)
    with pytest.raises(NoCluster, match=sentence):
        AsyncJobClient(kubeconfig="/none")
    with pytest.raises(NoCluster, match=r"^kubeconfig /none \(--kubeconfig\): doesn't exist"):
        find_server("/none")
    monkeypatch.setenv("KUBECONFIG", "/none:/nowhere")
    with pytest.raises(NoCluster, match=r"^kubeconfig /none:/nowhere \(KUBECONFIG\): doesn't exist; .*[^.]\.$"):
        JobClient()


def test_a_context_that_isnt_there_is_named_without_a_second_full_stop(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match=r"^kubeconfig .*: context=: 'nope' is not among its contexts: '.*'\.$"):
        JobClient(kubeconfig=kubeconfig(tmp_path, "http://127.0.0.1:1"), context="nope")


@dataclass
class Answer:
    """Describes a server's answer to every request."""

    status: int
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serves at the URL, until the block ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer.status)
            for name, value in (("Content-Type", answer.kind), *answer.headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


UNCHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the "
    "existing errors to complete validation"
)


def status(code: int, reason: str, message: str, causes: int = 0) -> Answer:
    """Returns an answer of an API server that refuses a request."""
    details = {"details": {"causes": [{}] * causes}} if causes else {}
    body = {"kind": "Status", "apiVersion": "v1", "reason": reason, "message": message, "code": code, **details}
    return Answer(code, "application/json", json.dumps(body).encode())


HTML = b"<html><body>\n  Please log in"
ANSWERS: dict[str, tuple[Answer, type[ClientError], str]] = {
    "no such type": (
        Answer(404, "text/plain; charset=utf-8", b"404 page not found\n"),
        JobNotFound,
        "this cluster doesn't know DistributedTrainingJobs: install Trainmaster, or only the custom resource (",
    ),
    "no such type, says an aggregated server": (
        status(404, "NotFound", "the server could not find the requested resource"),
        JobNotFound,
        "this cluster doesn't know DistributedTrainingJobs",
    ),
    "a page to log in": (
        Answer(200, "text/html; charset=utf-8", HTML),
        NoCluster,
        "What answers at URL is no Kubernetes API server (HTTP 200, text/html '<html><body> Please log in'): check the",
    ),
    "a page that there is none": (
        Answer(404, "text/html", HTML),
        NoCluster,
        "What answers at URL is no Kubernetes API",
    ),
    "a redirect": (
        Answer(302, "text/html", b"", (("Location", "https://sso"),)),
        NoCluster,
        "What answers at URL is no Kubernetes API server (HTTP 302 to https://sso, text/html '')",
    ),
    "JSON of something else": (
        Answer(200, "application/json", b'{"items": 3}'),
        NoCluster,
        "What answers at URL is no K",
    ),
    "a list": (Answer(200, "application/json", b"[]"), NoCluster, "What answers at URL is no Kubernetes API server"),
    "nothing": (Answer(200, "application/json", b""), NoCluster, "What answers at URL is no Kubernetes API server"),
    "a list of another kind": (
        Answer(200, "application/json", b'{"kind": "PodList", "items": [{}]}'),
        NoCluster,
        "What was answered is no job; is the kubeconfig's server a Kubernetes API server?",
    ),
    "a Status that the list went well": (
        Answer(200, "application/json", b'{"kind": "Status"}'),
        NoCluster,
        "What was answered is no list; is the kubeconfig's server a Kubernetes API server?",
    ),
    "an answer that breaks off": (
        Answer(200, "application/json", b"{", (("Content-Length", "100"),)),
        NoCluster,
        "The answer of the cluster at URL broke off",
    ),
    "a proxy without the cluster": (
        Answer(502, "text/html", b"Bad gateway"),
        NoCluster,
        "The cluster at URL can't answer now (HTTP 502): Bad gateway; try again.",
    ),
    "a cluster that sheds load": (
        status(429, "TooManyRequests", "too many requests"),
        NoCluster,
        "The cluster at URL can't answer now (HTTP 429): too many requests; try again.",
    ),
    "a token that has expired": (
        status(401, "Unauthorized", "Unauthorized"),
        NotAllowed,
        "The cluster at URL doesn't know you (401 Unauthorized): the kubeconfig's token or certificate may",
    ),
    "what isn't allowed": (
        status(403, "Forbidden", 'distributedtrainingjobs is forbidden: User "ann" cannot list resource'),
        NotAllowed,
        'distributedtrainingjobs is forbidden: User "ann" cannot list resource',
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_answers_the_error_is_one_sentence(tmp_path: Path, name: str) -> None:
    answer, kind, sentence = ANSWERS[name]
    with serving(answer) as url:
        path = kubeconfig(tmp_path, url)
        with pytest.raises(kind) as caught:
            JobClient(kubeconfig=path).list()
        assert str(caught.value).startswith(sentence.replace("URL", url))
        assert "\n" not in str(caught.value)
        with pytest.raises(kind) as same:
            asyncio.run(listed(path))
    assert str(same.value).split(" broke off")[0] == str(caught.value).split(" broke off")[0]


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (
            status(404, "NotFound", 'distributedtrainingjobs.trainmaster.dev "reviews" not found'),
            JobNotFound,
            "There is no job reviews in namespace default.",
        ),
        (
            status(
                422, "Invalid", f"it is invalid: [metadata.name: Required value: [give one], {UNCHECKED}]", causes=2
            ),
            InvalidRequest,
            "it is invalid: metadata.name: Required value: [give one]",
        ),
        (
            status(422, "Invalid", f"it is invalid: [a: Required value, {UNCHECKED}, b: Required value]", causes=3),
            InvalidRequest,
            "it is invalid: [a: Required value, b: Required value]",
        ),
    ],
)
def test_what_an_api_server_says_of_a_job_is_said_without_what_nobody_needs(
    tmp_path: Path, answer: Answer, kind: type[ClientError], sentence: str
) -> None:
    with serving(answer) as url, pytest.raises(kind) as caught:
        JobClient(kubeconfig=kubeconfig(tmp_path, url)).get("reviews")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("status", [401, 404, 500])
def test_what_a_pod_answers_through_the_proxy_is_not_taken_for_the_api_servers(tmp_path: Path, status: int) -> None:
    path = "/api/v1/namespaces/default/pods/reviews-0:8472/proxy/metrics"
    with serving(Answer(status, "text/plain", b"no such path\n")) as url:
        transport = HttpTransport(find_server(kubeconfig(tmp_path, url)))
        with pytest.raises(InvalidRequest) as caught:
            transport.beginning(path, limit=1_000, seconds=3.0)
    assert str(caught.value) == f"Pod reviews-0 answers HTTP {status}, text/plain 'no such path'."


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_what_cant_be_json_is_said_before_anything_is_sent(tmp_path: Path, value: object) -> None:
    manifest = {"metadata": {"name": "reviews"}, "spec": {"workers": value}}
    with pytest.raises(InvalidRequest, match=r"^what was given can't be JSON \(.*\): give None, True"):
        JobClient(kubeconfig=kubeconfig(tmp_path, "http://127.0.0.1:1")).submit(manifest)


async def listed(path: str) -> None:
    async with AsyncJobClient(kubeconfig=path) as jobs:
        await jobs.list()


def test_a_server_that_doesnt_speak_tls_and_one_that_isnt_there_say_so(tmp_path: Path) -> None:
    with serving(Answer(200, "text/plain", b"")) as url:
        path = kubeconfig(tmp_path, url.replace("http:", "https:"))
        with pytest.raises(NoCluster, match=r"doesn't speak TLS; does its address begin with http://\?"):
            JobClient(kubeconfig=path).list()
    with pytest.raises(NoCluster, match=r"doesn't answer: Connection refused; is it up, and is the kubeconfig's serv"):
        JobClient(kubeconfig=kubeconfig(tmp_path, url)).list()
    with pytest.raises(NoCluster, match=r"doesn't answer: Failed to resolve 'no.such.host.invalid'"):
        JobClient(kubeconfig=kubeconfig(tmp_path, "http://no.such.host.invalid:1")).list()


async def test_coroutines_say_the_same_of_such_servers(tmp_path: Path) -> None:
    without_tls = pytest.raises(NoCluster, match=r"doesn't speak TLS; does its address begin with http://\?")
    with serving(Answer(200, "text/plain", b"")) as url, without_tls:
        await listed(kubeconfig(tmp_path, url.replace("http:", "https:")))
    with pytest.raises(NoCluster, match=r"doesn't answer: .*; is it up, and is the kubeconfig's server its address"):
        await listed(kubeconfig(tmp_path, url))


LARGE = Answer(200, "text/plain", b"x" * 100_000)


def test_of_an_answer_that_is_no_object_the_beginning_is_read(tmp_path: Path) -> None:
    with serving(LARGE) as url:
        transport = HttpTransport(find_server(kubeconfig(tmp_path, url)))
        assert transport.beginning("/metrics", limit=70_000, seconds=5) == b"x" * 70_000
        assert asyncio.run(beginning(url)) == b"x" * 70_000


async def beginning(url: str) -> bytes:
    transport = AiohttpTransport(Server(url, None, None, None, Fixed(None), "default"))
    try:
        return await transport.beginning("/metrics", limit=70_000, seconds=5)
    finally:
        await transport.close()


def test_a_line_of_a_log_that_never_ends_comes_in_pieces(tmp_path: Path) -> None:
    endless = b"x" * (3 * MOST_LOG_LINE)
    with serving(Answer(200, "text/plain", endless + b"\nthe next")) as url:
        transport = HttpTransport(find_server(kubeconfig(tmp_path, url)))
        found = list(transport.lines("/api/v1/namespaces/team/pods/bert-0/log", query={}, read_seconds=5))
        for lines in (found, asyncio.run(all_lines(url, "/log"))):
            assert b"".join(lines) == endless + b"the next" and lines[-1] == b"the next"
            assert len(lines) >= 3 and max(map(len, lines)) < MOST_LOG_LINE * 1.5
        # A watch's line is an object.
        assert asyncio.run(all_lines(url, "/jobs")) == [endless, b"the next"]


async def all_lines(url: str, path: str) -> list[bytes]:
    transport = AiohttpTransport(Server(url, None, None, None, Fixed(None), "default"))
    try:
        return [line async for line in transport.lines(path, query={}, read_seconds=5)]
    finally:
        await transport.close()


def test_an_answer_that_comes_drop_by_drop_is_given_up(tmp_path: Path) -> None:
    with dripping() as url:
        transport = HttpTransport(find_server(kubeconfig(tmp_path, url)))
        began = time.monotonic()
        with pytest.raises(NoCluster, match=r"^The answer of the cluster at http.* broke off: not whole after 0\.5 s"):
            transport.beginning("/metrics", limit=70_000, seconds=0.5)
        with pytest.raises(NoCluster, match=r"^The answer of the cluster at http.* broke off: not whole after 0\.5 s"):
            HttpTransport(transport.server, seconds=0.5).request("GET", "/api/v1/namespaces")
        assert time.monotonic() - began < 5


@contextmanager
def dripping() -> Iterator[str]:
    """Serves a byte every 50 ms, without end."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
