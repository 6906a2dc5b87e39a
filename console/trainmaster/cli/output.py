"""`-o` is defined here once. As of kubectl, json and yaml print objects, name their names, and wide more columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import say, write

if TYPE_CHECKING:
    from trainmaster.client import TrainingJob

FORMATS = ("json", "yaml", "name", "wide")


def output_option(*formats: str, help: str | None = None) -> Any:
    """Returns the option `-o` of a command that knows these formats."""

    def known(value: str | None) -> str | None:
        if value is not None and value not in formats:
            raise typer.BadParameter(f"{value!r} is not known; use {' or '.join(formats)}")
        return value

    def complete(incomplete: str) -> list[str]:
        return [each for each in formats if each.startswith(incomplete)]

    return typer.Option(
        *("--output", "-o"),
        metavar="|".join(formats),
        help=help or "Print whole objects, only names, or more columns.",
        callback=known,
        autocompletion=complete,
    )


# Of commands that print jobs.
Output = Annotated[str | None, output_option(*FORMATS)]
# Of commands that print anything else for programs.
ObjectOutput = Annotated[str | None, output_option("json", "yaml", help="Print it for a program.")]


def print_jobs(jobs: Sequence[TrainingJob], output: str, *, listed: bool = False) -> None:
    """Prints jobs as json, yaml or name; `listed` says that they are a list even where there is one."""
    if output == "name":
        for job in jobs:
            say(object_name(job))
        return
    objects = [shown_object(job.raw) for job in jobs]
    if len(objects) == 1 and not listed:
        print_value(objects[0], output)
    else:
        whole = {"apiVersion": "v1", "items": objects, "kind": "List", "metadata": {"resourceVersion": ""}}
        print_value(whole, output)


def print_value(value: Any, output: str) -> None:
    """Prints a value as json or yaml."""
    if output == "json":
        from trainmaster_operator.api.printable import json_text

        write(json_text(value) + "\n")
    else:
        from trainmaster.cli.yaml_output import yaml_text

        write(yaml_text([value]))


def object_name(job: TrainingJob) -> str:
    """Returns a job's name as kubectl prints it, for another command's argument."""
    return qualified(job.name)


def qualified(name: str) -> str:
    """Returns the same of a name."""
    from trainmaster_operator.api.v1alpha1 import GROUP, SINGULAR

    return f"{SINGULAR}.{GROUP}/{name}"


def shown_object(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without what only the API server needs, as kubectl shows it."""
    metadata = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    return {**raw, "metadata": metadata}
