r"""Bodies of requests are encoded here: JSON in UTF-8 that is YAML too, for a server-side apply is read as YAML.

There a character beyond U+FFFF can't be JSON's escaped pair of surrogates (`\ud83d\ude00`): an API server answers 400.
"""

from __future__ import annotations

import json
import re
from typing import Any

# YAML takes these for line breaks or refuses them, unless they are escaped; JSON takes them as they are.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def encode(body: Any) -> bytes:
    """Returns JSON in UTF-8. Raises ValueError for NaN and infinities, which JSON doesn't have.

    Of surrogates in text, a pair is the character that it means, and a half becomes U+FFFD, as in Go's decoder.
    """
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    if not text.isascii() or "\x7f" in text:
        text = _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
