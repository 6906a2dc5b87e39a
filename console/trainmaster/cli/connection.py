"""Defines the connection's options, which can precede or follow a command, as with kubectl.

For tab completion, this module looks up the options' values and the names of jobs. If that fails, nothing is completed,
because a shell can't show a message; the command itself reports the error when it runs.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

if TYPE_CHECKING:
    from trainmaster.client import JobClient
    from trainmaster.client.server import Server

Parameters = ParamSpec("Parameters")
# Users don't want to wait longer than this for a completion.
_COMPLETION_LIMIT = "5s"
# The incomplete paths for which a completion was requested. Empty if the value to complete isn't a path.
completed_paths: list[str] = []
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
# Each unit in seconds. Unicode has two characters for the prefix micro.
_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})", re.ASCII)
# kubectl's limit: Go counts a duration's nanoseconds in signed 64 bits.
_MOST_SECONDS = 2**63 / 1e9


def seconds(value: str) -> float:
    """Parses a duration as kubectl does: 30, 30s, 500ms, 1.5h, 1h30m. Raises BadParameter."""
    if re.fullmatch(_NUMBER, value, re.ASCII):
        total = float(value)
    elif value and not _PART.sub("", value):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise typer.BadParameter(f"{value!r} is no duration; use seconds, or 30s, 5m, 1h30m, 500ms")
    if total >= _MOST_SECONDS:
        raise typer.BadParameter(f"{value!r} is too long; use less than 292 years")
    return total


def complete_path(incomplete: str) -> list[str]:
    """Returns no completions, so that the shell completes paths itself."""
    completed_paths.append(incomplete)
    return []


def path_option(*flags: str, **more: Any) -> Any:
    return typer.Option(*flags, autocompletion=complete_path, **more)


def path_argument(**more: Any) -> Any:
    return typer.Argument(autocompletion=complete_path, **more)


def completions(read: Callable[[], Iterable[str]]) -> list[str]:
    """Returns the names, or an empty list if they can't be read. Typer selects those that begin with the typed text."""
    from trainmaster.client import ClientError
    from trainmaster_operator.api.printable import printable
    from trainmaster_operator.kubeconfig import KubeconfigError

    try:
        return list(map(printable, read()))
    except (ClientError, KubeconfigError, typer.BadParameter):
        return []


def _namespaces(ctx: typer.Context) -> list[str]:
    return completions(replace(Connection.of(ctx), namespace=None).namespaces)


def _in_kubeconfig(kind: str) -> Callable[..., list[str]]:
    """Returns a function that completes the names of the kubeconfig's contexts, clusters or users."""

    def complete(ctx: typer.Context) -> list[str]:
        from trainmaster_operator.kubeconfig.selection import merged_files

        def names() -> Iterable[str]:
            merged = merged_files(Connection.of(ctx).kubeconfig)
            return () if merged is None else getattr(merged, kind)

        return completions(names)

    return complete


def _option(*flags: str, help: str, metavar: str = "NAME", complete: Callable[..., list[str]] | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, autocompletion=complete, rich_help_panel="Connection")


@dataclass(frozen=True)
class Connection:
    """Connection contains the connection's options. None means the default, usually the kubeconfig's value."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    cluster: str | None = None
    user: str | None = None
    acting_as: str | None = None
    request_timeout: str | None = None

    @classmethod
    def of(cls, ctx: typer.Context) -> Connection:
        """Returns the connection that an incomplete command line selects, with a short timeout unless it sets one."""
        given: dict[str, Any] = {name: ctx.params.get(name) for name in OPTIONS}
        return cls(**{**given, "request_timeout": given["request_timeout"] or _COMPLETION_LIMIT})

    def namespaces(self) -> list[str]:
        """Returns the names of the cluster's namespaces. Raises ClientError."""
        answer = self.client().transport.request("GET", "/api/v1/namespaces")
        return [str(item["metadata"]["name"]) for item in answer.get("items") or ()]

    def client(self) -> JobClient:
        """Returns a client for the namespace. Raises ClientError, and BadParameter for an impossible value."""
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


_INSTEAD = "of the kubeconfig, instead of the context's."
_LIMIT = "Limit each answer: 30s, 5m or 500ms; 0: no limit; default: 60s."
_OPTIONS = {
    "namespace": _option("--namespace", "-n", help="Namespace; default: the context's.", complete=_namespaces),
    "context": _option("--context", help="Context of the kubeconfig.", complete=_in_kubeconfig("contexts")),
    "kubeconfig": _option("--kubeconfig", help="Path of the kubeconfig.", metavar="FILE", complete=complete_path),
    "cluster": _option("--cluster", help=f"Cluster {_INSTEAD}", complete=_in_kubeconfig("clusters")),
    "user": _option("--user", help=f"User {_INSTEAD}", complete=_in_kubeconfig("users")),
    "acting_as": _option("--as", help="Impersonate this user, if you are allowed to."),
    "request_timeout": _option("--request-timeout", help=_LIMIT, metavar="TIME"),
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
# Maps each field of `Connection` to the function parameter that typer turns into its option.
OPTIONS = {
    name: inspect.Parameter(name, _KEYWORD, default=None, annotation=Annotated[str | None, option])
    for name, option in _OPTIONS.items()
}


def connected(function: Callable[Concatenate[Connection, Parameters], None]) -> Callable[Parameters, None]:
    """Adds the connection's options to a command."""

    def command(*args: Parameters.args, **given: Parameters.kwargs) -> None:
        connection = Connection(**{name: given.pop(name) for name in OPTIONS})  # type: ignore[arg-type]
        # pydantic's search for plugins in all installed packages takes longer than the request.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        function(connection, *args, **given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    with_options(command, function)
    return command


def with_options(function: Callable[..., Any], declared: Callable[..., Any]) -> None:
    """Makes typer read a function's options from the signature of `declared`. OPTIONS replaces its `connection`."""
    given = inspect.signature(declared, eval_str=True).parameters.values()
    own = [each.replace(kind=_KEYWORD) for each in given if each.name != "connection"]
    # Typer reads the options from the signature. It would resolve annotations in this module, so they are removed.
    vars(function)["__signature__"] = inspect.Signature([*own, *OPTIONS.values()])
    function.__annotations__.clear()
