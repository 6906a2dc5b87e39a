"""`history.viewers` asks the API server for a viewer's rights, and remembers the answer only for a moment."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from trainmaster.client.errors import NoCluster, NotAllowed
from trainmaster.client.permission import Access
from trainmaster.client.server import Fixed, Server
from trainmaster.history import viewers as accesses
from trainmaster.history.viewers import HistoryViewers
from trainmaster.serving import Refused

READ = Access("get", namespace="team", name="mine")


@dataclass
class ApiServer:
    """Answers reviews by the token in the request."""

    allowed: dict[str, bool] = field(default_factory=dict)
    error: Exception | None = None
    asked: list[str | None] = field(default_factory=list)
    server: Server | None = None

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        assert self.server is not None
        header = self.server.authorization()
        self.asked.append(header)
        if self.error is not None:
            raise self.error
        token = (header or "").removeprefix("Bearer ")
        if token not in self.allowed:
            raise NotAllowed("the cluster doesn't know you (401 Unauthorized)")
        return {"kind": "SelfSubjectAccessReview", "status": {"allowed": self.allowed[token]}}


@pytest.fixture
def clock() -> list[float]:
    return [1_000.0]


@pytest.fixture
def server() -> ApiServer:
    return ApiServer({"alice": True, "bob": False})


@pytest.fixture
def viewers(clock: list[float], server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> HistoryViewers:
    def transport(of: Server) -> ApiServer:
        server.server = of
        return server

    monkeypatch.setattr(accesses, "AiohttpTransport", transport)
    nobody = Server("http://127.0.0.1:1", None, None, None, Fixed(None), "default")
    return HistoryViewers(nobody, lambda: clock[0])


async def _error(viewers: HistoryViewers, token: str, access: Access = READ) -> int | None:
    """Returns the status with which a viewer is refused."""
    try:
        await viewers.require(token, access)
    except Refused as error:
        return error.status
    return None


async def test_each_viewer_is_asked_about_by_their_own_token(viewers: HistoryViewers, server: ApiServer) -> None:
    assert [await _error(viewers, token) for token in ("alice", "bob", "carol")] == [None, 403, 401]
    assert server.asked == ["Bearer alice", "Bearer bob", "Bearer carol"]
    with pytest.raises(Refused, match=r"^You may not get distributedtrainingjobs 'mine' in namespace"):
        await viewers.require("bob", READ)


async def test_an_answer_is_remembered_for_its_time(
    viewers: HistoryViewers, server: ApiServer, clock: list[float]
) -> None:
    for passed, times in ((0.0, 1), (29.0, 1), (2.0, 2)):
        clock[0] += passed
        await _error(viewers, "alice")
        assert server.asked.count("Bearer alice") == times
    for passed, times in ((0.0, 1), (4.0, 1), (2.0, 2)):
        clock[0] += passed
        await _error(viewers, "bob")
        assert server.asked.count("Bearer bob") == times
    # The answer counts for that question only.
    await _error(viewers, "alice", Access("get", "pods", "", "team", subresource="log"))
    await _error(viewers, "alice", Access("get", namespace="team", name="other"))
    assert server.asked.count("Bearer alice") == 4


async def test_a_right_that_is_taken_away_counts_soon(
    viewers: HistoryViewers, server: ApiServer, clock: list[float]
) -> None:
    assert await _error(viewers, "alice") is None
    server.allowed["alice"] = False
    clock[0] += 31.0
    assert await _error(viewers, "alice") == 403
    server.allowed["alice"] = True
    clock[0] += 6.0
    assert await _error(viewers, "alice") is None


async def test_an_api_server_that_cant_be_asked_allows_nothing_and_is_asked_again(
    viewers: HistoryViewers, server: ApiServer, clock: list[float]
) -> None:
    assert await _error(viewers, "alice") is None
    clock[0] += 31.0
    server.error = NoCluster("The cluster at … doesn't answer")
    assert [await _error(viewers, "alice") for _ in range(2)] == [503, 503]
    server.error = None
    assert await _error(viewers, "alice") is None


async def test_no_more_is_remembered_than_there_is_room_for(
    viewers: HistoryViewers, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accesses, "MAX_UNKNOWN", 3)
    monkeypatch.setattr(accesses, "MAX_ANSWERS", 3)
    for number in range(10):
        await _error(viewers, f"guess-{number}")
        await _error(viewers, "alice", Access("get", namespace="team", name=f"job-{number}"))
    assert len(viewers._unknown) == 3
    [alice] = viewers._known.values()
    assert len(alice.gate._answers) == 3
    assert not any("guess" in repr(key) for key in viewers._unknown)


async def test_invented_tokens_displace_no_viewer(
    viewers: HistoryViewers, server: ApiServer, clock: list[float]
) -> None:
    """Ten thousand invented tokens once made the history forget everybody's rights."""
    assert await _error(viewers, "alice") is None and await _error(viewers, "bob") == 403
    for number in range(11_000):
        await _error(viewers, f"guess-{number}")
    server.asked.clear()
    assert await _error(viewers, "alice") is None and server.asked == []
    # A viewer who was refused is remembered, too.
    assert viewers.known("alice") and viewers.known("bob") and viewers.known("guess-1") is None
    clock[0] += accesses.KNOWN_SECONDS + 1
    assert viewers.known("alice") is None


async def test_a_token_that_isnt_recognised_any_more_is_a_strangers(
    viewers: HistoryViewers, server: ApiServer, clock: list[float]
) -> None:
    assert await _error(viewers, "alice") is None
    del server.allowed["alice"]
    clock[0] += 31.0
    assert await _error(viewers, "alice") == 401 and viewers.known("alice") is None


def _web_token(**claims: str) -> str:
    parts = ({"alg": "RS256"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + ".s"


async def test_who_has_several_tokens_is_one_viewer(viewers: HistoryViewers, server: ApiServer) -> None:
    """Anyone can create as many tokens as they like for a service account."""
    account = "system:serviceaccount:team:robot"
    tokens = [_web_token(iss="here", sub=account, jti=str(number)) for number in range(3)]
    tokens[2] = _web_token(iss="here", sub="system:serviceaccount:team:another")
    others = [
        _web_token(iss="there", sub=account),
        _web_token(iss="here", sub=f"{account}s:robot"),
        _web_token(iss="here", sub="other"),
        "a.b.c",
        _web_token(sub="x"),
    ]
    server.allowed.update(dict.fromkeys((*tokens, *others), True))
    keys = [await viewers.require(token, READ) for token in (*tokens, *others)]
    assert len(set(keys[:3])) == 1 and len(set(keys)) == 1 + len(others)
