"""Renders Jinja2 templates so that no value can change a manifest's structure, and writes `training` as YAML.

The filter `tojson` writes a mark in place of a value and stores the value. A safe loader parses the output, and each
mark is replaced by its value as in JSON. So user text is never parsed as YAML, and the parsed text depends only on the
template's decisions: manifests of the same form are parsed once (YAML took half of a rendering). An undefined name is
an error.

Small `training` is written for people. Large `training` is written as JSON, which is also YAML: PyYAML's writer takes 4
to 40 microseconds a value, up to 5 s for the largest training, and its indentation enlarges deep nesting up to 60
times. Values that YAML reads differently from JSON are written so that both mean the same.
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

# libyaml, if PyYAML was built with it, is ten times as fast.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Templates never contain this text themselves.
_MARK = re.compile(r"<value (\d+)>")
# The name in the context under which a rendering keeps its values.
_VALUES = "_values_of_this_rendering"
_PLAIN = frozenset({str, int, bool, type(None)})
# Maximum number of cached forms. The jobs of a cluster have a few, which differ in their optional fields.
REMEMBERED_FORMS = 256


@jinja2.pass_context
def _keep_apart(context: jinja2.runtime.Context, value: object) -> str:
    """Returns the mark of a value. Raises ValueError for NaN and infinities, which JSON doesn't have."""
    values = context[_VALUES]
    # Most values are texts and numbers, which JSON wouldn't change.
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
    """_Place marks the place of the value with that number in a form."""


def _with_places(node: Any) -> Any:
    """Returns a form with places instead of marks."""
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


# JSON of this size or more isn't written for people.
LARGE_TRAINING_BYTES = 8 * 1024

# PyYAML writes these unchanged and reads them as spaces.
_LINE_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
# YAML files can't contain these and the line breaks above; JSON has escaped characters below a space.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
# Texts, so that their content isn't taken for numbers, and numbers that PyYAML would read as text.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![0-9.])-?[0-9]+e[-+][0-9]+|-?Infinity|NaN')
_NUMBERS = {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}
# YAML recognises a longer key only after `?`.
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
    """Returns JSON on one line that YAML 1.1 reads as the same values."""
    text = json.dumps(value, ensure_ascii=False)
    text = _TOKENS.sub(lambda match: _token(match[0], text[match.end() : match.end() + 1] == ":"), text)
    return _UNREADABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def _token(token: str, is_key: bool) -> str:
    if token[0] == '"':
        return f"? {token} " if is_key and len(token) > _LONGEST_SIMPLE_KEY else token
    return _NUMBERS.get(token) or token.replace("e", ".0e")
