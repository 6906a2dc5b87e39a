"""Each command is a module here, with its name and an `app`; below it is registered, in the help's section and order.

`submit`, `push`; `list`, `status`, `top`, `logs`, `events`, `open`, `wait`, `history`; `why`, `stacks`, `evidence`;
`suspend`, `resume`, `scale`, `restart`; `init`, `validate`, `render`, `convert`; `local`, `demo`; `crd`, `operator`,
`dashboard`; `completion`, `mcp`. `history_server` is the `serve` of `history`. To add one:

    app = Part()

    @app.command()
    @connected
    def resume(connection: Connection, name: JobName) -> None:
        '''Let a suspended job go on from its checkpoint.'''
        connection.client().resume(name)

A module imports what its command needs when it runs, so that `--help` and completion answer at once. A command that
asks the API server is `@connected`; names of jobs are `job_names.JobName`; what prints objects takes `output.Output`.
`program.called()` is how the user calls this program, for commands in sentences.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Bring jobs and code": (
        "submit",
        "push",
    ),
    "See how jobs go": (
        "list",
        "status",
        "top",
        "logs",
        "events",
        "open",
        "wait",
        "history",
    ),
    "Find out why": (
        "why",
        "stacks",
        "evidence",
    ),
    "Steer jobs": (
        "suspend",
        "resume",
        "scale",
        "restart",
    ),
    "Files, without a cluster": (
        "init",
        "validate",
        "render",
        "convert",
    ),
    "A cluster on this machine": (
        "local",
        "demo",
    ),
    "The operator": (
        "crd",
        "operator",
        "dashboard",
    ),
    "This program": ("completion", "mcp"),
}
# What kubectl itself does with jobs.
KUBECTLS = frozenset({"annotate", "apply", "create", "delete", "describe", "edit", "get", "label", "patch"})


def module_of(command: str) -> str:
    """Returns the name of a command's module."""
    return f"{__name__}.{command.replace('-', '_')}"
