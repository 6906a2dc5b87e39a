"""Maps container paths on a machine without mount namespaces.

A container's mounts are folders of the pod. So in its command, its environment and its ConfigMaps, each mount path is
replaced by the folder's path, but only at path boundaries: `/data` in `--dir=/data/x` or `open('/data')`, never in
`/mydata`, `/database` or `http://host/data`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

# A path is preceded by anything but a character that would make it part of a longer word or path, or by `file://`.
_BEFORE = r"(?:(?<![\w.\-/~])|(?<=file://))"
_AFTER = r"(?=/|[^\w.\-]|\.?$|\.[^\w])"


class PathMap:
    """This map contains container paths and their host paths; the longest match wins."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = {path.rstrip("/"): host for path, host in paths.items() if path.rstrip("/")}
        ordered = sorted(self._paths, key=len, reverse=True)
        joined = "|".join(re.escape(path) for path in ordered)
        self._pattern = re.compile(f"{_BEFORE}({joined}){_AFTER}") if ordered else None

    def rewrite(self, text: str) -> str:
        """Returns the text with every container path replaced by its host path."""
        if self._pattern is None or "/" not in text:
            return text
        return self._pattern.sub(lambda match: str(self._paths[match.group(1)]), text)
