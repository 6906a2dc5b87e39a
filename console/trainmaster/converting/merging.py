"""Manifests of one job are merged as Kubernetes merges a patch, and each field stays the one of its own manifest."""

from __future__ import annotations

from typing import Any

from trainmaster.converting.fields import Field
from trainmaster_operator.api.merge import KEY_DEFAULTS, MERGE_KEYS

_KEYS = {**MERGE_KEYS, "replicatedJobs": ("name",)}


def merged(base: Field | None, patch: Field, name: str = "") -> Field:
    """Returns the fields of both; what the patch replaces is answered so. Neither is changed otherwise."""
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
            at = next((at for at, each in enumerate(items) if _key(each, keys) == _key(field, keys)), None)
            if at is None:
                items.append(field)
            else:
                items[at] = merged(items[at], field)
        return sequence(items, base)
    if base.fields is None and base.items is None and not base.value and (patch.fields or patch.items):
        # An empty list or mapping is no contradiction.
        base.dropped(f"{patch} is merged into it")
        return patch
    # A variable's name is on both sides, and says the same.
    if base.fields is None and base.items is None and base.plain() == patch.plain():
        base.dropped(f"{patch} is merged with it")
        return patch
    base.dropped(f"{patch} replaces it")
    return patch


def sequence(items: list[Field], like: Field) -> Field:
    """Returns a list of fields that are elsewhere too."""
    made = Field(None, like.path)
    made.items = items
    return made


def _key(item: Field, keys: tuple[str, ...]) -> Any:
    return [value.plain() if (value := item.get(key)) is not None else KEY_DEFAULTS.get(key) for key in keys]
