"""`trainmaster operator run` runs the operator in this process, in a cluster or on a laptop."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trainmaster.cli import keys
from trainmaster.cli.program import Part
from trainmaster.cli.settings_options import parse_settings, with_options
from trainmaster.cli.terminal import say
from trainmaster.controller.settings import OperatorSettings

app = Part(help="Run the operator.")


app.add_typer(keys.app, name="keys")


@app.callback()
def operator() -> None:
    """Run the operator."""


ALL_NAMESPACES = inspect.Parameter(
    "all_namespaces",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--all-namespaces", "-A", envvar="TRAINMASTER_ALL_NAMESPACES", help="Serve all namespaces."),
    ],
)


@app.command("run")
@with_options(OperatorSettings, ALL_NAMESPACES)
def run(given: Mapping[str, Any]) -> None:
    """Run the operator until it gets SIGTERM or SIGINT.

    It finds the API server by the pod's service account, or by a kubeconfig. Ends with 1 when it can't go on, also when
    it loses its lease (its Deployment starts it again).
    """
    values = parse_settings(OperatorSettings, given)
    namespaces = values.get("namespaces", ())
    if given["all_namespaces"] and namespaces:
        raise typer.BadParameter("give either --namespace or --all-namespaces, not both")
    if not given["all_namespaces"] and not namespaces:
        raise typer.BadParameter("say which jobs to serve: --namespace NAME (repeatable) or --all-namespaces")
    if namespaces:
        values.setdefault("lease_namespace", namespaces[0])
    raise typer.Exit(_run(OperatorSettings(**values)))


def _run(settings: OperatorSettings) -> int:
    import asyncio
    import gc
    import signal

    from trainmaster.controller.apiserver.connection import ConnectionSettingsError
    from trainmaster.controller.app import Operator, OperatorError
    from trainmaster.controller.observability.log_formats import set_up
    from trainmaster.reconciling import decide

    set_up(settings.log_format, settings.log_level)
    # What has been imported stays: the garbage collector needn't walk over it (60 ms, in which nothing else runs) each
    # time that a large job is taken apart into hundreds of thousands of objects.
    gc.freeze()
    # Almost all that is allocated here is decoded JSON, in which there are no cycles. While 100 jobs were applied at
    # once Python's own thresholds (700, 10, 10) made 760 collections, 12 % of the operator's CPU; these made 22, 6 %.
    gc.set_threshold(20_000, 20, 50)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await Operator(settings, decide).run(stop)

    try:
        asyncio.run(main())
    except (OperatorError, ConnectionSettingsError) as error:
        say(f"trainmaster operator: {error}", error=True)
        return 1
    return 0
