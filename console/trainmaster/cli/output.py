"""Writes commands' results: prints objects in the format of `-o`, as kubectl does, and creates files."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.terminal import say, write


def format_option(formats: Sequence[str], help: str, *flags: str, **more: Any) -> Any:
    """Returns an option whose value is one of these formats."""

    def known(value: str | None) -> str | None:
        if value is not None and value not in formats:
            raise typer.BadParameter(f"{value!r} is not known; use {' or '.join(formats)}")
        return value

    more |= {"metavar": "|".join(formats), "autocompletion": lambda: list(formats)}
    return typer.Option(*flags, help=help, callback=known, **more)


_OBJECTS, _FLAGS = ("json", "yaml"), ("--output", "-o")
_JOBS_FORMATS = "Output format: whole objects, names only, or more columns."
# The first option is for commands that print jobs, the second for commands that print other objects.
Output = Annotated[str | None, format_option((*_OBJECTS, "name", "wide"), _JOBS_FORMATS, *_FLAGS)]
ObjectOutput = Annotated[str | None, format_option(_OBJECTS, "Output format.", *_FLAGS)]


def print_object(raw: Mapping[str, Any], output: str) -> None:
    if output == "name":
        say(object_name(raw["metadata"]["name"]))
    else:
        print_value(shown_object(raw), output)


def print_list(objects: Iterable[Mapping[str, Any]], output: str) -> None:
    """Prints objects as a list in json or yaml, or jobs' names."""
    if output == "name":
        for raw in objects:
            print_object(raw, output)
        return
    items = [shown_object(raw) for raw in objects]
    print_value({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}, output)


def print_document(raw: Mapping[str, Any], output: str) -> None:
    """Prints one of several objects that arrive over time, as kubectl does, but in JSON each object takes one line."""
    if output == "json":
        from trainmaster_operator.api.printable import json_line

        write(json_line(shown_object(raw)) + "\n")
        return
    if output == "yaml":
        write("---\n")
    print_object(raw, output)


def print_value(value: Any, output: str) -> None:
    if output == "json":
        from trainmaster_operator.api.printable import json_text

        write(json_text(value) + "\n")
    else:
        from trainmaster.cli.yaml_values import yaml_text

        write(yaml_text([value]))


def object_name(name: str) -> str:
    """Returns a job's name as kubectl prints it. Other commands accept this form."""
    from trainmaster_operator.api.v1alpha1 import GROUP, SINGULAR

    return f"{SINGULAR}.{GROUP}/{name}"


def shown_object(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without managedFields, as kubectl shows it."""
    metadata = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    return {**raw, "metadata": metadata}


def require_room(path: Path, *, force: bool) -> None:
    """Raises ClientError if the file exists and `force` isn't set, or if the path is anything but a file.

    Links are neither replaced nor followed, because they may lead to other users' files.
    """
    from trainmaster.client.errors import ClientError

    if path.is_symlink():
        raise ClientError(f"{path} is a link to {path.readlink()}; name another file, or remove the link")
    if not path.exists():
        return
    if not path.is_file():
        raise ClientError(f"{path} exists and is no file; name another")
    if not force:
        raise ClientError(f"{path} exists already; --force replaces it")


def write_files(contents: Mapping[Path, bytes], *, force: bool) -> None:
    """Writes files and creates their folders. Raises ClientError.

    Unless `force` is set, nothing is written if a file exists with different content.
    """
    from trainmaster.client.errors import ClientError

    try:
        for path, content in contents.items():
            require_room(path, force=force or (path.is_file() and path.read_bytes() == content))
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
    except OSError as error:
        raise ClientError(f"{error.filename}: {error.strerror}; name a folder that can be written") from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a file atomically, through a temporary file in the same folder. Raises OSError with the file's name."""
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as out:
            out.write(content)
        beside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)
