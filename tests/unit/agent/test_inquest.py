"""Whom a lead names when not all workers answer: the silent ones, unless something speaks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.agent.hang.diagnosis import Inquest


class Later:
    """The loop, as far as an inquest needs it: `over` lets the time pass."""

    def __init__(self) -> None:
        self.over: Callable[[], None] = lambda: None

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> Later:
        self.over = callback
        return self

    def cancel(self) -> None:
        self.over = lambda: None


def late(step: int, **fields: Any) -> dict[str, Any]:
    return {"step": step, "silentSeconds": 9.0, "limitSeconds": 5.0, "limit": "progressSeconds", **fields}


PATIENT = {"step": 0, "silentSeconds": 9.0, "limitSeconds": 60.0, "limit": "firstStepSeconds", "patient": True}
NAMED = "rank 0 made no progress for 9 s at step 5; the limit is progressSeconds 5 s"


@pytest.mark.parametrize(
    ("answers", "steps", "lost", "told"),
    [
        # Nothing is known of worker 1; or no more than of those that wait for it.
        ({0: late(5), 2: late(5)}, {1: -1}, [1], None),
        ({0: late(5), 2: late(6)}, {1: 5}, [1], None),
        ({0: late(5)}, {1: 4, 2: 5}, [1, 2], None),
        # It had come further: somebody who answers is the one.
        ({0: late(5), 2: late(6)}, {1: 6}, [], ("hung", 0)),
        # It lives, and is only slow to find out.
        ({0: late(5), 2: late(6)}, {1: None}, [], ("hung", 0)),
        # A stopped rank explains everything.
        ({0: late(5), 2: late(6, state="T")}, {1: -1}, [], ("hung", 2)),
        ({0: late(5), 2: PATIENT}, {1: -1}, [], ("patience", None)),
        ({0: late(5), 1: late(5), 2: late(6)}, {}, [], ("hung", 0)),
    ],
)
def test_who_is_named(
    answers: dict[int, dict[str, Any]], steps: dict[int, int | None], lost: list[int], told: tuple[str, Any] | None
) -> None:
    loop, said, named = Later(), list[dict[str, Any]](), list[tuple[int, list[int], str]]()
    inquest = Inquest(
        loop,  # type: ignore[arg-type]
        said.append,
        lambda: frozenset(range(3)),
        lambda worker, _since: steps[worker],
        lambda *given: named.append(given),
    )
    inquest.stalled(3, 3)
    assert inquest.question == said[0] == {"type": "collect", "attempt": 3, "bytes": 40_000}
    for worker, standing in answers.items():
        inquest.take(worker, {"attempt": 3, "ranks": {str(worker): standing}})
    loop.over()
    assert inquest.question is None
    assert [(line["type"], line.get("rank")) for line in said[1:]] == ([told] if told else [])
    assert [workers for _, workers, _ in named] == ([lost] if lost else [])
    if lost:
        assert named[0][2].startswith(f"no answer from worker {', '.join(map(str, lost))}\n{NAMED}")
