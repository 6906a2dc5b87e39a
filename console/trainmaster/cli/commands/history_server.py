"""`trainmaster history serve` records what operators send about jobs, and answers viewers who may see a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from trainmaster.cli.program import Part
from trainmaster.cli.settings_options import parse_settings, with_options
from trainmaster.cli.terminal import say
from trainmaster.history.settings import HistorySettings

app = Part(help="Keep a history of jobs.")


@app.callback()
def history() -> None:
    """Keep a history of jobs."""


@app.command("serve")
@with_options(HistorySettings)
def serve(given: Mapping[str, Any]) -> None:
    """Record what an operator sends, and answer viewers, until SIGTERM or Ctrl-C.

    It has no rights in the cluster: the API server decides by each viewer's own token.
    """
    raise typer.Exit(_run(HistorySettings(**parse_settings(HistorySettings, given))))


def _run(settings: HistorySettings) -> int:
    import asyncio
    import gc
    import signal

    from trainmaster.client.errors import ClientError
    from trainmaster.history.process import run_history
    from trainmaster.history.schema import UnusableHistory
    from trainmaster_operator.serving.logs import set_up

    set_up(settings.log_format, settings.log_level)
    gc.freeze()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await run_history(settings, stop)

    try:
        asyncio.run(main())
    except (UnusableHistory, ClientError) as error:
        say(f"trainmaster history: {error}", error=True)
        return 1
    return 0
