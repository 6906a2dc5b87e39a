"""`trainloop checkpoints COMMAND DIR …` lists, compares, tags, verifies, exports and deletes a run's checkpoints.

Exit code 0 means success, 1 that the command failed or found damage, and 2 wrong usage. Commands that read weights
import torch when they need it, so that the other commands are quick. The shell completes checkpoints and tags if
argcomplete is installed (`pip install 'trainmaster-trainloop[completion]'`), and if ~/.bashrc or ~/.zshrc contains
`eval "$(register-python-argcomplete trainloop)"`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainloop.checkpoints.storage import CheckpointError
from trainloop.errors import TrainingError
from trainloop.versions import command, output

NAMES = """\
a checkpoint is named by
  step-000001300.1      its name, or the beginning of one
  1300, 1300.2          its step (the newest version), or step and version
  good                  a tag
  latest                the newest one that is complete
  best, best:accuracy   the one with the best result (best:loss:min: the least)"""
#: Exit codes after Ctrl-C and after a closed pipe (`| head`), as shells report them for programs that a signal ended.
EXIT_INTERRUPTED, EXIT_PIPE = 130, 141


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Adds `checkpoints` to the program's parser, and runs the command in `arguments`; returns the exit code."""
    _add_commands(parser)
    if "_ARGCOMPLETE" in os.environ:
        return command.complete(parser)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # argparse itself would print the usage of the whole program
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (TrainingError, CheckpointError) as error:
        output.say(str(error))
        return error.exit_code if isinstance(error, TrainingError) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the remaining output must not fail again
        return EXIT_PIPE
    except OSError as error:  # a volume without rights, a file in place of a directory
        output.say(f"{error.filename or options.directory} can't be used: {error.strerror}")
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds `checkpoints` and its commands to the program's parser."""
    about = "List, compare, tag, verify, export and delete a run's checkpoints"
    commands = parser.add_subparsers(title="commands", metavar="COMMAND").add_parser(
        "checkpoints",
        help=about,
        description=f"{about}.",
        epilog=f"{NAMES}\n\nexit codes: 0 done, 1 not done or damage found, 2 asked wrongly",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands.set_defaults(run=None)
    add = commands.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = _command(add, "list", "inspecting", "list_", "List the checkpoints of a directory, newest first.", "DIR")
    _output(one)

    one = _command(
        add,
        "show",
        "inspecting",
        "show",
        "Show everything known about one checkpoint.",
        "DIR best:accuracy",
        names=True,
    )
    _checkpoint(one, "checkpoint", "CHECKPOINT")
    _output(one)

    one = _command(
        add,
        "diff",
        "differences",
        "diff",
        "Show what differs between two checkpoints: settings, results, weights.",
        "DIR 1200 latest",
        names=True,
    )
    begin = "trainloop checkpoints diff [OPTION ...]"
    one.usage = f"{begin} DIR BEFORE AFTER\n       {begin} DIR/BEFORE DIR/AFTER"
    _checkpoint(one, "before", "BEFORE")
    _checkpoint(one, "after", "AFTER", nargs="?")
    one.add_argument(
        "--top", type=_positive, default=20, metavar="N", help="Print at most N rows about weights (default: 20)"
    )
    one.add_argument("--all", action="store_true", help="Print every tensor that differs, not by layer")
    one.add_argument("--exit-code", action="store_true", help="Exit with 1 when anything differs, as git diff does")
    _output(one)

    one = _command(
        add,
        "tag",
        "changing",
        "tag",
        "Tag a checkpoint, which keeps it; without a checkpoint list tags.",
        "DIR best:accuracy good",
        names=True,
    )
    _checkpoint(one, "checkpoint", "CHECKPOINT", nargs="?")
    one.add_argument("name", nargs="?", metavar="TAG", help="letters, digits, '.', '_' and '-'")
    one.add_argument("-d", "--delete", action="store_true", help="Delete a tag: tag --delete DIR TAG")
    one.add_argument("-f", "--force", action="store_true", help="Move a tag that another checkpoint has")

    one = _command(
        add,
        "verify",
        "inspecting",
        "verify_",
        "Read every byte and compare it with the manifest's SHA-256.",
        "DIR latest",
        names=True,
    )
    _checkpoint(one, "checkpoints", "CHECKPOINT", nargs="*", text="default: all")
    _output(one)

    one = _command(
        add,
        "export",
        "changing",
        "export",
        "Write a checkpoint's weights alone as safetensors.",
        "DIR good model.safetensors --dtype bf16",
        names=True,
    )
    _checkpoint(one, "checkpoint", "CHECKPOINT")
    one.add_argument("file", type=Path, metavar="FILE", help="Write to this file, which appears when it is complete")
    one.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), help="Convert floating-point weights (default: own type)"
    )
    one.add_argument("-f", "--force", action="store_true", help="Replace a file that is there")

    one = _command(
        add,
        "prune",
        "changing",
        "prune",
        "Delete old checkpoints by a run's own rule: the newest ones, the "
        "best one and those with a tag stay, and always the newest that verifies.",
        "DIR --keep 3 --dry-run",
    )
    one.add_argument("--keep", type=_positive, required=True, metavar="N", help="Keep the N newest checkpoints")
    one.add_argument(
        "--best",
        metavar="RESULT",
        help="Keep the best by: accuracy, loss:min (default: the run's checkpoint.best)",
    )
    one.add_argument("-n", "--dry-run", action="store_true", help="Print what would be deleted, and delete nothing")
    _output(one)


def _command(
    add: Any, name: str, module: str, function: str, text: str, example: str, *, names: bool = False
) -> argparse.ArgumentParser:
    """Adds a command whose module is imported only when the command runs; returns its parser."""
    epilog = f"example:\n  $ trainloop checkpoints {name} {example}" + (f"\n\n{NAMES}" if names else "")
    parser: argparse.ArgumentParser = add.add_parser(
        name,
        help=text.rstrip("."),
        description=textwrap.fill(text, 80),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def run(options: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"trainloop.versions.{module}"), function)(options)
        return code

    parser.set_defaults(run=run, parser=parser)
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="Use this directory of checkpoints (checkpoint.path)"
    )
    return parser


def _checkpoint(
    parser: argparse.ArgumentParser,
    name: str,
    metavar: str,
    *,
    text: str = "name, step, tag, latest or best",
    **more: Any,
) -> None:
    argument = parser.add_argument(name, metavar=metavar, help=text, **more)
    argument.completer = command.checkpoints  # type: ignore[attr-defined]


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="Print a table, or every field as json"
    )


def _positive(text: str) -> int:
    """Returns the number in an argument, which must be at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def complete(parser: argparse.ArgumentParser) -> int:
    """Answers the shell's completion request and ends; returns an exit code if argcomplete isn't installed."""
    try:
        import argcomplete
    except ImportError:
        return 1
    argcomplete.autocomplete(parser)
    return 0


def checkpoints(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns the names of the directory's checkpoints, for the shell."""
    from trainloop.versions.catalog import CommandError, versions

    try:
        found = versions(parsed_args.directory)
    except CommandError:
        return []
    return ["latest", *(version.name for version in found), *(tag for version in found for tag in version.tags)]
