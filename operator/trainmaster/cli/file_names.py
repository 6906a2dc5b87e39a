"""Files of manifests are named in the same way in every command that reads some."""

from __future__ import annotations

from typing import Annotated

import typer

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="YAML or JSON files with one or more documents, or folders; - is stdin."),
]
