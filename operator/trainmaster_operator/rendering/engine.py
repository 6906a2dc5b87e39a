"""Jinja2 is set up so that no value can change a manifest's structure.

The filter `tojson` writes a mark where a value belongs, and keeps the value apart. What comes out is read with a safe
loader, and then each mark is replaced by its value, as JSON has it. So no text of a user is ever read as YAML, and what
is read depends on the template's decisions alone: manifests of one form are read once (YAML took half of a rendering).
An undefined name is an error, never an empty string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, cast

import jinja2
import yaml

from trainmaster_operator.api.json_codec import is_larger

# libyaml where PyYAML was built with it: ten times as fast.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a template writes itself never looks like it.
_MARK = re.compile(r"<value (\d+)>")
# The name under which a rendering's values are kept in its context.
_VALUES = "_values_of_this_rendering"
_PLAIN = frozenset({str, int, bool, type(None)})
# Forms of manifests that are remembered: a cluster's jobs have a few, which differ in their optional fields.
REMEMBERED_FORMS = 256


@jinja2.pass_context
def _keep_apart(context: jinja2.runtime.Context, value: object) -> str:
    """Returns the mark of a value. Raises ValueError for NaN and infinities, which JSON doesn't have."""
    values = context[_VALUES]
    # Most are texts and numbers, which are what JSON would make of them.
    plain = type(value) in _PLAIN
    values.append(value if plain else json.loads(json.dumps(value, allow_nan=False)))
    return f'"<value {len(values) - 1}>"'


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainmaster_operator.rendering"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["tojson"] = _keep_apart
    return environment


def render_template(name: str, **context: Any) -> dict[str, Any]:
    """Renders one of templates/*.yaml.j2 and reads it back as an object."""
    values: list[Any] = []
    form = _read(_environment().get_template(name).render(**context, **{_VALUES: values}))
    return cast(dict[str, Any], _filled(form, values))


@lru_cache(REMEMBERED_FORMS)
def _read(text: str) -> Any:
    return _with_places(yaml.load(text, Loader=_LOADER))


class _Place(int):
    """_Place stands in a form for the value of that number."""


def _with_places(node: Any) -> Any:
    """Returns a form with places in the stead of marks."""
    if isinstance(node, dict):
        return {_with_places(key): _with_places(item) for key, item in node.items()}
    if isinstance(node, list):
        return [_with_places(item) for item in node]
    mark = _MARK.fullmatch(node) if isinstance(node, str) else None
    return node if mark is None else _Place(mark[1])


def _filled(node: Any, values: Sequence[Any]) -> Any:
    """Returns a copy of a form with the values in their places."""
    kind = type(node)
    if kind is _Place:
        return values[node]
    if kind is dict:
        return {values[key] if type(key) is _Place else key: _filled(item, values) for key, item in node.items()}
    if kind is list:
        return [_filled(item, values) for item in node]
    return node


# Bytes of JSON from which it isn't written for people any more.
LARGE_TRAINING_BYTES = 8 * 1024

# PyYAML writes these as they are and reads them back as spaces.
_LINE_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
# A YAML file may not contain these, and the line breaks above; JSON has escaped what is below a space.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
# Texts, so that nothing in them is read as a number; and numbers that PyYAML would read as a text.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![0-9.])-?[0-9]+e[-+][0-9]+|-?Infinity|NaN')
_NUMBERS = {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}
# YAML finds a key of more characters only where `?` begins it.
_LONGEST_SIMPLE_KEY = 1_000


def training_text(training: dict[str, Any]) -> str:
    """Returns the file's text; reading it gives the same values."""
    if is_larger(training, LARGE_TRAINING_BYTES):
        return json_as_yaml(training)
    text = yaml.safe_dump(training, sort_keys=False, allow_unicode=True, width=120)
    if _LINE_BREAKS.search(text):
        text = yaml.safe_dump(training, sort_keys=False, allow_unicode=False, width=120)
    return text


def json_as_yaml(value: Any) -> str:
    """Returns JSON on one line that a reader of YAML 1.1 reads as the same values."""
    text = json.dumps(value, ensure_ascii=False)
    text = _TOKENS.sub(lambda match: _token(match[0], text[match.end() : match.end() + 1] == ":"), text)
    return _UNREADABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def _token(token: str, is_key: bool) -> str:
    if token[0] == '"':
        return f"? {token} " if is_key and len(token) > _LONGEST_SIMPLE_KEY else token
    return _NUMBERS.get(token) or token.replace("e", ".0e")
