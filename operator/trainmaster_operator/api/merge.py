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

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from trainmaster_operator.api.values import show

# Merge keys by the last name of a path. Lists of the same name use the same keys everywhere in a pod.
MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "imagePullSecrets", "env"), ("name",)),
    **dict.fromkeys(("resourceClaims", "schedulingGates", "evictionResponders"), ("name",)),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
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
        return merge({}, {name: value for name, value in patch.items() if name != DIRECTIVE}, path)
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
        # The maps in an atomic list are kept without their directives.
        places = ((f"{path}[{position}]", item) for position, item in enumerate(patch))
        return [merge({}, item, here) if isinstance(item, Mapping) else item for here, item in places]
    changes = list(enumerate(patch))
    if any(_is_list_directive(item) for item in patch):
        original, changes = [], [(position, item) for position, item in changes if not _is_list_directive(item)]
    merged = {_identity(item, keys): item for item in original}
    for position, item in changes:
        here = f"{path}[{position}]"
        if not isinstance(item, Mapping):
            raise MergeError(here, f"{show(item)} is not a mapping; give a mapping with {' and '.join(keys)}")
        missing = next((key for key in keys if key not in item and key not in KEY_DEFAULTS), None)
        if missing is not None:
            raise MergeError(f"{here}.{missing}", "is missing; set it")
        identity = _identity(item, keys)
        if item.get(DIRECTIVE) == "delete":
            merged.pop(identity, None)
        else:
            merged[identity] = merge(merged.get(identity, {}), item, here)
    return list(merged.values())


def _identity(item: Mapping[str, Any], keys: tuple[str, ...]) -> Hashable:
    """Returns the values of an item's keys. Merging doesn't change them, because null counts as the default."""
    values = (item.get(key) for key in keys)
    return tuple(
        _hashable(KEY_DEFAULTS.get(key) if value is None else value) for key, value in zip(keys, values, strict=True)
    )


def _hashable(value: Any) -> Hashable:
    """Returns a JSON value as a dictionary key, so that equal values have equal keys."""
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(one)) for name, one in value.items())
    if isinstance(value, list):
        return tuple(_hashable(one) for one in value)
    return value  # type: ignore[no-any-return]


def _is_list_directive(item: Any) -> bool:
    return isinstance(item, Mapping) and dict(item) == {DIRECTIVE: "replace"}
