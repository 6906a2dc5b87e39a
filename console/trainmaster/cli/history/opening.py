"""The history that `--history` and its companions name is opened here, over HTTP or as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainmaster.cli.connection import Connection
from trainmaster.cli.connection_values import beginning

if TYPE_CHECKING:
    from trainmaster.client.history import HistoryReader


@dataclass(frozen=True)
class HistoryOptions:
    """HistoryOptions are what the user says of the history; None is what TRAINMASTER_HISTORY and the cluster say."""

    history: str | None = None
    token: str | None = None
    account: str | None = None
    authority: str | None = None


@dataclass(frozen=True)
class OpenHistory:
    """OpenHistory is a history that can be read, and the namespace that is meant where none is named."""

    reader: HistoryReader
    namespace: str


def open_history(connection: Connection, options: HistoryOptions) -> OpenHistory:
    """Returns the history. Raises ClientError, and BadParameter for an option of the connection that can't be."""
    from trainmaster.client.history import find_history, named_file
    from trainmaster.client.history.connecting import blocking_history

    file = named_file(options.history)
    if file is not None:
        return OpenHistory(open_file(file), connection.namespace or _namespace(connection))
    limit, server = connection.answer_seconds(), connection.server()
    found = find_history(
        options.history, server, token=options.token, account=options.account, authority=options.authority
    )
    return OpenHistory(blocking_history(found, seconds=limit), connection.namespace or server.namespace)


def open_file(file: Path) -> HistoryReader:
    """Returns the reader of a history's file, or of a copy of one. Raises ClientError."""
    from trainmaster.client import ClientError

    if not file.is_file():
        raise ClientError(f"There is no file {file}: name a history by its file or its address (https://HOST).")
    from trainmaster.history.files import HistoryFile

    return HistoryFile(file)


def _namespace(connection: Connection) -> str:
    """Returns the context's namespace; a file of a history needs no cluster, and so no kubeconfig."""
    from trainmaster.client import NoCluster
    from trainmaster_operator.kubeconfig import KubeconfigError, read_kubeconfig

    try:
        found = read_kubeconfig(
            connection.kubeconfig, connection.context, cluster=connection.cluster, user=connection.user
        )
    except KubeconfigError as error:
        raise NoCluster(f"{error}.") from error
    return "default" if found is None else found.namespace


def recorded_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of the namespace's recorded jobs that begin so, the newest first, for tab completion."""
    from trainmaster.client.blocking import run

    options = HistoryOptions(*(ctx.params.get(name) for name in ("history", "token", "account", "authority")))

    def read() -> list[str]:
        opened = open_history(Connection.of(ctx), options)
        return list(dict.fromkeys(job["name"] for job in run(opened.reader.jobs(opened.namespace))["items"]))

    return beginning(read, incomplete)
