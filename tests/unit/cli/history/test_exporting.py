"""Curves and ranks' figures are exported as CSV, JSON and Parquet, and read back they equal the recorded values."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.dtj_command import run
from tests.unit.client.history.recorded import RecordedHistory
from trainmaster.client.blocking import Blocking
from trainmaster.client.blocking import run as run_coroutine
from trainmaster.client.history import HistoryReader, curves, rank_figures

Columns = dict[str, list[Any]]


def wanted(history: RecordedHistory, *, ranks: bool) -> Columns:
    reader = HistoryReader(Blocking(history))
    if ranks:
        return run_coroutine(rank_figures(reader, "team", "bert-mrpc"))[0]
    return run_coroutine(curves(reader, "team", "bert-mrpc"))


def of_csv(text: str) -> Columns:
    rows = csv.DictReader(io.StringIO(text))
    found: Columns = {name: [] for name in rows.fieldnames or ()}
    for row in rows:
        for name, value in row.items():
            found[name].append(
                {"": None, "true": True, "false": False}.get(value) if value in ("", "true", "false") else float(value)
            )
    return found


def of_file(file: Path) -> Columns:
    match file.suffix:
        case ".csv":
            return of_csv(file.read_text())
        case ".json":
            return dict(json.loads(file.read_text()))
        case _:
            import pyarrow.parquet

            return dict(pyarrow.parquet.read_table(file).to_pydict())


@pytest.mark.parametrize("ranks", [False, True], ids=["curves", "ranks"])
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_what_is_read_back_is_what_was_recorded(
    history: RecordedHistory, tmp_path: Path, format: str, ranks: bool
) -> None:
    # The gap is null in each format.
    history.points[3]["loss"] = history.points[3]["ranks"]["loss"][1] = None
    file = tmp_path / f"bert.{format}"
    result = run("history", "bert-mrpc", "--export", str(file), *(["--ranks"] if ranks else []))
    columns = wanted(history, ranks=ranks)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{file}: {len(columns['at'])} rows, {len(columns)} columns\n"
    found = of_file(file)
    assert list(found) == list(columns)
    assert found == columns
    assert None in found["loss"] and list(tmp_path.iterdir()) == [file]


def test_parquet_has_types(history: RecordedHistory, tmp_path: Path) -> None:
    import pyarrow.parquet

    file = tmp_path / "bert.parquet"
    run("history", "bert-mrpc", "--export", str(file))
    schema = {field.name: str(field.type) for field in pyarrow.parquet.read_schema(file)}
    assert (schema["at"], schema["step"], schema["redone"], schema["timeSpent.stall"]) == (
        *("double", "int64", "bool", "double"),
    )


@pytest.mark.parametrize("format", ["csv", "json"])
def test_stdout_has_the_file_alone(history: RecordedHistory, format: str) -> None:
    result = run("history", "bert-mrpc", "--export", "-", "--format", format)
    found = of_csv(result.stdout) if format == "csv" else json.loads(result.stdout)
    assert (found, result.stderr) == (wanted(history, ranks=False), "")


def test_the_format_that_is_given_counts_before_the_suffix(history: RecordedHistory, tmp_path: Path) -> None:
    file = tmp_path / "bert.CSV"
    run("history", "bert-mrpc", "--export", str(file), "--format", "json")
    assert json.loads(file.read_text())["at"]
    run("history", "bert-mrpc", "--export", str(file), "--force")
    assert file.read_text().startswith("at,attempt,step,loss,")


def test_a_file_that_is_there_is_replaced_by_force_alone(history: RecordedHistory, tmp_path: Path) -> None:
    file = tmp_path / "bert.csv"
    file.write_text("mine")
    result = run("history", "bert-mrpc", "--export", str(file))
    assert (result.exit_code, result.stderr) == (1, f"error: {file} exists already; --force replaces it\n")
    assert (file.read_text(), history.asked) == ("mine", [])
    assert run("history", "bert-mrpc", "--export", str(file), "--force").exit_code == 0
    assert file.read_text().startswith("at,")


def test_nothing_is_written_through_a_link(history: RecordedHistory, tmp_path: Path) -> None:
    file, link = tmp_path / "bert.csv", tmp_path / "link.csv"
    file.write_text("mine")
    link.symlink_to(file)
    result = run("history", "bert-mrpc", "--export", str(link), "--force")
    assert (result.exit_code, file.read_text()) == (1, "mine")
    assert result.stderr == f"error: {link} is a link to {file}; name another file, or remove the link\n"


def test_what_is_no_file_is_never_replaced(history: RecordedHistory, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for place in (str(tmp_path / "folder.csv"), "/dev/null"):
        result = run("history", "bert-mrpc", "--export", place, "--format", "csv", "--force")
        assert result.exit_code == 1 and f"{place} exists and is no file" in result.stderr


def test_where_nothing_can_be_written_is_a_sentence(history: RecordedHistory, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "bert.csv"
    result = run("history", "bert-mrpc", "--export", str(file))
    assert result.exit_code == 1
    assert result.stderr == f"error: {file} can't be written: No such file or directory\n"


def test_a_history_that_breaks_leaves_no_file(history: RecordedHistory, tmp_path: Path) -> None:
    history.answers["series"] = {"kind": "Series", "at": [1.0], "loss": []}
    file = tmp_path / "bert.csv"
    assert run("history", "bert-mrpc", "--export", str(file)).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_is_a_sentence(
    history: RecordedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pyarrow" else find(name, *more)
    )
    result = run("history", "bert-mrpc", "--export", str(tmp_path / "bert.parquet"))
    assert (result.exit_code, result.stderr) == (
        1,
        "error: Parquet needs pyarrow: pip install 'trainmaster[parquet]'\n",
    )
    assert history.asked == []


def test_ranks_that_the_history_leaves_out_are_said(history: RecordedHistory, tmp_path: Path) -> None:
    history.answers["heat"] = {
        **{"kind": "RankHeat", "resolutionSeconds": 1e9, "at": [5.0], "attempt": [1], "leftOut": 3072},
        **{"ranks": [0], "workers": [0], "values": [[0.5]]},
    }
    result = run("history", "bert-mrpc", "--export", str(tmp_path / "bert.csv"), "--ranks")
    assert result.stderr == "3072 ranks are left out: the history can't show so many at once.\n"
