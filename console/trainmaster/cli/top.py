"""`top` reads running jobs every two seconds, and draws one job with its ranks, or all jobs in rows.

The picture of one job fits into the terminal. If the terminal has few lines, fewer ranks, workers and events are shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmaster.cli.arguments import none_found
from trainmaster.cli.events import JobEvent, events_of, owners_of
from trainmaster.cli.health import Health
from trainmaster.cli.live import View
from trainmaster.cli.show import (
    PHASE_STYLES,
    TROUBLE_STYLE,
    figure_cells,
    headline,
    job_cells,
    job_trouble,
    pod_table,
    trouble_lines,
)
from trainmaster.client import JobClient, JobNotFound, NotAllowed, RankMetrics, TrainingJob
from trainmaster.client.view import JobView, figure, percent, rate, view_of
from trainmaster_operator.api.printable import one_line

# Interval between readings (seconds).
READ_SECONDS = 2.0
# Maximum number of values in a line of blocks.
MAX_SEEN = 120
_PODS = "its pods"


class JobReader:
    """JobReader reads a job's pods, newest Events and ranks. It doesn't repeat a forbidden request.

    If the user lacks a right (to `pods/proxy`, pods or Events), the rest is shown with a message about what is missing.
    """

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self._forbidden: dict[str, str] = {}
        self._losses: deque[float] = deque(maxlen=MAX_SEEN)
        self._speeds: deque[float] = deque(maxlen=MAX_SEEN)

    def view(self, job: TrainingJob) -> Callable[[], JobPicture]:
        """Reads the job's pods, Events and ranks, and returns a function that draws them. Raises ClientError."""
        pods = self._allowed(_PODS, lambda: self._jobs.pods(job.name)) or []
        events = self._allowed("its events", lambda: events_of(self._jobs.events(), owners_of([job]))) or []
        ranks: tuple[RankMetrics, ...] = ()
        missing = list(self._forbidden.values())
        if job.phase == "Running" and _PODS not in self._forbidden:
            with suppress(JobNotFound):
                found = self._jobs.metrics(job.name)
                ranks = found.ranks
                if not ranks and found.silent:
                    missing.append(f"(without figures of each rank: {next(iter(found.silent.values()))})")
        if (progress := job.status.progress) is not None:
            for value, seen in ((progress.loss, self._losses), (progress.samples_per_second, self._speeds)):
                if value is not None and (not seen or seen[-1] != value):
                    seen.append(value)
        return partial(JobPicture, job, pods, ranks, events, missing, self._losses, self._speeds)

    def _allowed(self, what: str, ask: Callable[[], Any]) -> Any:
        if what in self._forbidden:
            return None
        try:
            return ask()
        except NotAllowed as error:
            self._forbidden[what] = f"(without {what}: {error})"
            return None


def job_views(health: Health, job: TrainingJob) -> Iterator[View]:
    """Reads and yields one job's picture until the job has ended. Raises ClientError."""
    jobs = health.jobs
    reader = JobReader(jobs)
    while True:
        try:
            now = jobs.get(job.name)
        except JobNotFound as error:
            raise JobNotFound(f"Job {job.name} was deleted while it was watched.") from error
        if now.uid != job.uid:
            raise JobNotFound(f"Job {job.name} was deleted while it was watched; another has its name now.")
        health.shown = [now]
        yield reader.view(now)
        time.sleep(READ_SECONDS)
        if now.finished:
            return


def jobs_views(health: Health, *, all_namespaces: bool) -> Iterator[View]:
    """Reads and yields the rows of all unfinished jobs. Raises ClientError."""
    jobs = health.jobs
    while True:
        unfinished = [job for job in jobs.list(all_namespaces=all_namespaces) if not job.finished]
        health.shown = unfinished
        if unfinished:
            yield partial(JobsPicture, unfinished, namespaces=all_namespaces)
        else:
            yield partial(Text, none_found(jobs, all_namespaces, kind="unfinished jobs"))
        time.sleep(READ_SECONDS)


# A rank counts as slow if its steps take more than this many times the median.
SLOW_FACTOR = 1.2
# More ranks than this are shown as a histogram, with some of the slowest and fastest ranks.
MAX_RANKS = 16
SLOWEST, FASTEST = 4, 2
BINS = 8
BLOCKS = "▁▂▃▄▅▆▇█"
# A curve that varies by less than this share of its value is drawn flat, so that noise isn't shown.
FLAT = 0.005
SPARK_WIDTH, BAR_WIDTH = 24, 12
NO_TIME_YET = "no rank has reported the time of a step yet"
UNTIMED = "the script reports its steps without their time, stepSeconds (docs/progress.md)"
# Number of lines of a picture in a pipe, as in a large terminal.
PIPE_LINES = 60


def histogram(values: Sequence[float], bins: int = BINS) -> list[tuple[float, float, int]]:
    """Divides the values into equally wide bins. Returns each bin's bounds and number of values."""
    least, most = min(values), max(values)
    if least == most:
        return [(least, most, len(values))]
    width = (most - least) / bins
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - least) / width))] += 1
    return [(least + at * width, least + (at + 1) * width, counted) for at, counted in enumerate(counts)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws the newest values as a line of blocks, scaled from the smallest to the largest value."""
    shown = list(values)[-width:]
    return blocks(shown, min(shown), max(shown)) if len(shown) > 1 else ""


def blocks(values: Sequence[float | None], least: float, most: float) -> str:
    """Draws values as blocks on a scale from `least` to `most`, and None as a blank."""
    is_flat = most - least <= FLAT * max(abs(least), abs(most))
    scale = 0.0 if is_flat else (len(BLOCKS) - 1) / (most - least)
    return "".join(" " if value is None else BLOCKS[round(scale * (value - least))] for value in values)


def step_time(seconds: float) -> str:
    """Formats the time of a step, e.g. "83.4 ms" or "1.25 s"."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _seconds(figures: RankMetrics) -> float:
    return figures.own_seconds or 0.0


@dataclass(frozen=True)
class JobPicture:
    """JobPicture is the known state of a job at one time. It is drawn within the available lines and columns."""

    job: TrainingJob
    pods: Sequence[Mapping[str, object]] = ()
    ranks: Sequence[RankMetrics] = ()
    events: Sequence[JobEvent] = ()
    missing: Sequence[str] = ()
    """Explains each part that the user may not read."""
    losses: Sequence[float] = ()
    speeds: Sequence[float] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now, view = datetime.now(UTC), view_of(self.job.raw)
        lines = (options.height or console.height) if console.is_terminal else PIPE_LINES
        width = min(options.max_width, 200)
        head: list[RenderableType] = [headline(view, now)]
        trouble = view.trouble(now)
        if trouble:
            head.append(Text(one_line(trouble), style=TROUBLE_STYLE))
        head += self._progress(view, width)
        if view.phase != "Running":
            style = PHASE_STYLES.get(view.phase, "")
            head.append(Text(one_line(job_trouble(self.job)), style, no_wrap=True, overflow="ellipsis"))
        head += [Text(one_line(sentence), style="yellow") for sentence in self.missing]
        left = lines - len(head) - len(self.missing) - len(trouble) // width
        timed = sorted((each for each in self.ranks if each.own_seconds), key=lambda each: (-_seconds(each), each.rank))
        # Shows at least three events and three workers; the ranks get the rest.
        events = max(3, min(8, left // 4))
        pods = max(3, min(len(self.pods), left // 3))
        yield Group(*head)
        if timed:
            yield Text()
            yield from _ranks(timed, width, max(4, left - events - pods - 6))
        elif view.phase == "Running" and not self.missing:
            yield Text(UNTIMED if any(each.step for each in self.ranks) else NO_TIME_YET, style="dim")
        if self.pods:
            yield Text()
            yield pod_table(self.pods[:pods], now, self.job)
            if len(self.pods) > pods:
                yield Text(f"... and {len(self.pods) - pods} more workers", style="dim")
        if self.events:
            yield Text()
            yield _events(self.events[-events:], now, width)

    def _progress(self, view: JobView, width: int) -> list[RenderableType]:
        """Returns the job's progress, and how its loss and speed have changed since `top` started."""
        cells = figure_cells(view, without=("loss", "samples/s", *view.result))
        if view.share is not None:
            bar = ProgressBar(total=view.total_steps, completed=view.step or 0, width=max(10, width // 4))
            cells = [bar, percent(view.share), *cells]
        line = Table.grid(padding=(0, 2))
        line.add_row(*cells)
        spark = min(SPARK_WIDTH, (width - 40) // 2)
        figures = Text(no_wrap=True, overflow="crop")
        if view.loss is not None:
            figures.append(f"loss {figure(view.loss)} ")
            figures.append(sparkline(self.losses, spark), style="cyan")
            figures.append("   " if len(self.losses) > 1 else "  ")
        if view.samples_per_second is not None:
            figures.append(f"{rate(view.samples_per_second)} samples/s ")
            figures.append(sparkline(self.speeds, spark), style="green")
        return [*([line] if cells else []), *([figures] if figures.plain else [])]


def _events(events: Sequence[JobEvent], now: datetime, width: int) -> Table:
    """Returns the events in rows of one line, newest last."""
    table = Table(box=None, pad_edge=False, show_header=True, width=width)
    for name in ("LAST SEEN", "REASON", "OBJECT"):
        table.add_column(name, no_wrap=True)
    table.add_column("MESSAGE", no_wrap=True, overflow="ellipsis", ratio=1)
    for event in events:
        _, seen, _, reason, about, message = map(one_line, event.cells(now))
        table.add_row(seen, Text(reason, style="yellow" if event.type == "Warning" else ""), about, message)
    return table


def _ranks(ranks: Sequence[RankMetrics], width: int, room: int) -> list[RenderableType]:
    """Returns a bar for the time of each rank. `ranks` are sorted, slowest first.

    If there are many ranks, returns a histogram, and bars only for the slowest and the fastest ranks.
    """
    middle, longest = median(map(_seconds, ranks)), _seconds(ranks[0])
    slowest = ranks[0] if longest > SLOW_FACTOR * middle else None
    kind = "step time" if all(each.compute_seconds is None for each in ranks) else "computing time"
    title = Text.assemble((f"{kind} by rank ", "bold"), f"median {step_time(middle)}")
    if slowest is not None:
        title.append(f"   slowest: rank {slowest.rank}, {longest / middle:.1f} times the median", style="yellow")
    if len(ranks) <= min(MAX_RANKS, room):
        return [title, _bars(sorted(ranks, key=lambda each: each.rank), longest, slowest, width)]
    ends = [*ranks[:SLOWEST], *ranks[max(SLOWEST, len(ranks) - FASTEST) :]]
    bins = histogram([_seconds(each) for each in ranks])
    most = max(counted for _, _, counted in bins)
    table = Table.grid(padding=(0, 1))
    for low, high, counted in bins:
        bar = Text("█" * max(1 if counted else 0, round((width - 44) * counted / most)), style="blue")
        table.add_row(f"{step_time(low)} to {step_time(high)}", f"{counted:>5}", bar)
    return [title, _bars(ends, longest, slowest, width), Text(f"all {len(ranks)} ranks", style="dim"), table]


def _bars(ranks: Sequence[RankMetrics], longest: float, slowest: RankMetrics | None, width: int) -> Table:
    table = Table.grid(padding=(0, 1))
    room = max(8, min(60, width - 48))
    for each in ranks:
        bar = Text("█" * max(1, round(room * _seconds(each) / longest)), style="yellow" if each == slowest else "cyan")
        marks = [f"step {each.step}"] if each.step is not None else []
        marks += ["slowest"] if each == slowest else []
        worker = Text(f"worker {each.worker}", style="dim")
        table.add_row(f"rank {each.rank}", worker, step_time(_seconds(each)), bar, " ".join(marks))
    return table


@dataclass(frozen=True)
class JobsPicture:
    """JobsPicture draws unfinished jobs, one row each. It leaves out columns that don't fit instead of cutting them.

    The progress bar is the column without a name.
    """

    jobs: Sequence[TrainingJob]
    namespaces: bool = False
    _COLUMNS: ClassVar = ("NAME", "PHASE", "WORKERS", "STEP", "", "LOSS", "SAMPLES/S", "ETA", "GOODPUT")
    # If not all columns fit, these are left out in this order, empty ones first. All other columns always stay.
    _EXPENDABLE: ClassVar = ("", "GOODPUT", "ETA", "SAMPLES/S", "LOSS")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [*(["NAMESPACE"] if self.namespaces else []), *self._COLUMNS]
        views = [view_of(job.raw) for job in self.jobs]
        rows = [{**job_cells(view), "": "█" * BAR_WIDTH if view.share is not None else ""} for view in views]
        shown = {name: [row[name] for row in rows] for name in names}
        for name in sorted(self._EXPENDABLE, key=lambda name: any(shown[name])):
            if _width(shown) <= options.max_width:
                break
            del shown[name]
        table = Table(box=None, pad_edge=False)
        for name in shown:
            table.add_column(name, no_wrap=True)
        for view, row in zip(views, rows, strict=True):
            cells: dict[str, RenderableType] = {name: row[name] for name in shown}
            cells["PHASE"] = Text(view.phase, style=PHASE_STYLES.get(view.phase, ""))
            if cells.get(""):
                cells[""] = ProgressBar(total=view.total_steps, completed=view.step or 0, width=BAR_WIDTH)
            table.add_row(*cells.values())
        yield table
        yield from trouble_lines(views, namespaces=self.namespaces)


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(cell_len, [name, *cells])) for name, cells in columns.items()) + 2 * (len(columns) - 1)
