"""Renders Jinja2 templates so that no value can change a manifest's structure, and writes `training` as YAML.

The filter `tojson` writes a mark in place of a value and stores the value. A safe loader parses the output, and each
mark is replaced by its value as in JSON. So user text is never parsed as YAML, and the parsed text depends only on the
template's decisions. Therefore manifests of equal form are parsed only once, which matters because parsing YAML took
half of the rendering time. An undefined name is an error.

Small `training` is written in a readable form. Large `training` is written as JSON, which is also valid YAML. PyYAML's
writer takes 4 to 40 microseconds per value, up to 5 s for the largest training, and its indentation makes deep nesting
up to 60 times as large. Values that YAML would read differently are written so that both formats give equal values.
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

# If PyYAML was built with libyaml, that loader is ten times as fast.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Templates never contain this text themselves.
_MARK = re.compile(r"<value (\d+)>")
# The name in the context under which a rendering stores its values.
_VALUES = "_values_of_this_rendering"
_PLAIN = frozenset({str, int, bool, type(None)})
# Maximum number of cached forms. The jobs of a cluster need only a few, which differ in their optional fields.
REMEMBERED_FORMS = 256


@jinja2.pass_context
def _keep_apart(context: jinja2.runtime.Context, value: object) -> str:
    """Stores a value and returns its mark. Raises ValueError for NaN and infinities, which JSON doesn't support."""
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


def render_template(name: str, /, **context: Any) -> dict[str, Any]:
    """Renders one of templates/*.yaml.j2 and returns the parsed object."""
    values: list[Any] = []
    form = _read(_environment().get_template(name).render(**context, **{_VALUES: values}))
    return cast(dict[str, Any], _filled(form, values))


@lru_cache(REMEMBERED_FORMS)
def _read(text: str) -> Any:
    return _with_places(yaml.load(text, Loader=_LOADER))


class _Place(int):
    """The number of the value that belongs in this place of a form."""


def _with_places(node: Any) -> Any:
    if isinstance(node, dict):
        return {_with_places(key): _with_places(item) for key, item in node.items()}
    if isinstance(node, list):
        return [_with_places(item) for item in node]
    mark = _MARK.fullmatch(node) if isinstance(node, str) else None
    return node if mark is None else _Place(mark[1])


def _filled(node: Any, values: Sequence[Any]) -> Any:
    kind = type(node)
    if kind is _Place:
        return values[node]
    if kind is dict:
        return {values[key] if type(key) is _Place else key: _filled(item, values) for key, item in node.items()}
    if kind is list:
        return [_filled(item, values) for item in node]
    return node


# If its JSON is larger than this, `training` isn't written in the readable form.
LARGE_TRAINING_BYTES = 8 * 1024

# PyYAML writes these characters unchanged and reads them as spaces.
_LINE_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
# Characters that YAML files can't contain, and the line breaks above. JSON already escapes characters below a space.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
# Numbers that PyYAML would read as text. Strings are matched too, so that numbers inside strings aren't found.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![0-9.])-?[0-9]+e[-+][0-9]+|-?Infinity|NaN')
_NUMBERS = {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}
# Maximum length of a key. YAML recognises a longer key only after `?`.
_LONGEST_SIMPLE_KEY = 1_000


def training_text(training: dict[str, Any]) -> str:
    """Returns the text of the file with the configuration. Reading the text gives equal values."""
    if is_larger(training, LARGE_TRAINING_BYTES):
        return json_as_yaml(training)
    text = yaml.safe_dump(training, sort_keys=False, allow_unicode=True, width=120)
    if _LINE_BREAKS.search(text):
        text = yaml.safe_dump(training, sort_keys=False, allow_unicode=False, width=120)
    return text


def json_as_yaml(value: Any) -> str:
    """Returns JSON on one line, which gives equal values when it is read as YAML 1.1."""
    text = json.dumps(value, ensure_ascii=False)
    text = _TOKENS.sub(lambda match: _token(match[0], text[match.end() : match.end() + 1] == ":"), text)
    return _UNREADABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def _token(token: str, is_key: bool) -> str:
    if token[0] == '"':
        return f"? {token} " if is_key and len(token) > _LONGEST_SIMPLE_KEY else token
    return _NUMBERS.get(token) or token.replace("e", ".0e")
