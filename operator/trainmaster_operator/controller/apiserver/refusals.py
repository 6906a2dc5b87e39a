"""The API server's words on an object that doesn't fit its type become sentences.

A create of such an object is answered with 400, a server-side apply with **500**: structured-merge-diff's errors reach
the handler as plain ones (k8s.io/apimachinery, pkg/util/managedfields/internal/structuredmerge.go). Both say that the
same object will be refused again, so a 500 of that kind is a refusal and no failure of the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster_operator.api.problems import EXPECTED

# What stands before the details, as a create and an apply have it.
_PREFIXES = (
    re.compile(r'\w+ in version "[^"]*" cannot be handled as a \w+: (?:strict decoding error: )?'),
    re.compile(r"failed to create typed patch object \([^)]*\): "),
    re.compile(
        r"failed to convert new object \([^)]*\) to proper version: "
        r"(?:unable to convert unstructured object to [^:]*: )?(?:strict decoding error: )?"
    ),
)
# Kubernetes' validation names the regular expression that it uses.
_EXPRESSION = re.compile(r",? ?regex used for validation is '[^']*'")

_UNDECLARED = re.compile(r"\.?(\S+): field not declared in schema")
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_MISTYPED = re.compile(r"\.?(\S+): expected (\w+)(?: \(.*\))?, got (.*)", re.DOTALL)
_UNMARSHALLED = re.compile(r"json: cannot unmarshal (\w+)(?: (\S+))? into Go struct field \w+\.(\S+) of type (\S+)")
_SHOWN = re.compile(r"&(?:value\.valueUnstructured)?\{(?:Value:)?(.*)\}", re.DOTALL)
_NO_MAPPINGS = re.compile(r"\.?(\S+): element \d+: associative list with keys may not have non-map elements")
_QUANTITY = re.compile(
    r"quantities must match the regular expression|unable to parse (?:quantity's suffix|numeric part)"
)

# A type as it is called by structured-merge-diff or by Go, and what the value isn't.
_TYPES = {
    "string": "string_type",
    "boolean": "bool_type",
    "bool": "bool_type",
    "numeric": "int_type",
    "int32": "int_type",
    "int64": "int_type",
    "float64": "float_type",
    "list": "list_type",
    "map": "dict_type",
}
_UNREAD_QUANTITY = "a quantity in it can't be read; use a number with an optional suffix, such as 16, 500m or 128Gi"


def refusal(message: str) -> str | None:
    """Returns the message as a sentence where it says that the object doesn't fit its type, else None."""
    for prefix in _PREFIXES:
        found = prefix.match(message)
        if found is not None:
            return "; ".join(_sentences(message[found.end() :]))
    return None


def without_expressions(message: str) -> str:
    """Returns a message of Kubernetes' validation without its regular expressions, which are no remedy."""
    return _EXPRESSION.sub("", message).replace("(e.g. ", "(such as ").replace(",  or ", ", or ")


def _sentences(details: str) -> Iterator[str]:
    unknown = _UNKNOWN.findall(details)
    if unknown:
        # A strict decoder lists what it doesn't know.
        yield from (f"{field}: {_NOT_KNOWN}" for field in unknown)
        return
    lines = details.splitlines()
    for line in lines[1:] if lines[:1] == ["errors:"] else lines:
        yield _sentence(line.strip())


_NOT_KNOWN = "unknown field; this Kubernetes has none of that name"


def _sentence(line: str) -> str:
    if found := _UNDECLARED.fullmatch(line):
        return f"{found[1]}: {_NOT_KNOWN}"
    if found := _MISTYPED.fullmatch(line):
        return f"{found[1]}: {_shown(found[3])} is not {_expected(found[2])}"
    if found := _UNMARSHALLED.search(line):
        kind, value, field, expected = found.groups()
        return f"{field}: {value or _KINDS.get(kind, kind)} is not {_expected(expected)}"
    if found := _NO_MAPPINGS.fullmatch(line):
        return f"{found[1]}: has an item that is not {EXPECTED['dict_type']}"
    return _UNREAD_QUANTITY if _QUANTITY.search(line) else line.removeprefix(".")


_KINDS = {"number": "a number", "string": "text", "bool": "true or false", "object": "a mapping", "array": "a list"}


def _expected(name: str) -> str:
    if name.startswith("[]"):
        return EXPECTED["list_type"]
    return EXPECTED[_TYPES.get(name, "dict_type")]


def _shown(value: str) -> str:
    """Returns a value as a sentence shows it, from Go's way to print it."""
    found = _SHOWN.fullmatch(value)
    if found is None:
        return _KINDS.get(value, value)
    inner = found[1]
    if inner.startswith("map["):
        return "a mapping"
    return "a list" if inner.startswith("[") else inner
