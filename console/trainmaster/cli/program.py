"""One tree of commands is two programs: `trainmaster`, and `kubectl dtj`, which kubectl finds as `kubectl-dtj`.

`Program` is the tree, and `Part` one command of it (or a group such as `local`), which `commands` lists. The module of
a part is imported when its command runs, when the help of all is shown, and when a command's name is completed.

Options of the connection (`connection.py`) may stand before a command and behind it: the latter count. Exit codes: 0
done, 1 failed or refused, 2 wrong usage, 3 the time given was over, 130 interrupted. An error is a sentence on stderr.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from trainmaster.cli.commands import KUBECTLS, SECTIONS, module_of
from trainmaster.cli.connection import OPTIONS
from trainmaster.cli.process import short_lived
from trainmaster.cli.terminal import say
from trainmaster.cli.wrong_values import reworded

_SETTINGS = {"help_option_names": ["-h", "--help"]}
Function = TypeVar("Function", bound=Callable[..., Any])
# A metavar may have brackets of its own: [[FILE | -- COMMAND...]]...
_IN_BRACKETS_TWICE = re.compile(r"^\[(\[.*\])\](\.\.\.)?$")
_COMMANDS, _OPTIONS = "Commands", "Options"
_called = "kubectl dtj"


def called() -> str:
    """Returns how this program is called, for commands in sentences."""
    return _called


def first_sentence(help: str | None) -> str:
    """Returns the first sentence of a command's help, without its full stop."""
    return " ".join(re.split(r"\.(?:\s|$)", help or "", maxsplit=1)[0].split())


class _Defaults(dict[str, Any]):
    """_Defaults are the same for every command: the options that stood before it."""

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the defaults of a command's options."""
        return dict(self)


class _AsGiven:
    """_AsGiven takes a text as it is. typer would have pydantic build a validator for each option that is a text."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Returns the value."""
        return value


def _take_texts_as_given(parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)
        if getattr(descriptor, "annotation", None) is str and not getattr(parameter, "multiple", False):
            # Where a later typer keeps its validators elsewhere, it builds them: that takes longer, and is no other.
            vars(parameter)["_runtime_param"] = _AsGiven()


class Command(TyperCommand):
    """A command's help has its options in sections. It is plain text, as kubectl's is, and one line a thing."""

    def __init__(self, name: str | None, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        _take_texts_as_given(self.params)

    def get_short_help_str(self, limit: int = 0) -> str:
        """Returns the first sentence, which lists of commands show whole."""
        return first_sentence(self.help)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the usage line's words: what is needed stands plain, what isn't in brackets, once."""
        pieces = [piece.translate({ord("{"): None, ord("}"): None}) for piece in super().collect_usage_pieces(ctx)]
        return [_IN_BRACKETS_TWICE.sub(r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments, then the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else _OPTIONS
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sorted(sections.items(), key=lambda item: item[0] not in ("Arguments", _OPTIONS)):
            with formatter.section(title):
                formatter.write_dl(records)


class Commands(TyperGroup):
    """A group of commands refuses options and values that one can't have by a sentence."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Returns the first sentence, which lists of commands show whole."""
        return first_sentence(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the options before the command, which are defaults of its own; without arguments the help is shown."""
        rest = super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])
        given = {name: value for name in OPTIONS if (value := ctx.params.get(name)) is not None}
        ctx.default_map = _Defaults({**(ctx.default_map or {}), **given})
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that the arguments name. Raises UsageError for options before it that it doesn't take."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, TyperGroup) and not ctx.resilient_parsing:
            for option in sorted(set(ctx.default_map) - {parameter.name for parameter in command.params}):
                flag = OPTIONS[option].flag
                later = any(flag in parameter.opts for parameter in command.params)
                remedy = f"give it behind '{name}', where it means something else" if later else "leave it out"
                ctx.fail(f"'{name}' doesn't take {flag} of the connection; {remedy}")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was given. Raises BadParameter."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            raise reworded(error) from error.__cause__

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands by section, then the options."""
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


class _Registered(Mapping[str, Any]):
    """_Registered are the commands that `commands` lists, each imported when it is asked for."""

    def __init__(self) -> None:
        self._sections = {name: section for section, names in SECTIONS.items() for name in names}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            section = self._sections[name]
            command = typer.main.get_command(import_module(module_of(name)).app)
            vars(command).update(name=name, rich_help_panel=section)
            self._loaded[name] = command
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


class _Tree(Commands):
    """_Tree is the outermost group: all commands, and what is before them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": None})
        _take_texts_as_given(self.params)
        self.commands: Any = _Registered()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command; a verb that kubectl itself has for jobs is sent there. Raises UsageError."""
        if args[0] in KUBECTLS and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Use kubectl {args[0]} dtj.")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the program and exits. Wrong usage is said as kubectl says it."""
        global _called
        _called = prog_name or self.name or _called
        variable = complete_var or f"_{_called.upper().replace('-', '_').replace(' ', '_')}_COMPLETE"
        if os.environ.get(variable):
            from typer.completion import get_completion_inspect_parameters

            # Only by the way does it register the shells; the options that it returns are the command `completion`.
            get_completion_inspect_parameters()
            # A choice is one line, and typer has rich wrap its help.
            os.environ["COLUMNS"] = "1000"
        try:
            code = super().main(args, _called, variable, standalone_mode=False, **extra)
        except typer.TyperException as error:
            say(f"error: {error.format_message()}", error=True)
            if (ctx := getattr(error, "ctx", None)) is not None:
                say(f"See '{ctx.command_path} --help' for usage.", error=True)
            sys.exit(error.exit_code)
        except typer.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


class Part(typer.Typer):
    """Part is a command, or a group of them, in a module of its own: `app = Part()`."""

    def __init__(self, **options: Any) -> None:
        settings = {"cls": Commands, "add_completion": False, "rich_markup_mode": None}
        super().__init__(**{**settings, "context_settings": _SETTINGS, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Returns the decorator of a command's function."""
        return super().command(name, **{"cls": Command, "context_settings": _SETTINGS, **options})


class Program(Part):
    """Program reports its own faults as it prints everything else: an exception quotes texts of others."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name=name, **{"cls": _Tree, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command of the process's arguments."""
        with short_lived():
            try:
                return super().__call__(*args, **kwargs)
            except Exception as error:
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    say("error: no space is left where the output or a file goes", error=True)
                else:
                    # No caller could handle the error, and Python's own traceback would print it as it is.
                    say("".join(traceback.format_exception(error)), error=True)
                sys.exit(1)
