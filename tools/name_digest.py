"""`python3 tools/name_digest.py REPOSITORY sha256:...` writes an image's digest into the chart's values."""

from __future__ import annotations

import re
import sys
from pathlib import Path

VALUES = Path(__file__).resolve().parents[1] / "charts" / "trainmaster" / "values.yaml"


def with_digest(values: str, repository: str, digest: str) -> str:
    """Returns the values' text with this digest for the repository's image. Raises ValueError."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{digest!r} is no digest; give sha256: and 64 hexadecimal digits")
    # Matches an image's block from its repository to its digest. The block can contain comments.
    block = rf'(  repository: {re.escape(repository)}\n(?:  .*\n)*?  digest: )""\n'
    named, count = re.subn(block, rf'\g<1>"{digest}"\n', values)
    if count != 1:
        raise ValueError(f"{repository} is named {count} times in the values, without a digest; it must be once")
    return named


if __name__ == "__main__":
    VALUES.write_text(with_digest(VALUES.read_text(), *sys.argv[1:]))
