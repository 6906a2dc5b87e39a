"""The shell completes commands, options, checkpoints and tags, where argcomplete is installed.

pip install 'trainmaster-trainloop[completion]'
eval "$(register-python-argcomplete trainloop)"    # in ~/.bashrc or ~/.zshrc
"""

from __future__ import annotations

import argparse
from typing import Any


def complete(parser: argparse.ArgumentParser) -> int:
    """Answer the shell's question for what comes next, and end; returns an exit code where argcomplete isn't there."""
    try:
        import argcomplete
    except ImportError:
        return 1
    argcomplete.autocomplete(parser)
    return 0


def checkpoints(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns what a checkpoint of the directory that stands before can be called."""
    from trainloop.versions.catalog import CommandError, versions

    try:
        found = versions(parsed_args.directory)
    except CommandError:
        return []
    return ["latest", *(version.name for version in found), *(tag for version in found for tag in version.tags)]
