"""`recording.sender` uses a real HTTP server that is away, slow, full, refusing or sends garbage; nothing is lost or
waited for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.processes.controller.hostile_server import answering, endless, hostile
from tests.unit.controller.polling import until
from trainmaster_operator.controller.recording import sender as module
from trainmaster_operator.controller.recording.outbox import MAX_LINE, Outbox, WaitingRecord
from trainmaster_operator.controller.recording.sender import Sender

Answer = web.Response | int
RECORDED = 200


@dataclass
class History:
    """Answers with these statuses in turn (the last one repeatedly), after a while; `got` is what it has recorded."""

    answers: list[Answer] = field(default_factory=lambda: [RECORDED])
    seconds: float = 0.0
    got: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    url: str = ""

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((request.path, dict(request.headers), len(body)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(self.seconds)
        if answer != RECORDED:
            redirect = {"Location": "/elsewhere"}
            return web.Response(status=answer, headers=redirect) if isinstance(answer, int) else answer
        lines = [json.loads(line) for line in body.splitlines()]
        self.got += [line["number"] for line in lines]
        return web.json_response({"kind": "Recorded", "records": len(lines)})


@asynccontextmanager
async def history(*answers: Answer, seconds: float = 0.0) -> AsyncIterator[History]:
    made = History(list(answers) or [RECORDED], seconds)
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", made.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


class Sending:
    """Holds a running sender, and its outbox."""

    def __init__(self, url: str, token_file: Path | None = None, *, leads: bool = True, **settings: Any) -> None:
        self.counted: Counter[str] = Counter()
        self.leads = leads
        self.outbox = Outbox(self._count)
        fast = {"batch_seconds": 0.02, "answer_seconds": 0.5, "first_retry": 0.01, "slow_retry": 0.05, **settings}
        path = None if token_file is None else str(token_file)
        self.sender = Sender(url, path, self.outbox, self._count, lambda: self.leads, **fast)
        self._next = 0

    def _count(self, outcome: str, records: int) -> None:
        self.counted[outcome] += records

    def put(self, records: int = 1, size: int = 0) -> None:
        for _ in range(records):
            line = json.dumps({"number": self._next, "filling": "x" * size}).encode()
            self.outbox.put(WaitingRecord("other", "job", line))
            self._next += 1

    async def __aenter__(self) -> Sending:
        self._task = asyncio.create_task(self.sender.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.finished = time.monotonic()
        await self.sender.finish()
        self.finished = time.monotonic() - self.finished


async def test_records_arrive_in_order_in_batches_with_the_token_as_it_is_then(tmp_path: Path) -> None:
    path = tmp_path / "token"
    async with history() as made, Sending(made.url, path) as sending:
        sending.put()
        await asyncio.sleep(0.1)
        assert made.requests == [], "without the Secret nothing is sent, and nothing is lost"
        path.write_text("one\n")
        await until(lambda: sending.counted["sent"] == 1)
        path.write_text("two\n")
        sending.put(99)
        await until(lambda: sending.counted["sent"] == 100)
        assert made.got == list(range(100)) and len(made.requests) == 2
        (first, headers, _), (_, renewed, _) = made.requests
        assert first == "/v1/records" and headers["Content-Type"] == "application/x-ndjson"
        assert (headers["Authorization"], renewed["Authorization"]) == ("Bearer one", "Bearer two")
    assert sending.outbox.size == 0


async def test_a_batch_has_a_mebibyte_at_most() -> None:
    async with history() as made, Sending(made.url) as sending:
        sending.put(100, size=50_000)
        sending.put(1, size=MAX_LINE - 50)
        await until(lambda: sending.counted["sent"] == 101)
        assert made.got == list(range(101))
        assert len(made.requests) == 6 and max(size for _, _, size in made.requests) <= MAX_LINE


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_what_may_pass_is_followed_by_the_same_records_again(status: int) -> None:
    async with history(status, status, RECORDED) as made, Sending(made.url) as sending:
        sending.put(3)
        await until(lambda: sending.counted["sent"] == 3)
        assert made.got == [0, 1, 2] and len(made.requests) == 3 and sending.counted == {"sent": 3}


async def test_a_full_disk_says_how_long_to_wait() -> None:
    full = web.Response(status=503, headers={"Retry-After": "1"})
    async with history(full, RECORDED) as made, Sending(made.url) as sending:
        began = time.monotonic()
        sending.put()
        await until(lambda: sending.counted["sent"] == 1)
        assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("status", [400, 413])
async def test_a_batch_that_is_refused_is_dropped_and_the_log_says_why(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    said = json.dumps({"kind": "Status", "message": "line 2: at:\x07 no number" + "!" * 5_000})
    async with history(web.Response(status=status, text=said), RECORDED) as made, Sending(made.url) as sending:
        sending.put(2)
        await until(lambda: sending.counted["refused"] == 2)
        sending.put()
        await until(lambda: sending.counted["sent"] == 1)
        assert made.got == [2]
    (line,) = [record.message for record in caplog.records if record.name == module.__name__]
    assert "2 records were refused" in line and len(line) < 500 and "\x07" not in line


@pytest.mark.parametrize("status", [401, 403, 404, 307, 204])
async def test_what_a_person_has_to_mend_is_tried_again_slowly_and_said(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with history(status, status, RECORDED) as made, Sending(made.url) as sending:
        began = time.monotonic()
        sending.put(2)
        await until(lambda: sending.counted["sent"] == 2)
        assert time.monotonic() - began >= 0.1 and made.got == [0, 1] and len(made.requests) == 3
    (line,) = [record.message for record in caplog.records if record.name == module.__name__]
    assert ("--history-token-file" if status == 401 else "--history-url" if status == 204 else str(status)) in line


async def test_what_the_history_says_is_said_with_its_address_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    said = web.json_response({"kind": "Status", "message": "This history has no writer."}, status=401)
    async with history(said, RECORDED) as made, Sending(made.url) as sending:
        sending.put()
        await until(lambda: sending.counted["sent"] == 1)
    lines = [record.message for record in caplog.records if record.name == module.__name__]
    assert len(lines) == 2 and lines[1] == "The history takes records again."
    assert lines[0].startswith(f"The history at {made.url}: ") and "This history has no writer.; trying" in lines[0]


async def test_a_page_of_somebody_else_is_no_history(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    page = web.Response(text="<html>" + "log in " * 100_000)
    async with history(page, RECORDED) as made, Sending(made.url) as sending:
        sending.put()
        await until(lambda: sending.counted["sent"] == 1)
        assert made.got == [0] and "is no history" in caplog.text


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answering(), id="silence"),
        pytest.param(answering(b"\x00\xff garbage\r\n\r\n"), id="garbage"),
        pytest.param(answering(HEAD), id="no body"),
        pytest.param(endless(HEAD, b"x", 0.01), id="a byte now and then"),
        pytest.param(
            endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"fff\r\n" + b"x" * 4095 + b"\r\n"),
            id="an endless answer",
        ),
        pytest.param(endless(b"HTTP/1.1 200 OK\r\n", b"X-Header: x\r\n", 0.001), id="endless headers"),
    ],
)
async def test_whatever_answers_nothing_is_lost_and_nobody_waits(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 0.5)
    async with hostile(answer) as server:
        async with Sending(server.url, answer_seconds=0.2) as sending:
            lags = []
            for _ in range(100):
                began = time.monotonic()
                sending.put(10)
                await asyncio.sleep(0.005)
                lags.append(time.monotonic() - began)
            assert sorted(lags)[50] < 0.1, "the event loop turns"
            assert sending.counted == {} and len(sending.outbox) >= 500
        assert sending.finished < 5.0 and sending.counted == {}


async def test_a_history_that_was_away_gets_everything_when_it_is_back() -> None:
    async with history() as made:
        url = made.url
    async with Sending(url) as sending:
        sending.put(10)
        await asyncio.sleep(0.2)
        assert sending.counted == {}
        app = web.Application()
        app.router.add_post("/v1/records", made.receive)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(url.rpartition(":")[2])).start()
        await until(lambda: sending.counted["sent"] == 10)
        assert made.got == list(range(10))
        await runner.cleanup()


async def test_an_operator_that_does_not_lead_sends_nothing() -> None:
    async with history() as made, Sending(made.url, leads=False) as sending:
        sending.put()
        await asyncio.sleep(0.2)
        assert made.requests == []
    assert made.requests == [] and sending.finished < 1.0, "nor when it ends"


async def test_an_operator_that_stops_sends_what_waits_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with history() as made:
        async with Sending(made.url, batch_seconds=30.0) as sending:
            sending.put(5)
        assert made.got == [0, 1, 2, 3, 4] and sending.counted == {"sent": 5}
        async with Sending(made.url):
            pass
    monkeypatch.setattr(module, "LAST_SECONDS", 0.3)
    async with history(seconds=30) as silent:
        async with Sending(silent.url, answer_seconds=30.0) as sending:
            sending.put()
            await until(lambda: bool(silent.requests))
        assert 0.2 < sending.finished < 5.0 and sending.counted == {}
