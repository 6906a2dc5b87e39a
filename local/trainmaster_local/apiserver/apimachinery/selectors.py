"""Label and field selectors are parsed from their string forms, with Kubernetes' errors (`pkg/labels`,
`pkg/fields`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainmaster_local.apiserver.apimachinery.errors import bad_request
from trainmaster_local.apiserver.apimachinery.names import label_value_problems, qualified_name_problems

Labels = Mapping[str, str]

_SPECIAL = "=!(),<>"
_PUNCTUATION = frozenset((*_SPECIAL, "==", "!="))
_OPERATORS = {"=", "==", "!=", "in", "notin", "<", ">"}


@dataclass(frozen=True)
class Requirement:
    """A requirement is `key operator values`, with the API's operators (In, NotIn, Exists, DoesNotExist, Gt, Lt)."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        if self.operator == "In":
            return value in self.values
        if self.operator == "NotIn":
            return value not in self.values
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == "Gt" else int(value) < bound


@dataclass(frozen=True)
class LabelSelector:
    """An object must meet all requirements of this selector; without requirements, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)


def _tokens(text: str) -> list[str]:
    """Returns the lexer's tokens: operators, punctuation and words. An empty string marks the end."""
    tokens = []
    position = 0
    while position < len(text):
        character = text[position]
        if character.isspace():
            position += 1
        elif character in _SPECIAL:
            width = 2 if text[position : position + 2] in ("==", "!=") else 1
            tokens.append(text[position : position + width])
            position += width
        else:
            end = position
            while end < len(text) and not text[end].isspace() and text[end] not in _SPECIAL:
                end += 1
            tokens.append(text[position:end])
            position = end
    return [*tokens, ""]


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._position = 0

    @property
    def next(self) -> str:
        return self._tokens[self._position]

    def advance(self) -> str:
        token = self.next
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def parse(self) -> LabelSelector:
        requirements: list[Requirement] = []
        while self.next:
            if self.next != "!" and self.next in _PUNCTUATION:
                raise bad_request(f"found '{self.next}', expected: !, identifier, or 'end of string'")
            requirements.append(self.requirement())
            token = self.advance()
            if token == "":
                break
            if token != ",":
                raise bad_request(f"found '{token}', expected: ',' or 'end of string'")
            if not self.next or (self.next in _PUNCTUATION and self.next != "!"):
                raise bad_request(f"found '{self.next}', expected: identifier after ','")
        return LabelSelector(tuple(requirements))

    def requirement(self) -> Requirement:
        absent = self.next == "!"
        if absent:
            self.advance()
        key = self.advance()
        if not key or key in _PUNCTUATION:
            raise bad_request(f"unable to parse requirement: found '{key}', expected: identifier")
        if problems := qualified_name_problems(key):
            raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": ' + "; ".join(problems))
        if absent or self.next in ("", ","):
            return Requirement(key, "DoesNotExist" if absent else "Exists")
        operator = self.advance()
        if operator not in _OPERATORS:
            expected = "in, notin, =, ==, !=, gt, lt"
            raise bad_request(f"unable to parse requirement: found '{operator}', expected: {expected}")
        if operator in ("in", "notin"):
            return Requirement(key, "In" if operator == "in" else "NotIn", self.values(key))
        value = "" if self.next in ("", ",") else self.advance()
        if value in _PUNCTUATION:
            raise bad_request(f"unable to parse requirement: found '{value}', expected: identifier")
        if operator in ("<", ">"):
            if not re.fullmatch(r"-?\d+", value):
                problem = "for 'Gt', 'Lt' operators, the value must be an integer"
                raise bad_request(f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": {problem}')
            return Requirement(key, "Gt" if operator == ">" else "Lt", frozenset([value]))
        _check_value(key, value)
        return Requirement(key, "NotIn" if operator == "!=" else "In", frozenset([value]))

    def values(self, key: str) -> frozenset[str]:
        if self.advance() != "(":
            found = self._tokens[self._position - 1]
            raise bad_request(f"unable to parse requirement: found '{found}', expected: '('")
        values = []
        while True:
            values.append("" if self.next in (",", ")") else self.advance())
            token = self.advance()
            if token == ")":
                break
            if token != ",":
                raise bad_request(f"unable to parse requirement: found '{token}', expected: ',' or ')'")
        for value in values:
            _check_value(key, value)
        return frozenset(values)


def _check_value(key: str, value: str) -> None:
    if problems := label_value_problems(value):
        raise bad_request(
            f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": ' + "; ".join(problems)
        )


def parse_labels(text: str) -> LabelSelector:
    """Parses `a=b,c in (d,e),!f`. Raises ApiError 400."""
    return _Parser(text).parse()


def from_object(selector: Mapping[str, object] | None) -> LabelSelector:
    """Returns the selector of a spec (`matchLabels`, `matchExpressions`).

    An empty selector matches everything, None matches nothing.
    """
    if selector is None:
        return LabelSelector((Requirement("", "In"),))
    requirements = []
    labels = selector.get("matchLabels") or {}
    assert isinstance(labels, Mapping)
    for key, value in labels.items():
        requirements.append(Requirement(str(key), "In", frozenset([str(value)])))
    expressions = selector.get("matchExpressions") or []
    assert isinstance(expressions, list)
    for expression in expressions:
        requirements.append(
            Requirement(expression["key"], expression["operator"], frozenset(expression.get("values") or ()))
        )
    return LabelSelector(tuple(requirements))


@dataclass(frozen=True)
class FieldSelector:
    """A field selector contains `(field, wanted value, equal?)` terms; an object matches if all are true."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, value_of: Callable[[str], str]) -> bool:
        return all((value_of(name) == value) == equal for name, value, equal in self.terms)

    def value(self, name: str) -> str | None:
        """Returns the value that the selector requires of a field, or None."""
        return next((value for term, value, equal in self.terms if term == name and equal), None)

    def __bool__(self) -> bool:
        return bool(self.terms)


def parse_fields(text: str, supported: Callable[[str], bool]) -> FieldSelector:
    """Parses `status.phase!=Running,metadata.name=x`. Raises ApiError 400 for a field that can't be selected."""
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        match = re.match(r"(.*?)(==|!=|=)(.*)", part)
        if not match:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        name, operator, value = match.groups()
        if not supported(name):
            raise bad_request(f"field label not supported: {name}")
        terms.append((name, re.sub(r"\\([\\,=])", r"\1", value), operator != "!="))
    return FieldSelector(tuple(terms))
