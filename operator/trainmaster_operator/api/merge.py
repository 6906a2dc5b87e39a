"""Merges a partial pod template over a rendered one, as Kubernetes' strategic merge patch does.

Maps are merged key by key, and `null` deletes a key. In the lists of `MERGE_KEYS`, items with equal keys are merged,
and new items are added at the end. Other lists are replaced. `$patch: delete` in an item removes the item, `$patch:
replace` in a map replaces the map, and `- $patch: replace` in a list replaces the list. The keys are the
`patchMergeKey` tags of k8s.io/api/core/v1.

Two lists are merged differently here. Ports are merged by number and protocol, as in Kubernetes' server-side apply,
because a number may be open for both TCP and UDP. Tolerations are merged by key and effect. In Kubernetes this list is
atomic, so a job that tolerates one more taint would lose its short tolerations for lost nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from trainmaster_operator.api.values import show

# Merge keys by the last name of a path. Lists of the same name use the same keys everywhere in a pod.
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
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "tolerations": ("key", "effect"),
}
# Defaults of keys that an item may lack.
KEY_DEFAULTS: Mapping[str, str | None] = {"protocol": "TCP", "key": None, "effect": None}

DIRECTIVE = "$patch"


class MergeError(ValueError):
    """Raised if a patch can't be merged. The text names the place and the problem."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def merge(original: Mapping[str, Any], patch: Mapping[str, Any], path: str = "podTemplate") -> dict[str, Any]:
    """Returns the patch merged over the original, without changing either. Raises MergeError."""
    directive = patch.get(DIRECTIVE)
    if directive == "replace":
        return _without_directives(patch, path)
    if directive is not None and directive != "merge":
        raise MergeError(
            f"{path}.{DIRECTIVE}", f"{show(directive)} is not a directive here; use merge, replace or delete"
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
            current = merged.get(name)
            merged[name] = _merge_list(current if isinstance(current, list) else [], value, MERGE_KEYS.get(name), here)
        else:
            merged[name] = value
    return merged


def _merge_list(original: Sequence[Any], patch: Sequence[Any], keys: tuple[str, ...] | None, path: str) -> list[Any]:
    if keys is None:
        return [_plain(item, f"{path}[{position}]") for position, item in enumerate(patch)]
    changes = list(enumerate(patch))
    if any(_is_list_directive(item) for item in patch):
        original, changes = [], [(position, item) for position, item in changes if not _is_list_directive(item)]
    merged = _KeyedList(original, keys)
    for position, item in changes:
        here = f"{path}[{position}]"
        if not isinstance(item, Mapping):
            raise MergeError(here, f"{show(item)} is not a mapping; give a mapping with {' and '.join(keys)}")
        missing = next((key for key in keys if key not in item and key not in KEY_DEFAULTS), None)
        if missing is not None:
            raise MergeError(f"{here}.{missing}", "is missing; set it")
        place = merged.find(item)
        if item.get(DIRECTIVE) == "delete":
            if place is not None:
                merged.delete(place)
        elif place is None:
            merged.append(merge({}, item, here))
        else:
            merged.replace(place, merge(merged[place], item, here))
    return merged.items()


class _KeyedList:
    """_KeyedList is indexed by its merge keys, so that merging n items takes n steps instead of n squared.

    Items keep their places when others are deleted. If several items have equal keys, `find` returns the first.
    """

    def __init__(self, items: Sequence[Any], keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._items: list[Any] = []
        # A heap of places for each identity.
        self._places: dict[Hashable, list[int]] = {}
        for item in items:
            self.append(item)

    def __getitem__(self, place: int) -> Any:
        return self._items[place]

    def items(self) -> list[Any]:
        return [item for item in self._items if item is not None]

    def find(self, item: Mapping[str, Any]) -> int | None:
        places = self._places.get(self._identity(item))
        return places[0] if places else None

    def append(self, item: Any) -> None:
        heapq.heappush(self._places.setdefault(self._identity(item), []), len(self._items))
        self._items.append(item)

    def delete(self, place: int) -> None:
        """Deletes the item that `find` found at this place."""
        heapq.heappop(self._places[self._identity(self._items[place])])
        self._items[place] = None

    def replace(self, place: int, item: Mapping[str, Any]) -> None:
        """Replaces the item that `find` found at this place. Merging may have changed the item's identity."""
        before, after = self._identity(self._items[place]), self._identity(item)
        self._items[place] = item
        if before != after:
            heapq.heappop(self._places[before])
            heapq.heappush(self._places.setdefault(after, []), place)

    def _identity(self, item: Mapping[str, Any]) -> Hashable:
        return tuple(_hashable(item.get(key, KEY_DEFAULTS.get(key))) for key in self._keys)


def _hashable(value: Any) -> Hashable:
    """Returns a JSON value as a dictionary key, so that equal values have equal keys."""
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(one)) for name, one in value.items())
    if isinstance(value, list):
        return tuple(_hashable(one) for one in value)
    return value  # type: ignore[no-any-return]


def _is_list_directive(item: Any) -> bool:
    return isinstance(item, Mapping) and dict(item) == {DIRECTIVE: "replace"}


def _without_directives(patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    return merge({}, {name: value for name, value in patch.items() if name != DIRECTIVE}, path)


def _plain(value: Any, path: str) -> Any:
    """Returns an item of an atomic list, without the directives of maps in it."""
    return merge({}, value, path) if isinstance(value, Mapping) else value
