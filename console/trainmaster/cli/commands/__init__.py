"""Lists the commands by section, in the order of the help.

A command's module has the command's name, unless `SHARED` names another module. `jobs` shows jobs; `steering` changes
them or waits for them; `evidence` also contains `logs`, `events` and `stacks`; `submit` also contains `push`; `files`
works on files; `pages` serves the dashboard; `programs` contains small commands. `history` and `local` have modules of
their own, and `history_server` contains `history serve`. To add a command:

    app = Part()

    @app.command("resume")
    @connected
    def resume(connection: Connection, name: JobName) -> None:
        '''Resume a suspended job from its checkpoint.'''
        connection.client().resume(name)

Commands import their dependencies when they run, so that `--help` and completion answer at once. A command that sends
requests to the API server needs `@connected`. A parameter for a job's name has the type `arguments.JobName`, and a
command that prints objects takes `output.Output`. `terminal.called()` returns the name by which the user called this
program. A `ClientError` becomes one line on stderr and exit code 1; if it is a `WaitTimeout`, the exit code is 3.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Bring jobs and code": ("submit", "push"),
    "Watch jobs": ("list", "status", "top", "logs", "events", "open", "wait", "history"),
    "Find out why": ("why", "stacks", "evidence"),
    "Steer jobs": ("suspend", "resume", "scale", "restart"),
    "Files, without a cluster": ("init", "validate", "render", "convert"),
    "A cluster on this machine": ("local", "demo"),
    "The operator": ("crd", "operator", "dashboard"),
    "This program": ("completion", "mcp"),
}
# Commands that share a module with others.
SHARED: Mapping[str, str] = {
    **dict.fromkeys(("list", "status", "top", "why"), "jobs"),
    **dict.fromkeys(("suspend", "resume", "scale", "restart", "wait"), "steering"),
    **dict.fromkeys(("logs", "events", "stacks"), "evidence"),
    "push": "submit",
    **dict.fromkeys(("init", "validate", "render", "convert"), "files"),
    **dict.fromkeys(("open", "dashboard"), "pages"),
    **dict.fromkeys(("crd", "operator", "completion", "mcp", "demo"), "programs"),
}
# Verbs that kubectl itself applies to jobs.
KUBECTLS = frozenset({"annotate", "apply", "create", "delete", "describe", "edit", "get", "label", "patch"})


def module_of(command: str) -> str:
    return f"{__name__}.{SHARED.get(command, command.replace('-', '_'))}"
