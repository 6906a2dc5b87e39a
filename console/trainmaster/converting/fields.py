"""Defines the tree of fields of another operator's manifest, and the draft of the job that it becomes.

Each leaf gets one answer: its new place, or the reason why it has no place. A leaf is a scalar, an empty list or
mapping, or a list of scalars (users see a command as one field). Leaves without an answer are refused at the end, so
nothing is dropped silently. A job's manifests are merged as Kubernetes merges a patch, and each field keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from trainmaster_operator.api.merge import KEY_DEFAULTS, MERGE_KEYS
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND, JobSpec

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
    """Field is a part of a manifest: a mapping (with `fields`), a list (with `items`) or a leaf (with `value`)."""

    def __init__(self, value: Any, path: Path = ()) -> None:
        self.path = path
        self.value: Any = None
        self.fields: dict[str, Field] | None = None
        self.items: list[Field] | None = None
        self.answer: Answer | None = None
        if isinstance(value, Mapping) and value:
            self.fields = {str(name): Field(each, (*path, str(name))) for name, each in value.items()}
        elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
            self.items = [Field(each, (*path, position)) for position, each in enumerate(value)]
        else:
            self.value = value

    @classmethod
    def mapping(cls, fields: dict[str, Field], path: Path = ()) -> Field:
        """Returns a mapping of existing fields, which receive its answers."""
        made = cls(None, path)
        made.fields = fields
        return made

    def __str__(self) -> str:
        return dotted(self.path)

    def get(self, *names: str) -> Field | None:
        """Returns the field at a path of names below this field, or None."""
        found: Field | None = self
        for name in names:
            found = found.fields.get(name) if found is not None and found.fields is not None else None
        return found

    def each(self, name: str) -> list[Field]:
        """Returns the items of the list with this name. If there is no list of mappings, returns an empty list."""
        below = self.get(name)
        return below.items if below is not None and below.items is not None else []

    def named(self, name: str) -> dict[str, Field]:
        """Returns the fields of the mapping with this name. If there is no such mapping, returns an empty dict."""
        below = self.get(name)
        return below.fields if below is not None and below.fields is not None else {}

    def plain(self) -> Any:
        """Returns the field's complete value."""
        if self.fields is not None:
            return {name: each.plain() for name, each in self.fields.items()}
        return [each.plain() for each in self.items] if self.items is not None else self.value

    def text(self, *names: str) -> str:
        """Returns the text at a path of names below this field, or an empty text."""
        below = self.get(*names)
        return below.value if below is not None and isinstance(below.value, str) else ""

    def whole(self, *names: str) -> int | None:
        """Returns the integer at a path of names below this field, or None."""
        below = self.get(*names)
        value = below.value if below is not None else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def leaves(self) -> Iterator[Field]:
        """Yields the leaves in the order of the manifest."""
        if self.fields is None and self.items is None:
            yield self
        for each in (self.fields or {}).values():
            yield from each.leaves()
        for each in self.items or []:
            yield from each.leaves()

    def kept(self, target: Target, remark: str = "") -> None:
        """Answers each unanswered leaf: it was kept at the same place below the target."""
        if self.fields is None and self.items is None:
            self.answer = self.answer or Answer("kept", remark, (target,))
        for name, each in (self.fields or {}).items():
            each.kept(Target((*target.path, name), target.document), remark)
        for position, each in enumerate(self.items or []):
            each.kept(Target((*target.path, position), target.document), remark)

    def became(self, *targets: Target, remark: str = "") -> None:
        """Answers each unanswered leaf: all the leaves together became the targets."""
        self._answered(Answer("kept", remark, targets))

    def dropped(self, reason: str) -> None:
        """Answers each unanswered leaf: it was dropped because it isn't needed."""
        self._answered(Answer("dropped", reason))

    def refused(self, reason: str) -> None:
        """Answers each unanswered leaf: it was refused, and its effect is lost."""
        self._answered(Answer("refused", reason))

    def overruled(self, reason: str) -> None:
        """Refuses each leaf, even if it already has an answer."""
        for leaf in self.leaves():
            leaf.answer = Answer("refused", reason)

    def _answered(self, answer: Answer) -> None:
        for leaf in self.leaves():
            leaf.answer = leaf.answer or answer


def dotted(path: Path) -> str:
    """Returns a path as Kubernetes writes it: spec.containers[0].image."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


_SAME = object()
# The job's fields, in the order of the reference.
_ORDER = {info.alias or name: position for position, (name, info) in enumerate(JobSpec.model_fields.items())}
# The place for fields of a pod that the job's own fields don't cover.
POD: Path = ("spec", "podTemplate", "spec")


class Draft:
    """Draft is the new job, whose values are accessed by path, with its additional documents."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {}, "spec": {}}
        # Documents to apply before the job, in this order, by kind and name.
        self.beside: dict[str, dict[str, Any]] = {}

    def keep(self, field: Field, path: Path, value: Any = _SAME, *, remark: str = "") -> None:
        """Puts a field's value, or the given one, at a path, and answers the field."""
        if value is _SAME:
            put(self.job, path, field.plain())
            field.kept(Target(path), remark)
        else:
            put(self.job, path, value)
            field.became(Target(path), remark=remark)

    def set(self, path: Path, value: Any) -> None:
        """Puts a value at a path. No field of the source gets an answer."""
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
    """Removes the value at a path, and parents below the second level that are then empty. Returns the removed path.

    List items after a removed item move up.
    """
    del at(root, path[:-1])[path[-1]]
    parent = path[:-1]
    return remove(root, parent) if len(parent) > 1 and not at(root, parent) else path


_KEYS = {**MERGE_KEYS, "replicatedJobs": ("name",)}


def merged(base: Field | None, patch: Field, name: str = "") -> Field:
    """Merges a patch into a base, and answers the base's fields that the patch replaces."""
    if base is None:
        return patch
    if base.fields is not None and patch.fields is not None:
        fields = dict(base.fields)
        for each, field in patch.fields.items():
            fields[each] = merged(fields.get(each), field, each)
        return Field.mapping(fields, base.path)
    keys = _KEYS.get(name)
    if keys is not None and base.items is not None and patch.items is not None:
        items = list(base.items)
        for field in patch.items:
            at = next((at for at, each in enumerate(items) if _merge_key(each, keys) == _merge_key(field, keys)), None)
            if at is None:
                items.append(field)
            else:
                items[at] = merged(items[at], field)
        return sequence(items, base)
    if base.fields is None and base.items is None and not base.value and (patch.fields or patch.items):
        # An empty list or mapping doesn't conflict with the patch.
        base.dropped(f"{patch} is merged into it")
        return patch
    # Both sides have the same value, such as a variable's name.
    if base.fields is None and base.items is None and base.plain() == patch.plain():
        base.dropped(f"{patch} is merged with it")
        return patch
    base.dropped(f"{patch} replaces it")
    return patch


def sequence(items: list[Field], like: Field) -> Field:
    """Returns a list of existing fields."""
    made = Field(None, like.path)
    made.items = items
    return made


def _merge_key(item: Field, keys: tuple[str, ...]) -> Any:
    return [value.plain() if (value := item.get(key)) is not None else KEY_DEFAULTS.get(key) for key in keys]
