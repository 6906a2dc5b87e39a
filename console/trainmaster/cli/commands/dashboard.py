"""`trainmaster dashboard` serves the page about jobs, in a cluster or on a laptop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.program import Part

app = Part()

CLUSTER_PORT = 8088
_FILE = {"metavar": "FILE", "exists": True, "dir_okay": False}


@app.command()
@connected
def dashboard(
    connection: Connection,
    mode: Annotated[
        Literal["cluster", "laptop"] | None,
        typer.Option(
            "--mode",
            help="Take viewers' tokens (cluster) or the kubeconfig (laptop); default: cluster in pods.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="ADDRESS", help="Listen on this address; default: 0.0.0.0, on a laptop 127.0.0.1."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            help=f"Listen on this port; default: {CLUSTER_PORT}, on a laptop a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="URL",
            envvar="TRAINMASTER_HISTORY",
            help="Show deleted jobs of this history; default: the cluster's.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Serve TLS with this certificate, in PEM.", **_FILE)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="Use this key of the certificate, in PEM.", **_FILE)
    ] = None,
    log_format: Annotated[
        Literal["json", "text"], typer.Option("--log-format", help="Log json for collectors or text for people.")
    ] = "text",
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        typer.Option("--log-level", help="Set the minimum log level.", case_sensitive=False),
    ] = "INFO",
) -> None:
    """Serve the page about jobs, until SIGTERM or Ctrl-C.

    It has no rights of its own: viewers can do what their token allows. --namespace is where the page starts.
    """
    from trainmaster.cli.dashboard import Certificate, serve
    from trainmaster.client.server import address_of
    from trainmaster.dashboard.app import DashboardSettings
    from trainmaster_operator.serving.log_formats import set_up

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
        server = connection.server()
        namespace = connection.namespace or server.namespace
        serve(DashboardSettings("laptop", server, namespace=namespace), "127.0.0.1", port or 0, history=history)
        return
    server = address_of(connection.kubeconfig, connection.context)
    settings = DashboardSettings("cluster", server, namespace=connection.namespace or "")
    certificate = None if tls_cert is None or tls_key is None else Certificate(tls_cert, tls_key)
    port = CLUSTER_PORT if port is None else port
    serve(settings, address or "0.0.0.0", port, history=history, certificate=certificate)
