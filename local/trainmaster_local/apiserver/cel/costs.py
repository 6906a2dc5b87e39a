"""Estimates the maximum cost of a CEL rule from the schema, as kube-apiserver does before it accepts a definition.

A rule that looks harmless can be far over the budget, because a text without maxLength counts as 3 MiB (the limit of a
request), and `string(x)` of a number as a text of any length. The API server then refuses the whole definition. The
rules are those of cel-go's checker/cost.go (only the largest estimate matters here), of k8s.io/apiserver's
pkg/cel/library/cost.go and pkg/cel/common/schemas.go, and for the two limits of apiextensions-apiserver's
validation.go. They apply to the compiler's tree (cel.expr.CheckedExpr), with macros expanded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.schema.structure import Schema, item_schema

RULE_LIMIT = 10_000_000
DEFINITION_LIMIT = 100_000_000
REQUEST_BYTES = 3 * 1024 * 1024
# This is for values of unknown size.
UNKNOWN = 2**64 - 1

_LIST, _MAP = 10, 30
_STRING, _REGEX = 0.1, 0.25
_KNOWN_FORMATS = {"duration": (32, 3), "date": (12, 12), "date-time": (32, 21)}


class Expression(Protocol):
    """The estimator needs this of a compiled expression."""

    def serialize(self) -> bytes:
        """Returns an Any with its CheckedExpr."""


@dataclass(frozen=True)
class Declared:
    """The schema bounds a field: its maximum number of characters or items, and their minimum JSON bytes."""

    kind: str
    most: int = 0
    least_bytes: int = 1
    fields: Mapping[str, Declared] = field(default_factory=dict)
    element: Declared | None = None


@dataclass(frozen=True)
class Estimate:
    """An estimate is the cost of an expression, and the size and declaration of its value."""

    cost: int
    size: int = UNKNOWN
    kind: str = "dyn"
    declared: Declared | None = None


def declared(schema: Schema, escaped: Callable[[str], str]) -> Declared | None:
    """Returns the declaration of a schema; None if rules can't see it. `escaped`: a field's name in CEL."""
    if schema.get("x-kubernetes-int-or-string"):
        return Declared("dyn", schema["maxLength"] * 4 if "maxLength" in schema else REQUEST_BYTES - 2)
    match schema.get("type"):
        case "string":
            return _text(schema)
        case "boolean":
            return Declared("scalar", least_bytes=4)
        case "integer" | "number":
            return Declared("scalar")
        case "array":
            element = declared(item_schema(schema), escaped)
            if element is None:
                return None
            most = schema.get("maxItems", (REQUEST_BYTES - 2) // (element.least_bytes + 1))
            return Declared("list", max(most, 0), 2, element=element)
        case "object":
            return _object(schema, escaped)
    return None


def _text(schema: Schema) -> Declared:
    kind = schema.get("format", "")
    if kind in _KNOWN_FORMATS:
        most, least = _KNOWN_FORMATS[kind]
        return Declared("scalar", most, least)
    if "maxLength" in schema:
        # The estimator counts bytes, and a character has up to four.
        return Declared("string", schema["maxLength"] * (1 if kind == "byte" else 4), 2)
    if schema.get("enum"):
        return Declared("string", max(len(str(choice).encode()) for choice in schema["enum"]), 2)
    return Declared("string", REQUEST_BYTES - 2, 2)


def _object(schema: Schema, escaped: Callable[[str], str]) -> Declared | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping) and additional:
        element = declared(additional, escaped)
        if element is None:
            return None
        most = schema.get("maxProperties", (REQUEST_BYTES - 2) // (element.least_bytes + 6))
        return Declared("map", max(most, 0), 2, element=element)
    fields, least = {}, 2
    for name, child in schema.get("properties", {}).items():
        found = declared(child, escaped)
        if found is None:
            continue
        fields[escaped(name)] = found
        if name in schema.get("required", ()) and "default" not in child:
            least += len(name) + found.least_bytes + 4
    return Declared("object", 0, least, fields)


@dataclass(frozen=True)
class Place:
    """A place in a schema, and the rules there.

    `often` is how often the place's data may occur in one object. `compiled` contains the rules and messages.
    """

    path: str
    declared: Declared | None
    often: int
    compiled: Sequence[tuple[Expression, Expression | None]]


def cost_errors(places: Iterable[Place], root: str) -> list[FieldError]:
    """Returns an error for each exceeded limit, per expression and for the whole definition."""
    errors: list[FieldError] = []
    total = 0
    largest: list[tuple[int, str]] = []
    for place in places:
        for index, (rule, message) in enumerate(place.compiled):
            here = f"{place.path}.x-kubernetes-validations[{index}]"
            cost = min(estimate(rule.serialize(), place.declared) * place.often, UNKNOWN)
            costs = [("rule", "estimated rule cost", cost)]
            if message is not None:
                cost = estimate(message.serialize(), place.declared)
                costs.append(("messageExpression", "estimated messageExpression cost", cost))
            for name, what, cost in costs:
                total = min(total + cost, UNKNOWN)
                if cost >= DEFINITION_LIMIT // 100:
                    largest.append((cost, f"{here}.{name}"))
                if cost > RULE_LIMIT:
                    errors.append(FieldError.forbidden(f"{here}.{name}", _exceeds(what, cost, RULE_LIMIT)))
    if total > DEFINITION_LIMIT:
        said = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        errors += [FieldError.forbidden(path, said) for _, path in sorted(largest, reverse=True)[:4]]
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        errors.append(FieldError.forbidden(root, _exceeds(what, total, DEFINITION_LIMIT)))
    return errors


def _exceeds(what: str, cost: int, limit: int) -> str:
    times = cost / limit
    factor = "more than 100x" if times > 100 else f"{times:f}x" if times < 1.5 else f"{times:.1f}x"
    return (
        f"{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, "
        "and maxLength where arrays, maps, and strings are declared)"
    )


def estimate(program: bytes, self_: Declared | None) -> int:
    """Returns the maximum cost of a compiled expression (a serialized Any of CheckedExpr)."""
    [checked] = _each(program, 2)
    types = {}
    for entry in _each(checked, 3):
        parts = dict(_fields(entry))
        types[parts.get(1, 0)] = _kind(parts.get(2, b""))
    [tree] = _each(checked, 4)
    return _Estimator(types, self_).of(tree).cost


def _kind(type_: bytes) -> str:
    for number, value in _fields(type_):
        if number in (3, 4):  # PrimitiveType, plain or wrapped
            return {5: "string", 6: "string"}.get(value, "scalar")
        if number == 5:  # WellKnownType: ANY, TIMESTAMP, DURATION
            return "dyn" if value == 1 else "scalar"
        if number in (6, 7):
            return "list" if number == 6 else "map"
    return "dyn"


class _Estimator:
    def __init__(self, types: Mapping[int, str], self_: Declared | None) -> None:
        self._types = types
        self._variables: dict[str, list[Estimate]] = {}
        for name in ("self", "oldSelf"):
            self._variables[name] = [_declared_as(self_)]

    def of(self, expression: bytes) -> Estimate:
        parts = dict(_fields(expression))
        kind = self._types.get(parts.get(2, 0), "dyn")
        if 3 in parts:
            return self._constant(parts[3])
        if 4 in parts:
            name = dict(_fields(parts[4])).get(1, b"").decode()
            known = self._variables.get(name)
            # Any other name is a type; the API server uses the root's size for it.
            return _with_cost(known[-1], 1) if known else Estimate(1, 0, kind)
        if 5 in parts:
            return self._select(parts[5])
        if 6 in parts:
            return self._call(parts[6], kind)
        if 7 in parts:
            items = [self.of(item) for item in _each(parts[7], 1)]
            inner = Declared("dyn", max((item.size for item in items), default=0))
            return Estimate(_sum(items) + _LIST, len(items), "list", Declared("list", len(items), element=inner))
        if 8 in parts:
            entries = [self.of(value) for entry in _each(parts[8], 2) for n, value in _fields(entry) if n in (3, 4)]
            return Estimate(_sum(entries) + _MAP, len(entries) // 2, "map")
        if 9 in parts:
            return self._comprehension(parts[9])
        return Estimate(0)

    def _constant(self, constant: bytes) -> Estimate:
        for number, value in _fields(constant):
            if number in (6, 7):
                return Estimate(0, len(value.decode() if number == 6 else value), "string")
        return Estimate(0, 1, "scalar")

    def _select(self, select: bytes) -> Estimate:
        parts = dict(_fields(select))
        operand = self.of(parts[1])
        if parts.get(3):
            # Kubernetes charges nothing for has() (cel.PresenceTestHasCost(false) in pkg/cel/environment/base.go).
            return Estimate(operand.cost, 1, "scalar")
        return _member(operand, parts.get(2, b"").decode(), operand.cost + (operand.kind != "dyn"))

    def _comprehension(self, loop: bytes) -> Estimate:
        parts = dict(_fields(loop))
        range_, start = self.of(parts[2]), self.of(parts[4])
        name, result = parts.get(1, b"").decode(), parts.get(3, b"").decode()
        element = range_.declared.element if range_.declared is not None else None
        if range_.kind == "map":
            # The API server's own type of keys has no size, so comparing a key costs nothing.
            element = Declared("string")
        with_result = Estimate(1, start.size, start.kind)
        self._variables.setdefault(result, []).append(with_result)
        self._variables.setdefault(name, []).append(_declared_as(element))
        each = self.of(parts[6]).cost + self.of(parts[5]).cost
        self._variables[name].pop()
        end = self.of(parts[7])
        self._variables[result].pop()
        cost = min(range_.cost + start.cost + end.cost + min(range_.size * each, UNKNOWN), UNKNOWN)
        if start.kind in ("list", "map"):
            return Estimate(cost, range_.size, start.kind)
        return Estimate(cost, start.size, start.kind)

    def _call(self, call: bytes, kind: str) -> Estimate:
        parts = dict(_fields(call))
        name = parts.get(2, b"").decode()
        target = self.of(parts[1]) if 1 in parts else None
        given = [self.of(argument) for argument in _each(call, 3)]
        before = min(_sum(given) + (target.cost if target is not None else 0), UNKNOWN)
        if name in ("_&&_", "_||_"):
            return Estimate(before, 1, "scalar")
        if name == "_?_:_":
            chosen = max(given[1].size, given[2].size)
            most = max(given[1].cost, given[2].cost)
            same = given[1].kind if given[1].kind == given[2].kind else kind
            return Estimate(min(given[0].cost + most, UNKNOWN), chosen, same)
        if name == "_+_":
            return _add(given[0], given[1], before)
        if name in ("_[_]", "_?[_]"):
            element = given[0].declared.element if given[0].declared is not None else None
            return Estimate(before + 1, _declared_as(element).size, _declared_as(element).kind, element)
        if target is not None and name in _OF_TARGET:
            cost, size = _OF_TARGET[name](target, given)
            return Estimate(min(before + cost, UNKNOWN), _size_of(kind) if size is None else size, kind)
        if name in _EQUALITIES or (name in _ORDERS and "string" in (given[0].kind, given[1].kind)):
            return Estimate(min(before + _times(min(given[0].size, given[1].size), _STRING), UNKNOWN), 1, "scalar")
        if name == "@in" or name == "_in_":
            searched = given[1].size if given[1].kind == "list" else 1
            return Estimate(min(before + searched, UNKNOWN), 1, "scalar")
        if name in _PARSES and given:
            return Estimate(min(before + _times(given[0].size, _STRING), UNKNOWN), _size_of(kind), kind)
        if name == "string" and given and given[0].kind == "dyn":
            # If the value may be a text, the copy has that text's size; the text of a number may have any length.
            return Estimate(min(before + _times(given[0].size, _STRING), UNKNOWN), given[0].size, "string")
        if kind == "dyn" and name in _ARITHMETIC:
            kind = "scalar"
        return Estimate(min(before + 1, UNKNOWN), _size_of(kind), kind)


def _add(left: Estimate, right: Estimate, before: int) -> Estimate:
    size = min(left.size + right.size, UNKNOWN)
    if "list" in (left.kind, right.kind):
        return Estimate(before + 1, size, "list")
    if left.kind == right.kind == "scalar" or "scalar" in (left.kind, right.kind):
        return Estimate(before + 1, 1, "scalar")
    return Estimate(min(before + _times(size, _STRING), UNKNOWN), size, "string")


def _matches(text: Estimate, given: list[Estimate]) -> tuple[int, int]:
    return min(_times(min(text.size + 1, UNKNOWN), _STRING) * _times(given[0].size, _REGEX), UNKNOWN), 1


def _contains(text: Estimate, given: list[Estimate]) -> tuple[int, int]:
    return min(_times(text.size, _STRING) * _times(given[0].size, _STRING), UNKNOWN), 1


def _begins(_text: Estimate, given: list[Estimate]) -> tuple[int, int]:
    return _times(given[0].size, _STRING), 1


def _format(text: Estimate, _given: list[Estimate]) -> tuple[int, None]:
    return _times(text.size, _STRING), None


def _walk(values: Estimate, _given: list[Estimate]) -> tuple[int, None]:
    if values.kind == "string":
        return _times(values.size, _STRING), None
    element = values.declared.element if values.declared is not None else None
    each = 1
    if element is None or element.kind == "string":
        each += _times(_declared_as(element).size, _STRING)
    return min(values.size * each, UNKNOWN), None


def _part(text: Estimate, _given: list[Estimate]) -> tuple[int, int]:
    return _times(text.size, _STRING), text.size


def _split(text: Estimate, _given: list[Estimate]) -> tuple[int, int]:
    return _times(text.size, 2 * _STRING), text.size


def _replace(text: Estimate, given: list[Estimate]) -> tuple[int, int]:
    return _times(text.size, 2 * _STRING), min((text.size + 1) * max(given[1].size, 1) + text.size, UNKNOWN)


def _join(values: Estimate, given: list[Estimate]) -> tuple[int, int]:
    element = values.declared.element if values.declared is not None else None
    size = values.size * (_declared_as(element).size + (given[0].size if given else 0))
    return _times(min(size, UNKNOWN), _STRING), min(size, UNKNOWN)


_OF_TARGET = {
    "matches": _matches,
    "contains": _contains,
    "startsWith": _begins,
    "endsWith": _begins,
    "format": _format,
    **dict.fromkeys(("indexOf", "lastIndexOf"), _walk),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _part),
    "split": _split,
    "replace": _replace,
    "join": _join,
}
_EQUALITIES = frozenset(("_==_", "_!=_"))
_ORDERS = frozenset(("_<_", "_<=_", "_>_", "_>=_"))
_PARSES = frozenset(("bytes", "isQuantity", "quantity"))
_ARITHMETIC = frozenset(("_-_", "_*_", "_/_", "_%_", "-_"))


def _declared_as(found: Declared | None) -> Estimate:
    return Estimate(0) if found is None else Estimate(0, found.most, found.kind, found)


def _with_cost(known: Estimate, cost: int) -> Estimate:
    return Estimate(cost, known.size, known.kind, known.declared)


def _member(operand: Estimate, name: str, cost: int) -> Estimate:
    found = None
    if operand.declared is not None:
        found = operand.declared.element if operand.kind == "map" else operand.declared.fields.get(name)
    return _with_cost(_declared_as(found), cost)


def _size_of(kind: str) -> int:
    return 1 if kind == "scalar" else UNKNOWN


def _sum(estimates: list[Estimate]) -> int:
    return min(sum(one.cost for one in estimates), UNKNOWN)


def _times(size: int, factor: float) -> int:
    return min(math.ceil(size * factor), UNKNOWN)


def _each(message: bytes, number: int) -> list[Any]:
    return [value for found, value in _fields(message) if found == number]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the fields of a message in protobuf's wire format (protobuf.dev/programming-guides/encoding)."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        match tag & 7:
            case 0:
                value, position = _varint(message, position)
                yield tag >> 3, value
            case 2:
                length, position = _varint(message, position)
                yield tag >> 3, message[position : position + length]
                position += length
            case wire:
                position += 8 if wire == 1 else 4


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
