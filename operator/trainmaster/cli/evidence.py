"""What `kubectl dtj evidence` prints: for each attempt who ended it, what every worker said, stacks, and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.api.evidence import AttemptEvidence
from trainmaster.api.printable import one_line, printable

MAX_SHOWN = 100_000
BRIEF_LINES = 12


def evidence_lines(attempts: list[AttemptEvidence], rank: int | None) -> Iterator[str]:
    """The page, line by line. Without a rank, the stacks of others than the culprit are cut short."""
    for index, attempt in enumerate(attempts):
        if index:
            yield ""
        yield from _attempt(attempt, rank)


def as_json(attempts: list[AttemptEvidence], rank: int | None) -> list[dict[str, Any]]:
    """The same for a program."""
    return [
        {
            "attempt": one.attempt,
            "failure": one.failure,
            "workers": one.workers,
            "ranks": {number: stood for number, stood in one.ranks.items() if rank in (None, number)},
            "logs": one.logs,
        }
        for one in attempts
    ]


def _attempt(one: AttemptEvidence, rank: int | None) -> Iterator[str]:
    failure = one.failure
    where = [f"{name} {failure[name]}" for name in ("worker", "rank", "pod", "node") if failure.get(name) is not None]
    code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
    culprit = f" of {', '.join(where)}" if where else ""
    at = f" at {failure['at']}" if failure.get("at") else ""
    yield _line(f"Attempt {one.attempt}: {failure.get('reason', 'unknown')}{culprit}{code}{at}")
    yield from _text(failure.get("message"), "  ")
    for number, stood in sorted(one.ranks.items(), key=lambda item: (item[0] != failure.get("rank"), item[0])):
        if rank in (None, number):
            yield from _rank(number, stood, whole=rank is not None or number == failure.get("rank"))
    if rank is not None and rank not in one.ranks and rank != failure.get("rank"):
        yield f"  Nothing was kept of rank {rank}: stacks are taken where ranks make no progress."
    if rank is None or rank == failure.get("rank"):
        culprit_worker = failure.get("worker")
        for worker, told in sorted(one.workers.items(), key=lambda item: (item[0] != culprit_worker, item[0])):
            yield from _worker(worker, told)
        for worker, log in sorted(one.logs.items()):
            yield f"  The log of worker {worker} ends:"
            yield from _text(log, "    ")


def _rank(rank: int, stood: Mapping[str, Any], *, whole: bool) -> Iterator[str]:
    facts = []
    if "step" in stood:
        facts.append(f"step {stood['step']}")
    if "section" in stood:
        facts.append(f"section {stood['section']}")
    if isinstance(stood.get("silentSeconds"), int | float):
        facts.append(f"no progress for {stood['silentSeconds']:.0f} s")
    if stood.get("state") in ("T", "t"):
        facts.append("stopped by a signal (state T)")
    if "collective" in stood:
        facts.append(f"last entered collective {stood['collective']}")
    if stood.get("waits"):
        facts.append("waits in a collective")
    yield _line(f"  Rank {rank}: {', '.join(facts) or 'nothing is known of its progress'}")
    lines = list(_text(stood.get("text"), "    "))
    yield from lines if whole else lines[:BRIEF_LINES]
    if not whole and len(lines) > BRIEF_LINES:
        yield f"    ... {len(lines) - BRIEF_LINES} more lines: --rank {rank}"


def _worker(worker: int, told: Mapping[str, Any]) -> Iterator[str]:
    facts = [str(told.get("state", "unknown"))]
    if told.get("reason"):
        facts.append(str(told["reason"]))
    facts += [f"{name} {told[name]}" for name in ("rank", "pod", "node") if told.get(name) is not None]
    if told.get("exitCode") is not None:
        facts.append(f"exit code {told['exitCode']}")
    if told.get("culprit") is False and told.get("state") == "Failed":
        facts.append("only lost its peers")
    yield _line(f"  Worker {worker}: {', '.join(facts)}")
    yield from _text(told.get("error"), "    ")


def _text(text: object, indent: str) -> Iterator[str]:
    for line in printable(str(text or "")[:MAX_SHOWN]).splitlines():
        yield indent + line


def _line(text: str) -> str:
    return one_line(text[:2_000])
