"""Values of the connection's options, and names of jobs, are looked up for tab completion.

Where something is wrong, nothing is completed: a shell shows no message of it. The command will, when it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import typer

from trainmaster.cli.connection import OPTIONS, Connection
from trainmaster.cli.file_names import complete_path
from trainmaster.client import ClientError
from trainmaster_operator.api.printable import printable
from trainmaster_operator.kubeconfig import KubeconfigError

# A user who waits for Tab waits no longer.
LIMIT = "5s"


def values(option: str, ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the values of an option that begin so."""
    if option == "kubeconfig":
        return complete_path(incomplete)
    connection = _connection(ctx)
    found: Iterable[str] = ()
    with _silent():
        if option == "namespace":
            found = _namespaces(replace(connection, namespace=None))
        else:
            found = _entries(connection.kubeconfig, option)
    return _beginning(found, incomplete)


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of the namespace's jobs that begin so."""
    found: Iterable[str] = ()
    with _silent():
        found = [job.name for job in _connection(ctx).client().list()]
    return _beginning(found, incomplete)


def recorded_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of the namespace's recorded jobs that begin so, the newest first."""
    from trainmaster.cli.history import HistoryOptions, open_history
    from trainmaster.client.blocking import run

    found: Iterable[str] = ()
    options = HistoryOptions(*(ctx.params.get(name) for name in ("history", "token", "account", "authority")))
    with _silent():
        opened = open_history(_connection(ctx), options)
        found = dict.fromkeys(job["name"] for job in run(opened.reader.jobs(opened.namespace))["items"])
    return _beginning(found, incomplete)


def _connection(ctx: typer.Context) -> Connection:
    given: dict[str, Any] = {name: ctx.params.get(name) for name in OPTIONS}
    return Connection(**{**given, "request_timeout": given["request_timeout"] or LIMIT})


def _namespaces(connection: Connection) -> list[str]:
    answer = connection.client().transport.request("GET", "/api/v1/namespaces")
    return [str(item["metadata"]["name"]) for item in answer.get("items") or ()]


def _entries(kubeconfig: str | None, kind: str) -> Iterable[str]:
    """Returns the names of the kubeconfig's contexts, clusters or users."""
    from trainmaster_operator.kubeconfig.files import merged_files

    merged = merged_files(kubeconfig)
    return (
        () if merged is None else {"context": merged.contexts, "cluster": merged.clusters, "user": merged.users}[kind]
    )


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [printable(name) for name in names if name.startswith(incomplete)]


@contextmanager
def _silent() -> Iterator[None]:
    try:
        yield
    except (ClientError, KubeconfigError, typer.BadParameter):
        return
