"""`trainmaster-operator run` starts the operator; `trainmaster-operator keys` rotates its signing keys.

Each option is generated from a field of `OperatorSettings` and can be set by an environment variable. The console's
`trainmaster operator` runs this program, too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import Field
from importlib.util import find_spec
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from trainmaster_operator import __version__
from trainmaster_operator.api.options import InvalidSetting, Option, options_of
from trainmaster_operator.controller.settings import OperatorSettings

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_WHOLE = {int: "whole number", float: "number"}


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage as kubectl does: it prints the error, and how to get help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def format_help(self) -> str:
        """Returns the help, whose beginning looks like the help of the console's commands."""
        return super().format_help().replace("usage: ", "Usage: ", 1)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\nSee '{self.prog} --help' for usage.\n")


def main(arguments: Sequence[str] | None = None, program: str = "trainmaster-operator") -> int:
    """Runs the command in `arguments` (by default the process's arguments) and returns its exit code."""
    parser = _Parser(prog=program, description="Run the operator, or rotate its keys.")
    parser.add_argument("--version", action="version", version=f"trainmaster-operator {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_keys(commands)
    given = parser.parse_args(arguments)
    if find_spec("kopf") is None:
        # The console installs this package only for its models, without the controller's dependencies.
        parser.exit(1, "error: the operator isn't installed: pip install 'trainmaster-operator[controller]'\n")
    code: int = given.function(given)
    return code


def _add_run(commands: Any) -> None:
    parser: _Parser = commands.add_parser(
        "run",
        usage="%(prog)s [OPTIONS]",
        help="run the operator until it gets SIGTERM or SIGINT",
        description="Run the operator until it gets SIGTERM or SIGINT.\n\nIt finds the API server by the pod's service "
        "account, or by a kubeconfig. The exit code\nis 1 if it can't continue, for example because it lost its lease. "
        "Its Deployment then\nstarts it again.",
    )
    for setting, option in options_of(OperatorSettings):
        _add_option(parser, setting, option)

    def run(given: argparse.Namespace) -> int:
        try:
            return _run(parse_settings(vars(given)))
        except InvalidSetting as error:
            parser.error(str(error))

    parser.set_defaults(function=run)


def _add_option(parser: argparse.ArgumentParser, setting: Field[Any], option: Option) -> None:
    default = option.default_text or _shown(setting.default)
    notes = [*option.variables, *([f"default: {default}"] if default else [])]
    annotation = get_type_hints(OperatorSettings)[setting.name]
    how: dict[str, Any] = {"metavar": "|".join(_choices(annotation)) or option.name.upper()}
    if annotation is bool:
        how = {"action": argparse.BooleanOptionalAction}
    elif get_origin(annotation) is tuple:
        how["action"] = "append"
    parser.add_argument(
        *([f"-{option.short}"] if option.short else []),
        f"--{option.name}",
        dest=setting.name,
        help=argparse.SUPPRESS if option.hidden else f"{option.help} [{'; '.join(notes)}]".replace("%", "%%"),
        **how,
    )


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default in (None, ()) else str(default)


def _choices(annotation: Any) -> tuple[str, ...]:
    return tuple(value for value in get_args(annotation) if isinstance(value, str))


def parse_settings(given: dict[str, Any]) -> OperatorSettings:
    """Returns the settings from the given values by field, or else from the environment. Raises InvalidSetting."""
    values: dict[str, Any] = {}
    for setting, option in options_of(OperatorSettings):
        value, name = given.get(setting.name), f"--{option.name}"
        if value is None:
            variable = next((each for each in option.variables if os.environ.get(each)), "")
            value, name = os.environ.get(variable), f"{name} ({variable})"
        if value in (None, ""):
            continue
        try:
            values[setting.name] = option.parse(_typed(value, get_type_hints(OperatorSettings)[setting.name], option))
        except InvalidSetting as error:
            raise InvalidSetting(f"{name}: {error}") from error
    everywhere, namespaces = values.get("all_namespaces", False), values.get("namespaces", ())
    if everywhere and namespaces:
        raise InvalidSetting("give either --namespace or --all-namespaces, not both")
    if not everywhere and not namespaces:
        raise InvalidSetting("choose which jobs to serve: --namespace NAME (repeatable) or --all-namespaces")
    if namespaces:
        values.setdefault("lease_namespace", namespaces[0])
    return OperatorSettings(**values)


def _typed(value: Any, annotation: Any, option: Option) -> Any:
    """Converts the value to the field's type. Raises InvalidSetting."""
    if not isinstance(value, str):
        return value
    if get_origin(annotation) is tuple:
        return [value]
    if annotation is bool:
        if value.lower() not in _BOOLEANS:
            raise InvalidSetting(f"{value!r} is neither true nor false; use one of the two")
        return _BOOLEANS[value.lower()]
    if choices := _choices(annotation):
        found = next((choice for choice in choices if choice.lower() == value.lower()), None)
        if found is None:
            raise InvalidSetting(f"{value!r} is not one of {', '.join(map(repr, choices))}")
        return found
    number = next((type for type in (int, float) if type in (annotation, *get_args(annotation))), None)
    if number is None:
        return value
    try:
        read = number(value)
    except ValueError as error:
        raise InvalidSetting(f"{value!r} is no {_WHOLE[number]}") from error
    # NaN is refused too, because every comparison with NaN is false.
    if option.least is not None and not read >= option.least:
        raise InvalidSetting(f"{value!r} is too small; use at least {option.least:g}")
    if option.most is not None and not read <= option.most:
        raise InvalidSetting(f"{value!r} is too large; use at most {option.most:g}")
    return read


def _run(settings: OperatorSettings) -> int:
    from trainmaster_operator.controller.apiserver.connection import ConnectionSettingsError
    from trainmaster_operator.controller.app import Operator, OperatorError
    from trainmaster_operator.reconciling import decide
    from trainmaster_operator.serving import stop_event
    from trainmaster_operator.serving.logs import set_up

    set_up(settings.log_format, settings.log_level)
    # Imported modules are never freed. Once they are frozen, the garbage collector no longer walks over them whenever a
    # large job is decoded into hundreds of thousands of objects. Each such walk would block everything else for 60 ms.
    gc.freeze()
    # Almost everything that is allocated here is decoded JSON, which has no cycles. When 100 jobs were applied at once,
    # Python's default thresholds (700, 10, 10) caused 760 collections, which took 12 % of the operator's CPU time. With
    # the thresholds below, there were 22 collections, which took 6 %.
    gc.set_threshold(20_000, 20, 50)

    async def operate() -> None:
        await Operator(settings, decide).run(stop_event())

    try:
        asyncio.run(operate())
    except (OperatorError, ConnectionSettingsError) as error:
        print(f"trainmaster operator: {error}", file=sys.stderr)
        return 1
    return 0


def _add_keys(commands: Any) -> None:
    description = "Rotate the keys that the operator signs assignments with."
    keys = commands.add_parser("keys", help="rotate the operator's keys", description=description)
    both = keys.add_subparsers(metavar="COMMAND", required=True)
    rotate = both.add_parser(
        "rotate",
        help="add a new key in front of the others",
        description="Add a new key in front of the others. After the operator's restart all keys sign, and new pods "
        "know all.",
    )
    prune = both.add_parser(
        "prune",
        help="remove all keys but the newest",
        description="Remove all keys but the newest. Pods that don't know the newest key would refuse every "
        "assignment, so the command fails while there are any.",
    )
    prune.add_argument("--force", action="store_true", help="Remove them even if pods don't know the newest key.")
    for parser in (rotate, prune):
        home = os.environ.get("TRAINMASTER_LEASE_NAMESPACE") or OperatorSettings.lease_namespace
        parser.add_argument(
            *("-n", "--namespace"),
            default=home,
            help=f"Namespace of the operator. [TRAINMASTER_LEASE_NAMESPACE; default: {home}]",
        )
        for name, help in (("kubeconfig", "Kubeconfig file."), ("context", "Context of the kubeconfig.")):
            variable = f"TRAINMASTER_{name.upper()}"
            parser.add_argument(f"--{name}", default=os.environ.get(variable), help=f"{help} [{variable}]")
    rotate.set_defaults(function=_change_keys, prunes=False, force=False)
    prune.set_defaults(function=_change_keys, prunes=True)


def _change_keys(given: argparse.Namespace) -> int:
    from trainmaster_operator.controller import keys

    changing = keys.change_keys(
        given.namespace, given.kubeconfig, given.context, prunes=given.prunes, force=given.force
    )
    try:
        print(asyncio.run(changing))
    except keys.KeysError as error:
        print(f"trainmaster operator keys: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
