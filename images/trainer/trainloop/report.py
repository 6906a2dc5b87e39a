"""The report of a run has curves, a heat map of the ranks' step times, and the numbers, as Markdown and HTML.

All data is read from metrics.jsonl. So a report can be recreated at any time, even of an interrupted run: `python -m
trainloop.report DIRECTORY [--against DIRECTORY-OF-A-ONE-RANK-RUN]`. The HTML file embeds its pictures, so it can be
sent as a single file.
"""

from __future__ import annotations

import argparse
import base64
import html
import itertools
import json
import statistics
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from trainloop.metrics import about_line, duration, ranks_line
from trainloop.plots import Lines, curve, draw_curves, draw_ranks

STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.25em 2em .25em 0;"
    "border-bottom:1px solid #ddd}th{font-weight:600;white-space:nowrap}img{max-width:100%}"
)


def write_report(directory: Path, against: Path | None = None) -> Path | None:
    """Writes report.md, report.html and the pictures; returns the HTML file, or None if matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    lines = _newest_run(read_metrics(directory / "metrics.jsonl"))
    # The training is complete, so a missing run for comparison mustn't fail the run.
    there = against is not None and (against / "metrics.jsonl").is_file()
    alone = _newest_run(read_metrics(against / "metrics.jsonl")) if against and there else None
    pictures = {"curves over the steps": draw_curves(lines, directory, alone)}
    if any(len(line.get("rankComputeSeconds", [])) > 1 for line in lines):
        pictures["computing time of each rank"] = draw_ranks(lines, directory)
    title = f"Training report: {_about(lines)}" if _about(lines) else "Training report"
    rows = facts(lines, alone)
    if against and not there:
        rows.append(("against one rank", f"nothing to compare with: {against} has no metrics.jsonl"))
    cells = [(name, value.replace("|", "\\|").replace("\n", " ")) for name, value in rows]
    markdown = [f"# {title}", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells), ""]
    markdown += [f"![{title}]({picture.name})" for title, picture in pictures.items()]
    (directory / "report.md").write_text("\n".join(markdown) + "\n")
    table = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    images = "".join(f'<p><img src="{_inline(picture)}" alt="{text}"></p>' for text, picture in pictures.items())
    page = directory / "report.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1><table>{table}</table>{images}</html>\n"
    )
    return page


def read_metrics(file: Path) -> Lines:
    """Returns the lines of a metrics file, except an incomplete last line."""
    lines = []
    for text in file.read_text().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def closing_line(directory: Path, against: str | None) -> str:
    """Writes the report at the end of a run; returns a line about it.

    Failures are ignored, because the training is saved.
    """
    try:
        page = write_report(directory, Path(against) if against else None)
    except Exception as error:  # such as a full disk, or a number that matplotlib can't draw
        return f"warning: no report, {type(error).__name__}: {error}"
    return f"report with curves: {page}" if page else "no report: it needs matplotlib (pip install matplotlib)"


def facts(lines: Lines, alone: Lines | None = None) -> list[tuple[str, str]]:
    """Returns the report's numbers as text; `alone` contains the lines of a one-rank run to compare with."""
    started = _started(lines)
    rows = [("run", about_line(started[-1]))] if started else []
    steps, losses = curve(lines, "step", "loss")
    if not steps:
        return [*rows, ("steps", "none")]
    stalls = [line["stallSeconds"] for line in lines if line["kind"] == "checkpoint"]
    warnings = [line["text"] for line in lines if line["kind"] == "event" and line.get("event") == "warning"]
    ends = [line for line in lines if "updates" in line]
    made = f"; {ends[-1]['updates']} of {ends[-1]['step']} made an update" if ends else ""
    lowest = min(range(len(steps)), key=lambda index: losses[index])
    return [
        *rows,
        ("steps", f"{steps[-1]} of {next(x['totalSteps'] for x in reversed(lines) if 'totalSteps' in x)}{made}"),
        (
            "training loss",
            f"{losses[0]:.4f} at step {steps[0]}, {losses[-1]:.4f} at the end, "
            f"lowest {losses[lowest]:.4f} at step {steps[lowest]}",
        ),
        *_results(lines),
        ("time", f"{duration(lines[-1]['time'] - lines[0]['time'])}, from {_clock(lines[0]['time'])}"),
        ("attempts", _attempts(lines)),
        ("lineage", _lineage(lines)),
        ("throughput, median", f"{_median(lines, 'samplesPerSecond'):,.1f} samples/s over all ranks"),
        ("step time, median", f"{_median(lines, 'stepSeconds') * 1000:,.1f} ms"),
        ("waiting for data, median", f"{_median(lines, 'dataWait'):.1%} of the time"),
        ("communication not hidden by computing, median", f"{_median(lines, 'communication'):.1%} of the time"),
        ("sent by each rank", f"{_median(lines, 'bytesSent') / 2**20:,.3f} MiB a step"),
        (
            "checkpoints",
            f"{len(stalls)}, stalls {sum(stalls):.2f} s in all, {max(stalls):.2f} s at most" if stalls else "none",
        ),
        ("warnings", _first(warnings)),
        *([("against one rank", _against(lines, alone))] if alone else []),
    ]


def _newest_run(lines: Lines) -> Lines:
    """Returns the lines of the newest run, because a reused directory also contains earlier runs."""
    starts = [index for index, line in enumerate(lines) if line.get("event") == "started"]
    anew = [index for index in starts if lines[index]["step"] == 0 and lines[index]["attempt"] == 1]
    return lines[anew[-1] :] if anew else lines


def _started(lines: Lines) -> Lines:
    """Returns the `started` event of each attempt."""
    return [line for line in lines if line.get("event") == "started"]


def _about(lines: Lines) -> str:
    """Returns the run's title."""
    started = _started(lines)
    return f"{started[-1]['task']}, {ranks_line(started[-1]['ranks'])}" if started else ""


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _attempts(lines: Lines) -> str:
    """Returns the number of attempts, where they resumed, and the numbers of ranks if those differ."""
    number = len({line["attempt"] for line in lines})
    resumed = [line for line in lines if line.get("event") == "resumed"]
    text = f"{number}"
    if number > 1 or resumed:
        memory = [line for line in resumed if line.get("checkpoint") == "memory"]
        saved = [line for line in resumed if line not in memory]
        text += f", {len(saved)} resumed from a checkpoint{_steps(saved)}"
        text += f", {len(memory)} from memory{_steps(memory)}" if memory else ""
    sizes = [size for size, _ in itertools.groupby(line["ranks"] for line in _started(lines))]
    return text + (f"; {', then '.join(ranks_line(size) for size in sizes)}" if len(sizes) > 1 else "")


def _steps(lines: Lines) -> str:
    return f" (step {', '.join(str(line['step']) for line in lines)})" if lines else ""


def _lineage(lines: Lines) -> str:
    """Returns each attempt's start and end, and the rollbacks to checkpoints in between."""
    attempts = list[list[str]]()
    source, last = "the start", 0
    for line in lines:
        event = line.get("event")
        if event == "resumed":
            source = line.get("checkpoint") or "a checkpoint"
        if event in ("started", "rolledBack") and attempts:
            attempts[-1].append(f"to {last:,}")
        if event == "started":
            attempts.append([f"attempt {len(attempts) + 1} from {source}, step {line['step']:,}"])
            source = "the start"
        elif event == "rolledBack" and attempts:
            attempts[-1].append(f"back to {line['checkpoint']}")
        if event != "resumed":
            last = line["to"] if event == "rolledBack" else line.get("step", last)
    return "; ".join(" ".join(pieces) for pieces in attempts) + (f" to {last:,}" if attempts else "none")


def _results(lines: Lines) -> list[tuple[str, str]]:
    """Returns the newest evaluation's rows."""
    newest = [line for line in lines if line["kind"] == "evaluation"][-1:]
    hidden = ("kind", "attempt", "time", "step")
    return [
        (f"evaluation, {name}", f"{value:.4f} at step {line['step']}")
        for line in newest
        for name, value in line.items()
        if name not in hidden and value is not None
    ]


def _first(warnings: list[str], most: int = 5) -> str:
    more = f"; and {len(warnings) - most} more in metrics.jsonl" if len(warnings) > most else ""
    return ("; ".join(warnings[:most]) or "none") + more


def _against(lines: Lines, alone: Lines) -> str:
    ranks = len(next(line["rankComputeSeconds"] for line in reversed(lines) if "rankComputeSeconds" in line))
    one = _median(alone, "samplesPerSecond")
    if not one:
        return "that run has no steps"
    faster = _median(lines, "samplesPerSecond") / one
    ends = [(curve(run, "evaluation", "loss")[1] or curve(run, "step", "loss")[1])[-1] for run in (lines, alone)]
    batches = [line["batch"] for run in (lines, alone) for line in _started(run)[-1:]]
    apart = f"; but its global batch is {batches[1]}, not {batches[0]}" if len(set(batches)) == 2 else ""
    return (
        f"{faster:.2f} times the samples/s ({one:,.1f} by one rank) with {ranks_line(ranks)}: {faster / ranks:.0%} "
        f"efficient; loss at the end {ends[0]:.4f}, by one rank {ends[1]:.4f}{apart}"
    )


def _inline(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _median(lines: Lines, name: str) -> float:
    """Returns the median over all lines except the first one, which includes the start."""
    values = curve(lines, "step", name)[1]
    return float(statistics.median(values[1:] or values or [0.0]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--against", type=Path)
    chosen = parser.parse_args()
    if not (chosen.directory / "metrics.jsonl").is_file():
        parser.error(
            f"{chosen.directory} has no metrics.jsonl: name the directory that a run has written (metrics.path)"
        )
    print(write_report(chosen.directory, chosen.against) or "no report: it needs matplotlib (pip install matplotlib)")
