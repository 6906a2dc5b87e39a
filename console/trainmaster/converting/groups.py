"""Combines pod templates that run one program into a job. If their resources or nodes differ, the job has groups.

Groups can't differ in other fields, so other differences are refused. The program can distinguish ranks instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.converting.fields import POD, Answer, Draft, Field, Path, Target, at, dotted, position_of
from trainmaster_operator.api.merge import MERGE_KEYS

# Fields in which groups can differ. In a group they have the same names.
_OF_GROUPS: tuple[Path, ...] = (("spec", "resources"), ("spec", "accelerator"), (*POD, "nodeSelector"))
_GANG: Path = ("spec", "scheduling", "gang", "scheduler")
WORKERS: Path = ("spec", "workers")
NO_AUTOSCALER = "no autoscaler is made; make a HorizontalPodAutoscaler for the job's scale subresource"
# Fields that identify a program.
_PROGRAM: tuple[Path, ...] = (("spec", "image"), ("spec", "command"), ("spec", "args"), ("spec", "launcher"))


@dataclass(frozen=True)
class Part:
    """Part is a pod template of a job, converted into a separate draft. `field` receives the answers."""

    name: str
    workers: int
    draft: Draft
    field: Field


def is_same_program(one: Part, other: Part) -> bool:
    """Returns whether two templates run the same program."""
    return all(one.draft.at(path) == other.draft.at(path) for path in _PROGRAM)


def combine(parts: Sequence[Part]) -> Draft:
    """Combines the parts, given in the order of ranks, into a job. The last part's template becomes its pods'."""
    base = parts[-1]
    job = base.draft
    if len(parts) == 1:
        job.set(WORKERS, base.workers)
        return job
    # All pods of a gang use the same scheduler, even if only one template names it.
    gangs = [gang for part in parts if (gang := part.draft.at(_GANG)) is not None]
    if gangs and job.at(_GANG) is None:
        job.set(_GANG, gangs[0])
    differ = any(part.draft.at(path) != job.at(path) for part in parts for path in _OF_GROUPS)
    if differ:
        groups = []
        for part in parts:
            own = {path[-1]: value for path in _OF_GROUPS if (value := part.draft.at(path)) is not None}
            groups.append({"name": part.name, "workers": part.workers, **own})
        job.set(("spec", "workerGroups"), groups)
    else:
        job.set(WORKERS, sum(part.workers for part in parts))
    for position, part in enumerate(parts):
        for leaf in part.field.leaves():
            if leaf.answer is not None and leaf.answer.outcome == "kept":
                _settle(leaf, part, position if differ else None, base)
    if differ:
        for path in _OF_GROUPS:
            if job.at(path) is not None:
                del job.at(path[:-1])[path[-1]]
    return job


def workers_path(draft: Draft, position: int) -> Path:
    """Returns the path of the number of workers that belongs to the part at `position`."""
    has_groups = draft.at(("spec", "workerGroups")) is not None
    return ("spec", "workerGroups", position, "workers") if has_groups else WORKERS


def answer_pods(field: Field, path: Path, remark: str = "") -> None:
    """Answers a field that contains a number of pods: it became the number of workers at a path."""
    if field.whole() is None:
        field.refused(f"is no whole number of pods; correct {dotted(path)}")
    else:
        field.became(Target(path), remark=remark)


def _settle(leaf: Field, part: Part, group: int | None, base: Part) -> None:
    """Gives a kept leaf its target in the combined job, or refuses the leaf if the job's value is different."""
    assert leaf.answer is not None
    targets = []
    for target in leaf.answer.targets:
        of_group = _of_group(target.path)
        if group is not None and of_group is not None:
            targets.append(Target(("spec", "workerGroups", group, *of_group)))
            continue
        place = _place(target.path, part.draft.job, base.draft.job)
        if place is None or at(base.draft.job, place) != at(part.draft.job, target.path):
            leaf.answer = Answer(
                "refused",
                f"differs from {base.name}, and a job has one pod template; let the program decide by its RANK, or add "
                "it for all",
            )
            return
        targets.append(Target(place))
    leaf.answer = Answer("kept", leaf.answer.text, tuple(targets))


def _of_group(path: Path) -> Path | None:
    """Returns a field's path within a group, or None if groups can't differ in this field."""
    return next((path[len(here) - 1 :] for here in _OF_GROUPS if path[: len(here)] == here), None)


def _place(path: Path, own: Any, other: Any) -> Path | None:
    """Returns the corresponding path in another job. List items are identified by keys."""
    place: Path = ()
    for part in path:
        if isinstance(part, int):
            item, items, keys = at(own, (part,)), other, MERGE_KEYS.get(str(place[-1]))
            if keys is not None and isinstance(item, dict) and isinstance(items, list):
                found = position_of(item, items, keys)
                if found is None:
                    return None
                own, other, place = item, items[found], (*place, found)
                continue
        own, other, place = at(own, (part,)), at(other, (part,)), (*place, part)
    return place
