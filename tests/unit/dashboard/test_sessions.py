"""Viewers' sessions are bounded, and only its owner gets a laptop's code and file."""

from __future__ import annotations

import asyncio
import stat
from typing import Any

import pytest

from trainmaster.client import NotKnown
from trainmaster.client.server import Fixed, Server
from trainmaster.dashboard import sessions, tenants
from trainmaster.dashboard.guards import MOST_CODES, Launch, launch_file
from trainmaster.dashboard.objects import event_rows, kept_node, kept_pod, node_rows, pod_row
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster.dashboard.sessions import Viewers
from trainmaster.dashboard.tenants import Share, SharedLimits, Tenant
from trainmaster.serving import Refused

SERVER = Server("http://127.0.0.1:1", None, None, None, Fixed(None), "default")


class Cluster:
    """Fakes an API server that knows tokens by user name, except "nobody", and answers once `answers` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()

        async def user(transport: ViewerTransport) -> str:
            token = str(transport.server.authorization()).removeprefix("Bearer ")
            self.asked.append(token)
            await self.answers.wait()
            if "nobody" in token:
                raise NotKnown("it doesn't know you")
            return token.partition("@")[0]

        monkeypatch.setattr(sessions, "_user", user)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


async def test_sessions_are_bounded_and_forgotten_when_idle(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS_IN_ALL", 2)
    made = Viewers(SERVER)
    first = await made.of_token("a")
    assert await made.of_token("a") is first and await made.of_token("b") is not first
    assert cluster.asked == ["a", "b"]
    with first.streaming():
        third = await made.of_token("c")
        assert await made.of_token("a") is first, "who looks at something isn't forgotten for another"
        with third.streaming(), pytest.raises(Refused, match="2 viewers look at jobs already"):
            await made.of_token("d")
    first.seen_at -= sessions.IDLE_SECONDS + 1
    made.forget_idle()
    assert await made.of_token("a") is not first
    await made.close()


async def test_a_users_tokens_and_a_namespaces_service_accounts_share_what_one_party_gets(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    made = Viewers(SERVER)
    names = ("alice@1", "alice@2", "system:serviceaccount:team:a", "system:serviceaccount:team:b", "bob")
    found = [await made.of_token(name) for name in names]
    assert [viewer.tenant.name for viewer in found] == ["alice"] * 2 + ["system:serviceaccount:team"] * 2 + ["bob"]
    assert found[0].tenant is found[1].tenant and found[2].tenant is found[3].tenant
    for number in range(3, 9):
        await made.of_token(f"alice@{number}")
    assert sum(viewer.tenant is found[0].tenant for viewer in made._by_hash.values()) == 3
    assert await made.of_token("bob") is found[4], "only the tenant's own sessions give way"
    await made.close()


async def test_a_token_that_wasnt_known_isnt_tried_at_once_again_and_leaves_nothing(cluster: Cluster) -> None:
    made = Viewers(SERVER)
    for _ in range(3):
        with pytest.raises(Refused, match="doesn't know this token"):
            await made.of_token("nobody")
    assert cluster.asked == ["nobody"] and not made._by_hash
    made.end(await made.of_token("a"))
    with pytest.raises(Refused, match="doesn't know this token"):
        await made.of_token("a")
    made._refused = type(made._refused)(dict.fromkeys(made._refused, 0.0))
    assert await made.of_token("a")
    await made.close()


async def test_tokens_that_nobody_knows_keep_out_none_who_is_known_and_new_ones_only_shortly(cluster: Cluster) -> None:
    made = Viewers(SERVER)
    alice = await made.of_token("alice")
    cluster.answers.clear()
    invented = [asyncio.create_task(made.of_token(f"nobody-{number}")) for number in range(sessions.MOST_NEW - 1)]
    await asyncio.sleep(0)
    bob = asyncio.create_task(made.of_token("bob"))
    await asyncio.sleep(0.01)
    assert len(cluster.asked) == 1 + sessions.NEW_AT_ONCE, "the API server is asked about a few at once"
    assert await made.of_token("alice") is alice
    with pytest.raises(Refused, match="Too many new viewers"):
        await made.of_token("carol")
    cluster.answers.set()
    assert (await bob).user == "bob"
    assert {type(one) for one in await asyncio.gather(*invented, return_exceptions=True)} == {Refused}
    assert len(made._by_hash) == 2 and made._new == 0
    await made.close()


async def test_more_requests_than_a_page_makes_are_refused_for_a_while(cluster: Cluster) -> None:
    made = Viewers(SERVER)
    viewer = await made.of_token("a@1")
    with pytest.raises(Refused, match="more than 20 requests a second") as refused:
        for _ in range(int(tenants.BURST) + 10):
            viewer.count()
    assert refused.value.status == 429
    with pytest.raises(Refused):
        (await made.of_token("a@2")).count()
    (await made.of_token("b")).count()
    viewer.tenant.requests.at -= 1.0
    viewer.count()
    await made.close()


async def test_a_session_that_ends_closes_its_connections_behind_its_last_live_answer(cluster: Cluster) -> None:
    made = Viewers(SERVER)
    viewer, closed = await made.of_token("a"), []

    async def close() -> None:
        closed.append(1)

    viewer.transport.close = close  # type: ignore[method-assign]
    with viewer.streaming():
        made.end(viewer)
        await asyncio.sleep(0)
        assert not closed
    await made.close()
    assert closed


def test_of_a_share_the_last_part_is_for_those_who_have_little() -> None:
    share = Share(each=32, total=100)
    share.take("a", share.room("a"))
    share.take("b", share.room("b"))
    share.take("c", share.room("c"))
    assert share.taken == 75 and share.room("c") == 0
    assert share.room("late") == 2, "the last quarter is theirs"
    share.take("late", 2)
    assert share.room("late") == 0
    share.take("a", -32)
    assert share.room("b") == 0 and share.room("c") == 21 and share.room("late") == 30


async def test_heavy_work_is_one_at_a_time_for_a_party_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MOST_WAITING", 3)
    everybody = SharedLimits()
    alice, bob = Tenant("alice", everybody), Tenant("bob", everybody)
    running: list[str] = []
    most: list[int] = []
    go = asyncio.Event()

    async def work(name: str) -> None:
        running.append(name)
        most.append(running.count("alice"))
        await go.wait()
        running.remove(name)

    given = [asyncio.create_task(alice.heavy(lambda: work("alice"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="already wait for answers"):
        await alice.heavy(lambda: work("alice"))
    given.append(asyncio.create_task(bob.heavy(lambda: work("bob"))))
    await asyncio.sleep(0.01)
    assert running == ["alice", "bob"]
    go.set()
    await asyncio.gather(*given)
    assert max(most) == 1
    monkeypatch.setattr(tenants, "HEAVY_SECONDS", 0.01)
    with pytest.raises(Refused, match="no answer after"):
        await alice.heavy(asyncio.Event().wait)


def test_a_file_for_the_browser_is_its_owners(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    file = launch_file("http://127.0.0.1:1/#launch=a&b")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "url=http://127.0.0.1:1/#launch=a&amp;b" in file.read_text()


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
    placed = kept_pod(pod)
    assert placed is not None
    first, second = node_rows(blame, [kept_node(node)], [placed])
    assert (first["ready"], first["gpus"], first["pods"]) == (
        True,
        8,
        [{"namespace": "team", "job": "bert", "worker": 1}],
    )
    assert (second["name"], second["failures"], second["ready"], second["pods"]) == ("b", 1, None, [])
    assert node_rows(blame, None, None)[0]["pods"] is None
    assert pod_row(pod) == {
        **{"name": "bert-1", "worker": 1, "node": "a", "phase": "Pending", "ready": False, "restarts": 2},
        "message": "no such image",
    }
    about = {"involvedObject": {"kind": "DistributedTrainingJob", "name": "bert"}, "reason": "Restarting"}
    events: list[dict[str, Any]] = [
        {**about, "lastTimestamp": None, "eventTime": "2026-11-26T02:00:00Z", "reason": 3},
        {**about, "lastTimestamp": "2026-11-26T01:00:00Z", "count": 4},
        {**about, "lastTimestamp": "2026-11-26T01:30:00Z"},
        {**about, "lastTimestamp": "2026-11-25T00:00:00Z"},
    ]
    rows = event_rows(events, since="2026-11-26T00:00:00Z")
    assert [row["at"][11:13] for row in rows] == ["01", "02"] and rows[0]["object"] == "dtj/bert"
    assert [row["count"] for row in rows] == [5, 1], "equal events are one row"
