"""A history's file, or a copy of one, is read without a server: who has the file may read it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound
from trainmaster.history.answers import Answers, NotRecorded
from trainmaster.history.drawing import MAX_COLUMNS, Window
from trainmaster.history.heat import PEAK
from trainmaster.history.queries import MAX_JOBS, MAX_POINTS, BadQuery, Query
from trainmaster.history.schema import UnusableFile


class FileHistory:
    """FileHistory fulfils `HistoryReader` (client/history): what is asked for is read from the file at once."""

    def __init__(self, file: Path) -> None:
        """Raises ClientError for what is no history's file."""
        try:
            self._answers = Answers(file)
        except (UnusableFile, sqlite3.Error) as error:
            raise ClientError(f"{file} can't be read as a history: {error}") from error
        self._file = file

    async def jobs(
        self, namespace: str | None = None, *, name: str | None = None, limit: int = MAX_JOBS, after: str = ""
    ) -> Mapping[str, Any]:
        """Returns recorded jobs, the newest first."""
        return self._read(
            lambda answers: answers.jobs(
                namespace or "", name or "", limit=limit, before=Query({"continue": after}, "continue").before()
            )
        )

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns a recorded job with its attempts. Raises JobNotFound."""
        return self._read(lambda answers: answers.job(namespace, name, uid or ""))

    async def series(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = MAX_POINTS,
    ) -> Mapping[str, Any]:
        """Returns a job's curves."""
        return self._read(lambda answers: answers.series(namespace, name, uid or "", _window(since, until), points))

    async def heat(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        columns: int = MAX_COLUMNS,
        figure: str = PEAK,
    ) -> Mapping[str, Any]:
        """Returns a figure of each rank over time."""
        return self._read(
            lambda answers: answers.heat(namespace, name, uid or "", _window(since, until), columns, figure)
        )

    async def evidence(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns what was kept of attempts that ended badly."""
        return self._read(lambda answers: answers.evidence(namespace, name, uid or ""))

    async def logs(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        worker: int | None = None,
        tail: int | None = None,
    ) -> Mapping[str, Any]:
        """Returns the ends of the workers' logs."""
        return self._read(lambda answers: answers.logs(namespace, name, uid or "", worker=worker, tail=tail))

    def _read(self, ask: Callable[[Answers], dict[str, Any]]) -> Mapping[str, Any]:
        try:
            return ask(self._answers)
        except NotRecorded as error:
            raise JobNotFound(str(error)) from error
        except BadQuery as error:
            raise InvalidRequest(str(error)) from error
        except (UnusableFile, sqlite3.Error) as error:
            raise ClientError(f"{self._file} can't be read: {error}") from error


def _window(since: float | None, until: float | None) -> Window:
    return Window(0.0 if since is None else since, math.inf if until is None else until)
