"""A job's whole curves are read piece by piece, in the finest resolution that the history still has.

What is asked in one piece is thinned to so many points, so a piece has to be as short as its points are dense. A
history keeps old ones less dense than new ones: the pieces go back in time from the newest, and each is as long as so
many points of the resolution before it are. Times in which nothing was recorded are passed over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from trainmaster.client.history.checking import columns_of
from trainmaster.client.history.reading import FIGURES, MOST_COLUMNS, HistoryReader

# No history has points that are denser (--history-seconds is 2 where nothing else is said).
FINEST_SECONDS = 0.5
# A history answers with 10,000 at most; these are a megabyte.
PIECE_POINTS = 5_000
# Of the points that are asked for: with all of them one more, at an end, would halve the resolution.
FILLED = 0.9
Columns = dict[str, list[Any]]
# Asks for the time between two moments.
Ask = Callable[[float, float], Awaitable[Mapping[str, Any]]]


async def curves(reader: HistoryReader, namespace: str, name: str, *, uid: str | None = None) -> Columns:
    """Returns a job's curves as columns of one length, by time; `pandas.DataFrame` takes them. Raises JobNotFound."""
    overview = await reader.series(namespace, name, uid=uid)

    async def ask(since: float, until: float) -> Mapping[str, Any]:
        return await reader.series(namespace, name, uid=uid, since=since, until=until, points=PIECE_POINTS)

    pieces = [columns_of(piece) async for piece in _pieces(ask, overview, PIECE_POINTS)]
    found: Columns = {column: [] for column in columns_of(overview)}
    newest = -1.0
    for piece in reversed(pieces):
        # A piece may begin with the last point of the one before it.
        first = next((at for at, time in enumerate(piece["at"]) if time > newest), len(piece["at"]))
        for column, values in piece.items():
            found[column].extend(values[first:])
        newest = found["at"][-1] if found["at"] else newest
    return found


async def rank_figures(
    reader: HistoryReader, namespace: str, name: str, *, uid: str | None = None
) -> tuple[Columns, int]:
    """Returns what each rank reported, a row for each rank and time, and how many ranks the history left out."""
    overview = await reader.series(namespace, name, uid=uid)
    left_out = 0
    rows: dict[tuple[float, int, int], dict[str, Any]] = {}
    for figure in FIGURES:

        async def ask(since: float, until: float, figure: str = figure) -> Mapping[str, Any]:
            return await reader.heat(
                namespace, name, uid=uid, since=since, until=until, columns=MOST_COLUMNS, figure=figure
            )

        async for piece in _pieces(ask, overview, MOST_COLUMNS):
            left_out = max(left_out, piece["leftOut"])
            for at, attempt, values in zip(piece["at"], piece["attempt"], piece["values"], strict=True):
                for rank, worker, value in zip(piece["ranks"], piece["workers"], values, strict=True):
                    if value is not None:
                        rows.setdefault((at, attempt or 0, rank), {"worker": worker})[figure] = value
    found: Columns = {name: [] for name in ("at", "attempt", "rank", "worker", *FIGURES)}
    for (at, attempt, rank), row in sorted(rows.items(), key=lambda item: item[0]):
        for name, value in zip(found, (at, attempt, rank, row["worker"], *map(row.get, FIGURES)), strict=True):
            found[name].append(value)
    return found, left_out


async def _pieces(ask: Ask, overview: Mapping[str, Any], points: int) -> AsyncIterator[Mapping[str, Any]]:
    """Yields what was recorded in pieces of at most so many points, the newest first."""
    left: list[float] = list(overview["at"])
    # A point stands for what was recorded in so many seconds around it.
    around = max(overview["resolutionSeconds"], FINEST_SECONDS)
    resolution = FINEST_SECONDS
    until = float("inf")
    while left and until > 0:
        until = min(until, left[-1] + around)
        since = max(0.0, until - FILLED * points * resolution)
        piece = await ask(since, until)
        yield piece
        resolution = max(resolution, piece["resolutionSeconds"])
        until = since
        while left and left[-1] - around >= since:
            left.pop()
