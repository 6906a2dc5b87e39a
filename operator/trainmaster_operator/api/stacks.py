"""The stacks of all ranks, as they were when somebody asked for them.

They are in the ConfigMap `<job>-stacks`, of the newest request only: `stacks.json` says who answered and how each rank
stood, `rank-<n>.txt` has a rank's stacks. Anybody may have edited it, so `Stacks.parse` accepts whatever stands there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import decimal, loads, mapping, whole

STACKS_KEY = "stacks.json"


def stacks_name(job: str) -> str:
    """Returns the ConfigMap's name."""
    return f"{job}-stacks"


def rank_key(rank: int) -> str:
    """Returns the key of a rank's stacks in the ConfigMap."""
    return f"rank-{rank}.txt"


@dataclass(frozen=True)
class Stacks:
    """Stacks is the answer to one request.

    `ranks` says how each rank stood, as objects on the wire with the stacks as `text`; `unanswered` names workers that
    gave no answer in time, `left_out` counts ranks that there was no room for, and `problem` says why nobody could be
    asked. `withheld`: the job's output isn't kept (runPolicy.keepLogs), so there are no stacks.
    """

    request: str
    attempt: int
    collected_at: str = ""
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    unanswered: tuple[int, ...] = ()
    left_out: int = 0
    problem: str = ""
    withheld: bool = False

    def to_data(self) -> dict[str, str]:
        """Returns what is in the ConfigMap."""
        states = {str(rank): {**state, "text": ""} for rank, state in sorted(self.ranks.items())}
        for state in states.values():
            del state["text"]
        head = {
            "request": self.request,
            "attempt": self.attempt,
            "collectedAt": self.collected_at,
            "ranks": states,
            "unanswered": list(self.unanswered),
            "leftOut": self.left_out,
            "problem": self.problem,
            "withheld": self.withheld,
        }
        texts = {rank_key(rank): text for rank, state in sorted(self.ranks.items()) if (text := state.get("text"))}
        return {STACKS_KEY: json.dumps(head, separators=(",", ":")), **texts}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Stacks | None:
        """Reads them back; None where they aren't any."""
        try:
            head = mapping(loads(str(data.get(STACKS_KEY, ""))))
        except ValueError:
            return None
        if not isinstance(head.get("request"), str):
            return None
        indexes = ((decimal(key, MAX_INDEX), state) for key, state in mapping(head.get("ranks")).items())
        states = {rank: mapping(state) for rank, state in indexes if rank is not None}
        unanswered = head.get("unanswered")
        return cls(
            request=head["request"],
            attempt=whole(head.get("attempt")) or 0,
            collected_at=str(head.get("collectedAt") or ""),
            ranks={rank: {**state, "text": str(data.get(rank_key(rank), ""))} for rank, state in states.items()},
            unanswered=tuple(one for one in unanswered if whole(one) is not None)
            if isinstance(unanswered, list)
            else (),
            left_out=whole(head.get("leftOut")) or 0,
            problem=str(head.get("problem") or ""),
            withheld=head.get("withheld") is True,
        )
