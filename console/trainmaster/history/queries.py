"""What a request asks for is read here: a value that can't be meant is refused with one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster.history import heat
from trainmaster.history.drawing import MAX_COLUMNS, Window
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.values import DNS_LABEL_PATTERN
from trainmaster_operator.wire.limits import MAX_INDEX, MAX_UID
from trainmaster_operator.wire.values import MAX_TIME, shown

MAX_JOBS, MAX_POINTS, MAX_LINES = 500, 10_000, 1_000_000
_JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID = re.compile(rf"[A-Za-z0-9._-]{{0,{MAX_UID}}}")
_PLACE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?):(\d{1,12})")


class BadQuery(Exception):
    """A value of a request can't be meant; one sentence names it, and what would be right."""


class Query:
    """Query has the values of a request's query, by name."""

    def __init__(self, values: Mapping[str, str], *known: str) -> None:
        """Raises BadQuery for a name that isn't among `known`, as a misspelt one would be passed over."""
        for name in values:
            if name not in known:
                raise BadQuery(f"{shown(name)} is no parameter here; there are {', '.join(known)}.")
        self._values = values

    def namespace(self) -> str:
        """Returns a namespace; empty for all."""
        found = self._values.get("namespace", "")
        return require_namespace(found) if found else ""

    def name(self) -> str:
        """Returns a job's name; empty for any."""
        found = self._values.get("name", "")
        return require_job_name(found) if found else ""

    def uid(self) -> str:
        """Returns a job's uid; empty for the newest of its name."""
        found = self._values.get("uid", "")
        if _UID.fullmatch(found) is None:
            raise BadQuery(f"uid: {shown(found)} is no uid; leave it out for the newest job of that name.")
        return found

    def window(self) -> Window:
        """Returns the time between `from` and `to`, seconds since the epoch or RFC 3339."""
        window = Window(self._time("from", 0.0), self._time("to", MAX_TIME))
        if window.since > window.until:
            raise BadQuery(f"from: {shown(self._values['from'])} is later than to; give the earlier time as from.")
        return window

    def whole(self, name: str, default: Any, least: int, most: int) -> Any:
        """Returns a whole number from `least` to `most`, or the default."""
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and least <= int(text) <= most):
            raise BadQuery(f"{name}: {shown(text)} is not a whole number from {least} to {most}.")
        return int(text)

    def columns(self) -> int:
        """Returns how many columns a heat map has at most."""
        return int(self.whole("columns", MAX_COLUMNS, 1, MAX_COLUMNS))

    def points(self) -> int:
        """Returns how many points curves have at most."""
        return int(self.whole("points", 1000, 1, MAX_POINTS))

    def worker(self) -> int | None:
        """Returns the worker whose log is asked for; None for all."""
        found: int | None = self.whole("worker", None, 0, MAX_INDEX)
        return found

    def tail(self) -> int | None:
        """Returns how many of a log's last lines are asked for; None for all."""
        found: int | None = self.whole("tail", None, 0, MAX_LINES)
        return found

    def figure(self) -> str:
        """Returns the figure of a heat map."""
        found = self._values.get("figure", heat.PEAK)
        if found not in heat.FIGURES:
            raise BadQuery(f"figure: {shown(found)} is none of {', '.join(heat.FIGURES)}.")
        return found

    def before(self) -> tuple[float, int] | None:
        """Returns where the list before this one ended."""
        text = self._values.get("continue", "")
        if not text:
            return None
        match = _PLACE.fullmatch(text)
        if match is None:
            raise BadQuery(f"continue: {shown(text)} wasn't answered to any list; give the one before this one's.")
        return float(match[1]), int(match[2])

    def _time(self, name: str, default: float) -> float:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            found: float | None = float(text)
        except ValueError:
            found = to_seconds(text)
        if found is None or not 0 <= found <= MAX_TIME:
            raise BadQuery(f"{name}: {shown(text)} is no time; give seconds since the epoch, or 2026-11-26T03:00:00Z.")
        return found


def require_namespace(name: str) -> str:
    """Returns a namespace's name. Raises BadQuery."""
    if re.fullmatch(DNS_LABEL_PATTERN, name) is None or len(name) > 63:
        raise BadQuery(f"namespace: {shown(name)} is no name of a namespace.")
    return name


def require_job_name(name: str) -> str:
    """Returns a job's name. Raises BadQuery."""
    if _JOB_NAME.fullmatch(name) is None:
        raise BadQuery(f"name: {shown(name)} is no name of a job.")
    return name
