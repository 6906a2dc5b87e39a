"""The one error of everything that comes over a wire."""

from __future__ import annotations


class ProtocolError(ValueError):
    """A message that doesn't fit docs/protocol.md; the text names the field and what is wrong."""
