"""`trainmaster mcp` lets an assistant ask about jobs, over the Model Context Protocol; it only reads."""

from __future__ import annotations

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def mcp(connection: Connection) -> None:
    """Serve jobs to an assistant over stdio (MCP), for reading only: jobs, why, logs, evidence, events.

    docs/assistants.md has what to put into an assistant's configuration.
    """
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        say("error: the MCP SDK isn't installed: pip install 'trainmaster[mcp]'", error=True)
        raise typer.Exit(1)
    from trainmaster.cli.assistant import server

    server(connection.client()).run("stdio")
