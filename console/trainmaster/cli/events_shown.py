"""Events of jobs are printed as a table that is complete, or go on as rows or objects while they are watched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.events import COLUMNS, JobEvent, Owners, events_of
from trainmaster.cli.output import print_value, shown_object
from trainmaster.cli.terminal import say, write
from trainmaster.client import ClientError, JobClient, TrainingJob
from trainmaster.client.view import view_of
from trainmaster_operator.api.printable import json_line, one_line

# Events of a job's end are written just after its status; new jobs are looked for as often.
LAST_SECONDS = 2.0


def show_events(
    jobs: JobClient,
    job: TrainingJob | None,
    types: Sequence[str],
    *,
    all_namespaces: bool = False,
    watch: bool = False,
    output: str | None = None,
) -> None:
    """Shows the events of a job, or of all; with `watch` goes on with every new one. Raises ClientError."""
    owners = _owners(jobs, job, all_namespaces)
    found = events_of(jobs.events(all_namespaces=all_namespaces), owners, types)
    if watch:
        _Watch(jobs, job, types, all_namespaces, output).run(found)
    elif output is not None:
        items = [shown_object(event.raw) for event in found]
        print_value({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}, output)
    elif found:
        console = SafeConsole()
        console.print(events_table(found, namespaces=all_namespaces))
    else:
        of = "any job" if job is None else f"job {job.name}"
        kind = f"{' or '.join(types)} events" if types else "events"
        say(f"No {kind} of {of}: the API server forgets them, after an hour by default.", error=True)


def events_table(events: Sequence[JobEvent], now: datetime | None = None, *, namespaces: bool = False) -> Table:
    """Returns the events in rows, as `kubectl events` has them."""
    now = now or datetime.now(UTC)
    table = Table(box=None, pad_edge=False)
    for name in [*(["NAMESPACE"] if namespaces else []), *COLUMNS]:
        table.add_column(name, no_wrap=name in ("NAMESPACE", "LAST SEEN", "TYPE", "REASON"), overflow="fold")
    for event in events:
        seen, kind, reason, about, message = map(one_line, event.cells(now))
        styled = Text(kind, style="yellow" if event.type == "Warning" else "")
        table.add_row(*([event.namespace] if namespaces else []), seen, styled, reason, about, message)
    return table


class _Watch:
    """_Watch prints events that are new or counted up, and ends with the job that was named."""

    def __init__(
        self, jobs: JobClient, job: TrainingJob | None, types: Sequence[str], all_namespaces: bool, output: str | None
    ) -> None:
        self._jobs = jobs
        self._job = job
        self._types = types
        self._all_namespaces = all_namespaces
        self._output = output
        self._widths = [9, 7, 16, 24]
        self._raw: queue.SimpleQueue[tuple[str, Mapping[str, Any]] | ClientError] = queue.SimpleQueue()

    def run(self, known: Sequence[JobEvent]) -> None:
        """Prints what is known, then what comes. Raises ClientError."""
        if self._output is None:
            say(self._row(COLUMNS))
        shown = {(event.raw["metadata"].get("uid"), event.count) for event in known}
        for event in known:
            self._print(event)
        threading.Thread(target=self._read, daemon=True).start()
        owners = _owners(self._jobs, self._job, self._all_namespaces)
        while True:
            try:
                found = self._raw.get(timeout=LAST_SECONDS)
            except queue.Empty:
                if self._job is not None and (job := self._jobs.get(self._job.name)).finished:
                    say(view_of(job.raw).end, error=True)
                    return
                owners = _owners(self._jobs, self._job, self._all_namespaces)
                continue
            if isinstance(found, ClientError):
                raise found
            kind, raw = found
            for event in events_of([raw] if kind != "DELETED" else [], owners, self._types):
                key = (raw["metadata"].get("uid"), event.count)
                if key not in shown:
                    shown.add(key)
                    self._print(event)

    def _read(self) -> None:
        try:
            for each in self._jobs.watch_events(all_namespaces=self._all_namespaces):
                self._raw.put(each)
        except ClientError as error:
            self._raw.put(error)

    def _print(self, event: JobEvent) -> None:
        if self._output == "json":
            write(json_line(shown_object(event.raw)) + "\n")
        elif self._output == "yaml":
            write("---\n")
            print_value(shown_object(event.raw), "yaml")
        else:
            cells = [one_line(cell) for cell in event.cells(datetime.now(UTC))]
            say(self._row([*([event.namespace] if self._all_namespaces else []), *cells]))

    def _row(self, cells: Sequence[str]) -> str:
        widths = [*([16] if self._all_namespaces else []), *self._widths]
        if self._all_namespaces and len(cells) == len(COLUMNS):
            cells = ["NAMESPACE", *cells]
        row = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        return "   ".join([*row, cells[-1]]).rstrip()


def _owners(jobs: JobClient, job: TrainingJob | None, all_namespaces: bool) -> Owners:
    return Owners.of([job] if job is not None else jobs.list(all_namespaces=all_namespaces))
