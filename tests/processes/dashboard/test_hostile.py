"""If a viewer or tenant makes something large, only they pay for it: neither the dashboard nor another viewer does."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.processes.dashboard.fake_api import VIEW, FakeApi, job, running_pod
from tests.processes.dashboard.test_list import dashboard
from trainmaster.dashboard import job_page, logs, scopes, tenants

# 1 MB of JSON that takes 25 MB in Python.
LARGE = [{"": 0}] * 125_000


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_a_large_jobs_page_has_what_it_shows_and_warns_of_what_suspending_loses() -> None:
    api = FakeApi({"alice": VIEW})
    made = job("bert", progress={"step": 1234, "epoch": 1.5})
    made["spec"] |= {"training": LARGE, "checkpoint": {"volume": {"emptyDir": True}}, "resources": {"gpus": 8}}
    api.put(made)
    async with dashboard(api) as client, client.live("/api/jobs/team/bert", "alice") as page:
        found = await page.next("job")
        assert found["spec"] == {"workers": 2, "resources": {"gpus": 8}} and found["row"]["step"] == 1234
        assert found["status"]["progress"] == {"epoch": 1.5}
        assert found["warning"].startswith("Warning: the checkpoints of bert are on an emptyDir")
        assert "begins at step 0" in found["resumes"]
        api.put({**made, "status": {**made["status"], "attempt": 2}})
        assert (await page.next("job"))["row"]["attempt"] == 2
        status, why = await client.get("/api/jobs/team/bert/why", "alice")
        assert status == 200 and why["name"] == "bert"
    assert api.encodings == {"identity"}, "a pod behind the API server's proxy decides what its answer unpacks to"


@pytest.mark.parametrize(
    ("training", "expected"), [(nested(900), 422), (LARGE[:20_000], 413), (LARGE, 413)], ids=["deep", "many", "large"]
)
async def test_a_manifest_that_is_too_much_is_a_sentence(training: Any, expected: int) -> None:
    api = FakeApi({"alice": VIEW})
    made = job("bert")
    made["spec"]["training"] = training
    api.put(made)
    async with dashboard(api) as client:
        status, answer = await client.get("/api/jobs/team/bert/manifest", "alice")
        assert status == expected and "kubectl get distributedtrainingjob bert -o yaml" in answer["sentence"]


async def test_a_log_view_reads_a_few_workers_says_so_and_leaves_room_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants, "MOST_LOGS", 16)
    monkeypatch.setattr(logs, "BATCH_SECONDS", 0.01)
    api = FakeApi({"alice": VIEW, "bob": VIEW})
    wide = job("wide", workers={"running": 60, "desired": 60, "created": 60})
    wide["spec"]["processesPerWorker"] = 2
    api.put(wide)
    api.pods = [running_pod(number, "wide") for number in range(60)]
    for number in range(60):
        api.say(f"wide-{number}", f"[rank {2 * number}]: of worker {number}")
    path = "/api/jobs/team/wide/logs?follow=1"
    async with dashboard(api) as client, client.live(path, "alice") as first, client.live(path, "alice") as second:
        assert (await first.next("note"))["sentence"] == "first 8 of 60 workers (choose another one)"
        assert (await second.next("note"))["sentence"] == "first 4 of 60 workers (choose another one)"
        seen: set[int] = set()
        while len(seen) < 8:
            seen |= {line["worker"] for line in await first.next("lines")}
        assert seen == set(range(8))
        await second.next("lines")
        async with client.live(f"{path}&worker=50", "alice") as one:
            assert (await one.next("lines"))[0]["text"] == "of worker 50"
        async with client.live(f"{path}&rank=100", "bob") as one:
            assert (await one.next("note"))["sentence"] == "worker 50 of 60 (choose another one)"
            assert (await one.next("lines"))[0]["rank"] == 100
    assert 12 <= api.most_logs <= 14


@dataclass
class StuckKubelets(FakeApi):
    """No kubelet answers a request for a log; `eight` is set once eight requests wait."""

    eight: asyncio.Event = field(default_factory=asyncio.Event)

    async def _log(self, request: web.Request, pod: str) -> web.StreamResponse:
        if self.logs_open == 8:
            self.eight.set()
        await asyncio.Event().wait()
        return web.StreamResponse()


async def test_logs_that_kubelets_dont_send_are_all_requested_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "AGENTS_AT_ONCE", 2)
    api = StuckKubelets({"alice": VIEW})
    api.put(job("wide", workers={"running": 8, "desired": 8, "created": 8}))
    api.pods = [running_pod(number, "wide") for number in range(8)]
    async with dashboard(api) as client, client.live("/api/jobs/team/wide/logs", "alice"), asyncio.timeout(10):
        await api.eight.wait()


async def test_pages_of_jobs_hold_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MOST_BYTES", 40_000)
    monkeypatch.setattr(job_page, "PODS_SECONDS", 0.05)
    api = FakeApi({"alice": VIEW, "bob": VIEW})
    api.put(job("bert"))
    api.pods = [running_pod(number) for number in range(40)]
    async with dashboard(api) as client, client.live("/api/jobs/team/bert", "alice") as first:
        await first.next("pods")
        async with client.live("/api/jobs/team/bert", "alice") as second:
            assert "close some" in (await second.end())[-1][1]["sentence"]
        async with client.live("/api/jobs/team/bert", "bob") as bobs:
            assert len(await bobs.next("pods")) == 40


class Slow(FakeApi):
    """Sends a list's first object as an API server, and the others when the test allows it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.others = asyncio.Event()

    async def _object(self, request: web.Request, token: str) -> web.StreamResponse:
        if "watch" in request.query or request.path.count("/") > 6:
            return web.Response(status=404)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"kind":"List","metadata":{},"items":[%s,' % json.dumps(job("first")).encode())
        await self.others.wait()
        await response.write(json.dumps(job("second")).encode() + b"]}")
        return response


async def test_of_a_list_that_takes_long_what_is_there_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "SHOW_SECONDS", 0.1)
    api = Slow({"alice": VIEW})
    async with dashboard(api) as client, client.live("/api/jobs?namespace=team", "alice") as page:
        assert [row["name"] for row in (await page.next("jobs"))["jobs"]] == ["first"]
        api.others.set()
        assert [row["name"] for row in (await page.next("changed"))["rows"]] == ["second"]


async def test_invented_tokens_keep_nobody_out() -> None:
    api = FakeApi({"alice": VIEW, "bob": VIEW})
    async with dashboard(api) as client:
        assert (await client.get("/api/viewer", "alice"))[0] == 200
        going = True

        async def invent(number: int) -> None:
            count = 0
            while going:
                count += 1
                assert (await client.get("/api/viewer", f"invented-{number}-{count}"))[0] == 401

        inventing = [asyncio.create_task(invent(number)) for number in range(12)]
        await asyncio.sleep(1.0)
        for token in ("alice", "bob"):
            began = time.monotonic()
            assert (await client.get("/api/viewer", token))[0] == 200
            assert time.monotonic() - began < 2.0
        going = False
        await asyncio.gather(*inventing)
