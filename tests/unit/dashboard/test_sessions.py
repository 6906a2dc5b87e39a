"""Sessions of viewers are bounded, what they may do is asked seldom, and a laptop's code and file are their owner's."""

from __future__ import annotations

import asyncio
import stat
import time
from typing import Any

import pytest

from trainmaster.client import NotAllowed
from trainmaster.client.authorization import Fixed
from trainmaster.client.permission import Access
from trainmaster.client.server import Server
from trainmaster.dashboard import access, viewers
from trainmaster.dashboard.access import AccessCache
from trainmaster.dashboard.errors import Refused
from trainmaster.dashboard.history import no_history
from trainmaster.dashboard.launch import MOST_CODES, Launch, LaunchFile
from trainmaster.dashboard.nodes import node_rows
from trainmaster.dashboard.objects import event_rows, pod_rows
from trainmaster.dashboard.viewers import Viewers

SERVER = Server("http://127.0.0.1:1", None, None, None, Fixed(None), "default")


class Reviewer:
    """An API server that allows what it is told to."""

    def __init__(self) -> None:
        self.asked, self.allowed = 0, True

    async def request(self, *_: object, **__: object) -> dict[str, Any]:
        self.asked += 1
        return {"status": {"allowed": self.allowed}}


async def test_an_answer_is_believed_for_half_a_minute_and_only_so_many_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("trainmaster.dashboard.access.time.monotonic", lambda: now[0])
    monkeypatch.setattr(access, "MOST_KEPT", 2)
    server: Any = Reviewer()
    cache, listing = AccessCache(server), Access("list")
    assert await cache.allows(listing) and await cache.allows(listing)
    server.allowed = False
    assert server.asked == 1 and await cache.allows(listing)
    now[0] += access.KEPT_SECONDS
    assert not await cache.allows(listing) and server.asked == 2
    server.allowed = True
    assert await cache.allows(listing, fresh=True)
    for name in "abc":
        await cache.allows(Access("get", name=name))
    assert len(cache._answers) == 2
    server.allowed = False
    with pytest.raises(NotAllowed, match="You may not get pods/log in namespace team"):
        await cache.require(Access("get", "pods", "", namespace="team", subresource="log"))


async def test_sessions_are_bounded_and_forgotten_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 2)
    made = Viewers(SERVER, no_history)
    first = made.of_token("a")
    assert made.of_token("a") is first and made.of_token("b") is not first
    async with first.streaming():
        made.of_token("c")
        assert made.of_token("a") is first, "who looks at something isn't forgotten for another"
        async with made.of_token("c").streaming():
            with pytest.raises(Refused, match="2 viewers look at jobs already"):
                made.of_token("d")
    first.seen_at -= viewers.IDLE_SECONDS + 1
    made.forget_idle()
    assert made.of_token("a") is not first
    await made.close()


async def test_a_token_that_wasnt_known_isnt_tried_at_once_again() -> None:
    made = Viewers(SERVER, no_history)
    made.end(made.of_token("a"))
    with pytest.raises(Refused, match="doesn't know this token"):
        made.of_token("a")
    made._refused = type(made._refused)(dict.fromkeys(made._refused, 0.0))
    assert made.of_token("a")
    await made.close()


async def test_more_requests_than_a_page_makes_are_refused_for_a_while() -> None:
    made = Viewers(SERVER, no_history)
    viewer = made.of_token("a")
    with pytest.raises(Refused, match="more than 20 requests a second") as refused:
        for _ in range(int(viewers.BURST) + 10):
            viewer.count()
    assert refused.value.status == 429
    viewer.requests.at -= 1.0
    viewer.count()
    made._new.room = 0.0
    made._new.at = time.monotonic()
    with pytest.raises(Refused, match="Too many new viewers"):
        made.of_token("b")
    assert made.of_token("a") is viewer
    await made.close()


async def test_a_session_that_ends_closes_its_connections_behind_its_last_live_answer() -> None:
    made = Viewers(SERVER, no_history)
    viewer, closed = made.of_token("a"), []

    async def close() -> None:
        closed.append(1)

    viewer.transport.close = close  # type: ignore[method-assign]
    async with viewer.streaming():
        made.end(viewer)
        await asyncio.sleep(0)
        assert not closed
    assert closed
    await made.close()


def test_a_file_for_the_browser_is_its_owners_and_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    file = LaunchFile("http://127.0.0.1:1/#launch=a&b")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600 and stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert "url=http://127.0.0.1:1/#launch=a&amp;b" in file.path.read_text()
    file.remove()
    file.remove()
    assert not list(tmp_path.iterdir())


def test_only_so_many_codes_are_open() -> None:
    launch = Launch()
    codes = [launch.new_code() for _ in range(MOST_CODES + 1)]
    assert launch.exchange(codes[0]) is None and launch.exchange(codes[-1]) is not None
    assert codes[1] not in repr(launch)


def test_nodes_pods_and_events_have_what_a_page_shows() -> None:
    node = {
        "metadata": {"name": "a"},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "64"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    labels = {"trainmaster.dev/job-name": "bert", "apps.kubernetes.io/pod-index": "1"}
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod = {
        "metadata": {"name": "bert-1", "namespace": "team", "labels": labels},
        "spec": {"nodeName": "a"},
        "status": {"phase": "Pending", "containerStatuses": [{"restartCount": 2, "state": {"waiting": waiting}}]},
    }
    blame = [{"namespace": "team", "name": "bert", "failures": {"b": 1}, "avoided": ["b"]}]
    first, second = node_rows(blame, [node], [pod])
    assert (first["ready"], first["gpus"], first["pods"]) == (
        True,
        8,
        [{"namespace": "team", "job": "bert", "worker": 1}],
    )
    assert (second["name"], second["failures"], second["ready"], second["pods"]) == ("b", 1, None, [])
    assert node_rows(blame, None, None)[0]["pods"] is None
    assert pod_rows([pod]) == [
        {
            **{"name": "bert-1", "worker": 1, "node": "a", "phase": "Pending", "ready": False, "restarts": 2},
            "message": "no such image",
        }
    ]
    about = {"involvedObject": {"kind": "DistributedTrainingJob", "name": "bert"}, "reason": "Restarting"}
    events: list[dict[str, Any]] = [
        {**about, "lastTimestamp": None, "eventTime": "2026-11-26T02:00:00Z", "message": 3},
        {**about, "lastTimestamp": "2026-11-26T01:00:00Z"},
        {**about, "lastTimestamp": "2026-11-25T00:00:00Z"},
    ]
    rows = event_rows(events, since="2026-11-26T00:00:00Z")
    assert [row["at"][11:13] for row in rows] == ["01", "02"] and rows[0]["object"] == "dtj/bert"
