"""A hang: which rank stopped, and where its main thread stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.wire.values import text, whole

# A frame as faulthandler prints it, and as py-spy does.
_FRAMES = (
    re.compile(r'File "([^"]+)", line (\d+) in (\S+)'),
    re.compile(r"^\s+(\S+) \(([^():]+):(\d+)\)", re.MULTILINE),
)
# Frames of the standard library and of torch say where a thread waits, not whose code waits.
_LIBRARIES = ("/site-packages/", "/lib/python", "/dist-packages/", "<frozen ")
SILENT = "no progress"
OTHERS, DEVICE = "waits in a collective", "waits for its device"


def hang_finding(failure: Failure, evidence: AttemptEvidence | None, workers: int, name: str, where: str) -> Finding:
    """Returns the finding about a failure for a hang of a job of so many workers."""
    rank = failure.rank if failure.rank is not None else _behind(evidence)
    state = {} if evidence is None or rank is None else evidence.ranks.get(rank, {})
    stacks = text(state.get("text"), None)
    frame = top_frame(stacks)
    who = "its ranks" if rank is None else f"rank {rank}"
    node = f" on node {failure.node}" if failure.node else ""
    step = f" at step {state['step']}" if whole(state.get("step")) is not None else ""
    stands = f", in {frame}" if frame else ""
    waits = waits_for(state)
    if waits == DEVICE and evidence is not None and workers == len(evidence.ranks) == 1:
        clause = f"its only rank{node} is waiting for the GPU{step}{stands}"
    else:
        clause = f"{who}{node} made no progress{step}{stands}"
        clause += {OTHERS: f" (it {OTHERS} for another rank)", DEVICE: f" (it {DEVICE})"}.get(waits, "")
    lines = [f"attempt {failure.attempt}: {' | '.join(failure.message.splitlines())}"]
    lines += [f"  {line}" for line in stacks.splitlines()[:8]]
    if evidence is not None:
        lines += [_rank_line(number, other) for number, other in sorted(evidence.ranks.items()) if number != rank][:6]
    option = "" if rank is None else f" --rank {rank}"
    steps = [
        Step("all stacks of that rank", f"kubectl dtj evidence {name} {where} --attempt {failure.attempt}{option}"),
        Step("where steps take that long, raise failurePolicy.hang.progressSeconds"),
    ]
    return Finding("Hang", clause, tuple(lines), tuple(steps))


def waits_for(state: Mapping[str, Any]) -> str:
    """Returns what a rank waits for by its evidence; empty where that isn't known, or nothing."""
    if state.get("waits") == "collective" or state.get("pending") is True:
        return OTHERS
    return DEVICE if state.get("waits") == "device" else ""


def top_frame(stacks: str) -> str:
    """Returns the innermost frame of the first thread that is nobody's library: function, file and line."""
    found = [(function, f"{file}:{line}") for file, line, function in _FRAMES[0].findall(stacks)]
    found = found or [(function, f"{file}:{line}") for function, file, line in _FRAMES[1].findall(stacks)]
    own = [frame for frame in found if not any(library in frame[1] for library in _LIBRARIES)]
    function, place = next(iter(own or found), ("", ""))
    return f"{function} ({place})" if function else ""


def _behind(evidence: AttemptEvidence | None) -> int | None:
    """Returns the rank that is furthest behind, and in no collective where one isn't."""
    if evidence is None or not evidence.ranks:
        return None
    return min(
        evidence.ranks,
        key=lambda rank: (
            waits_for(evidence.ranks[rank]) == OTHERS,
            whole(evidence.ranks[rank].get("step")) or 0,
            rank,
        ),
    )


def _rank_line(rank: int, state: Mapping[str, Any]) -> str:
    step = whole(state.get("step"))
    frame = top_frame(text(state.get("text"), None))
    facts = [f"step {step}" if step is not None else "", waits_for(state), frame]
    return f"rank {rank}: {', '.join(filter(None, facts)) or 'nothing is known'}"
