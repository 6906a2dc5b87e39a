r"""Text that others wrote is made safe to show: who reads it sees what is there, and nothing else happens.

Names, messages, figures and logs come from pods and from whoever may write to the API. Escape sequences among them
would be commands to a terminal (OSC 52 fills the clipboard, CSI moves the cursor, \r writes over what was there), and
Unicode's bidirectional controls show a text in another order than it has. Every such character is shown as its escape
(\x1b, \u202e): hidden it would still deceive. What Trainmaster prints, logs and writes into events goes through here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

# Controls (Cc) but line feed and tab, formats (Cf) but the joiners that scripts and emoji need, surrogates, and the two
# separators that some programs read as the end of a line.
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001-\U000e007f"
)
UNSAFE = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_A_LINE = re.compile(f"[\n{_UNSAFE}]")
_NAMES = {"\n": "\\n", "\r": "\\r"}


def printable(text: str) -> str:
    """Returns the text with its line breaks and tabs, and every other control character as its escape."""
    return UNSAFE.sub(_escape, text)


def one_line(text: str) -> str:
    """Returns the same in one line: a line break is escaped too, so that no text passes for a line of its own."""
    return _UNSAFE_IN_A_LINE.sub(_escape, text)


def json_text(value: Any) -> str:
    """Returns indented JSON for a program, or for a terminal: what is unsafe is escaped as JSON does it."""
    return UNSAFE.sub(_escape_json, json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> str:
    """Returns the same in one line."""
    return UNSAFE.sub(_escape_json, json.dumps(value, ensure_ascii=False))


def yaml_escapes(text: str) -> str:
    """Returns YAML whose strings with unsafe characters are double-quoted, with these characters as YAML's escapes."""
    return UNSAFE.sub(_escape_yaml, text)


def listed(names: Sequence[str]) -> str:
    """Returns the names as one text, of many only the first three."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _NAMES:
        return _NAMES[character]
    return f"\\x{code:02x}" if code < 0x100 else _escape_yaml(match)


def _escape_json(match: re.Match[str]) -> str:
    # Beyond 16 bits JSON writes a pair; json.dumps leaves only DEL as it is.
    return "\\u007f" if match[0] == "\x7f" else json.dumps(match[0])[1:-1]


def _escape_yaml(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
