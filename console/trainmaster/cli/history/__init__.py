"""`kubectl dtj history` shows the records of jobs, and writes their curves to files.

`open_history` opens the history that the options select. `showing` prints and exports; `page` draws tables and curves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from trainmaster.cli.connection import Connection, beginning

if TYPE_CHECKING:
    from trainmaster.client.history import HistoryReader


FORMATS = ("csv", "json", "parquet")


@dataclass(frozen=True)
class HistoryOptions:
    """HistoryOptions selects the history. For None, TRAINMASTER_HISTORY or the cluster selects it."""

    history: str | None = None
    token: str | None = None
    account: str | None = None
    authority: str | None = None


@dataclass(frozen=True)
class OpenHistory:
    """OpenHistory is a history that can be read, and the default namespace."""

    reader: HistoryReader
    namespace: str


def open_history(connection: Connection, options: HistoryOptions) -> OpenHistory:
    """Opens the history. Raises ClientError, or BadParameter if a connection option is wrong."""
    from trainmaster.client.history import blocking_history, find_history

    limit, server = connection.answer_seconds(), connection.server()
    found = find_history(
        options.history, server, token=options.token, account=options.account, authority=options.authority
    )
    return OpenHistory(blocking_history(found, seconds=limit), connection.namespace or server.namespace)


def recorded_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the namespace's recorded job names with the given beginning, newest first, for tab completion."""
    from trainmaster.client.blocking import run

    options = HistoryOptions(*(ctx.params.get(name) for name in ("history", "token", "account", "authority")))

    def read() -> list[str]:
        opened = open_history(Connection.of(ctx), options)
        return list(dict.fromkeys(job["name"] for job in run(opened.reader.jobs(opened.namespace))["items"]))

    return beginning(read, incomplete)
