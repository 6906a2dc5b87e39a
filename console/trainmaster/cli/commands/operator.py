"""`trainmaster operator` is the operator's own program, trainmaster-operator, if it is installed."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from trainmaster.cli.program import Part, called
from trainmaster.cli.terminal import say

app = Part(help="Run the operator.")


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def operator(ctx: typer.Context) -> None:
    """Run the operator, or rotate its keys.

    `operator run --help` and `operator keys --help` show the options.
    """
    if find_spec("kopf") is None:
        say("error: the operator isn't installed: pip install 'trainmaster[operator]'", error=True)
        raise typer.Exit(1)
    from trainmaster_operator.controller.main import main

    raise typer.Exit(main(ctx.args, f"{called()} operator"))
