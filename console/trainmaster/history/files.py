"""A file of a history, a backup or a copy, is read as a history over HTTP is: by the same methods, without a server.

Who has the file may see all that is in it: no API server is asked.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound
from trainmaster.history.answers import Answers, NotRecorded
from trainmaster.history.drawing import MAX_COLUMNS, Window
from trainmaster.history.heat import FIGURES, PEAK
from trainmaster.history.queries import MAX_JOBS, BadQuery, Query
from trainmaster.history.schema import UnusableFile
from trainmaster_operator.wire.values import MAX_TIME


class HistoryFile:
    """HistoryFile is a `client.history.HistoryReader` of a file. Its coroutines wait for nothing but the disk."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def jobs(
        self, namespace: str | None = None, *, name: str | None = None, limit: int = MAX_JOBS, after: str = ""
    ) -> Mapping[str, Any]:
        """Returns a RecordedJobList, newest first, and as `continue` what `after` has to be for the next ones."""
        return self._read(
            lambda answers: answers.jobs(
                namespace or "", name or "", limit=limit, before=Query({"continue": after}, "continue").before()
            )
        )

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns a RecordedJobDetail. Raises JobNotFound."""
        return self._read(lambda answers: answers.job(namespace, name, uid or ""))

    async def series(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = 1000,
    ) -> Mapping[str, Any]:
        """Returns a Series. Raises JobNotFound."""
        window = Window(since or 0.0, MAX_TIME if until is None else until)
        return self._read(lambda answers: answers.series(namespace, name, uid or "", window, points))

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
        """Returns a RankHeat. Raises JobNotFound, and InvalidRequest for a figure that isn't recorded."""
        if figure not in FIGURES:
            raise InvalidRequest(f"figure: {figure!r} is none of {', '.join(FIGURES)}.")
        window = Window(since or 0.0, MAX_TIME if until is None else until)
        return self._read(lambda answers: answers.heat(namespace, name, uid or "", window, columns, figure))

    async def evidence(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns an EvidenceList. Raises JobNotFound."""
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
        """Returns a LogList. Raises JobNotFound."""
        return self._read(lambda answers: answers.logs(namespace, name, uid or "", worker=worker, tail=tail))

    def _read(self, ask: Callable[[Answers], dict[str, Any]]) -> dict[str, Any]:
        try:
            with Answers(self._file) as answers:
                # As JSON has it, so that nobody can tell it from an answer over HTTP.
                found: dict[str, Any] = json.loads(json.dumps(ask(answers)))
        except NotRecorded as error:
            raise JobNotFound(str(error)) from error
        except BadQuery as error:
            raise InvalidRequest(str(error)) from error
        except UnusableFile as error:
            raise ClientError(str(error)) from error
        except sqlite3.Error as error:
            raise ClientError(f"{self._file} can't be read: {error}.") from error
        return found
