"""The table of `make mistakes` shows for each manifest who answers, in which words, and whether that was expected."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from tests.mistakes.agreement import offline_differences, online_differences
from tests.mistakes.entries import Entry
from tests.mistakes.offline import Verdict
from tests.mistakes.online import Answer

_WIDTH = 120
_NAMES = {"server": "API server", None: "cluster"}


def table(entries: Sequence[Entry], verdicts: Mapping[str, Verdict], answers: Mapping[str, Answer] | None) -> str:
    """Returns the table. Without answers of a cluster it shows those of validate."""
    lines: list[str] = []
    differing = 0
    counts: Counter[str] = Counter()
    for theme, group in groupby(entries, key=lambda entry: entry.theme):
        lines += ["", theme.upper()]
        for entry in group:
            differences = list(offline_differences(entry, verdicts[entry.name]))
            if answers is not None:
                differences += online_differences(entry, answers[entry.name])
            differing += bool(differences)
            counts["accepted" if entry.by is None else entry.by] += 1
            lines += _rows(entry, verdicts[entry.name], None if answers is None else answers[entry.name], differences)
    return "\n".join([*lines, "", *_summary(counts, differing, answers is not None)]).lstrip("\n") + "\n"


def _rows(entry: Entry, verdict: Verdict, answer: Answer | None, differences: Sequence[str]) -> Iterator[str]:
    yield f"  {entry.name}"
    yield from _row("validate", " | ".join(verdict.sentences) or ("valid" if verdict.valid else "nothing"))
    if answer is not None:
        if answer.by is None:
            yield from _row("cluster", f"accepts it: {entry.why}" if entry.why else "accepts it")
        else:
            # kubectl's whole text matters only if it isn't the expected one.
            expected = " | ".join(entry.says) or "the same"
            yield from _row(_NAMES.get(answer.by, answer.by), answer.text if differences else expected)
    for difference in differences:
        yield from _row("DIFFERS", difference)


def _row(who: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"    {who:<11}",
        subsequent_indent=" " * 15,
        break_on_hyphens=False,
        replace_whitespace=True,
    )


_ANSWERED = {
    "rule": "by the API server with the same sentence",
    "schema": "by the API server in its own words",
    "operator": "by the operator, in the job's status",
    "kubectl": "by kubectl, before it sends anything",
    "nobody": "by validate alone: kubectl loses what is wrong",
}


def _summary(counts: Mapping[str, int], differing: int, online: bool) -> Iterator[str]:
    total = sum(counts.values())
    yield f"{total} manifest{'s' * (total != 1)}:"
    yield f"{counts.get('accepted', 0):>6}  odd, and accepted"
    if online:
        yield from (f"{counts[by]:>6}  refused {how}" for by, how in _ANSWERED.items() if by in counts)
    else:
        yield f"{total - counts.get('accepted', 0):>6}  refused"
    sides = "validate and the cluster" if online else "validate"
    yield f"{differing:>6}  for which {sides} answered otherwise than expected"
