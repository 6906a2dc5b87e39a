"""A viewer's token is sent only to the history that administrators announce, never to a service with the same name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trainmaster.client import NoCluster
from trainmaster.client.blocking import run
from trainmaster.client.errors import InvalidRequest
from trainmaster.client.history import HistoryReader, find_history, finding, reading
from trainmaster.client.history.finding import ANNOTATION, ROLE_PATH, NoWay
from trainmaster.client.history.reading import blocking_history
from trainmaster.client.server import Fixed, Server

# Where the history used to be searched for. Anybody who can create namespaces could own this one.
GUESSED = "/api/v1/namespaces/trainmaster-system/services/trainmaster-history:http/proxy/v1/jobs"
ELSEWHERE = "/api/v1/namespaces/ops/services/mine-history:http/proxy/v1/jobs"
TOKEN = "/api/v1/namespaces/team/serviceaccounts/reader/token"
LIST = {"kind": "RecordedJobList", "items": []}


@dataclass
class ApiServer:
    """Answers each path, and records the requests: the path, the user, and what is passed on."""

    url: str = ""
    answers: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    came: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def announce(self, place: object) -> None:
        role = {"kind": "ClusterRole", "metadata": {"annotations": {} if place is None else {ANNOTATION: place}}}
        self.answers[ROLE_PATH] = 200, role

    @property
    def paths(self) -> list[str]:
        return [path for path, *_ in self.came]

    def viewer(self, header: str | None = "Bearer ann's") -> Server:
        """Returns the server as a viewer reaches it; None is a viewer with a certificate."""
        return Server(self.url, None, None, None, Fixed(header), "team")

    def history(self, header: str | None = "Bearer ann's", **options: Any) -> HistoryReader:
        return blocking_history(find_history(None, self.viewer(header), **options))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    for name in ("TRAINMASTER_HISTORY", finding.ACCOUNT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    found = ApiServer(answers={GUESSED: (200, LIST), ELSEWHERE: (200, LIST)})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            found.came.append((path, self.headers["Authorization"], self.headers["X-Trainmaster-Authorization"]))
            missing = {"kind": "Status", "code": 404, "message": f"{path} not found"}
            status, answer = found.answers.get(path, (404, missing))
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_POST(self) -> None:
            found.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [403, 404])
def test_a_service_that_nobody_announced_gets_no_token(cluster: ApiServer, status: int) -> None:
    cluster.answers[ROLE_PATH] = status, {"kind": "Status", "code": status, "message": "clusterroles: no"}
    with pytest.raises(NoCluster, match=r"announces no history \(cluster role trainmaster-history: clusterroles: no\)"):
        run(cluster.history().jobs())
    assert cluster.paths == [ROLE_PATH]


def test_the_announced_service_is_asked_in_whatever_namespace(
    cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.announce("ops/mine-history:http")
    history = cluster.history()
    run(history.jobs())
    run(history.jobs())
    assert cluster.paths == [ROLE_PATH, ELSEWHERE, ELSEWHERE]
    assert cluster.came[-1][1:] == ("Bearer ann's", "Bearer ann's")
    # It may move.
    monkeypatch.setattr(reading, "ANNOUNCED_SECONDS", 0.0)
    moved = cluster.history()
    run(moved.jobs())
    cluster.announce("trainmaster-system/trainmaster-history:http")
    run(moved.jobs())
    assert cluster.paths[-4:] == [ROLE_PATH, ELSEWHERE, ROLE_PATH, GUESSED]


@pytest.mark.parametrize("place", [None, "", 7, "ops", "ops/x", "ops/x:h/../..", "a/b:c?d", "../x:http", "Ops/x:http"])
def test_an_announcement_that_names_no_service_is_refused(cluster: ApiServer, place: object) -> None:
    cluster.announce(place)
    with pytest.raises(NoCluster, match="an administrator has to set it to NAMESPACE/SERVICE:PORT"):
        run(cluster.history().jobs())
    assert cluster.paths == [ROLE_PATH]


def test_an_announced_service_that_is_gone_is_said_so(cluster: ApiServer) -> None:
    cluster.announce("ops/gone:http")
    cluster.answers["/api/v1/namespaces/ops/services/gone:http/proxy/v1/jobs"] = (
        404,
        {"kind": "Status", "code": 404, "message": 'services "gone" not found', "details": {"kind": "services"}},
    )
    with pytest.raises(NoCluster, match=r'announces isn.t there \(services "gone" not found\)'):
        run(cluster.history().jobs())


def test_a_user_with_a_certificate_asks_as_a_service_account(
    cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.announce("ops/mine-history:http")
    cluster.answers[TOKEN] = 201, {"kind": "TokenRequest", "status": {"token": "made"}}
    history = cluster.history(None, account="reader")
    run(history.jobs())
    run(history.jobs())
    # Its own token is only for the history, and is made once.
    assert cluster.came == [
        (TOKEN, None, None),
        *((path, None, "Bearer made") for path in (ROLE_PATH, ELSEWHERE, ELSEWHERE)),
    ]
    assert cluster.bodies[0]["kind"] == "TokenRequest" and cluster.bodies[0]["spec"] == {"expirationSeconds": 600}
    monkeypatch.setenv(finding.ACCOUNT_VARIABLE, "team/reader")
    run(cluster.history(None).jobs())
    assert cluster.came[-1] == (ELSEWHERE, None, "Bearer made")
    # A given token counts.
    run(cluster.history(None, token="own").jobs())
    assert cluster.came[-1] == (ELSEWHERE, None, "Bearer own")


def test_a_token_that_ends_soon_is_made_anew(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.announce("ops/mine-history:http")
    cluster.answers[TOKEN] = 201, {"kind": "TokenRequest", "status": {"token": "made"}}
    monkeypatch.setattr(finding, "EARLY_SECONDS", finding.TOKEN_SECONDS)
    run(cluster.history(None, account="reader").jobs())
    assert cluster.paths.count(TOKEN) == 2


def test_a_user_without_a_token_is_told_what_to_do(cluster: ApiServer) -> None:
    cluster.announce("ops/mine-history:http")
    with pytest.raises(NoWay, match=r"stays with the API server\)\. Ask as a service account .*--service-account NAME"):
        run(cluster.history(None).jobs())
    cluster.answers[TOKEN] = 403, {"kind": "Status", "code": 403, "message": "bob cannot create serviceaccounts/token"}
    with pytest.raises(NoWay, match=r"You may not have a token made for service account reader .*: bob cannot create"):
        run(cluster.history(None, account="reader").jobs())
    del cluster.answers[TOKEN]
    with pytest.raises(NoWay, match=r"There is no service account reader .*`kubectl -n team create serviceaccount"):
        run(cluster.history(None, account="reader").jobs())
    for account in ("a b", "x/y/z", "-x", "UPPER"):
        with pytest.raises(InvalidRequest, match=r"--service-account: .* is no service account; give NAME or"):
            cluster.history(None, account=account)
    with pytest.raises(InvalidRequest, match="--token and --service-account both name who asks"):
        cluster.history(None, account="reader", token="t")
