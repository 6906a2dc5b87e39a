"""`kubectl dtj events` shows the Events of jobs, their StatefulSets and their pods, sorted by time.

Kubernetes has two kinds of Events, which contain the same facts under different names. Events of events.k8s.io contain
their count in `series` (formerly `deprecatedCount`) and an `eventTime` with microseconds. Events of core v1 contain
`count` and two times in whole seconds. So all times are compared in seconds, and events of the same second are ordered
by their resource version. Repeated events of an object become one row with the sum of their counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from trainmaster.cli.console import SafeConsole, padded
from trainmaster.cli.health import patient
from trainmaster.cli.live import arrivals
from trainmaster.cli.output import print_document, print_list
from trainmaster.cli.terminal import say
from trainmaster.client import JobClient, TrainingJob
from trainmaster.client.view import duration, view_of
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.times import to_datetime
from trainmaster_operator.api.v1alpha1 import KIND
from trainmaster_operator.api.v1alpha1.names import set_names
from trainmaster_operator.wire.values import mapping, mappings

# Kinds of the objects that make up a job.
_PODS = "Pod"
_CHILDREN = frozenset({_PODS, "StatefulSet", "PodGroup", "Workload"})
_OF_A_POD = re.compile(r"-\d{1,9}$")
COLUMNS = ("NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
# Minimum widths of the columns if rows are printed one at a time.
WIDTHS = (16, 9, 7, 16, 24, 0)


@dataclass(frozen=True)
class JobEvent:
    """JobEvent is an event that occurred `count` times to an object, from `first` to `last`."""

    namespace: str
    kind: str
    name: str
    uid: str
    type: str
    reason: str
    message: str
    first: datetime
    last: datetime
    count: int
    raw: Mapping[str, Any]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> JobEvent | None:
        """Parses an Event of either API; returns None if it has no time."""
        metadata, series = mapping(raw.get("metadata")), mapping(raw.get("series"))
        about = mapping(raw.get("involvedObject") or raw.get("regarding"))
        last = _time(
            series.get("lastObservedTime"),
            raw.get("lastTimestamp"),
            raw.get("deprecatedLastTimestamp"),
            raw.get("eventTime"),
            metadata.get("creationTimestamp"),
        )
        first = _time(raw.get("firstTimestamp"), raw.get("deprecatedFirstTimestamp"), raw.get("eventTime")) or last
        if first is None or last is None:
            return None
        counts = (series.get("count"), raw.get("count"), raw.get("deprecatedCount"))
        return cls(
            namespace=str(metadata.get("namespace") or ""),
            kind=str(about.get("kind") or ""),
            name=str(about.get("name") or ""),
            uid=str(about.get("uid") or ""),
            type=str(raw.get("type") or ""),
            reason=str(raw.get("reason") or ""),
            message=str(raw.get("message") or raw.get("note") or "").strip(),
            first=min(first, last),
            last=last,
            count=next((count for count in counts if isinstance(count, int) and count > 0), 1),
            raw=raw,
        )

    @property
    def object(self) -> str:
        """Returns the event's object as kubectl writes it (pod/reviews-0). A job's kind is abbreviated."""
        return f"{'dtj' if self.kind == KIND else self.kind.lower()}/{self.name}"

    @property
    def order(self) -> tuple[datetime, int, str]:
        """Returns the sort key: the time, then the resource version if that is an integer.

        Events with other versions keep the order of the API server's list.
        """
        version = str(mapping(self.raw.get("metadata")).get("resourceVersion") or "")
        return (self.last, len(version), version) if version.isdecimal() else (self.last, 0, "")

    def seen(self, now: datetime) -> str:
        """Returns the event's age as kubectl writes it: 12s, 5m (x3 over 10m)."""
        first, last = (duration((now - at).total_seconds()) for at in (self.first, self.last))
        return last if self.count == 1 else f"{last} (x{self.count} over {first})"

    def cells(self, now: datetime) -> list[str]:
        return [self.namespace, self.seen(now), self.type, self.reason, self.object, self.message]


# Maps a namespace and a name to a job. The name is the job's own or that of one of its StatefulSets.
Owners = Mapping[tuple[str, str], TrainingJob]


def owners_of(jobs: Iterable[TrainingJob]) -> Owners:
    """Returns jobs by their names and their StatefulSets' names, which name the owner even of a deleted object."""
    known = {(job.namespace, job.name): job for job in jobs}
    sets: dict[tuple[str, str], TrainingJob] = {}
    for job in known.values():
        groups = mappings(mapping(job.raw.get("spec")).get("workerGroups"))
        names = set_names(job.name, [str(group.get("name")) for group in groups])
        sets |= {(job.namespace, name): job for name in names}
    return sets | known


def _job_of(event: JobEvent, owners: Owners) -> TrainingJob | None:
    """Returns the job of an event, or None if the object belongs to no job or the event is older than the job."""
    if event.kind == KIND:
        job = owners.get((event.namespace, event.name))
        return job if job is not None and job.name == event.name and event.uid in ("", job.uid) else None
    name = event.name
    if event.kind == _PODS:
        # A pod's name is its StatefulSet's name and a number.
        name = name[: of_set.start()] if (of_set := _OF_A_POD.search(name)) else ""
    job = owners.get((event.namespace, name)) if event.kind in _CHILDREN else None
    if job is None:
        return None
    created = to_datetime(job.raw["metadata"].get("creationTimestamp"))
    return None if created is not None and event.last < created else job


def events_of(raw: Iterable[Mapping[str, Any]], owners: Owners, types: Sequence[str] = ()) -> list[JobEvent]:
    """Returns the events of jobs, oldest first. Repeated events of an object are joined."""
    found: dict[tuple[str, str, str, str, str], JobEvent] = {}
    for event in filter(None, map(JobEvent.parse, raw)):
        if _job_of(event, owners) is None or (types and event.type not in types):
            continue
        key = (event.uid or event.name, event.kind, event.type, event.reason, event.message)
        known = found.get(key)
        if known is not None:
            newest = max(known, event, key=lambda each: each.order)
            event = replace(newest, first=min(known.first, event.first), count=known.count + event.count)
        found[key] = event
    return sorted(found.values(), key=lambda event: event.order)


def _time(*candidates: object) -> datetime | None:
    for text in candidates:
        if isinstance(text, str) and text and (time := to_datetime(text)) is not None:
            return time.astimezone(UTC).replace(microsecond=0)
    return None


# How long to wait for the last events after a job's end, and the interval between lists of jobs (seconds).
LAST_SECONDS = 2.0


def show_events(
    jobs: JobClient, job: TrainingJob | None, types: Sequence[str], *, everywhere: bool, watch: bool, output: str | None
) -> None:
    """Shows the events of one job or of all jobs. With `watch`, also shows every new event. Raises ClientError."""
    if watch:
        jobs = patient(jobs)

    def owners() -> Owners:
        return owners_of([job] if job is not None else jobs.list(all_namespaces=everywhere))

    def with_new() -> Iterator[JobEvent]:
        """Yields the known events, then each event that is new or has a new count, until the named job has ended."""
        yield from found
        shown = {(event.raw["metadata"].get("uid"), event.count) for event in found}
        present = owners()
        for change in arrivals(jobs.watch_events(all_namespaces=everywhere), seconds=LAST_SECONDS):
            if change is None:
                if job is not None and (now := jobs.get(job.name)).finished:
                    say(view_of(now.raw).end, error=True)
                    return
                present = owners()
                continue
            kind, raw = change
            for event in events_of([raw] if kind != "DELETED" else [], present, types):
                key = (raw["metadata"].get("uid"), event.count)
                if key not in shown:
                    shown.add(key)
                    yield event

    found = events_of(jobs.events(all_namespaces=everywhere), owners(), types)
    if watch:
        _print_each(with_new(), output, namespaces=everywhere)
    elif output is not None:
        print_list([event.raw for event in found], output)
    elif found:
        console = SafeConsole()
        console.print(events_table(found, namespaces=everywhere))
    else:
        of = "any job" if job is None else f"job {job.name}"
        kind = f"{' or '.join(types)} events" if types else "events"
        say(f"No {kind} of {of}: the API server forgets them, after an hour by default.", error=True)


def events_table(events: Sequence[JobEvent], *, namespaces: bool = False) -> Table:
    now = datetime.now(UTC)
    begin = 0 if namespaces else 1
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS[begin:]:
        table.add_column(name, no_wrap=name not in ("OBJECT", "MESSAGE"), overflow="fold")
    for event in events:
        cells: list[str | Text] = [one_line(cell) for cell in event.cells(now)]
        cells[2] = Text(str(cells[2]), style="yellow" if event.type == "Warning" else "")
        table.add_row(*cells[begin:])
    return table


def _print_each(events: Iterable[JobEvent], output: str | None, *, namespaces: bool) -> None:
    if output is not None:
        for event in events:
            print_document(event.raw, output)
        return
    begin = 0 if namespaces else 1
    say(padded(COLUMNS[begin:], WIDTHS[begin:]))
    for event in events:
        cells = map(one_line, event.cells(datetime.now(UTC)))
        say(padded(list(cells)[begin:], WIDTHS[begin:]))
