"""Checks names and types of the pod's fields in the user's template, except for merge directives and nulls.

The table of fields is `types.json`, which is read once.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from trainmaster_operator.api.kubernetes_syntax import keyed, quantity_problem
from trainmaster_operator.api.merge import DIRECTIVE, KEY_DEFAULTS
from trainmaster_operator.api.problems import VERY_SIMILAR, Problem, either, nearest, only_longer, plain, wrong_type
from trainmaster_operator.api.values import show

POD = "spec.podTemplate.spec"
# Maximum number of unknown names that are compared with known ones (0.1 ms each). The API server checks the others.
_MOST_UNKNOWN = 50
# Maximum number of a command's items in a message.
_MOST_WORDS = 8

# Wrong names that people use for a field, by type.
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "Container": {
        **dict.fromkeys(("enviroment", "environment", "environments", "envs", "envVars", "variables"), "env"),
        **dict.fromkeys(("cmd", "entrypoint"), "command"),
        **dict.fromkeys(("cwd", "workdir"), "workingDir"),
        "mounts": "volumeMounts",
        "pullPolicy": "imagePullPolicy",
    },
    "EnvVar": {"key": "name", "val": "value", "from": "valueFrom"},
    "EnvFromSource": {"secretKeyRef": "secretRef", "configMapKeyRef": "configMapRef"},
    "SecretKeySelector": {"secretName": "name"},
    "SecretEnvSource": {"secretName": "name"},
    "ConfigMapKeySelector": {"configMapName": "name"},
    "ConfigMapEnvSource": {"configMapName": "name"},
    "ConfigMapVolumeSource": {"configMapName": "name"},
    "SecretVolumeSource": {"name": "secretName"},
    "PersistentVolumeClaimVolumeSource": {"name": "claimName", "claim": "claimName", "pvcName": "claimName"},
    "EmptyDirVolumeSource": {"size": "sizeLimit"},
    "LocalObjectReference": {"secretName": "name"},
    "Volume": {"pvc": "persistentVolumeClaim", "claim": "persistentVolumeClaim"},
    "VolumeMount": {"path": "mountPath", "volume": "name", "volumeName": "name"},
    "ContainerPort": {"port": "containerPort", "number": "containerPort"},
    "PodSpec": {"serviceaccountname": "serviceAccountName", "pullSecrets": "imagePullSecrets"},
}
# Fields that belong elsewhere, by type.
_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "Container": {
        "shmSize": "set spec.resources.sharedMemory",
        "shm_size": "set spec.resources.sharedMemory",
        "preStart": "use initContainers in spec.podTemplate.spec, or spec.setup",
    },
    "Lifecycle": {"preStart": "use initContainers in spec.podTemplate.spec, or spec.setup"},
    "PodSpec": {
        "labels": "it belongs in spec.podTemplate.metadata",
        "annotations": "it belongs in spec.podTemplate.metadata",
        "metadata": "it belongs in spec.podTemplate, beside spec",
        "spec": "its fields belong here, without another spec",
        "template": "its metadata and spec belong in spec.podTemplate",
        "image": "set spec.image",
        "imagePullPolicy": "set spec.imagePullPolicy",
        "command": "set spec.command",
        "cmd": "set spec.command",
        "entrypoint": "set spec.command",
        "args": "set spec.args",
        "replicas": "set spec.workers",
        "shmSize": "set spec.resources.sharedMemory",
        "shm_size": "set spec.resources.sharedMemory",
        "volumeClaimTemplates": "use volumes with persistentVolumeClaim, or with ephemeral for one of each pod",
    },
}
# The field that people probably mean if they write text in place of a mapping, by type.
_MAIN_FIELD: Mapping[str, str] = {
    **dict.fromkeys(
        ("ConfigMapEnvSource", "ConfigMapVolumeSource", "Container", "EnvVar", "LocalObjectReference"), "name"
    ),
    **dict.fromkeys(("PodOS", "SecretEnvSource"), "name"),
    "ContainerPort": "containerPort",
    "HostPathVolumeSource": "path",
    "ImageVolumeSource": "reference",
    "ObjectFieldSelector": "fieldPath",
    "PersistentVolumeClaimVolumeSource": "claimName",
    "SecretVolumeSource": "secretName",
}
# Names that a message can show, and a taint in the syntax of `kubectl taint`.
_NAME = re.compile(r"[A-Za-z0-9/._:-]{1,80}")
_PAIR = re.compile(r"([A-Za-z0-9/._-]{1,80})=([A-Za-z0-9/._-]{1,80})")
_TAINT = re.compile(r"([A-Za-z0-9/._-]{1,80})(?:=([A-Za-z0-9._-]{0,63}))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?")
_RANGES = {"int32": 2**31, "int64": 2**63}


def check_fields(pod: Mapping[str, Any], path: str = POD) -> Iterator[Problem]:
    """Yields problems with names and types of fields in a partial PodSpec at `path`."""
    return _Walk().struct(pod_types()["PodSpec"], pod, path, ())


class _Walk:
    """_Walk checks a pod once. `outer` lists the types around a value and their places, with the innermost last."""

    def __init__(self) -> None:
        self._unknown = 0

    def struct(self, struct: Struct, value: Any, path: str, outer: Around, *, alone: bool = False) -> Iterator[Problem]:
        """Checks a mapping with known fields. If `alone` is set, it must be complete, because it isn't merged."""
        if not isinstance(value, Mapping):
            yield from _said(path, value, _no_mapping(struct, value))
            return
        if value.get(DIRECTIVE) == "delete":
            return
        around = (*outer, (struct, path))
        meant = set()
        for name, one in value.items():
            name = str(name)
            kind = struct.fields.get(name)
            if kind is None:
                if not name.startswith("$") and (remedy := self._remedy(struct, name, outer)) is not None:
                    meant.add(remedy)
                    yield Problem(f"{path}.{name}", one, f"unknown field; {remedy}")
            elif one is not None:
                is_whole = alone or name in _NOT_RENDERED.get(struct.name, ())
                yield from self._any(kind, one, f"{path}.{name}", around, alone=is_whole)
        for name in struct.required if alone else ():
            if value.get(name) is None and _did_you_mean(name) not in meant:
                yield Problem(f"{path}.{name}", None, "is missing; set it")

    def _any(self, kind: Type, value: Any, path: str, outer: Around, *, alone: bool) -> Iterator[Problem]:
        match kind:
            case Scalar():
                yield from _said(path, value, _scalar(kind, value, path.rpartition(".")[2]))
            case Struct():
                yield from self.struct(kind, value, path, outer, alone=alone)
            case ListOf():
                yield from self._list(kind, value, path, outer, alone=alone)
            case MappingOf():
                if not isinstance(value, Mapping):
                    pair = _PAIR.fullmatch(value) if isinstance(value, str) else None
                    remedy = f"write {{{pair[1]}: {pair[2]}}}" if pair else ""
                    yield from _said(path, value, wrong_type("dict_type", value, remedy=remedy))
                    return
                for name, one in value.items():
                    if one is not None and not str(name).startswith("$"):
                        yield from self._any(kind.value, one, keyed(path, str(name)), outer, alone=alone)

    def _list(self, kind: ListOf, value: Any, path: str, outer: Around, *, alone: bool) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield from _said(path, value, _no_list(kind, value))
            return
        seen: set[tuple[str, ...]] = set()
        for position, item in enumerate(value):
            here = f"{path}[{position}]"
            if item is None:
                continue
            is_mapping = isinstance(item, Mapping)
            if kind.keys and is_mapping and DIRECTIVE not in item:
                identity = tuple(str(item.get(key, KEY_DEFAULTS.get(key))) for key in kind.keys)
                if identity in seen and item.get(kind.keys[0]) is not None:
                    again = item[kind.keys[0]]
                    yield Problem(f"{here}.{kind.keys[0]}", again, f"{show(again)} is given twice; keep one")
                seen.add(identity)
            if is_mapping and isinstance(kind.item, Struct):
                inner = list(self.struct(kind.item, item, here, outer, alone=alone or not kind.keys))
                meant = {problem.message for problem in inner}
                if kind.keys and f"unknown field; {_did_you_mean(kind.keys[0])}" not in meant:
                    yield from _said(f"{here}.{kind.keys[0]}", None, _without_key(kind, value, position))
                yield from inner
            else:
                yield from self._any(kind.item, item, here, outer, alone=alone)

    def _remedy(self, struct: Struct, name: str, outer: Around) -> str | None:
        """Returns the remedy for an unknown field, or None if a newer Kubernetes may support it."""
        self._unknown += 1
        if self._unknown > _MOST_UNKNOWN:
            return None
        elsewhere = _ELSEWHERE.get(struct.name, {})
        if name in elsewhere:
            return elsewhere[name]
        aliases = _ALIASES.get(struct.name, {})
        found = nearest(name, (*struct.fields, *aliases), VERY_SIMILAR)
        if found is not None:
            return _did_you_mean(aliases.get(found, found))
        # From this length on, the beginning of a known name can't be the complete name of another field.
        longer = only_longer(name, struct.fields) if len(name) >= 7 else None
        if longer is not None:
            return _did_you_mean(longer)
        same = plain(name)
        if struct.name == "PodSpec" and (meant := _of_a_container(same)) is not None:
            as_what = "" if plain(meant) == same else f", as {meant}"
            return f"it belongs in {POD}.containers, in the one called worker{as_what}"
        places = [each for each, kind in struct.fields.items() if _has(kind, name)]
        if 0 < len(places) <= 3:
            return f"it belongs in {' or '.join(places)}"
        if struct.name in _OTHER_CONTEXT:
            other, place = _OTHER_CONTEXT[struct.name]
            if name in pod_types()[other].fields:
                return f"it belongs in {place}"
        for around, place in reversed(outer):
            if any(plain(each) == same for each in around.fields):
                return f"it belongs in {place}"
        if struct.name == "ResourceRequirements":
            return "it belongs in limits or requests" if "/" in name or same in _RESOURCES else None
        return None


# The securityContext of a pod and that of a container share some fields, so a wrong field may belong to the other.
_OTHER_CONTEXT = {
    "PodSecurityContext": ("SecurityContext", f"the securityContext of a container in {POD}.containers"),
    "SecurityContext": ("PodSecurityContext", f"{POD}.securityContext"),
}
# Fields that Trainmaster doesn't render, so the user's value must be complete.
_NOT_RENDERED: Mapping[str, frozenset[str]] = {
    "Container": frozenset({"env", "envFrom", "lifecycle", "readinessProbe", "startupProbe"}),
    "PodSpec": frozenset({"volumes", "hostAliases", "dnsConfig"}),
}
_RESOURCES = frozenset({"cpu", "memory", "ephemeralstorage", "gpu", "gpus"})


def _without_key(kind: ListOf, items: list[Any], position: int) -> str | None:
    """Returns the problem with an item that lacks its key, or None if another message covers it."""
    item, known = items[position], kind.item.fields if isinstance(kind.item, Struct) else {}
    key = kind.keys[0]
    if item.get(key) is not None or set(item) == {DIRECTIVE}:
        return None
    names = [str(name) for name in item]
    if len(names) == 1 and names[0] not in known and set(known) > {"name", "value"} and isinstance(item[names[0]], str):
        remedy = f"write {{name: {names[0]}, value: …}}" if _NAME.fullmatch(names[0]) else "set it"
        return f"is missing; {remedy}"
    before = items[position - 1] if position else None
    if isinstance(before, Mapping) and before.get(key) is not None and not set(before) & set(item) and known:
        return "is missing; set it, or remove the '-' if this continues the item before"
    return "is missing; set it"


def _of_a_container(same: str) -> str | None:
    """Returns the field of a container whose name, or an alias of it, has this plain form, or None."""
    names = {each: each for each in pod_types()["Container"].fields} | dict(_ALIASES["Container"])
    return next((names[each] for each in names if plain(each) == same), None)


def _did_you_mean(name: str) -> str:
    return f"did you mean {name}?"


def _said(path: str, value: Any, message: str | None) -> Iterator[Problem]:
    if message is not None:
        yield Problem(path, value, message)


def _has(kind: Type, name: str) -> bool:
    inner = kind.item if isinstance(kind, ListOf) else kind
    return isinstance(inner, Struct) and name in inner.fields


def _scalar(kind: Scalar, value: Any, field: str) -> str | None:
    match kind.name:
        case "string":
            if not isinstance(value, str):
                return wrong_type("string_type", value)
            return _value(kind, value)
        case "boolean":
            return None if isinstance(value, bool) else wrong_type("bool_type", value)
        case "int32" | "int64":
            return _integer(value, _RANGES[kind.name], field)
        case "number":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return None if is_number else wrong_type("float_type", value, field)
        case "quantity":
            return quantity_problem(value)
        case "intOrString":
            is_either = isinstance(value, int | str) and not isinstance(value, bool)
            return None if is_either else f"{show(value)} is neither a whole number nor text; use one of them"
    return None


def _integer(value: Any, limit: int, field: str) -> str | None:
    if isinstance(value, float) and value.is_integer():
        # kubectl sends 30.0 as 30.
        value = int(value)
    if isinstance(value, float):
        return wrong_type("int_from_float", value)
    if not isinstance(value, int) or isinstance(value, bool):
        return wrong_type("int_type", value, field)
    return None if -limit <= value < limit else f"{show(value)} has too many digits; use a smaller number"


def _value(kind: Scalar, value: str) -> str | None:
    if not kind.values or value in kind.values or value == "":
        return None
    meant = nearest(value, kind.values, VERY_SIMILAR)
    if meant is not None:
        return f"{show(value)} is not known; did you mean {meant}?"
    return None if kind.is_open else f"{show(value)} is not known; use {either(kind.values)}"


def _no_mapping(struct: Struct, value: Any) -> str | None:
    remedy = ""
    written = _as_mapping(struct.name, value)
    if written is not None:
        remedy = f"write {{{written}}}"
    elif struct.name == "EmptyDirVolumeSource":
        remedy = "write {}"
    elif isinstance(value, list) and len(lists := [n for n, k in struct.fields.items() if isinstance(k, ListOf)]) == 1:
        remedy = f"write {lists[0]}: before the list"
    return wrong_type("dict_type", value, remedy=remedy)


def _as_mapping(name: str, value: Any) -> str | None:
    """Returns the fields that the user probably meant by a value in place of a mapping, or None."""
    pair = _PAIR.fullmatch(value) if name == "EnvVar" and isinstance(value, str) else None
    if pair is not None:
        return f"name: {pair[1]}, value: '{pair[2]}'"
    field = _MAIN_FIELD.get(name)
    if field is not None and isinstance(value, int if name == "ContainerPort" else str):
        return f"{field}: {value}" if _NAME.fullmatch(str(value)) else None
    taint = _TAINT.fullmatch(value) if name == "Toleration" and isinstance(value, str) else None
    if taint is None:
        return None
    key, given, effect = taint.groups()
    operator = "operator: Exists" if given is None else f"operator: Equal, value: '{given}'"
    return f"key: {key}, {operator}" + (f", effect: {effect}" if effect else "")


def _no_list(kind: ListOf, value: Any) -> str | None:
    remedy = ""
    inner = kind.item
    if isinstance(value, str) and isinstance(inner, Scalar):
        remedy = f"write [{', '.join(_words(value))}]"
    elif isinstance(value, Mapping) and isinstance(inner, Struct):
        first = next(iter(inner.fields)) if not kind.keys else kind.keys[0]
        if set(map(str, value)) & set(inner.fields):
            remedy = "put '- ' before its first field"
        elif kind.keys:
            remedy = f"write its items as - {first}: …"
    return wrong_type("list_type", value, remedy=remedy)


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text[:200])
    except ValueError:
        words = text[:200].split()
    shown = [word if re.sub("[-./]", "", word).isalnum() else repr(word) for word in words]
    return shown if len(shown) <= _MOST_WORDS else [*shown[:_MOST_WORDS], "…"]


@dataclass(frozen=True)
class Scalar:
    """Scalar is a simple value: string, boolean, int32, int64, number, quantity, intOrString or any."""

    name: str
    # The allowed values, if they are few.
    values: tuple[str, ...] = ()
    # Whether a later release may add values.
    is_open: bool = False


@dataclass(frozen=True)
class ListOf:
    """ListOf is a list. If `keys` isn't empty, it identifies the items."""

    item: Type
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class MappingOf:
    """MappingOf is a mapping from user-defined names to values of one type."""

    value: Type


@dataclass(frozen=True, eq=False)
class Struct:
    """Struct is a mapping with known fields."""

    name: str
    required: tuple[str, ...] = ()
    fields: dict[str, Type] = field(default_factory=dict)


Type = Scalar | ListOf | MappingOf | Struct
Around = tuple[tuple[Struct, str], ...]
SCALARS = frozenset({"string", "boolean", "int32", "int64", "number", "quantity", "intOrString", "any"})


@cache
def pod_types() -> Mapping[str, Struct]:
    """Returns all types by name. `PodSpec` is the root."""
    table: dict[str, Any] = json.loads((files(__package__) / "types.json").read_text())["types"]
    structs = {name: Struct(name, tuple(one.get("required", ()))) for name, one in table.items()}
    for name, one in table.items():
        values = one.get("values", {})
        for each, written in one["fields"].items():
            structs[name].fields[each] = _type(written, structs, tuple(values.get(each, ())))
    return structs


def _type(written: str, structs: Mapping[str, Struct], values: tuple[str, ...]) -> Type:
    if written[0] == "[":
        item, *keys = written[1:-1].split(" ")
        return ListOf(_type(item, structs, values), tuple(keys))
    if written[0] == "{":
        return MappingOf(_type(written[1:-1], structs, ()))
    if written in SCALARS:
        return Scalar(written, tuple(value for value in values if value != "..."), "..." in values)
    return structs[written]
