"""Merge a partial pod template over a rendered one, as Kubernetes' strategic merge patch does.

Maps merge key by key and `null` deletes a key. The lists in `MERGE_KEYS` merge item by item by their key, new items at
the end; all other lists are replaced. `$patch: delete` in an item removes it, `$patch: replace` in a map replaces that
map, `- $patch: replace` in a list replaces that list. The keys are the `patchMergeKey` tags of k8s.io/api/core/v1.

One list goes further than Kubernetes: tolerations are atomic there, so that a job tolerating one more taint would lose
its short tolerations for lost nodes. Here they merge by key and effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.api.values import show

# By the last name of the path: no two lists of a pod with the same name have different keys.
MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "evictionResponders": ("name",),
    "env": ("name",),
    "ports": ("containerPort",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "tolerations": ("key", "effect"),
}

DIRECTIVE = "$patch"


class MergeError(ValueError):
    """A patch that can't be merged: the place, and a sentence on what is wrong there."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def merge(original: Mapping[str, Any], patch: Mapping[str, Any], path: str = "podTemplate") -> dict[str, Any]:
    """The original with the patch merged over it; neither is changed. Raises MergeError."""
    directive = patch.get(DIRECTIVE)
    if directive == "replace":
        return _without_directives(patch, path)
    if directive is not None and directive != "merge":
        raise MergeError(
            f"{path}.{DIRECTIVE}", f"{show(directive)} is not a directive of this place; use merge, replace or delete"
        )
    merged = dict(original)
    for name, value in patch.items():
        if name == DIRECTIVE:
            continue
        here = f"{path}.{name}"
        if name.startswith("$"):
            raise MergeError(here, "this directive is not supported; use $patch: delete or $patch: replace")
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            if value.get(DIRECTIVE) == "delete":
                merged.pop(name, None)
                continue
            current = merged.get(name)
            merged[name] = merge(current if isinstance(current, Mapping) else {}, value, here)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            merged[name] = _merge_list(merged.get(name) or [], value, MERGE_KEYS.get(name), here)
        else:
            merged[name] = value
    return merged


def _merge_list(original: Sequence[Any], patch: Sequence[Any], keys: tuple[str, ...] | None, path: str) -> list[Any]:
    if keys is None:
        return [_plain(item, f"{path}[{position}]") for position, item in enumerate(patch)]
    items: list[Any] = list(original)
    changes = list(enumerate(patch))
    if any(_is_list_directive(item) for item in patch):
        items, changes = [], [(position, item) for position, item in changes if not _is_list_directive(item)]
    for position, item in changes:
        here = f"{path}[{position}]"
        if not isinstance(item, Mapping):
            raise MergeError(here, f"{show(item)} is not a mapping; give a mapping with {' and '.join(keys)}")
        if len(keys) == 1 and keys[0] not in item:
            raise MergeError(f"{here}.{keys[0]}", "is missing; items of this list merge by it")
        identity = tuple(item.get(key) for key in keys)
        found = next((place for place, other in enumerate(items) if tuple(map(other.get, keys)) == identity), None)
        if item.get(DIRECTIVE) == "delete":
            if found is not None:
                del items[found]
        elif found is None:
            items.append(merge({}, item, here))
        else:
            items[found] = merge(items[found], item, here)
    return items


def _is_list_directive(item: Any) -> bool:
    return isinstance(item, Mapping) and dict(item) == {DIRECTIVE: "replace"}


def _without_directives(patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    return merge({}, {name: value for name, value in patch.items() if name != DIRECTIVE}, path)


def _plain(value: Any, path: str) -> Any:
    """A value of an atomic list, which holds no directives but may hold maps."""
    return merge({}, value, path) if isinstance(value, Mapping) else value
