"""`dashboard` serves the dashboard from a cluster or a laptop; `open` serves it on this machine and opens a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainmaster.cli.arguments import name_argument
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.program import Part
from trainmaster_operator.api.options import LogFormat, LogLevel

app = Part()

CLUSTER_PORT = 8088
_FILE: dict[str, Any] = {"metavar": "FILE", "exists": True, "dir_okay": False}

_HISTORY = "Show deleted jobs of this history; default: the cluster's."
History = Annotated[str | None, typer.Option(metavar="URL", envvar="TRAINMASTER_HISTORY", help=_HISTORY)]
_PORT: dict[str, Any] = {"metavar": "PORT", "min": 0, "max": 65535}


@app.command("open")
@connected
def open(
    connection: Connection,
    name: Annotated[str | None, name_argument("Name of the job; default: the list of jobs.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser, or only print the address.")] = True,
    port: Annotated[int, typer.Option(help="Port of 127.0.0.1; 0 takes a free one.", **_PORT)] = 0,
    history: History = None,
) -> None:
    """Open the page of all jobs, or of one, in the browser.

    It is served on this machine with your kubeconfig until Ctrl-C. Over SSH the command to forward its port is printed.
    """
    _serve_here(connection, port, history, name=name, browser=browser)


def _serve_here(
    connection: Connection, port: int, history: str | None, *, name: str | None = None, browser: bool = False
) -> None:
    import asyncio

    from trainmaster.cli.dashboard import serve
    from trainmaster.dashboard.app import DashboardSettings

    server = connection.server()
    namespace = connection.namespace or server.namespace
    path = "/" if name is None else f"/jobs/{namespace}/{name}"
    settings = DashboardSettings("laptop", server, namespace=namespace)
    asyncio.run(serve(settings, "127.0.0.1", port, history=history, path=path, browser=browser))


@app.command("dashboard")
@connected
def dashboard(
    connection: Connection,
    mode: Annotated[
        Literal["cluster", "laptop"] | None,
        typer.Option(help="Viewer: cluster, by token; laptop, by kubeconfig; default: cluster in pods."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Listen on this address; default: 0.0.0.0, on a laptop 127.0.0.1."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help=f"Listen on this port; default: {CLUSTER_PORT}, on a laptop a free one.", **_PORT)
    ] = None,
    history: History = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Serve TLS with this certificate, in PEM.", **_FILE)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Use this key of the certificate, in PEM.", **_FILE)] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Log format: json for collectors, text for people.")] = "text",
    log_level: Annotated[LogLevel, typer.Option(help="Set the minimum log level.", case_sensitive=False)] = "INFO",
) -> None:
    """Serve the page about jobs, until SIGTERM or Ctrl-C.

    It has no rights of its own: viewers can do what their token allows. --namespace is where the page starts.
    """
    import asyncio

    from trainmaster.cli.dashboard import serve
    from trainmaster.client.server import address_of
    from trainmaster.dashboard.app import DashboardSettings
    from trainmaster_operator.serving.logs import set_up

    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not (connection.kubeconfig or os.environ.get("KUBECONFIG"))
    laptop = mode == "laptop" or (mode is None and not in_pod)
    if laptop and address not in (None, "127.0.0.1", "localhost"):
        raise typer.BadParameter(
            "on a laptop the kubeconfig's owner is the viewer, so the page is for this machine only: leave it out, or "
            "give --mode cluster",
            param_hint="--address",
        )
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-cert and --tls-key together, or neither")
    if laptop and tls_cert is not None:
        raise typer.BadParameter("a laptop's page is for this machine only, without TLS", param_hint="--tls-cert")
    somebody = {"--user": connection.user, "--as": connection.acting_as, "--cluster": connection.cluster}
    for option, value in somebody.items():
        if value and not laptop:
            raise typer.BadParameter(
                "in a cluster each viewer brings a token, and nobody else asks: leave it out, or give --mode laptop",
                param_hint=option,
            )
    set_up(log_format, log_level)
    if laptop:
        _serve_here(connection, port or 0, history)
        return
    server = address_of(connection.kubeconfig, connection.context)
    settings = DashboardSettings("cluster", server, namespace=connection.namespace or "")
    certificate = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    port = CLUSTER_PORT if port is None else port
    serving = serve(settings, address or "0.0.0.0", port, history=history, certificate=certificate)
    asyncio.run(serving)
