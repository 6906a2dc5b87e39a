"""What was recorded of jobs (`trainmaster history`) is read here, also of jobs that are long gone.

| module | what is in it |
|---|---|
| `reading` | `HistoryReader`, what can be asked of a history, and `HistoryClient`, which asks one over HTTP |
| `finding` | `find_history`: where the history is, and by which token it knows the viewer |
| `announcement` | where a cluster's history is, as its administrators say |
| `accounts` | the token of a service account, for a user who has none |
| `answers` | errors of what a history answers, or fails to |
| `checking` | what a history answers has the shape that its readers rely on |
| `columns` | a job's curves, and the figures of its ranks, as columns in the finest resolution that there is |
| `connecting` | the history that belongs to the cluster of a client |
"""

from trainmaster.client.history.columns import curves, rank_figures
from trainmaster.client.history.finding import HistoryServer, find_history, named_file
from trainmaster.client.history.reading import HistoryClient, HistoryReader

__all__ = [
    "HistoryClient",
    "HistoryReader",
    "HistoryServer",
    "curves",
    "find_history",
    "named_file",
    "rank_figures",
]
