"""Converts other operators' manifests into jobs, with an answer for every field. This is the entry point.

Several manifests are converted together, because a TrainJob needs its runtime. Manifests of other kinds stay unchanged.
Each new job is validated as `trainmaster validate` does. Invalid fields are removed from the job, and the manifest's
fields that became them are refused. For each required field that is missing, there is a note without a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from typing import Any

from trainmaster.converting.fields import Answer, Draft, Field, Path, dotted, paths, remove
from trainmaster.converting.job_set import convert_job_set
from trainmaster.converting.metadata import settle_gang
from trainmaster.converting.pytorch_job import convert_pytorch_job
from trainmaster.converting.train_job import convert_train_job
from trainmaster_operator.api.parsing import InvalidJob, parse_job
from trainmaster_operator.api.problems import Problem

_RUNTIMES = {("trainer.kubeflow.org", kind) for kind in ("ClusterTrainingRuntime", "TrainingRuntime")}
# Maximum number of checks. Solving one problem may reveal the next.
_MOST_CHECKS = 100


@dataclass(frozen=True)
class Note:
    """Note is the answer for a field of a manifest."""

    # The manifest's index.
    manifest: int
    # The field's path. Empty if the field is missing.
    field: Path
    value: Any
    answer: Answer
    # The names and values of the new fields that resulted.
    became: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Conversion:
    """Conversion is a manifest's result: the documents that replace it, and a note for each of its fields."""

    manifest: int
    documents: tuple[Mapping[str, Any], ...]
    # The notes, or None for a manifest that stays unchanged.
    notes: tuple[Note, ...] | None


def is_runtime(value: Any) -> bool:
    """Returns whether a manifest is a Kubeflow Trainer runtime."""
    return isinstance(value, Mapping) and _kind(value) in _RUNTIMES


def can_convert(value: Any) -> bool:
    """Returns whether a manifest is another operator's job that this package can convert."""
    return isinstance(value, Mapping) and _kind(value) in _CONVERTERS


def convert(manifests: Sequence[Any]) -> list[Conversion]:
    """Returns the manifests' conversions, in the same order."""
    runtimes = {(value["kind"], _name(value)): number for number, value in enumerate(manifests) if is_runtime(value)}
    runtime_of = {
        number: runtimes.get(_runtime_of(Field(value)))
        for number, value in enumerate(manifests)
        if can_convert(value) and value["kind"] == "TrainJob"
    }
    found = []
    for number, value in enumerate(manifests):
        if can_convert(value):
            found.append(_converted(number, runtime_of.get(number), manifests))
        elif is_runtime(value):
            # If TrainJobs use a runtime, its fields get their answers there.
            answer = Answer("refused", "no TrainJob in the files uses this runtime, and it is no job by itself")
            unused = () if number in runtime_of.values() else (Note(number, (), value, answer),)
            found.append(Conversion(number, (), unused))
        else:
            found.append(Conversion(number, (value,), None))
    return found


def _runtime_of(job: Field) -> tuple[str, str]:
    reference = job.get("spec", "runtimeRef")
    return reference.text("kind") or "ClusterTrainingRuntime", reference.text("name")


def _converted(number: int, runtime: int | None, manifests: Sequence[Any]) -> Conversion:
    sources = {at: Field(manifests[at]) for at in (number, runtime) if at is not None}
    draft = _CONVERTERS[_kind(manifests[number])](*sources.values())
    leaves = [leaf for each in sources.values() for leaf in each.leaves()]
    settle_gang(leaves, draft)
    for leaf in leaves:
        if leaf.value is None or leaf.value in ({}, []):
            leaf.dropped("it is empty")
        leaf.refused("convert knows no such field here; if it matters, find its like in docs/reference.md")
    missing = _checked(draft, leaves)
    notes = [note for at, each in sources.items() for note in _notes(at, each, draft)]
    notes += [Note(number, (), None, Answer("refused", str(problem))) for problem in missing]
    return Conversion(number, (*draft.beside.values(), draft.ordered()), tuple(notes))


def _notes(manifest: int, field: Field, draft: Draft) -> Iterator[Note]:
    """Yields one note for a field whose leaves all have the same answer, or else the notes for each of its parts."""
    first, *others = field.leaves()
    answer = first.answer
    assert answer is not None
    if not others or all(leaf.answer is answer for leaf in others):
        # If there is only one leaf, the note is about this leaf, because its target may be a leaf too.
        shown = field if others else first
        yield Note(manifest, shown.path, shown.plain(), answer, _became(answer, draft))
        return
    for _, each in field.parts():
        yield from _notes(manifest, each, draft)


def _became(answer: Answer, draft: Draft) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (", ".join((*filter(None, [target.document]), dotted(target.path))), draft.target(target))
        for target in answer.targets
    )


def _checked(draft: Draft, leaves: Sequence[Field]) -> list[Problem]:
    """Removes the job's invalid fields, refuses the source's fields behind them, and returns the remaining problems."""
    found = list[Problem]()
    if "image" not in draft.job["spec"]:
        message = "is missing, and the bundled trainer's would be used; set it to the image that has the program"
        found.append(Problem("spec.image", None, message))
    taken_out: dict[str, Problem] = {}
    for _ in range(_MOST_CHECKS):
        wrong = next(_that_can_go(draft, taken_out), None)
        if wrong is None:
            break
        problem, path = wrong
        taken_out[problem.field] = problem
        if not _take_out(problem, path, draft, leaves):
            found.append(problem)
    return [*found, *(each for each in _problems(draft) if each not in found)]


def _that_can_go(draft: Draft, taken_out: dict[str, Problem]) -> Iterator[tuple[Problem, Path]]:
    """Yields each problem that a removal can solve, with the path to remove.

    This is the path of the invalid field. If a removed field is required, it is the path of that
    field's parent.
    """
    there = {dotted(path): path for path in paths(draft.job)}
    for problem in _problems(draft):
        path = there.get(problem.field)
        if path is None and problem.field in taken_out:
            path = there.get(problem.field.rpartition(".")[0])
            problem = taken_out.pop(problem.field)
        # metadata and spec themselves can't be removed.
        if path is not None and len(path) > 1:
            yield problem, path


def _problems(draft: Draft) -> Sequence[Problem]:
    try:
        parse_job(draft.ordered())
    except InvalidJob as error:
        return error.problems
    return ()


def _take_out(problem: Problem, path: Path, draft: Draft, leaves: Sequence[Field]) -> bool:
    """Removes the value at a path, and refuses the source's fields that became it. Returns whether there were any."""
    concerned = [leaf for leaf in leaves if _made(leaf, path)]
    for leaf in concerned:
        leaf.overruled(str(problem))
    removed = remove(draft.job, path)
    moved: dict[int, Answer] = {}
    for leaf in leaves:
        # Leaves that became a field together must continue to share one answer.
        if leaf.answer is not None:
            leaf.answer = moved.setdefault(id(leaf.answer), _without(removed, leaf.answer))
    return bool(concerned)


def _without(removed: Path, answer: Answer) -> Answer:
    """Returns an answer with its targets adjusted to the removal of a list item."""
    *before, last = removed
    length = len(removed)
    if not isinstance(last, int):
        return answer
    targets = tuple(
        replace(target, path=(*before, here - 1, *target.path[length:]))
        if not target.document
        and target.path[: length - 1] == tuple(before)
        and isinstance(here := target.path[length - 1], int)
        and here > last
        else target
        for target in answer.targets
    )
    return answer if targets == answer.targets else replace(answer, targets=targets)


def _made(leaf: Field, path: Path) -> bool:
    """Returns whether a leaf became the value at a path, a part of it, or a value that contains it."""
    targets = leaf.answer.targets if leaf.answer is not None else ()
    return any(not each.document and all(map(eq, each.path, path)) for each in targets)


def _kind(value: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the group and kind of a manifest."""
    return str(value.get("apiVersion")).partition("/")[0], str(value.get("kind"))


def _name(value: Mapping[str, Any]) -> str:
    return Field(value).text("metadata", "name")


_CONVERTERS: dict[tuple[str, str], Callable[..., Draft]] = {
    ("kubeflow.org", "PyTorchJob"): convert_pytorch_job,
    ("trainer.kubeflow.org", "TrainJob"): convert_train_job,
    ("jobset.x-k8s.io", "JobSet"): convert_job_set,
}
