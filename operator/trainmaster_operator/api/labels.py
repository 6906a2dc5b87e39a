"""Labels and annotations have keys and values of one form on every object (apimachinery pkg/util/validation)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.values import LABEL_KEY_PATTERN, SUBDOMAIN_PATTERN, show

_MOST_NAME, _MOST_DOMAIN = 63, 253
_KEY = re.compile(LABEL_KEY_PATTERN.strip("^$"))
_DOMAIN = re.compile(SUBDOMAIN_PATTERN.strip("^$"))
_VALUE = re.compile(rf"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,{_MOST_NAME - 2}}}[A-Za-z0-9])?)?")
_FORM = f"use at most {_MOST_NAME} letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"


def keyed(path: str, key: str) -> str:
    """Returns the path of a key that is the user's own, as Kubernetes writes it: nodeSelector.a, limits[a.com/gpu]."""
    return f"{path}.{key}" if key.replace("-", "").replace("_", "").isalnum() else f"{path}[{key}]"


def label_key_problem(key: str) -> str | None:
    """Returns what is wrong with the key of a label, or of an annotation in lower case."""
    prefix, slash, name = key.rpartition("/")
    if len(name) <= _MOST_NAME and len(prefix) <= _MOST_DOMAIN and _KEY.fullmatch(key):
        return None
    if slash and not _DOMAIN.fullmatch(prefix):
        return f"{show(key)} can't be a key; use a domain before the '/', such as example.com/name"
    return f"{show(key)} can't be a key; {_FORM}"


def label_value_problem(value: str) -> str | None:
    """Returns what is wrong with the value of a label."""
    return None if _VALUE.fullmatch(value) else f"{show(value)} can't be a label's value; {_FORM}"


def check_labels(path: str, given: Any) -> Iterator[Problem]:
    """Yields what is wrong with a mapping of labels; what isn't text is another check's."""
    for key, value in given.items() if isinstance(given, Mapping) else ():
        key = str(key)
        if key.startswith("$"):
            continue
        message = label_key_problem(key)
        if message is None and isinstance(value, str):
            message = label_value_problem(value)
        if message is not None:
            yield Problem(keyed(path, key), value, message)


def check_annotations(path: str, given: Any) -> Iterator[Problem]:
    """Yields what is wrong with the keys of annotations."""
    for key, value in given.items() if isinstance(given, Mapping) else ():
        # The API server compares annotations' keys in lower case.
        wrong = label_key_problem(str(key).lower())
        if wrong is not None:
            yield Problem(keyed(path, str(key)), value, wrong)
