"""Files of manifests are named in the same way in every command that reads some; paths are completed by the shell."""

from __future__ import annotations

from typing import Annotated

import typer

_completed: list[str] = []


def complete_path(incomplete: str) -> list[str]:
    """Returns no completions, after which a shell completes paths by itself."""
    _completed.append(incomplete)
    return []


def path_completed() -> bool:
    """Returns whether what was completed is a path."""
    return bool(_completed)


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="YAML or JSON files with one or more documents, or folders; - is stdin.",
        autocompletion=complete_path,
    ),
]
