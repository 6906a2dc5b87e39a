"""Reads the records of jobs (`trainmaster history`), even of jobs that were deleted.

| module | content |
|---|---|
| `finding` | `find_history`: the history's address, the viewer's token for it, and its errors |
| `answers` | the JSON objects in a history's answers, validated |
| `reading` | `HistoryReader` asks a history over HTTP; `curves` and `rank_figures` read a job's complete curves |
"""

from trainmaster.client.history.finding import FoundHistory, find_history
from trainmaster.client.history.reading import HistoryReader, blocking_history, curves, history_beside, rank_figures

__all__ = [
    "FoundHistory",
    "HistoryReader",
    "blocking_history",
    "curves",
    "find_history",
    "history_beside",
    "rank_figures",
]
