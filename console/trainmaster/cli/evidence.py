"""`kubectl dtj evidence` prints each failed attempt: its failure, every worker's report, stacks and ends of logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.terminal import say
from trainmaster.client.diagnosis.failures import waits_for
from trainmaster.client.view import recovery_sentence
from trainmaster_operator.api.evidence import AttemptEvidence, Stacks
from trainmaster_operator.api.printable import one_line, printable
from trainmaster_operator.wire.values import camel, mapping

MAX_SHOWN = 100_000
BRIEF_LINES = 12
# Indentation of a wrapped sentence's later lines, and the minimum width of a line (columns).
HANGING_COLUMNS, FEWEST_COLUMNS = 2, 20


class Prose(str):
    """Prose is a line that is wrapped between words in a terminal, unlike a line of logs or stacks."""


def print_page(lines: Iterable[str]) -> None:
    """Prints the page. In a terminal, sentences are wrapped to the width; in a pipe, each takes one line."""
    console = SafeConsole()
    for line in lines:
        if not isinstance(line, Prose) or not console.is_terminal:
            say(line)
            continue
        text = line.lstrip()
        indent = len(line) - len(text)
        width = max(FEWEST_COLUMNS, console.width - indent - HANGING_COLUMNS)
        for at, part in enumerate(Text(text).wrap(console, width)):
            say(" " * (indent + HANGING_COLUMNS * (at > 0)) + part.plain.rstrip())


def evidence_lines(attempts: list[AttemptEvidence], rank: int | None) -> Iterator[str]:
    """Yields the page line by line. Without a rank, only the culprit's stacks are complete."""
    for index, attempt in enumerate(attempts):
        if index:
            yield ""
        yield from _attempt(attempt, rank)


def as_json(attempts: list[AttemptEvidence], rank: int | None) -> list[dict[str, Any]]:
    return [{**vars(one), "ranks": _chosen(one.ranks, rank)} for one in attempts]


def _chosen(ranks: Mapping[int, Mapping[str, Any]], rank: int | None) -> dict[int, Mapping[str, Any]]:
    return {number: state for number, state in sorted(ranks.items()) if rank in (None, number)}


def failure_words(failure: Mapping[str, Any]) -> str:
    """Describes who failed and how, e.g. "Error of worker 1, rank 5, pod reviews-1, node gpu-7, exit code 137"."""
    where = [f"{name} {failure[name]}" for name in ("worker", "rank", "pod", "node") if failure.get(name) is not None]
    code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
    return f"{failure.get('reason', 'unknown')}{' of ' if where else ''}{', '.join(where)}{code}"


def _attempt(one: AttemptEvidence, rank: int | None) -> Iterator[str]:
    failure = one.failure
    at = f" at {failure['failedAt']}" if failure.get("failedAt") else ""
    yield _line(f"Attempt {one.attempt}: {failure_words(failure)}{at}")
    yield from map(Prose, _text(failure.get("message"), "  "))
    if times := recovery_sentence(mapping(failure.get("recovery"))):
        yield Prose(f"  {times}")
    for number, state in sorted(one.ranks.items(), key=lambda item: (item[0] != failure.get("rank"), item[0])):
        if rank in (None, number):
            yield from rank_lines(number, state, whole=rank is not None or number == failure.get("rank"))
    if rank is not None and rank not in one.ranks and rank != failure.get("rank"):
        yield Prose(f"  Nothing was kept of rank {rank}: stacks are collected where ranks make no progress.")
    if rank is None or rank == failure.get("rank"):
        culprit_worker = failure.get("worker")
        for worker, report in sorted(one.workers.items(), key=lambda item: (item[0] != culprit_worker, item[0])):
            yield from _worker(worker, report)
        for worker, log in sorted(one.logs.items()):
            yield f"  The log of worker {worker} ends:"
            yield from _text(log, "    ")


def rank_lines(rank: int, state: Mapping[str, Any], *, whole: bool) -> Iterator[str]:
    """Yields a rank's progress and its stacks. Unless `whole` is set, only the stacks' first lines are yielded."""
    facts = [f"{name} {state[name]}" for name in ("step", "section") if name in state]
    if isinstance(state.get("silentSeconds"), int | float):
        facts.append(f"no progress for {state['silentSeconds']:.0f} s")
    if state.get("state") in ("T", "t"):
        facts.append("stopped by a signal (state T)")
    if "collective" in state:
        facts.append(f"last entered collective {state['collective']}")
    facts += filter(None, [waits_for(state)])
    yield _line(f"  Rank {rank}: {', '.join(facts) or 'nothing is known of its progress'}")
    lines = list(_text(state.get("text"), "    "))
    yield from lines if whole else lines[:BRIEF_LINES]
    if not whole and len(lines) > BRIEF_LINES:
        yield f"    ... {len(lines) - BRIEF_LINES} more lines: --rank {rank}"


def _worker(worker: int, report: Mapping[str, Any]) -> Iterator[str]:
    facts = [str(report.get("state", "unknown")), *([str(report["reason"])] if report.get("reason") else [])]
    facts += [f"{name} {report[name]}" for name in ("rank", "pod", "node") if report.get(name) is not None]
    if report.get("exitCode") is not None:
        facts.append(f"exit code {report['exitCode']}")
    if report.get("culprit") is False and report.get("state") == "Failed":
        facts.append("only lost its peers")
    yield _line(f"  Worker {worker}: {', '.join(facts)}")
    if report.get("environment"):
        yield _line(f"    environment: {report['environment']}")
    yield from map(Prose, _text(report.get("error"), "    "))


def _text(text: object, indent: str) -> Iterator[str]:
    for line in printable(str(text or "")[:MAX_SHOWN]).splitlines():
        yield indent + line


def _line(text: str) -> Prose:
    return Prose(one_line(text[:2_000]))


# Up to this number of ranks, all stacks are shown completely.
WHOLE_RANKS = 4
SHOWN_WORKERS = 8


def stacks_lines(stacks: Stacks, rank: int | None) -> Iterator[str]:
    """Yields the page line by line. If more than WHOLE_RANKS ranks answer, only a chosen rank's stacks are complete."""
    yield one_line(f"Attempt {stacks.attempt}, {stacks.collected_at}: {len(stacks.ranks)} ranks have answered")
    for number, state in _chosen(stacks.ranks, rank).items():
        yield from rank_lines(number, state, whole=rank is not None or len(stacks.ranks) <= WHOLE_RANKS)
    if stacks.withheld:
        yield "  There are no stacks: the job's output isn't kept (runPolicy.keepLogs, or --no-keep-logs)."


def named_workers(workers: Sequence[int]) -> str:
    """Names some workers, e.g. "worker 3" or "workers 0, 1, ... and 2 more"."""
    named, more = ", ".join(map(str, workers[:SHOWN_WORKERS])), len(workers) - SHOWN_WORKERS
    return f"worker{'s' if len(workers) > 1 else ''} {named}{f' and {more} more' if more > 0 else ''}"


def missing_stacks(stacks: Stacks, rank: int | None) -> list[str]:
    sentences = [f"the ranks could not be asked: {one_line(stacks.problem)}"] if stacks.problem else []
    if stacks.unanswered and not stacks.problem:
        sentences.append(f"no answer from the ranks of {named_workers(stacks.unanswered)}")
    if stacks.left_out:
        sentences.append(f"{stacks.left_out} more ranks have answered than can be kept")
    if rank is not None and rank not in stacks.ranks and not sentences:
        ranks = stacks.ranks
        known = f"ranks {min(ranks)} to {max(ranks)} run" if ranks else "no rank runs at the moment"
        sentences.append(f"there is no answer of rank {rank}: {known}")
    return sentences


def stacks_json(stacks: Stacks, rank: int | None) -> dict[str, Any]:
    found = {camel(name): value for name, value in vars(stacks).items() if name != "request"}
    return {**found, "ranks": {str(number): state for number, state in _chosen(stacks.ranks, rank).items()}}
