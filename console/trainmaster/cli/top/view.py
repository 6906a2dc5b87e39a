"""The picture of one job fits the terminal: the fewer lines there are, the fewer ranks, workers and events it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmaster.cli.events import JobEvent
from trainmaster.cli.show import PHASE_STYLES, UNSEEN, duration, headline, job_trouble, pod_table, steps_done
from trainmaster.cli.top.asking import Picture
from trainmaster.cli.top.figures import Spread, seconds_of, sparkline, spread_of, step_time
from trainmaster.client import RankMetrics, TrainingJob
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.v1alpha1 import Progress

# More ranks than this are shown as a histogram, with some of the slowest and of the fastest.
MAX_RANKS = 16
SLOWEST, FASTEST = 4, 2
SPARK_WIDTH = 24
BAR_WIDTH = 12
NO_TIME_YET = "no rank has reported the time of a step yet"
UNTIMED = "the script reports its steps without their time, stepSeconds (docs/progress.md)"
# Into a pipe as much is shown as a large terminal has room for.
PIPE_LINES = 60


class JobPicture:
    """JobPicture draws one job, in the lines and columns that there are."""

    def __init__(
        self, picture: Picture, losses: Sequence[float] = (), speeds: Sequence[float] = (), now: datetime | None = None
    ) -> None:
        self._picture = picture
        self._losses = losses
        self._speeds = speeds
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the parts from the top down."""
        picture, now = self._picture, self._now or datetime.now(UTC)
        job = picture.job
        lines = (options.height or console.height) if console.is_terminal else PIPE_LINES
        width = min(options.max_width, 200)
        head: list[RenderableType] = [headline(job, now)]
        if job.status.progress is not None:
            head += _progress(job, job.status.progress, width, self._losses, self._speeds)
        if job.phase != "Running":
            trouble = UNSEEN if job.status.phase is None else job_trouble(job)
            head.append(
                Text(one_line(trouble), style=PHASE_STYLES.get(job.phase, ""), no_wrap=True, overflow="ellipsis")
            )
        head += [Text(one_line(sentence), style="yellow") for sentence in picture.missing]
        left = lines - len(head) - len(picture.missing)
        spread = spread_of(picture.ranks)
        # Events are three at least, workers four, and the ranks have what is left.
        events = max(3, min(8, left // 4))
        pods = max(3, min(len(picture.pods), left // 3))
        room = max(4, left - events - pods - 6)
        yield Group(*head)
        if spread.ranks:
            yield Text()
            yield from _ranks(spread, width, room)
        elif job.phase == "Running" and not picture.missing:
            yield Text(UNTIMED if any(each.step for each in picture.ranks) else NO_TIME_YET, style="dim")
        if picture.pods:
            yield Text()
            yield pod_table(picture.pods[:pods], now, _training(job))
            if len(picture.pods) > pods:
                yield Text(f"... and {len(picture.pods) - pods} more workers", style="dim")
        if picture.events:
            yield Text()
            yield event_table(picture.events[-events:], now, width)


def event_table(events: Sequence[JobEvent], now: datetime, width: int) -> Table:
    """Returns the events in rows of one line, the newest last."""
    table = Table(box=None, pad_edge=False, show_header=True, width=width)
    for name in ("LAST SEEN", "REASON", "OBJECT"):
        table.add_column(name, no_wrap=True)
    table.add_column("MESSAGE", no_wrap=True, overflow="ellipsis", ratio=1)
    for event in events:
        seen, _, reason, about, message = map(one_line, event.cells(now))
        style = "yellow" if event.type == "Warning" else ""
        table.add_row(seen, Text(reason, style=style), about, message)
    return table


class JobsPicture:
    """JobsPicture draws the jobs that go on, a row each. No column is cut: those that the width hasn't room for go."""

    # The first goes first, but before them those that are empty. The others always stay.
    _EXPENDABLE = ("", "GOODPUT", "ETA", "SAMPLES/S", "LOSS")

    def __init__(self, jobs: Sequence[TrainingJob], *, namespaces: bool = False) -> None:
        self._jobs = jobs
        self._namespaces = namespaces

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table."""
        shown = {
            **({"NAMESPACE": [job.namespace for job in self._jobs]} if self._namespaces else {}),
            **{name: [cells[name] for cells in map(_job_cells, self._jobs)] for name in _JOB_COLUMNS},
        }
        for name in sorted(self._EXPENDABLE, key=lambda name: any(shown[name])):
            if _width(shown) <= options.max_width:
                break
            del shown[name]
        table = Table(box=None, pad_edge=False)
        for name in shown:
            table.add_column(name, no_wrap=True)
        for at, job in enumerate(self._jobs):
            row: dict[str, RenderableType] = {name: cells[at] for name, cells in shown.items()}
            row["PHASE"] = Text(job.phase, style=PHASE_STYLES.get(job.phase, ""))
            if row.get(""):
                progress = job.status.progress or Progress()
                row[""] = ProgressBar(total=progress.total_steps, completed=progress.step or 0, width=BAR_WIDTH)
            table.add_row(*row.values())
        yield table


_JOB_COLUMNS = ("NAME", "PHASE", "WORKERS", "STEP", "", "LOSS", "SAMPLES/S", "ETA", "GOODPUT")


def _job_cells(job: TrainingJob) -> dict[str, str]:
    """Returns a job's cells by the names of the columns; where a bar is to be, its width in blocks."""
    workers, progress = job.status.workers, job.status.progress or Progress()
    running = job.phase == "Running"
    return {
        "NAME": job.name,
        "PHASE": job.phase,
        "WORKERS": f"{workers.running}/{workers.desired}",
        "STEP": steps_done(progress),
        "": "█" * BAR_WIDTH if progress.step is not None and progress.total_steps else "",
        "LOSS": "" if progress.loss is None else f"{progress.loss:.4g}",
        "SAMPLES/S": f"{progress.samples_per_second:,.0f}" if running and progress.samples_per_second else "",
        "ETA": duration(progress.eta_seconds) if running and progress.eta_seconds is not None else "",
        "GOODPUT": "" if progress.goodput is None else f"{progress.goodput:.0%}",
    }


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """Returns the width of a table of these columns, with two blanks between them."""
    return sum(max(map(cell_len, [name, *cells])) for name, cells in columns.items()) + 2 * (len(columns) - 1)


def _progress(
    job: TrainingJob, progress: Progress, width: int, losses: Sequence[float], speeds: Sequence[float]
) -> list[RenderableType]:
    """Returns how far the job is, and how its loss and speed went since the picture began."""
    running = job.phase == "Running"
    line = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = []
    if progress.step is not None and progress.total_steps:
        share = progress.step / progress.total_steps
        cells += [ProgressBar(total=progress.total_steps, completed=progress.step, width=max(10, width // 4))]
        cells += [f"{share:.0%}"]
    if progress.step is not None:
        cells.append(f"step {steps_done(progress)}")
    if running and progress.eta_seconds is not None and progress.step != progress.total_steps:
        cells.append(f"ETA {duration(progress.eta_seconds)}")
    if progress.section is not None and progress.section != "train":
        cells.append(progress.section)
    if progress.goodput is not None:
        cells.append(f"goodput {progress.goodput:.0%}")
    line.add_row(*cells)
    spark = min(SPARK_WIDTH, (width - 40) // 2)
    figures = Text(no_wrap=True, overflow="crop")
    if progress.loss is not None:
        figures.append(f"loss {progress.loss:.4f} ")
        figures.append(sparkline(losses, spark), style="cyan")
        figures.append("   " if len(losses) > 1 else "  ")
    if running and progress.samples_per_second is not None:
        figures.append(f"{progress.samples_per_second:,.0f} samples/s ")
        figures.append(sparkline(speeds, spark), style="green")
    return [line, figures] if figures.plain else [line]


def _ranks(spread: Spread, width: int, room: int) -> list[RenderableType]:
    """Returns the times by rank as bars; of many ranks the ends, and how all are spread."""
    slowest = spread.ranks[0]
    title = Text(f"{spread.title} by rank ", style="bold")
    title.append(f"median {step_time(spread.median)}", style="")
    if spread.slowest is not None:
        factor = seconds_of(slowest) / spread.median
        title.append(f"   slowest: rank {slowest.rank}, {factor:.1f} times the median", style="yellow")
    parts: list[RenderableType] = [title]
    if len(spread.ranks) <= min(MAX_RANKS, room):
        by_rank = sorted(spread.ranks, key=lambda each: each.rank)
        return [*parts, _bars(by_rank, spread, width)]
    ends = [*spread.ranks[:SLOWEST], *spread.ranks[max(SLOWEST, len(spread.ranks) - FASTEST) :]]
    parts.append(_bars(ends, spread, width))
    parts.append(Text(f"all {len(spread.ranks)} ranks", style="dim"))
    most = max(counted for _, _, counted in spread.histogram)
    table = Table.grid(padding=(0, 1))
    for low, high, counted in spread.histogram:
        bar = Text("█" * max(1 if counted else 0, round((width - 44) * counted / most)), style="blue")
        table.add_row(f"{step_time(low)} to {step_time(high)}", f"{counted:>5}", bar)
    return [*parts, table]


def _bars(ranks: Sequence[RankMetrics], spread: Spread, width: int) -> Table:
    table = Table.grid(padding=(0, 1))
    longest = seconds_of(spread.ranks[0])
    room = max(8, min(60, width - 48))
    for each in ranks:
        seconds = seconds_of(each)
        is_slow = each == spread.slowest
        bar = Text("█" * max(1, round(room * seconds / longest)), style="yellow" if is_slow else "cyan")
        marks = []
        if each.step is not None:
            marks.append(f"step {each.step}")
        if is_slow:
            marks.append("slowest")
        table.add_row(
            f"rank {each.rank}", Text(f"worker {each.worker}", style="dim"), step_time(seconds), bar, " ".join(marks)
        )
    return table


def _training(job: TrainingJob) -> Sequence[int]:
    return () if job.status.workers.spares is None else job.status.worker_order
