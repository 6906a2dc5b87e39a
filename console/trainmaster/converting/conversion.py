"""Converts other operators' manifests into jobs, with an answer for every field. This is the entry point.

Several manifests are converted together, because a TrainJob needs its runtime. Manifests of other kinds stay unchanged.
Each new job is validated as by `trainmaster validate`. Invalid fields are removed, and the source's fields are refused.
Missing fields become notes without a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmaster.converting.fields import Answer, Draft, Field, Path, dotted, paths, remove
from trainmaster.converting.job_set import convert_job_set
from trainmaster.converting.metadata import settle_gang
from trainmaster.converting.pytorch_job import convert_pytorch_job
from trainmaster.converting.train_job import convert_train_job
from trainmaster_operator.api.parsing import InvalidJob, parse_job
from trainmaster_operator.api.problems import Problem

_RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
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
    # The names and values of the fields that resulted.
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
    return isinstance(value, Mapping) and value.get("kind") in _RUNTIMES and _group(value) == "trainer.kubeflow.org"


def can_convert(value: Any) -> bool:
    """Returns whether a manifest is another operator's job that this package can convert."""
    return isinstance(value, Mapping) and (_group(value), value.get("kind")) in _CONVERTERS


def convert(manifests: Sequence[Any]) -> list[Conversion]:
    """Returns the manifests' conversions, in the same order."""
    runtimes = {
        (str(value.get("kind")), _name(value)): number for number, value in enumerate(manifests) if is_runtime(value)
    }
    used: set[int] = set()
    found = []
    for number, value in enumerate(manifests):
        if is_runtime(value):
            found.append(Conversion(number, (), ()))
        elif can_convert(value):
            found.append(_converted(number, value, manifests, runtimes, used))
        else:
            found.append(Conversion(number, (value,), None))
    return [
        each if each.notes != () or not is_runtime(manifests[each.manifest]) else _runtime(each, manifests, used)
        for each in found
    ]


def _converted(
    number: int,
    value: Mapping[str, Any],
    manifests: Sequence[Any],
    runtimes: Mapping[tuple[str, str], int],
    used: set[int],
) -> Conversion:
    source = Field(value)
    sources = [(number, source)]
    if value.get("kind") == "TrainJob":
        kind = source.text("spec", "runtimeRef", "kind") or "ClusterTrainingRuntime"
        at = runtimes.get((kind, source.text("spec", "runtimeRef", "name")))
        runtime = Field(manifests[at]) if at is not None else None
        if runtime is not None and at is not None:
            sources.append((at, runtime))
            used.add(at)
        draft = convert_train_job(source, runtime)
    else:
        draft = _CONVERTERS[_group(value), str(value["kind"])](source)
    leaves = [leaf for _, each in sources for leaf in each.leaves()]
    settle_gang(leaves, draft)
    for leaf in leaves:
        if leaf.value is None or leaf.value in ({}, []):
            leaf.dropped("it is empty")
        leaf.refused("convert knows no such field here; if it matters, find its like in docs/reference.md")
    missing = _checked(draft, leaves)
    notes = [note for at_, each in sources for note in _notes(at_, each, draft)]
    notes += [Note(number, (), None, Answer("refused", str(problem))) for problem in missing]
    return Conversion(number, (*draft.beside.values(), draft.ordered()), tuple(notes))


def _notes(manifest: int, field: Field, draft: Draft) -> Iterator[Note]:
    """Yields one note for a field whose leaves all have the same answer, or else the notes for each of its parts."""
    first, *others = field.leaves()
    answer = first.answer
    assert answer is not None
    if not others or all(leaf.answer is answer for leaf in others):
        # A single leaf gets the note itself, because its target may be a leaf too.
        shown = field if others else first
        yield Note(manifest, shown.path, shown.plain(), answer, _became(answer, draft))
        return
    for each in (*(field.fields or {}).values(), *(field.items or ())):
        yield from _notes(manifest, each, draft)


def _became(answer: Answer, draft: Draft) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (", ".join((*filter(None, [target.document]), dotted(target.path))), draft.target(target))
        for target in answer.targets
    )


def _runtime(found: Conversion, manifests: Sequence[Any], used: set[int]) -> Conversion:
    """Returns a runtime's conversion. Its fields are answered by the TrainJobs that use it, or else refused."""
    if found.manifest in used:
        return found
    answer = Answer("refused", "no TrainJob in the files uses this runtime, and it is no job by itself")
    return Conversion(found.manifest, (), (Note(found.manifest, (), manifests[found.manifest], answer),))


def _checked(draft: Draft, leaves: Sequence[Field]) -> list[Problem]:
    """Removes the job's invalid fields, refuses the source's fields, and returns the remaining problems."""
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

    This is the path of the wrong field, or of a field that needs a part that was removed.
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
    """Removes the value at a path, and returns whether this has refused a field of the source."""
    concerned = [leaf for leaf in leaves if _made(leaf, dotted(path))]
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
    """Returns an answer whose targets are adjusted to the removal of a list item."""
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


def _made(leaf: Field, field: str) -> bool:
    return leaf.answer is not None and any(
        not target.document and _touches(dotted(target.path), field) for target in leaf.answer.targets
    )


def _touches(one: str, other: str) -> bool:
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}["))


def _group(value: Mapping[str, Any]) -> str:
    return str(value.get("apiVersion")).partition("/")[0]


def _name(value: Mapping[str, Any]) -> str:
    return Field(value).text("metadata", "name")


_CONVERTERS: dict[tuple[str, str], Callable[[Field], Draft]] = {
    ("kubeflow.org", "PyTorchJob"): convert_pytorch_job,
    ("trainer.kubeflow.org", "TrainJob"): lambda source: convert_train_job(source, None),
    ("jobset.x-k8s.io", "JobSet"): convert_job_set,
}
