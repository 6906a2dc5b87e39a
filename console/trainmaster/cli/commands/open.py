"""`kubectl dtj open` opens jobs in the browser, with a dashboard on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.job_names import complete_job, plain_name
from trainmaster.cli.program import Part

app = Part()


@app.command()
@connected
def open(
    connection: Connection,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of the job; without it the list of jobs.",
            autocompletion=complete_job,
            callback=plain_name,
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the browser, or only print the address.")
    ] = True,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", help="Listen on this port of 127.0.0.1; 0: a free one.", min=0, max=65535
        ),
    ] = 0,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="URL",
            envvar="TRAINMASTER_HISTORY",
            help="Show deleted jobs of this history; default: the cluster's.",
        ),
    ] = None,
) -> None:
    """Open jobs in the browser: a page of all, or of one job.

    It serves the page on this machine with your kubeconfig, until Ctrl-C. Over SSH it prints how to forward it.
    """
    from trainmaster.cli.dashboard import serve
    from trainmaster.dashboard.app import DashboardSettings

    server = connection.server()
    namespace = connection.namespace or server.namespace
    path = "/" if name is None else f"/jobs/{namespace}/{name}"
    settings = DashboardSettings("laptop", server, namespace=namespace)
    serve(settings, "127.0.0.1", port, history=history, path=path, browser=browser)
