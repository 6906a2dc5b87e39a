"""`trainmaster history serve` as a process limits who may write and read, answers requests, and stops in order."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes.history.history_process import WRITER, History, Reviews, history, job, key, line, reviews, sample
from tests.unit.history.recorded import Answers

# A time close to now, because data older than --keep-days is deleted.
AT = float(int(time.time()) - 100)


@pytest.fixture(scope="module")
def server() -> Iterator[Reviews]:
    with reviews() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: Reviews) -> Iterator[History]:
    with history(tmp_path_factory.mktemp("history"), server.url) as found:
        running = {"phase": "Running", "attempt": 1, "progress": {"step": 7, "totalSteps": 10, "loss": 2.5}}
        records = [job(AT, key(), **running), *(sample(AT + n, key(), n, loss=[2.5, None]) for n in range(8))]
        assert found.post(records) == (200, {"kind": "Recorded", "records": 9})
        yield found


def test_a_viewer_sees_what_they_may(served: History) -> None:
    status, found = served.get("/v1/jobs?namespace=team", "alice")
    assert (status, found["kind"], [item["name"] for item in found["items"]]) == (200, "RecordedJobList", ["mine"])
    assert {"phase": "Running", "step": 7, "totalSteps": 10, "loss": 2.5}.items() <= found["items"][0].items()
    status, found = served.get("/v1/namespaces/team/jobs/mine", "alice")
    assert (status, found["kind"], found["job"]["metadata"]["name"]) == (200, "RecordedJobDetail", "mine")
    status, found = served.get("/v1/namespaces/team/jobs/mine/series", "alice")
    assert (status, found["step"], found["loss"][0]) == (200, list(range(8)), 2.5)
    status, found = served.get("/v1/namespaces/team/jobs/mine/metrics", "alice")
    assert (status, found["kind"], [item["name"] for item in found["items"]]) == (200, "MetricNames", ["loss"])
    status, found = served.get("/v1/namespaces/team/jobs/mine/curves?names=loss,cpuCores", "alice")
    assert (status, [(one["name"], len(one["at"])) for one in found["curves"]]) == (200, [("loss", 8)])
    # The API server's proxy for Services keeps the usual header.
    assert served.get("/v1/jobs", "", **{"X-Trainmaster-Authorization": "Bearer admin"})[0] == 200


@pytest.mark.parametrize(
    ("path", "token", "code", "sentence"),
    [
        ("/v1/jobs", "alice", 403, "You may not list distributedtrainingjobs in all namespaces; choose a namespace."),
        ("/v1/jobs?namespace=other", "alice", 403, "in namespace other"),
        ("/v1/namespaces/team/jobs/mine", "nobody", 403, "get distributedtrainingjobs 'mine'"),
        ("/v1/namespaces/team/jobs/mine/logs", "alice", 403, "You may not get pods/log in namespace team"),
        ("/v1/namespaces/team/jobs/mine/evidence", "alice", 403, "You may not get configmaps in namespace team"),
        ("/v1/namespaces/team/jobs/other", "alice", 404, "Nothing was recorded of a job other in namespace team."),
        ("/v1/namespaces/team/jobs/mine?uid=x", "alice", 404, "with the uid x"),
        ("/v1/jobs", "forged", 401, "401 Unauthorized"),
        ("/v1/jobs", "", 401, "The request has no token"),
        ("/v1/jobs?limit=0", "admin", 400, "limit: '0' is not a whole number from 1 to 500."),
        ("/v1/jobs?nmespace=team", "admin", 400, "'nmespace' is no parameter here; there are namespace, name"),
        ("/v1/jobs?continue=x", "admin", 400, "continue: 'x' is not from a list's answer"),
        ("/v1/jobs?namespace=Te%20am", "admin", 400, "'Te am' is no name of a namespace"),
        ("/v1/namespaces/team/jobs/mine/series?from=5&to=4", "admin", 400, "from: '5' is later than to"),
        ("/v1/namespaces/team/jobs/mine/series?from=nan", "admin", 400, "from: 'nan' is no time"),
        ("/v1/namespaces/team/jobs/mine/heat?figure=x", "admin", 400, "figure: 'x' is none of stepSeconds"),
        ("/v1/namespaces/team/jobs/mine/heat?columns=241", "admin", 400, "columns: '241' is not a whole number"),
        ("/v1/namespaces/team/jobs/mine/metrics", "nobody", 403, "get distributedtrainingjobs 'mine'"),
        ("/v1/namespaces/team/jobs/mine/curves?names=loss", "nobody", 403, "get distributedtrainingjobs 'mine'"),
        ("/v1/namespaces/team/jobs/mine/curves?names=a%20b", "admin", 400, "names: 'a b' is not the name of a metric."),
        (
            "/v1/namespaces/team/jobs/mine/curves?names=" + ",".join(f"m{number}" for number in range(33)),
            *("admin", 400, "names: 33 names are more than 32."),
        ),
        ("/v2", "admin", 404, "GET /v2: Not Found."),
    ],
)
def test_what_cant_be_answered_is_a_status(served: History, path: str, token: str, code: int, sentence: str) -> None:
    status, found = served.get(path, token)
    assert (status, found["kind"], found["code"]) == (code, "Status", code)
    assert sentence in found["message"]


def test_only_the_operator_writes(served: History) -> None:
    for token in ("admin", "", f"{WRITER} "[:-2], "\N{SNOWMAN}".encode().decode("latin-1")):
        status, found = served.post([job(AT, key("forged"))], token)
        assert (status, found["reason"]) == (401, "Unauthorized"), token
    assert served.get("/v1/namespaces/team/jobs/forged")[0] == 404


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            line(sample(AT, key("bad"), 1)) + b'{"record":"sample","at":"x"}',
            "line 2: at: 'x' is not a number of seconds",
        ),
        (b'{"record":"deleted"', "line 1: is no JSON"),
        (b'{"record":"deleted","at":NaN}', "line 1: is no JSON (NaN is no JSON)"),
        (b"[" * 100_000, "line 1: is no JSON"),
        (b"\xff", "line 1: is no JSON"),
    ],
)
def test_a_batch_with_a_bad_line_is_refused_whole(served: History, body: bytes, sentence: str) -> None:
    status, found = served.post(body)
    assert status == 400 and found["message"].startswith(sentence)
    assert served.get("/v1/namespaces/team/jobs/bad")[0] == 404


def test_a_body_that_is_too_large_is_refused(served: History) -> None:
    status, found = served.post(b"x" * (8 * 1024 * 1024 + 1))
    assert (status, found["reason"]) == (413, "RequestEntityTooLarge")


def test_rights_are_remembered_for_a_moment(served: History, server: Reviews) -> None:
    server.asked.clear()
    for _ in range(3):
        served.get("/v1/namespaces/team/jobs/once/series", "alice")
        served.get("/v1/namespaces/team/jobs/once", "nobody")
    wanted = "get distributedtrainingjobs team"
    assert sorted(server.asked) == [("alice", wanted), ("nobody", wanted)]


def test_nobody_sees_anything_while_the_api_server_cant_be_asked(served: History, server: Reviews) -> None:
    server.broken = 500
    try:
        status, found = served.get("/v1/namespaces/team/jobs/new-question", "admin")
    finally:
        server.broken = 0
    assert status == 503 and "The API server can't answer what you may see" in found["message"]
    assert served.get("/v1/namespaces/team/jobs/new-question", "admin")[0] == 404


def test_one_viewer_doesnt_keep_the_others_waiting(served: History, server: Reviews) -> None:
    while server.came.acquire(blocking=False):
        pass
    server.go.clear()
    path, most = "/v1/namespaces/team/jobs/waits", 16
    try:
        with ThreadPoolExecutor(most) as threads:
            waiting = [threads.submit(served.get, path, "admin") for _ in range(most)]
            assert all(server.came.acquire(timeout=10) for _ in range(most))
            status, found = served.get(path, "admin")
            assert (status, found["reason"]) == (429, "TooManyRequests")
            other = threads.submit(served.get, path, "nobody")
            server.go.set()
            assert {each.result()[0] for each in waiting} == {404} and other.result()[0] == 403
    finally:
        server.go.set()
    assert served.get(path, "admin")[0] == 404


def test_invented_tokens_keep_no_viewer_waiting(served: History, server: Reviews) -> None:
    """140 of them once took all places while the API server was asked about them."""
    path = "/v1/namespaces/team/jobs/known"
    assert served.get(path, "admin")[0] == 404
    server.go.clear()
    try:
        with ThreadPoolExecutor(140) as threads:
            strangers = [threads.submit(served.get, path, f"invented-{number}") for number in range(140)]
            wait(strangers, timeout=0.5)
            started = time.monotonic()
            assert served.get(path, "admin")[0] == 404
            assert time.monotonic() - started < 0.5
            server.go.set()
            assert {each.result()[0] for each in strangers} == {401, 429}
    finally:
        server.go.set()
    assert served.get(path, "nobody")[0] == 403


def test_probes_and_metrics_need_no_token(served: History) -> None:
    assert served.text("/healthz") == served.text("/readyz") == "ok\n"
    found = served.text("/metrics")
    assert 'trainmaster_history_records_total{record="sample"} 8.0' in found
    assert "trainmaster_history_jobs 1.0" in found
    assert "trainmaster_history_commit_duration_seconds_count 1.0" in found
    assert 'trainmaster_history_refused_requests_total{reason="Conflict"}' not in found


def test_a_reader_who_takes_nothing_holds_no_more_than_one_answer(served: History) -> None:
    """The answered curves are megabytes, and the reader takes none of them."""
    many = [sample(AT + n / 100, key("much", "uid-much"), n, loss=[n / 3, None]) for n in range(9_000)]
    for first in range(0, len(many), 3_000):
        assert served.post(many[first : first + 3_000])[0] == 200
    path = "/v1/namespaces/team/jobs/much/series?points=10000"
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\r\n".encode()
    with ExitStack() as held:
        for _ in range(3):
            connection = held.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(("127.0.0.1", served.port))
            connection.sendall(request)
        time.sleep(0.5)
        # Meanwhile lists are answered, this viewer's too, and others' curves.
        assert served.get("/v1/jobs?namespace=team", "alice")[0] == 200
        assert served.get(path, "admin")[0] == 200
    assert served.get(path, "alice")[0] == 200


def test_it_stops_at_once_with_everything_in_one_file_and_no_token_anywhere(tmp_path: Path, server: Reviews) -> None:
    with history(tmp_path, server.url, "--log-level", "DEBUG") as found:
        found.post([job(AT, key())])
        for token in ("admin", "secret-of-a-viewer"):
            found.get("/v1/jobs", token)
        # A long token is a valid one, and an invalid header isn't worth a log line.
        assert found.get("/v1/jobs", "secret-of-a-viewer" + "x" * 12_000)[0] == 401
        with socket.create_connection(("127.0.0.1", found.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret-of-a-viewer\x01\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.0 400"
        started = time.monotonic()
        assert found.stop() == 0
        assert time.monotonic() - started < 2.0
    files = {path.name: path.read_bytes() for path in tmp_path.glob("history*")}
    assert set(files) == {"history.sqlite", "history.sqlite.lock"}
    for secret in ("secret-of-a-viewer", WRITER, "the-kubeconfigs-own"):
        assert secret not in "".join(found.lines) and secret.encode() not in files["history.sqlite"]
    with Answers(tmp_path / "history.sqlite") as answers:
        assert answers.job("team", "mine")["uid"] == "uid-1"
    assert json.loads(found.lines[0])["level"] in ("debug", "info")
