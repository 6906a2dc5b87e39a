"""`trainmaster` offers all commands: for jobs in a cluster, jobs' files, a local cluster, and the operator.

`kubectl dtj` (`dtj.py`) is the same tree of commands under another name.
"""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import with_options
from trainmaster.cli.program import Program
from trainmaster.cli.terminal import say
from trainmaster_operator import __version__


def _show_version(value: bool) -> None:
    if value:
        say(f"trainmaster {__version__}")
        raise typer.Exit


def program(name: str) -> Program:
    made = Program(name)

    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
        ] = False,
        **connection: object,
    ) -> None:
        """Run, watch, steer and diagnose distributed PyTorch training on Kubernetes.

        Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 timed out.
        """

    with_options(root, root)
    made.callback()(root)
    return made


app = program("trainmaster")

if __name__ == "__main__":
    app()
