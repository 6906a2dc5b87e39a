"""An agent prints `--- attempt 2 ---` where an attempt begins, so that a container's log can be cut into its attempts.

What a rank prints itself comes with `[rank 3]: ` before it. Who writes to the container's output past the agent can
print such a line too: attempts are counted upwards, and a mark that isn't above the one before it marks nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_MARK = re.compile(r"--- attempt (\d{1,9}) ---")


def marked_attempt(line: str) -> int | None:
    """Returns the attempt that begins behind this line; None for any other line."""
    match = _MARK.fullmatch(line) if line.startswith("---") else None
    return int(match[1]) if match else None


def lines_of_attempt(lines: Sequence[str], attempt: int, *, newest: int, whole: bool) -> Sequence[str]:
    """Returns an attempt's lines of a log, without the mark; none where they can't be told from those of another one.

    `newest`: the newest attempt that there is. `whole`: the log's first line is there. Then what stands before the
    first mark is the attempt's that began before it, else it may be another's of which the mark is cut off.
    """
    marks: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        begins = marked_attempt(line)
        if begins is not None and begins > (marks[-1][1] if marks else 0):
            marks.append((at, begins))
    # Behind the last line begins what isn't there yet.
    marks.append((len(lines), max(newest, marks[-1][1] if marks else 0) + 1))
    for (at, begins), (end, _) in pairwise(marks):
        if begins == attempt:
            return lines[at + 1 : end]
    end, following = marks[0]
    return lines[:end] if attempt < following and (whole or following == attempt + 1) else ()
