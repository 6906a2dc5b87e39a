"""What the API server said when the job's pods or other objects couldn't be made."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.objects import text
from trainmaster.client.diagnosis.situation import Situation

_REASONS = ("QuotaExceeded", "Refused")


def refused(situation: Situation) -> Iterator[str]:
    """Yields the messages, the operator's own first: it has the newest that still holds."""
    if not situation.is_starting:
        return
    shown = situation.shown_reason in _REASONS
    if shown and situation.shown_message:
        yield situation.shown_message
    if shown or not situation.pods:
        for event in situation.events_about("StatefulSet"):
            if event.get("reason") == "FailedCreate":
                yield text(event, "message")
