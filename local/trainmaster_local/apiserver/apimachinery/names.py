"""Validates names, labels and annotations with the messages of k8s.io/apimachinery `pkg/util/validation`.

Each function returns a list with one message for each problem; the list is empty for a valid value.
"""

from __future__ import annotations

import re

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"


def _too_long(limit: int, unit: str = "characters") -> str:
    """Returns the message for a long name.

    Kubernetes counts bytes everywhere, and mentions them for labels and annotations.
    """
    return f"must be no more than {limit} {unit}"


def _format(problem: str, pattern: str, *examples: str) -> str:
    quoted = " or ".join(f"'{example}', " for example in examples)
    return f"{problem} (e.g. {quoted}regex used for validation is '{pattern}')"


def dns_subdomain_problems(name: str, unit: str = "characters") -> list[str]:
    """Checks the rule of most names: DNS-1123 subdomain, at most 253 bytes."""
    problems = [] if len(name.encode()) <= 253 else [_too_long(253, unit)]
    if not re.fullmatch(_SUBDOMAIN, name):
        rule = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        )
        problems.append(_format(rule, _SUBDOMAIN, "example.com"))
    return problems


def dns_label_problems(name: str) -> list[str]:
    """Checks a DNS-1123 label, at most 63 bytes: namespaces, containers, services, StatefulSets."""
    problems = [] if len(name.encode()) <= 63 else [_too_long(63)]
    if "." in name and re.fullmatch(_SUBDOMAIN, name):
        problems.append("must not contain dots")
    elif not re.fullmatch(_LABEL, name):
        rule = (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        )
        problems.append(_format(rule, _LABEL, "my-name", "123-abc"))
    return problems


def dns_1035_problems(name: str) -> list[str]:
    """Checks a DNS-1035 label, at most 63 bytes: the names in a CRD."""
    problems = [] if len(name.encode()) <= 63 else [_too_long(63)]
    if not re.fullmatch(_LABEL_1035, name):
        rule = (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
            "character, and end with an alphanumeric character"
        )
        problems.append(_format(rule, _LABEL_1035, "my-name", "abc-123"))
    return problems


def path_segment_problems(name: str) -> list[str]:
    """Checks the rule of RBAC names: anything that is one segment of a path."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{character}'" for character in "/%" if character in name]


def qualified_name_problems(key: str) -> list[str]:
    """Checks the key of a label or an annotation: `name` or `prefix/name`."""
    rule = (
        "name part must consist of alphanumeric characters, '-', '_' or '.', "
        "and must start and end with an alphanumeric character"
    )
    examples = ("MyName", "my.name", "123-abc")
    prefix, slash, name = key.rpartition("/")
    if slash and "/" in prefix:
        wrong = (
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )
        return [
            _format(wrong, _QUALIFIED, *examples)
            + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    problems = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in dns_subdomain_problems(prefix, "bytes")]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part " + _too_long(63, "bytes"))
    if not re.fullmatch(_QUALIFIED, name):
        problems.append(_format(rule, _QUALIFIED, *examples))
    return problems


def label_value_problems(value: str) -> list[str]:
    problems = [] if len(value.encode()) <= 63 else [_too_long(63, "bytes")]
    if not re.fullmatch(f"({_QUALIFIED})?", value):
        rule = (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )
        problems.append(_format(rule, f"({_QUALIFIED})?", "MyValue", "my_value", "12345"))
    return problems
