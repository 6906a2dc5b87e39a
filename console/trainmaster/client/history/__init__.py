"""Reads the records of jobs from `trainmaster history`, even if the jobs were deleted.

| module | content |
|---|---|
| `finding` | `find_history` returns the history's address and the viewer's token; `HistoryErrors` creates its errors |
| `answers` | the JSON objects in a history's answers, and their validation |
| `reading` | `HistoryReader` asks a history over HTTP; the functions beside it read a job's complete curves |
"""

from trainmaster.client.history.finding import FoundHistory, find_history
from trainmaster.client.history.reading import (
    HistoryReader,
    blocking_history,
    curves,
    history_beside,
    own_metrics,
    rank_figures,
    system_figures,
)

__all__ = [
    "FoundHistory",
    "HistoryReader",
    "blocking_history",
    "curves",
    "find_history",
    "history_beside",
    "own_metrics",
    "rank_figures",
    "system_figures",
]
