"""The entry point: converts manifests of other operators into jobs, with an answer for every field.

Several manifests are converted together, because a TrainJob needs its runtime. Other manifests stay unchanged. A new
job is validated as by `trainmaster validate`. Invalid fields are removed and refused at their field of the source, and
missing fields become notes without a field.
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
# Solving one problem may reveal the next; this bounds the number of checks.
_MOST_CHECKS = 100


@dataclass(frozen=True)
class Note:
    """Note is the answer for one field of one manifest."""

    # Index of the manifest.
    manifest: int
    # Empty for an answer about a missing field.
    field: Path
    value: Any
    answer: Answer
    # Names and values of the resulting fields.
    became: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Conversion:
    """Conversion is the result for one manifest: the documents that replace it, and a note on each of its fields."""

    manifest: int
    documents: tuple[Mapping[str, Any], ...]
    # None for a manifest that stays unchanged.
    notes: tuple[Note, ...] | None


def is_runtime(value: Any) -> bool:
    """Returns whether a manifest is a runtime of Kubeflow Trainer."""
    return isinstance(value, Mapping) and value.get("kind") in _RUNTIMES and _group(value) == "trainer.kubeflow.org"


def can_convert(value: Any) -> bool:
    """Returns whether a manifest is a job of another operator that this package can convert."""
    return isinstance(value, Mapping) and (_group(value), value.get("kind")) in _CONVERTERS


def convert(manifests: Sequence[Any]) -> list[Conversion]:
    """Returns the conversion of each manifest, in their order."""
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
    """Yields a note for each field: one if all its leaves have the same answer, otherwise one for each of its parts."""
    first, *others = field.leaves()
    answer = first.answer
    assert answer is not None
    if not others or all(leaf.answer is answer for leaf in others):
        # A single leaf is named itself, because its target may be a leaf too.
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
    """Returns a runtime's conversion. TrainJobs that use it answer its fields; an unused one is refused."""
    if found.manifest in used:
        return found
    answer = Answer("refused", "no TrainJob in the files uses this runtime, and it is no job by itself")
    return Conversion(found.manifest, (), (Note(found.manifest, (), manifests[found.manifest], answer),))


def _checked(draft: Draft, leaves: Sequence[Field]) -> list[Problem]:
    """Removes the job's invalid fields, refuses them at their source, and returns the other problems."""
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
    """Yields problems with the path whose removal solves them.

    It is the wrong field's path, or that of a field that needs a removed part.
    """
    there = {dotted(path): path for path in paths(draft.job)}
    for problem in _problems(draft):
        path = there.get(problem.field)
        if path is None and problem.field in taken_out:
            path = there.get(problem.field.rpartition(".")[0])
            problem = taken_out.pop(problem.field)
        # metadata and spec themselves stay.
        if path is not None and len(path) > 1:
            yield problem, path


def _problems(draft: Draft) -> Sequence[Problem]:
    try:
        parse_job(draft.ordered())
    except InvalidJob as error:
        return error.problems
    return ()


def _take_out(problem: Problem, path: Path, draft: Draft, leaves: Sequence[Field]) -> bool:
    """Removes the value at a path, and returns whether this refuses a field of the source."""
    concerned = [leaf for leaf in leaves if _made(leaf, dotted(path))]
    for leaf in concerned:
        leaf.overruled(str(problem))
    removed = remove(draft.job, path)
    moved: dict[int, Answer] = {}
    for leaf in leaves:
        # Leaves that became one field together share their answer.
        if leaf.answer is not None:
            leaf.answer = moved.setdefault(id(leaf.answer), _without(removed, leaf.answer))
    return bool(concerned)


def _without(removed: Path, answer: Answer) -> Answer:
    """Returns an answer with targets adjusted to the removal of a list item."""
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
