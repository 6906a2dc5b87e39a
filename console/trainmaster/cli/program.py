"""Two programs share one tree of commands: `trainmaster`, and `kubectl dtj`, which kubectl finds as `kubectl-dtj`.

`Program` is the tree. A `Part` is one of its commands, or a group such as `local`; `commands` lists the parts. A part's
module is imported when its command runs, when the program's help is shown, and when a command's name is completed.

Connection options (`connection.py`) may precede or follow a command; the later option takes precedence. Exit codes: 0
done, 1 failed or refused, 2 wrong usage, 3 timed out, 130 interrupted. An error prints one message to stderr.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from trainmaster.cli.commands import KUBECTLS, SECTIONS, module_of
from trainmaster.cli.connection import OPTIONS
from trainmaster.cli.terminal import called, say, set_called

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SETTINGS = {"help_option_names": ["-h", "--help"]}
Function = TypeVar("Function", bound=Callable[..., Any])
# click puts brackets around an optional argument, even if its metavar has its own: [[FILE | -- COMMAND...]]...
_IN_BRACKETS_TWICE = re.compile(r"^\[(\[.*\])\](\.\.\.)?$")
_COMMANDS, _OPTIONS = "Commands", "Options"
# Python's default threshold is 700. Imported modules are never garbage, and checking them took 10 % of a command's
# time.
OBJECTS_BETWEEN_COLLECTIONS = 50_000
# The exit code that Python uses if it couldn't write all output.
UNWRITTEN = 120


class _Defaults(dict[str, Any]):
    """_Defaults gives every command the same defaults: the options that preceded the command."""

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self)


class _AsGiven:
    """_AsGiven keeps a text unchanged.

    Without this class, typer lets pydantic build a validator for each text option.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


def _take_texts_as_given(parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)
        if getattr(descriptor, "annotation", None) is str and not getattr(parameter, "multiple", False):
            # If a later version of typer keeps its validators elsewhere, it ignores this and builds them, which only
            # takes longer.
            vars(parameter)["_runtime_param"] = _AsGiven()


class _ShortHelp:
    """_ShortHelp gives lists of commands the whole first sentence of a command's help, without its full stop."""

    help: str | None

    def get_short_help_str(self, limit: int = 0) -> str:
        return " ".join(re.split(r"\.(?:\s|$)", self.help or "", maxsplit=1)[0].split())


class Command(_ShortHelp, TyperCommand):
    """Command prints its help as plain text like kubectl's, with the options in sections."""

    def __init__(self, name: str | None, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        _take_texts_as_given(self.params)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the words of the usage line, with single brackets around optional words."""
        pieces = [piece.translate({ord("{"): None, ord("}"): None}) for piece in super().collect_usage_pieces(ctx)]
        return [_IN_BRACKETS_TWICE.sub(r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else _OPTIONS
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sorted(sections.items(), key=lambda item: item[0] not in ("Arguments", _OPTIONS)):
            with formatter.section(title):
                formatter.write_dl(records)


class Commands(_ShortHelp, TyperGroup):
    """Commands is a group of commands. It refuses wrong options and values with a one-sentence message."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the options before the command as the command's defaults. Without arguments, shows the help."""
        rest = super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])
        given = {name: value for name in OPTIONS if (value := ctx.params.get(name)) is not None}
        ctx.default_map = _Defaults({**(ctx.default_map or {}), **given})
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the named command. Raises UsageError if a preceding option doesn't apply to the command."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, TyperGroup) and not ctx.resilient_parsing:
            flags = {parameter.name: parameter.opts[0] for parameter in ctx.find_root().command.params}
            for option in sorted(set(ctx.default_map) - {parameter.name for parameter in command.params}):
                flag = flags[option]
                later = any(flag in parameter.opts for parameter in command.params)
                remedy = f"put it after '{name}', where it has another meaning" if later else "leave it out"
                ctx.fail(f"'{name}' doesn't take {flag} of the connection; {remedy}")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Runs the given command. Raises BadParameter."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            raise reworded(error) from error.__cause__

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                section = getattr(command, "rich_help_panel", None)
                sections.setdefault(section or _COMMANDS, []).append((name, command.get_short_help_str()))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        Command.format_options(self, ctx, formatter)  # type: ignore[arg-type]


def _command(app: Part, name: str) -> Any:
    """Returns the module's command with this name, or else the module's only command or group."""
    for info in app.registered_commands:
        if info.name == name:
            return typer.main.get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
    return typer.main.get_command(app)


class _Tree(Commands):
    """_Tree is the outermost group. It contains all commands and the options that may precede them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": None})
        _take_texts_as_given(self.params)
        self._sections = {name: section for section, names in SECTIONS.items() for name in names}
        # A command is None until it is needed, because its module is imported only then.
        self.commands: dict[str, Any] = dict.fromkeys(self._sections)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name in self.commands and self.commands[name] is None:
            self.commands[name] = command = _command(import_module(module_of(name)).app, name)
            vars(command).update(name=name, rich_help_panel=self._sections[name])
        return self.commands.get(name)

    def invoke(self, ctx: Any) -> Any:
        """Runs the given command. Turns the client's errors into one line on stderr and an exit code."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.TyperException):
            raise
        except KeyboardInterrupt:
            # A second Ctrl-C would only interrupt the cleanup.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise typer.Exit(130) from None
        except Exception as error:
            from trainmaster.client.errors import ClientError, WaitTimeout

            if not isinstance(error, ClientError):
                raise
            say(f"error: {error}", error=True)
            raise typer.Exit(3 if isinstance(error, WaitTimeout) else 1) from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command. Raises UsageError, which suggests kubectl for kubectl's own verbs."""
        if args[0] in KUBECTLS and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Use kubectl {args[0]} dtj.")
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]
        self, args: Any = None, prog_name: str | None = None, complete_var: str | None = None, **extra: Any
    ) -> Any:
        """Runs the program and exits. Reports wrong usage as kubectl does."""
        set_called(prog_name or self.name or called())
        variable = complete_var or f"_{called().upper().replace('-', '_').replace(' ', '_')}_COMPLETE"
        if os.environ.get(variable):
            from typer.completion import get_completion_inspect_parameters

            # This call registers the shells. Its result, typer's own options for completion, isn't needed,
            # because the command `completion` replaces them.
            get_completion_inspect_parameters()
            # Each choice must be one line, but rich would wrap the choice's help.
            os.environ["COLUMNS"] = "1000"
        try:
            code = super().main(args, called(), variable, **{**extra, "standalone_mode": False})
        except typer.TyperException as error:
            say(f"error: {error.format_message()}", error=True)
            if (ctx := getattr(error, "ctx", None)) is not None:
                say(f"See '{ctx.command_path} --help' for usage.", error=True)
            sys.exit(error.exit_code)
        except typer.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


class Part(typer.Typer):
    """Part contains a module's command or commands: `app = Part()`."""

    def __init__(self, **options: Any) -> None:
        settings = {"cls": Commands, "add_completion": False, "rich_markup_mode": None}
        super().__init__(**{**settings, "context_settings": _SETTINGS, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        return super().command(name, **{"cls": Command, "context_settings": _SETTINGS, **options})


class Program(Part):
    """Program contains all commands. It prints its own crashes safely, because exceptions may quote untrusted texts."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, cls=_Tree)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with short_lived():
            try:
                return super().__call__(*args, **kwargs)
            except Exception as error:
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    say("error: no space is left where the output or a file goes", error=True)
                else:
                    # Python's traceback would print the error's text unchanged.
                    say("".join(traceback.format_exception(error)), error=True)
                sys.exit(1)


def reworded(error: typer.BadParameter) -> typer.BadParameter:
    """Returns the error with our own message, without pydantic's text and the list of all variables."""
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):
        error.message = _sentence(error.__cause__.errors(include_url=False)[0]) or error.message
        error.param_hint = _source(error.param)
    return error


def _sentence(detail: ErrorDetails) -> str | None:
    from trainmaster_operator.api.values import out_of_range, show

    shown, context = show(detail["input"]), detail.get("ctx", {})
    match detail["type"]:
        case "int_parsing" | "int_from_float":
            return f"{shown} is no whole number"
        case "float_parsing" | "finite_number":
            return f"{shown} is no number"
        case "bool_parsing":
            return f"{shown} is neither true nor false; use one of the two"
        case "greater_than_equal" | "less_than_equal":
            return f"{shown} {out_of_range(context)}"
        case "value_error":
            return str(context["error"]).removesuffix(".")
    return None


def _source(parameter: Any) -> str:
    """Names the flag, and the environment variable that may contain the wrong value."""
    variables = parameter.envvar if isinstance(parameter.envvar, list) else [parameter.envvar]
    found = next((name for name in variables if name and os.environ.get(name)), None)
    flag = "/".join(parameter.opts)
    return flag if found is None else f"{flag} ({found})"


@contextmanager
def short_lived() -> Iterator[None]:
    """Ends the process with the code of the SystemExit that leaves this context.

    The process runs its `atexit` functions but doesn't finalize the interpreter, because that takes as long as a
    request to the API server, and a thread that still reads from a connection can block it.
    https://docs.python.org/3/library/threading.html#thread-objects (daemon threads)
    """
    codes: list[int] = []
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(_end, codes)
    try:
        yield
    except SystemExit as leaving:
        if isinstance(leaving.code, int | None):
            codes.append(leaving.code or 0)
        raise


def _end(codes: list[int]) -> None:
    if not codes:
        # Python then prints an uncaught error, or the text of a SystemExit.
        return
    code = codes[-1]
    for stream in (sys.stdout, sys.stderr):
        try:
            # A stream is None if the process was started without it.
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # The pipe's reader is gone, the disk is full, or the stream is closed.
            code = code or UNWRITTEN
    os._exit(code)
