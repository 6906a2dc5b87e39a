"""What is read of a history, where there is one; it allows each question by the viewer's own token."""

from __future__ import annotations

from typing import Any, Protocol


class HistoryReader(Protocol):
    """HistoryReader asks a history in the name of one viewer. Every method raises a ClientError."""

    async def jobs(self, namespace: str | None = None, name: str | None = None, limit: int = 500) -> dict[str, Any]:
        """Returns a RecordedJobList."""

    async def job(self, namespace: str, name: str, uid: str | None = None) -> dict[str, Any]:
        """Returns a RecordedJobDetail."""

    async def series(
        self,
        namespace: str,
        name: str,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = 1000,
    ) -> dict[str, Any]:
        """Returns a Series."""

    async def heat(
        self,
        namespace: str,
        name: str,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        columns: int = 240,
        figure: str = "stepSeconds",
    ) -> dict[str, Any]:
        """Returns a RankHeat."""

    async def evidence(self, namespace: str, name: str, uid: str | None = None) -> dict[str, Any]:
        """Returns an EvidenceList."""

    async def logs(
        self, namespace: str, name: str, uid: str | None = None, worker: int | None = None, tail: int | None = None
    ) -> dict[str, Any]:
        """Returns a LogList."""
