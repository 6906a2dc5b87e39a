"""The report of a run: curves, a heat map of the ranks' step times, and the numbers, as Markdown and HTML.

Everything comes from metrics.jsonl, so a report can be made again, also of a run that was interrupted:
`python -m trainloop.report DIRECTORY [--against DIRECTORY-OF-A-ONE-RANK-RUN]`.
"""

from __future__ import annotations

import argparse
import html
import statistics
from pathlib import Path

from trainloop.metrics import duration, read_metrics
from trainloop.plots import Lines, curve, draw_curves, draw_ranks


def write_report(directory: Path, against: Path | None = None) -> Path | None:
    """Write report.md, report.html and the pictures; the HTML file, or None where matplotlib isn't installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    lines = read_metrics(directory / "metrics.jsonl")
    alone = read_metrics(against / "metrics.jsonl") if against else None
    pictures = [draw_curves(lines, directory, alone)]
    if any(len(line.get("rankComputeSeconds", [])) > 1 for line in lines):
        pictures.append(draw_ranks(lines, directory))
    rows = facts(lines, alone)
    markdown = ["# Training report", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    markdown += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    (directory / "report.md").write_text("\n".join(markdown) + "\n")
    table = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    images = "".join(f'<p><img src="{picture.name}" alt="{picture.stem}"></p>' for picture in pictures)
    style = "body{font:15px sans-serif;margin:2em}th{text-align:left;padding-right:2em}img{max-width:100%}"
    page = directory / "report.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title>Training report</title><style>{style}</style>'
        f"<h1>Training report</h1><table>{table}</table>{images}\n"
    )
    return page


def facts(lines: Lines, alone: Lines | None = None) -> list[tuple[str, str]]:
    """The report's numbers, as text; `alone` is a run of one rank to compare the speed with."""
    steps, losses = curve(lines, "step", "loss")
    if not steps:
        return [("steps", "none")]
    attempts = sorted({line["attempt"] for line in lines})
    stalls = [line["stallSeconds"] for line in lines if line["kind"] == "checkpoint"]
    warnings = [line["text"] for line in lines if line["kind"] == "event" and line.get("event") == "warning"]
    rows = [
        ("steps", f"{steps[-1]} of {next(line['totalSteps'] for line in reversed(lines) if 'totalSteps' in line)}"),
        ("loss", f"{losses[0]:.4f} at step {steps[0]}, {losses[-1]:.4f} at the end, {min(losses):.4f} at best"),
        *_results(lines),
        ("wall time", duration(lines[-1]["time"] - lines[0]["time"])),
        ("attempts", f"{len(attempts)}, resumed {sum(line.get('event') == 'resumed' for line in lines)} times"),
        ("samples a second, median", f"{_median(lines, 'samplesPerSecond'):,.1f}"),
        ("step time, median", f"{_median(lines, 'stepSeconds') * 1000:,.1f} ms"),
        ("waiting for data, median", f"{_median(lines, 'dataWait'):.1%}"),
        ("communication that nothing hides, median", f"{_median(lines, 'communication'):.1%}"),
        ("sent a step and rank", f"{_median(lines, 'bytesSent') / 2**20:,.3f} MiB"),
        ("checkpoints", f"{len(stalls)}, stalls {sum(stalls):.2f} s in all, {max(stalls, default=0):.2f} s at most"),
        ("warnings", "; ".join(warnings[:5]) or "none"),
    ]
    if alone:
        ranks = len(next(line["rankComputeSeconds"] for line in lines if "rankComputeSeconds" in line))
        faster = _median(lines, "samplesPerSecond") / _median(alone, "samplesPerSecond")
        rows.append(
            ("against one rank", f"{faster:.2f} times as fast with {ranks} ranks ({faster / ranks:.0%} efficient)")
        )
    return rows


def _results(lines: Lines) -> list[tuple[str, str]]:
    newest = [line for line in lines if line["kind"] == "evaluation"][-1:]
    hidden = ("kind", "attempt", "time", "step")
    return [(f"evaluation, {k}", f"{v:.4f}") for line in newest for k, v in line.items() if k not in hidden]


def _median(lines: Lines, name: str) -> float:
    """Median over the run but its first line, which has the start in it."""
    values = curve(lines, "step", name)[1]
    return float(statistics.median(values[1:] or values or [0.0]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--against", type=Path)
    chosen = parser.parse_args()
    print(write_report(chosen.directory, chosen.against))
