"""The options of the connection are defined here once, for before a command and behind it, as kubectl takes them."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec

import typer

from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.client import JobClient

PANEL = "Connection"
Parameters = ParamSpec("Parameters")


class ConnectionOption(NamedTuple):
    """ConnectionOption is one of kubectl's global options."""

    flag: str
    metavar: str
    help: str
    short: str | None = None

    def parameter(self, name: str) -> inspect.Parameter:
        """Returns the parameter that typer makes the option of."""
        flags = [self.flag, *([self.short] if self.short else [])]
        info = typer.Option(*flags, metavar=self.metavar, help=self.help, rich_help_panel=PANEL)
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, info]
        )


# By the field of `Connection`.
OPTIONS = {
    "namespace": ConnectionOption("--namespace", "NAME", "Namespace; default: the context's.", "-n"),
    "context": ConnectionOption("--context", "NAME", "Context of the kubeconfig."),
    "kubeconfig": ConnectionOption("--kubeconfig", "FILE", "Path of the kubeconfig."),
}


@dataclass(frozen=True)
class Connection:
    """Connection is what the options say of the cluster to ask; None is what the kubeconfig says."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def client(self) -> JobClient:
        """Returns the client of the namespace. Raises ClientError."""
        from trainmaster.client import JobClient

        return JobClient(self.namespace, kubeconfig=self.kubeconfig, context=self.context)


def connected(function: Callable[Concatenate[Connection, Parameters], None]) -> Callable[Parameters, None]:
    """Gives a command the options of the connection, and turns the client's errors into a sentence and an exit code."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()

    def command(*args: Parameters.args, **given: Parameters.kwargs) -> None:
        connection = Connection(**{name: given.pop(name) for name in OPTIONS})  # type: ignore[arg-type]
        with errors_reported():
            function(connection, *args, **given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    with_options(command, own)
    return command


def with_options(function: Callable[..., Any], own: list[inspect.Parameter]) -> None:
    """Has typer read a function's options from here: its own, and those of the connection."""
    by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    connections = [option.parameter(name) for name, option in OPTIONS.items()]
    # Typer reads the options from the signature, and would resolve the annotations of `command` in this module.
    vars(function)["__signature__"] = inspect.Signature([*by_name, *connections])
    function.__annotations__.clear()


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
        # A second Ctrl-C would only interrupt the tidying up.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise typer.Exit(130) from None
