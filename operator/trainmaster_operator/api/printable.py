r"""Escapes text from pods and users, so that showing it has no side effect.

Names, messages, figures and logs come from pods and from everyone who can write to the API. A terminal executes escape
sequences in such text (OSC 52 fills the clipboard, CSI moves the cursor, \r overwrites a line), and Unicode's
bidirectional controls reorder the text. Every such character is shown as its escape (\x1b, \u202e), because hiding the
character would deceive readers. All text that Trainmaster prints, logs or writes into events is escaped here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

# Controls (Cc) except line feed and tab, formats (Cf) except the joiners that scripts and emoji need, surrogates, and
# the two separators that some programs read as line breaks.
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001-\U000e007f"
)
UNSAFE = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_A_LINE = re.compile(f"[\n{_UNSAFE}]")
_NAMES = {"\n": "\\n", "\r": "\\r"}


def printable(text: str) -> str:
    """Returns the text with every control character escaped, except line breaks and tabs."""
    return UNSAFE.sub(_escape, text)


def one_line(text: str) -> str:
    """Returns the text on one line. Line breaks are escaped too, so that no text can imitate a separate line."""
    return _UNSAFE_IN_A_LINE.sub(_escape, text)


def json_text(value: Any) -> str:
    """Returns indented JSON for a program or a terminal, with unsafe characters escaped as in JSON."""
    return UNSAFE.sub(_escape_json, json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> str:
    """Returns JSON on one line, with unsafe characters escaped as in JSON."""
    return UNSAFE.sub(_escape_json, json.dumps(value, ensure_ascii=False))


def yaml_escapes(text: str) -> str:
    """Returns YAML with unsafe characters escaped. Strings that contain such characters must be double-quoted."""
    return UNSAFE.sub(_escape_yaml, text)


def listed(names: Sequence[str]) -> str:
    """Returns one text with at most the first three names, and the number of the other names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMES.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else _escape_yaml(match))


def _escape_json(match: re.Match[str]) -> str:
    # json.dumps writes characters above 16 bits as a pair of escapes. The only unsafe character it keeps is DEL.
    return "\\u007f" if match[0] == "\x7f" else json.dumps(match[0])[1:-1]


def _escape_yaml(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
