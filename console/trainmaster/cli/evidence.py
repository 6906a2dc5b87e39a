"""`kubectl dtj evidence` prints each failed attempt: its failure, every worker's report, stacks and ends of logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.terminal import say
from trainmaster.client.diagnosis.failures import waits_for
from trainmaster.client.view import recovery_sentence
from trainmaster_operator.api.evidence import AttemptEvidence, Stacks
from trainmaster_operator.api.printable import one_line, printable
from trainmaster_operator.wire.values import mapping

MAX_SHOWN = 100_000
BRIEF_LINES = 12
# Indentation of a wrapped sentence's later lines, and the minimum width of a line (columns).
HANGING_COLUMNS, FEWEST_COLUMNS = 2, 20


class Sentence(str):
    """Sentence is a line that is wrapped between words in a terminal, unlike lines of logs and stacks."""


def print_page(lines: Iterable[str]) -> None:
    """Prints the page. In a terminal, sentences are wrapped to the width; in a pipe, each takes one line."""
    console = SafeConsole()
    for line in lines:
        if not isinstance(line, Sentence) or not console.is_terminal:
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
    """Returns the evidence as JSON for programs."""
    return [
        {
            "attempt": one.attempt,
            "failure": one.failure,
            "workers": one.workers,
            "ranks": {number: state for number, state in one.ranks.items() if rank in (None, number)},
            "logs": one.logs,
        }
        for one in attempts
    ]


def _attempt(one: AttemptEvidence, rank: int | None) -> Iterator[str]:
    failure = one.failure
    where = [f"{name} {failure[name]}" for name in ("worker", "rank", "pod", "node") if failure.get(name) is not None]
    code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
    culprit = f" of {', '.join(where)}" if where else ""
    at = f" at {failure['failedAt']}" if failure.get("failedAt") else ""
    yield _line(f"Attempt {one.attempt}: {failure.get('reason', 'unknown')}{culprit}{code}{at}")
    yield from map(Sentence, _text(failure.get("message"), "  "))
    if times := recovery_sentence(mapping(failure.get("recovery"))):
        yield Sentence(f"  {times}")
    for number, state in sorted(one.ranks.items(), key=lambda item: (item[0] != failure.get("rank"), item[0])):
        if rank in (None, number):
            yield from rank_lines(number, state, whole=rank is not None or number == failure.get("rank"))
    if rank is not None and rank not in one.ranks and rank != failure.get("rank"):
        yield Sentence(f"  Nothing was kept of rank {rank}: stacks are collected where ranks make no progress.")
    if rank is None or rank == failure.get("rank"):
        culprit_worker = failure.get("worker")
        for worker, report in sorted(one.workers.items(), key=lambda item: (item[0] != culprit_worker, item[0])):
            yield from _worker(worker, report)
        for worker, log in sorted(one.logs.items()):
            yield f"  The log of worker {worker} ends:"
            yield from _text(log, "    ")


def rank_lines(rank: int, state: Mapping[str, Any], *, whole: bool) -> Iterator[str]:
    """Yields a rank's progress and its stacks: all of them, or the first lines."""
    facts = []
    if "step" in state:
        facts.append(f"step {state['step']}")
    if "section" in state:
        facts.append(f"section {state['section']}")
    if isinstance(state.get("silentSeconds"), int | float):
        facts.append(f"no progress for {state['silentSeconds']:.0f} s")
    if state.get("state") in ("T", "t"):
        facts.append("stopped by a signal (state T)")
    if "collective" in state:
        facts.append(f"last entered collective {state['collective']}")
    if waits := waits_for(state):
        facts.append(waits)
    yield _line(f"  Rank {rank}: {', '.join(facts) or 'nothing is known of its progress'}")
    lines = list(_text(state.get("text"), "    "))
    yield from lines if whole else lines[:BRIEF_LINES]
    if not whole and len(lines) > BRIEF_LINES:
        yield f"    ... {len(lines) - BRIEF_LINES} more lines: --rank {rank}"


def _worker(worker: int, report: Mapping[str, Any]) -> Iterator[str]:
    facts = [str(report.get("state", "unknown"))]
    if report.get("reason"):
        facts.append(str(report["reason"]))
    facts += [f"{name} {report[name]}" for name in ("rank", "pod", "node") if report.get(name) is not None]
    if report.get("exitCode") is not None:
        facts.append(f"exit code {report['exitCode']}")
    if report.get("culprit") is False and report.get("state") == "Failed":
        facts.append("only lost its peers")
    yield _line(f"  Worker {worker}: {', '.join(facts)}")
    if report.get("environment"):
        yield _line(f"    environment: {report['environment']}")
    yield from map(Sentence, _text(report.get("error"), "    "))


def _text(text: object, indent: str) -> Iterator[str]:
    for line in printable(str(text or "")[:MAX_SHOWN]).splitlines():
        yield indent + line


def _line(text: str) -> Sentence:
    return Sentence(one_line(text[:2_000]))


# Up to this number of ranks, all stacks are shown completely.
WHOLE_RANKS = 4
SHOWN_WORKERS = 8


def stacks_lines(stacks: Stacks, rank: int | None) -> Iterator[str]:
    """Yields the page line by line. If there are many ranks, only a requested rank's stacks are complete."""
    yield one_line(f"Attempt {stacks.attempt}, {stacks.collected_at}: {len(stacks.ranks)} ranks have answered")
    for number, state in sorted(stacks.ranks.items()):
        if rank in (None, number):
            yield from rank_lines(number, state, whole=rank is not None or len(stacks.ranks) <= WHOLE_RANKS)
    if stacks.withheld:
        yield "  There are no stacks: the job's output isn't kept (runPolicy.keepLogs, or --no-keep-logs)."


def missing_stacks(stacks: Stacks, rank: int | None) -> list[str]:
    """Returns messages about missing answers."""
    sentences = [f"the ranks could not be asked: {one_line(stacks.problem)}"] if stacks.problem else []
    if stacks.unanswered and not stacks.problem:
        named = ", ".join(map(str, stacks.unanswered[:SHOWN_WORKERS]))
        more = f" and {len(stacks.unanswered) - SHOWN_WORKERS} more" if len(stacks.unanswered) > SHOWN_WORKERS else ""
        plural = "s" if len(stacks.unanswered) > 1 else ""
        sentences.append(f"no answer from the ranks of worker{plural} {named}{more}")
    if stacks.left_out:
        sentences.append(f"{stacks.left_out} more ranks have answered than can be kept")
    if rank is not None and rank not in stacks.ranks and not sentences:
        sentences.append(f"there is no answer of rank {rank}: {_known(stacks)}")
    return sentences


def stacks_json(stacks: Stacks, rank: int | None) -> dict[str, Any]:
    """Returns the stacks as JSON for programs."""
    return {
        "attempt": stacks.attempt,
        "collectedAt": stacks.collected_at,
        "ranks": {str(number): state for number, state in sorted(stacks.ranks.items()) if rank in (None, number)},
        "unanswered": list(stacks.unanswered),
        "leftOut": stacks.left_out,
        "problem": stacks.problem,
        "withheld": stacks.withheld,
    }


def _known(stacks: Stacks) -> str:
    if not stacks.ranks:
        return "no rank runs at the moment"
    return f"ranks {min(stacks.ranks)} to {max(stacks.ranks)} run"
