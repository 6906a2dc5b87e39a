"""What `kubectl dtj stacks` prints: rank by rank as `evidence` does, and who has not answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmaster.cli.evidence import rank_lines
from trainmaster_operator.api.evidence import Stacks
from trainmaster_operator.api.printable import one_line

# Of so many ranks all lines are shown without being asked for.
WHOLE_RANKS = 4
SHOWN_WORKERS = 8


def stacks_lines(stacks: Stacks, rank: int | None) -> Iterator[str]:
    """Yields the page line by line. Of many ranks only one that is asked for is shown whole."""
    yield one_line(f"Attempt {stacks.attempt}, {stacks.collected_at}: {len(stacks.ranks)} ranks have answered")
    for number, state in sorted(stacks.ranks.items()):
        if rank in (None, number):
            yield from rank_lines(number, state, whole=rank is not None or len(stacks.ranks) <= WHOLE_RANKS)
    if stacks.withheld:
        yield "  There are no stacks: the job's output isn't kept (runPolicy.keepLogs, or --no-keep-logs)."


def missing(stacks: Stacks, rank: int | None) -> list[str]:
    """Returns what is missing, in sentences; none where all that was asked for is there."""
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


def as_json(stacks: Stacks, rank: int | None) -> dict[str, Any]:
    """Returns the same for a program."""
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
