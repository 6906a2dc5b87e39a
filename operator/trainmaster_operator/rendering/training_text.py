"""`training` becomes the YAML file that the loop reads.

A small one is written for people. A large one is written as JSON, which is YAML too: PyYAML's writer takes 4 to 40
microseconds a value, up to 5 s for the largest training, and its indentation makes up to 60 times of what nests deep.
What YAML reads otherwise than JSON is written so that both mean the same.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from trainmaster_operator.api.limits import is_larger

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
