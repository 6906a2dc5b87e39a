"""A page's requests carry a token; live answers give their events as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SECONDS = 20.0


@dataclass
class Live:
    """Reads a live answer; `events` contains everything received."""

    response: aiohttp.ClientResponse
    events: list[tuple[str, Any]] = field(default_factory=list)
    _rest: bytes = b""

    async def next(self, name: str, **fields: Any) -> Any:
        """Returns the data of the next event with that name; if it is an object, of the next with these fields."""
        async with asyncio.timeout(SECONDS):
            while True:
                event, data = await self._event()
                if event == name and all(isinstance(data, dict) and data.get(k) == v for k, v in fields.items()):
                    return data

    async def end(self) -> list[tuple[str, Any]]:
        """Returns the events until the end."""
        found = []
        async with asyncio.timeout(SECONDS):
            try:
                while True:
                    found.append(await self._event())
            except EOFError:
                return found

    async def _event(self) -> tuple[str, Any]:
        while b"\n\n" not in self._rest:
            chunk = await self.response.content.readany()
            if not chunk:
                raise EOFError
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\n\n")
        if text.startswith(b":"):
            return "ping", None
        first, _, second = text.decode().partition("\n")
        event = (first.removeprefix("event: "), json.loads(second.removeprefix("data: ")))
        self.events.append(event)
        return event


@dataclass
class PageClient:
    """Sends requests to a dashboard."""

    session: aiohttp.ClientSession
    base: str

    async def ask(
        self, method: str, path: str, token: str | None = None, *, headers: dict[str, str] | None = None, **more: Any
    ) -> tuple[int, Any, aiohttp.ClientResponse]:
        """Returns the status, the decoded body (text if it isn't JSON) and the answer."""
        given = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        async with self.session.request(method, f"{self.base}{path}", headers=given, **more) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json else text, response

    async def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        status, body, _ = await self.ask("GET", path, token)
        return status, body

    async def post(self, path: str, token: str | None = None, body: object = None) -> tuple[int, Any]:
        status, answer, _ = await self.ask("POST", path, token, json=body or {})
        return status, answer

    @asynccontextmanager
    async def live(self, path: str, token: str) -> AsyncIterator[Live]:
        """Opens a live answer."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(f"{self.base}{path}", headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            yield Live(response)


@asynccontextmanager
async def page_client(base: str) -> AsyncIterator[PageClient]:
    """Returns a client of the dashboard at that address."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SECONDS)
    connector = aiohttp.TCPConnector(limit=0, ssl=False)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield PageClient(session, base)
