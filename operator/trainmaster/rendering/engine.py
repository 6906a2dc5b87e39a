"""Jinja2 is set up so that no value can change a manifest's structure.

Every value goes through `tojson`, which writes JSON that YAML reads back as the same value; what comes out is parsed
with a safe loader. An undefined name is an error, never an empty string.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, cast

import jinja2
import yaml

# libyaml where PyYAML was built with it: ten times as fast.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")


def to_yaml_json(value: Any) -> str:
    """Returns JSON in plain ASCII that is YAML too: characters beyond the BMP as \\UXXXXXXXX, because YAML takes JSON's
    pairs of surrogates for two characters. Raises ValueError for NaN and infinities, which JSON doesn't have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _NOT_PLAIN.sub(lambda match: _escape(ord(match.group())), text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainmaster.rendering"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["tojson"] = to_yaml_json
    return environment


def render_template(name: str, **context: Any) -> dict[str, Any]:
    """Renders one of templates/*.yaml.j2 and reads it back as an object."""
    text = _environment().get_template(name).render(**context)
    return cast(dict[str, Any], yaml.load(text, Loader=_LOADER))
