"""Defines the tree of fields of another operator's manifest, and the draft of the job that the manifest becomes.

Each leaf gets one answer: its new place in the job, or the reason why the job has no place for it. A leaf is a scalar,
an empty list or mapping, or a list of scalars (users see a command as one field). Leaves without an answer are refused
at the end, so nothing is dropped silently. Several manifests of a job are merged as Kubernetes merges a patch, and each
field keeps its path in its own manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from trainmaster_operator.api.merge import KEY_DEFAULTS, MERGE_KEYS
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND, JobSpec
from trainmaster_operator.wire.values import mapping

# Keys may contain dots, so a path is turned into text only to show it.
Path = tuple[str | int, ...]
Outcome = Literal["kept", "dropped", "refused"]


@dataclass(frozen=True)
class Target:
    """Target is a field of the job, or of another created document, which `document` names."""

    path: Path
    document: str = ""


@dataclass(frozen=True)
class Answer:
    """Answer is the result for a field. `text` is the reason, or a remark about a kept field."""

    outcome: Outcome
    text: str = ""
    targets: tuple[Target, ...] = ()


class Field:
    """Field is a part of a manifest: a mapping (with `fields`), a list (with `items`) or a leaf (with `value`).

    A field that the manifest doesn't contain counts as false. Such a field has no leaves, so it ignores answers.
    """

    def __init__(self, value: Any, path: Path = (), *, exists: bool = True) -> None:
        """`value` may contain existing fields. These keep their paths and get their own answers."""
        self.path = path
        self.value: Any = None
        self.fields: dict[str, Field] = {}
        self.items: list[Field] = []
        self.answer: Answer | None = None
        self._exists = exists
        if isinstance(value, Mapping) and value:
            self.fields = {str(name): self._below(each, str(name)) for name, each in value.items()}
        elif isinstance(value, list) and any(isinstance(each, Mapping | list | Field) for each in value):
            self.items = [self._below(each, position) for position, each in enumerate(value)]
        else:
            self.value = value

    def _below(self, value: Any, part: str | int) -> Field:
        return value if isinstance(value, Field) else Field(value, (*self.path, part))

    def __bool__(self) -> bool:
        return self._exists

    def __str__(self) -> str:
        return dotted(self.path)

    @property
    def is_leaf(self) -> bool:
        """Returns whether the field exists and has no parts."""
        return self._exists and not self.fields and not self.items

    @property
    def is_answered(self) -> bool:
        """Returns whether all leaves have answers."""
        return all(leaf.answer is not None for leaf in self.leaves())

    def get(self, *names: str) -> Field:
        """Returns the field at a path of names below this field."""
        found = self
        for name in names:
            found = found.fields.get(name, MISSING)
        return found

    def item(self, key: str, value: str) -> Field:
        """Returns the first item whose field `key` has this text."""
        return next((each for each in self.items if each.text(key) == value), MISSING)

    def plain(self) -> Any:
        """Returns the field's complete value."""
        if self.fields:
            return {name: each.plain() for name, each in self.fields.items()}
        return [each.plain() for each in self.items] if self.items else self.value

    def text(self, *names: str) -> str:
        """Returns the text at a path of names below this field, or an empty text."""
        value = self.get(*names).value
        return value if isinstance(value, str) else ""

    def listed(self, *names: str) -> list[Any]:
        """Returns the list of scalars at a path of names below this field, or an empty list."""
        value = self.get(*names).value
        return value if isinstance(value, list) else []

    def whole(self, *names: str) -> int | None:
        """Returns the integer at a path of names below this field, or None."""
        value = self.get(*names).value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def parts(self) -> Iterator[tuple[str | int, Field]]:
        """Yields each field directly below, after its name or position."""
        yield from self.fields.items()
        yield from enumerate(self.items)

    def leaves(self) -> Iterator[Field]:
        """Yields the leaves in the order of the manifest."""
        if self.is_leaf:
            yield self
        for _, each in self.parts():
            yield from each.leaves()

    def kept(self, target: Target, remark: str = "") -> None:
        """Answers each unanswered leaf as kept, at the same path below the target."""
        if self.is_leaf:
            self.answer = self.answer or Answer("kept", remark, (target,))
        for part, each in self.parts():
            each.kept(Target((*target.path, part), target.document), remark)

    def became(self, *targets: Target, remark: str = "") -> None:
        """Answers each unanswered leaf as kept: all the leaves together became the targets."""
        self._answered(Answer("kept", remark, targets))

    def dropped(self, reason: str) -> None:
        """Answers each unanswered leaf as dropped, because it isn't needed."""
        self._answered(Answer("dropped", reason))

    def refused(self, reason: str) -> None:
        """Answers each unanswered leaf as refused: its effect is lost."""
        self._answered(Answer("refused", reason))

    def overruled(self, reason: str) -> None:
        """Refuses each leaf, even if it already has an answer."""
        for leaf in self.leaves():
            leaf.answer = Answer("refused", reason)

    def _answered(self, answer: Answer) -> None:
        for leaf in self.leaves():
            leaf.answer = leaf.answer or answer


MISSING = Field(None, exists=False)


def dotted(path: Path) -> str:
    """Returns a path as Kubernetes writes it: spec.containers[0].image."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


_SAME = object()
# The job's fields, in the order of the reference.
_ORDER = {info.alias or name: position for position, (name, info) in enumerate(JobSpec.model_fields.items())}
# The place for fields of a pod that the job's own fields don't cover.
POD: Path = ("spec", "podTemplate", "spec")


class Draft:
    """Draft contains the new job and its additional documents. The job's values are accessed by path."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {}, "spec": {}}
        # Documents to apply before the job, in this order, by kind and name.
        self.beside: dict[str, dict[str, Any]] = {}

    def keep(self, field: Field, path: Path, value: Any = _SAME, *, remark: str = "") -> None:
        """Puts the given or the field's own value at a path, and marks the field as kept. Ignores a missing field."""
        if not field:
            return
        if value is _SAME:
            put(self.job, path, field.plain())
            field.kept(Target(path), remark)
        else:
            put(self.job, path, value)
            field.became(Target(path), remark=remark)

    def append(self, field: Field, path: Path) -> None:
        """Adds a field's value to the list at a path, and answers the field."""
        self.keep(field, (*path, len(self.at(path) or [])))

    def set(self, path: Path, value: Any) -> None:
        """Puts a value at a path, without answering a field of the source."""
        put(self.job, path, value)

    def at(self, path: Path) -> Any:
        """Returns the job's value at a path, or None."""
        return at(self.job, path)

    def target(self, target: Target) -> Any:
        """Returns the value at a target."""
        return at(self.beside[target.document] if target.document else self.job, target.path)

    def ordered(self) -> dict[str, Any]:
        """Returns the job with its fields in the order of the reference."""
        spec = self.job["spec"]
        return {**self.job, "spec": {name: spec[name] for name in sorted(spec, key=lambda name: _ORDER.get(name, 0))}}


def at(value: Any, path: Path) -> Any:
    """Returns the value at a path, or None."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def put(root: dict[str, Any], path: Path, value: Any) -> None:
    """Puts a value at a path and creates missing parents. A list can grow by one item."""
    here: Any = root
    for part, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            if part == len(here):
                here.append(empty)
            here = here[part]
        else:
            here = here.setdefault(part, empty)
    last = path[-1]
    if isinstance(last, int) and last == len(here):
        here.append(value)
    else:
        here[last] = value


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the paths of all values below a value."""
    below = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for part, each in below:
        yield (*path, part)
        yield from paths(each, (*path, part))


def remove(root: dict[str, Any], path: Path) -> Path:
    """Removes the value at a path, or the highest parent that would be empty without it. Returns the removed path.

    Parents at the top level, such as spec, stay. List items after a removed item move up.
    """
    del at(root, path[:-1])[path[-1]]
    parent = path[:-1]
    return remove(root, parent) if len(parent) > 1 and not at(root, parent) else path


_KEYS = {**MERGE_KEYS, "replicatedJobs": ("name",)}


def merged(base: Field, patch: Field, name: str = "") -> Field:
    """Merges a patch into a base, and answers the base's fields that the patch replaces."""
    if not base or not patch:
        return patch or base
    if base.fields and patch.fields:
        changed = {each: merged(base.get(each), field, each) for each, field in patch.fields.items()}
        return Field({**base.fields, **changed}, base.path)
    keys = _KEYS.get(name)
    if keys is not None and base.items and patch.items:
        items = list(base.items)
        for field in patch.items:
            at = position_of(field.plain(), [each.plain() for each in items], keys)
            if at is None:
                items.append(field)
            else:
                items[at] = merged(items[at], field)
        return Field(items, base.path)
    if base.is_leaf and not base.value and not patch.is_leaf:
        # An empty list or mapping doesn't conflict with the patch.
        base.dropped(f"{patch} is merged into it")
    elif base.is_leaf and base.value == patch.plain():
        # Both sides have the same value, such as a variable's name.
        base.dropped(f"{patch} is merged with it")
    else:
        base.dropped(f"{patch} replaces it")
    return patch


def position_of(item: Any, items: Sequence[Any], keys: Sequence[str]) -> int | None:
    """Returns the position of the first of `items` with the same keys as `item`. Kubernetes would merge the two."""

    def key_of(value: Any) -> list[Any]:
        return [mapping(value).get(key, KEY_DEFAULTS.get(key)) for key in keys]

    return next((at for at, each in enumerate(items) if key_of(each) == key_of(item)), None)
