"""Viewers share one watch of the jobs that each of them may see, and get changes once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from tests.processes.dashboard.fake_api import EDIT, JOBS, VIEW, FakeApi, job, serving_api, within
from tests.processes.dashboard.page_client import PageClient, page_client
from trainmaster.client import operator_sign
from trainmaster.dashboard import job_page, scopes, sessions
from trainmaster.dashboard.app import Dashboard, DashboardSettings, serving
from trainmaster.dashboard.sessions import HistoryOf


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "BATCH_SECONDS", 0.05)
    monkeypatch.setattr(scopes, "SHOW_SECONDS", 20.0)
    monkeypatch.setattr(scopes, "RETRY_SECONDS", 0.05)


@asynccontextmanager
async def dashboard(
    api: FakeApi, *, recheck_seconds: float = 60.0, history_of: HistoryOf = lambda _: None
) -> AsyncIterator[PageClient]:
    async with serving_api(api):
        made = Dashboard(DashboardSettings("cluster", api.server, recheck_seconds=recheck_seconds), history_of)
        async with serving(made, "127.0.0.1", 0) as (_, port), page_client(f"http://127.0.0.1:{port}") as client:
            yield client


async def watched_by(api: FakeApi, *tokens: str) -> None:
    """Waits until exactly these have a watch open."""
    deadline = time.monotonic() + 10
    for _ in iter(lambda: api.watches != {(token, "") for token in tokens}, False):
        assert time.monotonic() < deadline, api.watches
        await asyncio.sleep(0.01)


async def test_the_list_comes_whole_and_then_what_changes_of_one_watch_for_all() -> None:
    api = FakeApi({"alice": VIEW, "bob": VIEW})
    api.put(*(job(f"job-{number:03}") for number in range(600)))
    async with dashboard(api) as client, client.live("/api/jobs", "alice") as alice:
        assert len((await alice.next("jobs"))["jobs"]) == 600
        async with client.live("/api/jobs", "bob") as bob:
            await bob.next("jobs")
            api.put(job("job-007", progress={"step": 5}))
            api.delete("job-008")
            for live in (alice, bob):
                found = await live.next("changed")
                while not found["gone"]:
                    more = await live.next("changed")
                    found = {**more, "rows": found["rows"] + more["rows"]}
                assert found["rows"] == [{"uid": "uid-job-007", "step": 5}]
                assert found["gone"] == ["uid-job-008"]
        watches = {token: count for (token, verb, _), count in api.asked.items() if verb == "watch"}
        assert watches == {"alice": 1}, "bob's token opened none"


async def test_who_may_not_list_is_told_so_and_sees_their_own_namespace() -> None:
    api = FakeApi({"alice": VIEW, "carol": within("team", VIEW)})
    api.put(job("ours"), job("theirs", "other"))
    async with dashboard(api) as client, client.live("/api/jobs", "alice") as alice:
        assert len((await alice.next("jobs"))["jobs"]) == 2
        status, answer = await client.get("/api/jobs", "carol")
        assert (status, answer) == (
            403,
            {"sentence": f"You may not list {JOBS} in all namespaces; choose a namespace."},
        )
        async with client.live("/api/jobs?namespace=team", "carol") as carol:
            assert [row["name"] for row in (await carol.next("jobs"))["jobs"]] == ["ours"]
        assert (await client.get("/api/jobs?namespace=other", "carol"))[0] == 403
        status, viewer = await client.get("/api/viewer", "carol")
        assert (viewer["user"], viewer["allNamespaces"], viewer["mode"]) == ("u-carol", False, "cluster")


class Contrary(FakeApi):
    """Refuses, as an API server, what its reviews allow, as if the rights had just changed."""

    async def _object(self, request: web.Request, token: str) -> web.StreamResponse:
        del request, token
        return web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no more"}, status=403)


async def test_whoever_is_refused_after_all_gets_an_answer() -> None:
    async with dashboard(Contrary({"alice": VIEW})) as client, asyncio.timeout(10):
        assert (await client.get("/api/nodes", "alice"))[0] == 403
        async with client.live("/api/jobs", "alice") as alice:
            assert (await alice.end())[-1][0] == "problem"


async def test_the_watch_goes_on_with_another_viewers_token_when_its_own_leaves() -> None:
    api = FakeApi({"alice": VIEW, "bob": VIEW})
    api.put(job("bert"))
    async with dashboard(api) as client:
        async with client.live("/api/jobs", "alice") as alice:
            await alice.next("jobs")
            bobs = client.live("/api/jobs", "bob")
            bob = await bobs.__aenter__()
            await bob.next("jobs")
            assert api.watches == {("alice", "")}
        await watched_by(api, "bob")
        api.put(job("bert", progress={"step": 9}))
        assert (await bob.next("changed"))["rows"] == [{"uid": "uid-bert", "step": 9}]
        await bobs.__aexit__(None, None, None)
        await watched_by(api)


async def test_a_viewer_whose_right_ends_loses_the_stream_and_the_others_keep_it() -> None:
    api = FakeApi({"alice": VIEW, "bob": VIEW})
    api.put(job("bert"))
    async with (
        dashboard(api, recheck_seconds=0.2) as client,
        client.live("/api/jobs", "alice") as alice,
        client.live("/api/jobs", "bob") as bob,
    ):
        await alice.next("jobs")
        await bob.next("jobs")
        api.rights["alice"] = frozenset()
        found = await alice.end()
        assert found[-1][0] == "problem" and "You may not " in found[-1][1]["sentence"]
        assert found[-2][0] == "jobs" and found[-2][1]["jobs"] == [], "the page keeps no row"
        api.put(job("bert", progress={"step": 9}))
        assert (await bob.next("changed"))["rows"] == [{"uid": "uid-bert", "step": 9}]
        assert (await client.get("/api/jobs", "alice"))[0] == 403


async def test_a_token_that_expires_ends_the_session() -> None:
    api = FakeApi({"alice": EDIT})
    async with dashboard(api, recheck_seconds=0.1) as client:
        async with client.live("/api/jobs", "alice") as alice:
            await alice.next("jobs")
            del api.rights["alice"]
            assert (await alice.end())[-1][0] == "problem"
        for _ in range(2):
            status, answer = await client.get("/api/viewer", "alice")
            assert status == 401 and "doesn't know this token" in answer["sentence"]


async def test_while_the_api_server_is_away_that_is_said_and_then_all_comes_anew() -> None:
    api = FakeApi({"alice": VIEW})
    api.put(job("bert"))
    async with dashboard(api, recheck_seconds=0.05) as client, client.live("/api/jobs", "alice") as alice:
        await alice.next("jobs")
        api.broken = 500
        api.break_watches()
        found = await alice.next("problem")
        assert "etcd is away" in found["sentence"] and found["what"] == "api"
        assert found["sentence"].startswith("The API server hasn't answered since ")
        assert time.time() - 60 < found["since"] <= time.time()
        api.broken = 0
        api.put(job("bert", progress={"step": 3}))
        assert (await alice.next("jobs"))["jobs"][0]["step"] == 3


async def test_the_list_says_since_when_no_operator_has_been_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scopes, sessions, job_page):
        monkeypatch.setattr(module, "OPERATOR_SECONDS", 0.05)
    monkeypatch.setattr(operator_sign, "CONFIRM_SECONDS", 0.01)
    api = FakeApi({"alice": VIEW | {("get", "leases", "")}, "bob": VIEW})
    api.put(job("bert"))
    api.renewed_at = time.time() - 720
    async with dashboard(api) as client, client.live("/api/jobs", "alice") as alice:
        await alice.next("jobs")
        found = await alice.next("problem")
        assert found["sentence"].startswith("The operator hasn't been seen since ") and found["what"] == "operator"
        assert abs(found["since"] - api.renewed_at) < 1
        async with client.live("/api/jobs/team/bert", "alice") as page:
            assert (await page.next("problem"))["what"] == "operator"
        async with client.live("/api/jobs", "bob") as bob:
            await bob.next("jobs")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await bob.next("problem")


class _SlowPage:
    """Takes data, as a slow page, when the test allows it."""

    def __init__(self) -> None:
        self.reads = asyncio.Semaphore(0)
        self.got: list[bytes] = []

    async def send(self, event: bytes) -> None:
        self.got.append(event)
        await self.reads.acquire()

    async def ping(self) -> None:
        return


async def test_a_viewer_who_reads_slowly_begins_anew_and_nothing_is_kept_for_them() -> None:
    scope, page, viewer = scopes.Scope(None), _SlowPage(), cast(Any, object())
    scope.is_loaded = True
    sending = asyncio.create_task(scope.send_to(cast(Any, page), viewer))
    for step in range(50):
        scope.board.put(job("bert", progress={"step": step}))
        assert scope.board.make_batch()
        await asyncio.sleep(0)
    assert len(page.got) == 1, "it hasn't taken the first message yet"
    page.reads.release()
    for _ in range(10):
        await asyncio.sleep(0)
    assert page.got[1].startswith(b"event: jobs\n") and b'"step":49' in page.got[1]
    sending.cancel()


async def test_nodes_are_those_that_the_viewers_jobs_blame() -> None:
    api = FakeApi({"carol": within("team", VIEW)})
    api.put(
        # The failure on node-b was an exception of the program, which no node causes.
        job("bert", nodeFailures={"node-a": 2}, avoidedNodes=["node-a"], failures=[{"node": "node-b"}]),
        job("theirs", "other", nodeFailures={"node-c": 1}),
    )
    async with dashboard(api) as client:
        status, answer = await client.get("/api/nodes?namespace=team", "carol")
        assert status == 200 and "nodes" in answer["why"]
        assert [(node["name"], node["failures"], node["ready"]) for node in answer["nodes"]] == [("node-a", 2, None)]
        assert answer["nodes"][0]["avoidedBy"] == [{"namespace": "team", "name": "bert"}]
        assert answer["nodes"][0]["blamedBy"] == [{"namespace": "team", "name": "bert", "failures": 2}]
