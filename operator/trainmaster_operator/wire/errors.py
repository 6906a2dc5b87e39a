"""Every parser of what comes over a wire raises this one error."""

from __future__ import annotations


class ProtocolError(ValueError):
    """A message doesn't fit docs/protocol.md; the text names the field and what is wrong."""
