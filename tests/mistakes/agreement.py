"""Compares both sides' answers with those that an entry expects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mistakes.entries import Entry
from tests.mistakes.offline import Verdict
from tests.mistakes.online import Answer

_PLACE = re.compile(r"\d+:\d+: ")


def offline_differences(entry: Entry, verdict: Verdict) -> Iterator[str]:
    """Yields how validate's verdict differs from what the entry expects."""
    if verdict.valid is not (entry.by is None):
        yield f"validate {'accepts' if verdict.valid else 'refuses'} it"
    with_places = any(_PLACE.match(sentence) for sentence in entry.sentences)
    lines = verdict.lines if with_places else verdict.sentences
    if lines != entry.sentences:
        yield f"validate says {' | '.join(lines) or 'nothing'}"


def online_differences(entry: Entry, answer: Answer) -> Iterator[str]:
    """Yields how the cluster's answer differs from what the entry expects."""
    expected = {"rule": "server", "schema": "server", "nobody": None}.get(entry.by or "", entry.by)
    if answer.by != expected:
        yield f"{answer.by or 'nobody'} refuses it online, not {expected or 'nobody'}: {answer.text}"
        return
    if entry.by == "operator" and not answer.text.startswith("InvalidSpec: "):
        yield f"the operator fails it with another reason than InvalidSpec: {answer.text}"
    for text in entry.says or entry.sentences if entry.by in ("rule", "schema", "operator", "kubectl") else ():
        if not _says(answer.text, _PLACE.sub("", text)):
            yield f"{answer.by} doesn't say {text!r} but {answer.text!r}"


def _says(answer: str, text: str) -> bool:
    """Returns whether an answer contains a sentence. The API server puts its own words between field and message."""
    if text in answer:
        return True
    field, _, message = text.partition(": ")
    return f"{field}: " in answer and f": {message}" in answer
