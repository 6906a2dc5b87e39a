"""A transport that can't write: what reads for others (an assistant) gets this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.client.errors import NotAllowed
from trainmaster.client.transport import Transport


@dataclass(frozen=True)
class ReadOnlyTransport:
    """ReadOnlyTransport passes GET on, and refuses every other request before it is sent."""

    transport: Transport

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        """Sends a GET. Raises NotAllowed for anything else."""
        if method != "GET" or body is not None:
            raise NotAllowed(f"{method} {path} was not sent: this connection only reads.")
        return self.transport.request("GET", path, query=query)

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        """Yields the lines of a streaming answer."""
        return self.transport.lines(path, query=query, read_seconds=read_seconds)

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer."""
        return self.transport.beginning(path, limit=limit, seconds=seconds)
