"""Google's own CEL runtime evaluates the CEL rules of custom resources (`x-kubernetes-validations`).

`Rules.compile` compiles all rules of a schema, or reports which one it can't compile (such a rule makes its CRD
invalid). `Rules.check` evaluates them on an object. Standard CEL is supported, with its string, math, encoder and
optional extensions. Kubernetes adds functions (https://kubernetes.io/docs/reference/using-api/cel/), of which only
comparisons of quantities are supported (`quantities`): lists' sum and isSorted, find, isURL, the authorizer and the
like are missing.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_encoders, ext_math, ext_optional, ext_strings

from trainmaster_local.apiserver.apimachinery import deep
from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.cel.costs import REQUEST_BYTES, Place, cost_errors, declared
from trainmaster_local.apiserver.cel.quantities import QUANTITIES
from trainmaster_local.apiserver.schema.structure import ANY, Schema, item_schema, list_keys, list_type

_MISSING = object()
_DYN = cel.Type.DYN
_REASONS = ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate")
# Rules can read only these parts of metadata.
_METADATA: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
}
RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


class RuleError(ValueError):
    """Raised for a rule that can't be compiled. `path` is its place in the schema; the message is the compiler's."""

    def __init__(self, path: str, rule: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.rule = rule


_EXTENSIONS = [ext_strings.ExtStrings(), ext_math.ExtMath(), ext_optional.ExtOptional(), ext_encoders.ExtEncoders()]


def _cel_type(schema: Schema) -> cel.Type:
    if schema.get("x-kubernetes-int-or-string"):
        return _DYN
    kind = schema.get("type")
    if kind == "string":
        formats = {"date-time": cel.Type.TIMESTAMP, "duration": cel.Type.DURATION, "byte": cel.Type.BYTES}
        return formats.get(schema.get("format", ""), cel.Type.STRING)
    if kind == "array":
        return cel.Type.List(_cel_type(item_schema(schema)))
    if kind == "object":
        return cel.Type.Map(cel.Type.STRING, _DYN)
    plain = {"integer": cel.Type.INT, "number": cel.Type.DOUBLE, "boolean": cel.Type.BOOL}
    return plain.get(str(kind), _DYN)


def _duration(text: str) -> datetime.timedelta:
    units = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    parts = re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", text)
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    return datetime.timedelta(seconds=-seconds if text.startswith("-") else seconds)


def _needs_conversion(schema: Any) -> bool:
    """Returns whether JSON's types differ from CEL's: whole numbers, times, durations, fields named like keywords."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "number" or schema.get("format") in ("date-time", "duration", "byte"):
            return True
        if any(_escaped(name) != name for name in schema.get("properties", {})):
            return True
        return any(_needs_conversion(child) for child in schema.values())
    return isinstance(schema, list) and any(_needs_conversion(child) for child in schema)


def _escaped(name: str) -> str:
    """Returns a field's name in CEL: `__dash__`, `__dot__`, `__slash__`, and keywords between underscores."""
    if name in RESERVED:
        return f"__{name}__"
    return (
        name.replace("__", "__underscores__").replace(".", "__dot__").replace("-", "__dash__").replace("/", "__slash__")
    )


def _converted(value: Any, schema: Schema) -> Any:
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        additional = schema.get("additionalProperties")
        other = additional if isinstance(additional, Mapping) else ANY
        return {
            _escaped(name) if name in properties else name: _converted(child, properties.get(name, other))
            for name, child in value.items()
        }
    if isinstance(value, list):
        return [_converted(item, item_schema(schema)) for item in value]
    if schema.get("type") == "number" and isinstance(value, int):
        return float(value)
    if isinstance(value, str) and schema.get("type") == "string":
        if schema.get("format") == "date-time":
            return datetime.datetime.fromisoformat(value)
        if schema.get("format") == "duration":
            return _duration(value)
        if schema.get("format") == "byte":
            return value.encode()
    return value


class _NotEvaluated(Exception):
    """Raised for a rule whose evaluation failed on an object."""


@dataclass(frozen=True)
class _Rule:
    text: str
    program: Any
    message: str
    message_program: Any
    reason: str
    field_path: str
    transition: bool
    optional_old: bool

    def failure(self, data: dict[str, Any]) -> str | None:
        """Returns the message if the rule doesn't hold, else None."""
        result = self.program.eval(data=data)
        if result.type() == cel.Type.ERROR:
            raise _NotEvaluated(f"{evaluation_error(result)} evaluating rule: {self.message or self.text}")
        if result.value() is True:
            return None
        if self.message_program is not None:
            said = self.message_program.eval(data=data)
            if said.type() == cel.Type.STRING and said.value().strip():
                return str(said.value())
        return self.message or f"failed rule: {self.text.strip()}"


def evaluation_error(result: Any) -> str:
    text = str(result.value()).replace("divide by zero", "division by zero")
    found = re.search(r'Key not found in map : "?([^"]*)"?', text)
    return f"no such key: {found.group(1)}" if found else re.sub(r"^[A-Z_]+: ", "", text)


class Rules:
    """These are the rules at one place of a schema and below it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._converts = _needs_conversion(schema)
        self._own: list[_Rule] = []
        self._fields: dict[str, Rules] = {}
        self._items: Rules | None = None
        self._values: Rules | None = None

    def __bool__(self) -> bool:
        return bool(self._own or self._fields or self._items or self._values)

    @staticmethod
    def compile(schema: Schema, path: str = "", *, root: bool = True) -> Rules:
        """Compiles all rules of a schema. Raises RuleError for the first invalid one."""
        if root and schema:
            own = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _METADATA}
            schema = {**schema, "properties": {**schema.get("properties", {}), **own}}
        rules = Rules(schema)
        for index, rule in enumerate(schema.get("x-kubernetes-validations", ())):
            rules._own.append(_compile(rule, schema, f"{path}.x-kubernetes-validations[{index}]"))
        for name, child in schema.get("properties", {}).items():
            inner = Rules.compile(child, f"{path}.properties[{name}]", root=False)
            if inner:
                rules._fields[name] = inner
        if isinstance(schema.get("items"), Mapping):
            inner = Rules.compile(schema["items"], f"{path}.items", root=False)
            rules._items = inner if inner else None
        if isinstance(schema.get("additionalProperties"), Mapping):
            inner = Rules.compile(schema["additionalProperties"], f"{path}.additionalProperties", root=False)
            rules._values = inner if inner else None
        return rules

    def costs_too_much(self, path: str) -> list[FieldError]:
        """Returns the errors of rules whose estimated cost exceeds Kubernetes' budget."""
        return cost_errors(self.places(path, 1), path)

    def places(self, path: str, often: int) -> Iterator[Place]:
        """Yields this place and those below.

        `often` is how often the place's data may occur in one object; it is 0 below lists without a limit.
        """
        mine = declared(self._schema, _escaped)
        times = often or REQUEST_BYTES // ((mine.least_bytes if mine else 1) + 1)
        if self._own:
            yield Place(path, mine, times, [(rule.program, rule.message_program) for rule in self._own])
        for name, rules in self._fields.items():
            yield from rules.places(f"{path}.properties[{name}]", often)
        below = (self._items, "items", "maxItems"), (self._values, "additionalProperties", "maxProperties")
        for inner, where, limit in below:
            if inner is not None:
                yield from inner.places(f"{path}.{where}", often * max(self._schema.get(limit, 0), 0))

    def check(self, value: Any, old: Any = None) -> list[FieldError]:
        """Returns the field errors of an object; `old` is the object that it replaces, None for a new one."""
        return list(self._check(deep.without(value), _MISSING if old is None else deep.without(old), ""))

    def _check(self, value: Any, old: Any, path: str) -> Iterable[FieldError]:
        if value is None:
            return
        if self._own:
            yield from self._own_errors(value, old, path)
        unchanged = old is not _MISSING and old == value
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, rules in self._fields.items():
                if name in value:
                    yield from rules._check(value[name], before.get(name, _MISSING), f"{path}.{name}" if path else name)
            if self._values is not None:
                for name in value:
                    if name not in self._schema.get("properties", {}):
                        yield from self._values._check(value[name], before.get(name, _MISSING), f"{path}.{name}")
        elif isinstance(value, list) and self._items is not None and not unchanged:
            find = _finder(old, self._schema)
            for index, item in enumerate(value):
                yield from self._items._check(item, find(item), f"{path}[{index}]")

    def _own_errors(self, value: Any, old: Any, path: str) -> Iterable[FieldError]:
        data = {"self": _converted(value, self._schema) if self._converts else value}
        known = old is not _MISSING
        before = None
        if known and any(rule.transition for rule in self._own):
            before = _converted(old, self._schema) if self._converts else old
        for rule in self._own:
            try:
                if rule.transition:
                    if rule.optional_old:
                        failed = rule.failure({**data, "__old": [before] if known else []})
                    elif known:
                        failed = rule.failure({**data, "oldSelf": before})
                    else:
                        continue
                elif known and old == value:
                    continue
                else:
                    failed = rule.failure(data)
            except _NotEvaluated as error:
                yield FieldError.invalid(path or "<nil>", self._schema.get("type", ""), str(error))
                continue
            if failed is not None:
                yield _field_error(rule, value, path, failed)


def _finder(old: Any, schema: Schema) -> Callable[[Any], Any]:
    """Returns a function that finds an item's old value: by its keys in a list of maps, by its value in a set."""
    if not isinstance(old, list) or list_type(schema) == "atomic":
        return lambda item: _MISSING
    if list_type(schema) == "set":
        return lambda item: item if item in old else _MISSING
    keys = list_keys(schema)

    def find(item: Any) -> Any:
        wanted = [item.get(key) for key in keys] if isinstance(item, dict) else None
        return next((other for other in old if [other.get(key) for key in keys] == wanted), _MISSING)

    return find


def _field_error(rule: _Rule, value: Any, path: str, message: str) -> FieldError:
    field = (path + rule.field_path).lstrip(".") if rule.field_path else path
    field = field or "<nil>"
    if rule.reason == "FieldValueForbidden":
        return FieldError.forbidden(field, message)
    if rule.reason == "FieldValueRequired":
        return FieldError.required(field, message)
    if rule.reason == "FieldValueDuplicate":
        return FieldError.duplicate(field, value)
    if isinstance(value, (dict, list)):
        return FieldError(field, "FieldValueInvalid", f"Invalid value: {message}")
    return FieldError.invalid(field, value, message)


def _compile(rule: Mapping[str, Any], schema: Schema, path: str) -> _Rule:
    text = rule.get("rule") or ""
    if not text.strip():
        raise RuleError(f"{path}.rule", text, "Required value: rule is not specified")
    reason = rule.get("reason") or "FieldValueInvalid"
    if reason not in _REASONS:
        choices = ", ".join(f'"{choice}"' for choice in _REASONS)
        raise RuleError(f"{path}.reason", reason, f"Unsupported value: supported values: {choices}")
    optional_old = bool(rule.get("optionalOldSelf"))
    transition = bool(re.search(r"\boldSelf\b", _without_strings(text)))
    program = _program(text, schema, f"{path}.rule", optional_old, cel.Type.BOOL)
    expression = rule.get("messageExpression") or ""
    said = (
        _program(expression, schema, f"{path}.messageExpression", optional_old, cel.Type.STRING) if expression else None
    )
    message = rule.get("message") or ""
    return _Rule(text, program, message, said, reason, rule.get("fieldPath") or "", transition, optional_old)


def _program(text: str, schema: Schema, path: str, optional_old: bool, wanted: cel.Type) -> Any:
    _check_fields(text, schema, path)
    type_ = _cel_type(schema)
    if optional_old:
        # The runtime accepts no optional as an input, so the expression creates it from a list with one item or none.
        variables = {"self": type_, "__old": cel.Type.List(_DYN)}
        source = re.sub(r"\boldSelf\b", "(size(__old) > 0 ? optional.of(__old[0]) : optional.none())", text)
    else:
        variables = {"self": type_, "oldSelf": type_}
        source = text
    program = compiled(source, variables, path, text)
    returned = program.return_type()
    if returned != wanted and returned != _DYN:
        name = "bool" if wanted == cel.Type.BOOL else "string"
        raise RuleError(path, text, f"must evaluate to a {name}")
    return program


def compiled(source: str, variables: Mapping[str, cel.Type], path: str, text: str = "") -> Any:
    """Returns the program of `source` over these variables. Errors (RuleError) quote the author's `text`."""
    try:
        environment = cel.NewEnv(variables=dict(variables), extensions=_EXTENSIONS, functions=QUANTITIES)
        return environment.compile(source)
    except RuntimeError as error:
        problem = re.sub(r"^[A-Z_]+: ", "", str(error)).replace(" [INVALID_ARGUMENT]", "")
        raise RuleError(path, text or source, f"compilation failed: {problem}") from error


@cache
def _environment() -> Any:
    return cel.NewEnv(variables={}, extensions=_EXTENSIONS, functions=QUANTITIES)


def activation_of(data: Mapping[str, Any]) -> Any:
    """Returns the data as CEL's values; all programs evaluated with them share one conversion."""
    return _environment().Activation(data)


def _without_strings(text: str) -> str:
    """Returns the expression with its string literals emptied, of the same length."""
    return re.sub(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'", lambda found: '"' + " " * (len(found.group()) - 2) + '"', text)


def _check_fields(text: str, schema: Schema, path: str) -> None:
    """Refuses a field that the schema doesn't have, because the runtime sees objects as maps and wouldn't notice."""
    bare = _without_strings(text)
    for found in re.finditer(r"(?<![\w.])(?:self|oldSelf)((?:\s*\.\s*[A-Za-z_]\w*|\[[^\[\]]*\])+)", bare):
        current: Schema | None = schema
        position = found.start(1)
        for step in re.finditer(r"\.\s*([A-Za-z_]\w*)|\[[^\[\]]*\]", found.group(1)):
            end = position + step.end()
            if current is None or bare[end:].lstrip().startswith("("):
                break
            current = _step(current, step.group(1), text, path, position + step.start())


def _step(schema: Schema, name: str | None, text: str, path: str, position: int) -> Schema | None:
    """Returns the schema after one more step of a path; None if it is unknown."""
    if name is None:
        if schema.get("type") == "array":
            return item_schema(schema)
        additional = schema.get("additionalProperties")
        return additional if isinstance(additional, Mapping) else None
    properties = schema.get("properties")
    if schema.get("type") != "object" or not properties or "additionalProperties" in schema:
        return None
    by_name = {_escaped(field): child for field, child in properties.items()}
    if name in by_name:
        found: Schema = by_name[name]
        return found
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1)
    shown = text.splitlines()[line - 1]
    raise RuleError(
        path,
        text,
        f"compilation failed: ERROR: <input>:{line}:{column + 1}: undefined field '{name}'\n"
        f" | {shown}\n | {'.' * column}^",
    )
