"""`webhook.delivery` with a real HTTP server: slow, refusing, silent, flooded, redirecting; nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.unit.controller.polling import until
from trainmaster.controller.webhook import delivery
from trainmaster.controller.webhook.delivery import Webhook


def event(number: int) -> dict[str, Any]:
    return {"specversion": "1.0", "id": str(number), "data": {}}


@dataclass
class Receiver:
    """Answers with these in turn (the last one again and again), after a while."""

    answers: list[web.Response | int] = field(default_factory=lambda: [204])
    seconds: float = 0.0
    got: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.got.append((body["id"], dict(request.headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(self.seconds)
        return web.Response(status=answer) if isinstance(answer, int) else answer

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self.got]

    def webhook(self, headers_file: Path | None = None, **settings: Any) -> Webhook:
        fast = {"answer_seconds": 0.3, "give_up_seconds": 20.0, "first_retry": 0.01, **settings}
        count: Callable[[str], None] = lambda outcome: self.outcomes.update([outcome])  # noqa: E731
        return Webhook(self.url, None if headers_file is None else str(headers_file), count, **fast)


@asynccontextmanager
async def receiving(*answers: web.Response | int, seconds: float = 0.0) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers) or [204], seconds)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def test_events_arrive_in_order_with_the_headers_of_the_file_as_it_is_then(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    async with receiving() as receiver:
        webhook = receiver.webhook(path)
        webhook.send(event(0))
        await asyncio.sleep(0.1)
        assert receiver.got == [], "without the Secret nothing is sent, and nothing is lost"
        path.write_text("Authorization: Bearer one\n")
        await until(lambda: receiver.outcomes["delivered"] == 1)
        path.write_text("Authorization: Bearer two\n")
        for number in range(1, 20):
            webhook.send(event(number))
        await until(lambda: receiver.outcomes["delivered"] == 20)
        await webhook.close()
        assert receiver.ids == [str(number) for number in range(20)]
        tokens = [headers["Authorization"] for _, headers in receiver.got]
        assert tokens == ["Bearer one", *["Bearer two"] * 19]
        assert receiver.got[0][1]["Content-Type"].startswith("application/cloudevents+json")


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_an_answer_that_may_pass_is_followed_by_the_same_event_again(status: int) -> None:
    async with receiving(status, status, 200) as receiver:
        webhook = receiver.webhook()
        webhook.send(event(1))
        webhook.send(event(2))
        await until(lambda: receiver.outcomes["delivered"] == 2)
        assert receiver.ids == ["1", "1", "1", "2"]
        await webhook.close()


async def test_a_server_says_how_long_to_wait() -> None:
    async with receiving(web.Response(status=429, headers={"Retry-After": "1"}), 200) as receiver:
        webhook = receiver.webhook()
        began = time.monotonic()
        webhook.send(event(1))
        await until(lambda: receiver.outcomes["delivered"] == 1)
        assert time.monotonic() - began >= 1.0
        await webhook.close()


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301, 307])
async def test_another_answer_drops_the_event_and_a_redirect_is_not_followed(status: int) -> None:
    answer = web.Response(status=status, headers={"Location": "/elsewhere", "Retry-After": "1"})
    async with receiving(answer, 200) as receiver:
        webhook = receiver.webhook()
        webhook.send(event(1))
        webhook.send(event(2))
        await until(lambda: receiver.outcomes.total() == 2)
        assert receiver.outcomes == {"refused": 1, "delivered": 1} and receiver.ids == ["1", "2"]
        await webhook.close()


async def test_a_server_that_never_answers_and_one_that_is_not_there_are_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with receiving(seconds=30) as receiver:
        webhook = receiver.webhook(answer_seconds=0.1, give_up_seconds=0.5)
        webhook.send(event(1))
        await until(lambda: receiver.outcomes["expired"] == 1)
        assert len(receiver.got) > 1
        await webhook.close()
    webhook = receiver.webhook(give_up_seconds=0.2)
    webhook.send(event(1))
    await until(lambda: receiver.outcomes["expired"] == 2)
    await webhook.close()
    lines = [record.message for record in caplog.records if record.name == delivery.__name__]
    assert lines and all("webhook" in line for line in lines) and len(lines) <= 2, "once a minute"


async def test_a_flood_is_bounded_and_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "QUEUED", 50)
    async with receiving(seconds=0.02) as receiver:
        webhook = receiver.webhook()
        began = time.monotonic()
        for number in range(10_000):
            webhook.send(event(number))
        assert time.monotonic() - began < 1.0
        assert receiver.outcomes == {"full": 9_950}
        await until(lambda: receiver.outcomes["delivered"] == 50)
        assert receiver.ids == [str(number) for number in range(50)], "what came first is sent"
        webhook.send(event(10_000))
        await until(lambda: receiver.outcomes["delivered"] == 51)
        await webhook.close()


async def test_an_operator_that_stops_sends_what_waits_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "LAST_SECONDS", 0.5)
    async with receiving() as receiver:
        webhook = receiver.webhook()
        webhook.send(event(1))
        await webhook.close()
        assert receiver.ids == ["1"]
    async with receiving(seconds=30) as silent:
        webhook = silent.webhook(answer_seconds=30.0)
        webhook.send(event(1))
        began = time.monotonic()
        await webhook.close()
        assert time.monotonic() - began < 5.0
    idle = receiver.webhook()
    await idle.close()
