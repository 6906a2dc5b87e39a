"""Columns go to a file of CSV, JSON or Parquet, which is there whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from trainmaster.cli.output import write_file
from trainmaster.cli.terminal import write

FORMATS = ("csv", "json", "parquet")
STDOUT = "-"
_WHOLE = ("attempt", "step", "rank", "worker")
_FLAGS = ("redone",)
Columns = Mapping[str, Sequence[Any]]


def format_of(file: str, given: str | None) -> str:
    """Returns the format that is given, or that the file's suffix names. Raises BadParameter."""
    found = given or Path(file).suffix.removeprefix(".").lower()
    if found not in FORMATS:
        where = "stdout" if file == STDOUT else file
        raise typer.BadParameter(
            f"what format is {where} to have? Give --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            param_hint="--export",
        )
    if found == "parquet" and file == STDOUT:
        raise typer.BadParameter("Parquet goes to a file; csv and json go to stdout too", param_hint="--export")
    return found


def require_parquet() -> None:
    """Raises ClientError where Parquet can't be written."""
    from importlib.util import find_spec

    from trainmaster.client import ClientError

    if find_spec("pyarrow") is None:
        raise ClientError("Parquet needs pyarrow: pip install 'trainmaster[parquet]'")


def export(columns: Columns, file: str, format: str) -> None:
    """Writes columns of one length. Raises ClientError for a file that can't be written."""
    from trainmaster.client import ClientError

    content = {"csv": _csv, "json": _json, "parquet": _parquet}[format](columns)
    if file == STDOUT:
        write(content.decode())
        return
    try:
        write_file(Path(file), content)
    except OSError as error:
        raise ClientError(f"{file} can't be written: {error.strerror or error}") from error


def _csv(columns: Columns) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in row])
    return out.getvalue().encode()


def _json(columns: Columns) -> bytes:
    return (json.dumps(columns, separators=(",", ":")) + "\n").encode()


def _parquet(columns: Columns) -> bytes:
    import pyarrow
    import pyarrow.parquet

    types = {
        name: pyarrow.bool_() if name in _FLAGS else pyarrow.int64() if name in _WHOLE else pyarrow.float64()
        for name in columns
    }
    table = pyarrow.table({name: pyarrow.array(values, types[name]) for name, values in columns.items()})
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    return out.getvalue()
