"""Defines the options of the connection, which can precede or follow a command, as with kubectl."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec

import typer

from trainmaster.cli.connection_values import beginning, complete_path, kubeconfig_names
from trainmaster.cli.durations import seconds
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.client import JobClient
    from trainmaster.client.server import Server

PANEL = "Connection"
Parameters = ParamSpec("Parameters")


class ConnectionOption(NamedTuple):
    """ConnectionOption is one of kubectl's global options."""

    flag: str
    metavar: str
    help: str
    short: str | None = None

    def parameter(self, name: str) -> inspect.Parameter:
        """Returns the parameter from which typer makes the option."""
        flags = [self.flag, *([self.short] if self.short else [])]
        info = typer.Option(
            *flags,
            metavar=self.metavar,
            help=self.help,
            rich_help_panel=PANEL,
            autocompletion=_completion(name) if name in _COMPLETED else None,
        )
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, info]
        )


# Options by the field of `Connection`.
OPTIONS = {
    "namespace": ConnectionOption("--namespace", "NAME", "Namespace; default: the context's.", "-n"),
    "context": ConnectionOption("--context", "NAME", "Context of the kubeconfig."),
    "kubeconfig": ConnectionOption("--kubeconfig", "FILE", "Path of the kubeconfig."),
    "cluster": ConnectionOption("--cluster", "NAME", "Cluster of the kubeconfig, instead of the context's."),
    "user": ConnectionOption("--user", "NAME", "User of the kubeconfig, instead of the context's."),
    "acting_as": ConnectionOption("--as", "NAME", "Impersonate this user, if you are allowed to."),
    "request_timeout": ConnectionOption(
        "--request-timeout",
        "TIME",
        "Limit each answer: 30s, 5m or 500ms; 0: no limit; default: 60s.",
    ),
}

_COMPLETED = ("namespace", "context", "kubeconfig", "cluster", "user")
# Users don't want to wait longer than this for a completion.
_COMPLETION_LIMIT = "5s"


def _completion(name: str) -> Callable[..., list[str]]:
    """Returns the function that completes an option's values."""
    if name == "kubeconfig":
        return complete_path

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        connection = Connection.of(ctx)
        if name == "namespace":
            return beginning(replace(connection, namespace=None).namespaces, incomplete)
        return beginning(lambda: kubeconfig_names(connection.kubeconfig, name), incomplete)

    return complete


@dataclass(frozen=True)
class Connection:
    """Connection contains the connection's options. None means that the kubeconfig's value is used."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    cluster: str | None = None
    user: str | None = None
    acting_as: str | None = None
    request_timeout: str | None = None

    @classmethod
    def of(cls, ctx: typer.Context) -> Connection:
        """Returns the connection for a command line that is being completed, with a short timeout."""
        given: dict[str, Any] = {name: ctx.params.get(name) for name in OPTIONS}
        return cls(**{**given, "request_timeout": given["request_timeout"] or _COMPLETION_LIMIT})

    def namespaces(self) -> list[str]:
        """Returns the names of the cluster's namespaces. Raises ClientError."""
        answer = self.client().transport.request("GET", "/api/v1/namespaces")
        return [str(item["metadata"]["name"]) for item in answer.get("items") or ()]

    def client(self) -> JobClient:
        """Returns the namespace's client. Raises ClientError, and BadParameter for an impossible value."""
        from trainmaster.client import JobClient
        from trainmaster.client.transport import HttpTransport

        limit, server = self.answer_seconds(), self.server()
        return JobClient(self.namespace or server.namespace, transport=HttpTransport(server, seconds=limit))

    def server(self) -> Server:
        """Returns the API server with the user's credentials. Raises ClientError, and BadParameter."""
        from trainmaster.client.server import find_server

        if self.acting_as is not None and not (self.acting_as.isascii() and self.acting_as.isprintable()):
            raise typer.BadParameter("holds characters that no header can have; give a user's name", param_hint="--as")
        server = find_server(self.kubeconfig, self.context, cluster=self.cluster, user=self.user)
        return replace(server, acting_as=self.acting_as)

    def answer_seconds(self) -> float | None:
        """Returns the time limit for an answer in seconds, or None for no limit. Raises BadParameter."""
        from trainmaster.client.transport import READ_SECONDS

        if self.request_timeout is None:
            return READ_SECONDS
        try:
            return seconds(self.request_timeout) or None
        except typer.BadParameter as error:
            error.param_hint = "--request-timeout"
            raise


def connected(function: Callable[Concatenate[Connection, Parameters], None]) -> Callable[Parameters, None]:
    """Adds the connection's options to a command, and turns errors into a message and an exit code."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()

    def command(*args: Parameters.args, **given: Parameters.kwargs) -> None:
        connection = Connection(**{name: given.pop(name) for name in OPTIONS})  # type: ignore[arg-type]
        # pydantic's search for plugins in all installed packages takes longer than the request.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        with errors_reported():
            function(connection, *args, **given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    with_options(command, own)
    return command


def with_options(function: Callable[..., Any], own: list[inspect.Parameter]) -> None:
    """Makes typer read a function's own options and those of the connection."""
    by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    connections = [option.parameter(name) for name, option in OPTIONS.items()]
    # Typer reads the options from the signature, and would resolve the annotations of `command` in this module.
    vars(function)["__signature__"] = inspect.Signature([*by_name, *connections])
    function.__annotations__.clear()


def for_each(names: Sequence[str], action: Callable[[str], None]) -> None:
    """Runs an action for each job. As in kubectl, a refusal is reported and the remaining jobs are processed."""
    from trainmaster.client import ClientError, WaitTimeout

    refused: ClientError | None = None
    for name in names:
        try:
            action(name)
        except WaitTimeout:
            # The timeout applies to all jobs together, so the remaining ones aren't tried.
            raise
        except ClientError as error:
            if len(names) == 1:
                raise
            say(f"error: {error}", error=True)
            refused = error
    if refused is not None:
        raise typer.Exit(1) from refused


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turns the client's errors into one line on stderr and an exit code."""
    from trainmaster.client import ClientError, WaitTimeout

    try:
        yield
    except WaitTimeout as error:
        say(f"error: {error}", error=True)
        raise typer.Exit(3) from error
    except ClientError as error:
        say(f"error: {error}", error=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        # A second Ctrl-C would only interrupt the cleanup.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise typer.Exit(130) from None
