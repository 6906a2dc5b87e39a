"""What a history answers is checked once, so that whoever draws or exports it finds what it relies on.

A field that is missing is null, as what isn't known is: a history of an older release may not have it. What is there
and is of another kind is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from trainmaster.client.errors import NoCluster
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import MAX_TIME, is_number, is_whole, shown

Check = Callable[[object], bool]


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object) -> bool:
    return is_whole(value)


def _index(value: object) -> bool:
    return is_whole(value, MAX_INDEX)


def _mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _time(value: object) -> bool:
    return is_number(value) and isinstance(value, (int, float)) and 0 <= value <= MAX_TIME


_WORDS: Mapping[Check, str] = {
    _text: "text",
    _whole: "a whole number",
    _index: "a whole number",
    _mapping: "an object",
    _flag: "true or false",
    is_number: "a finite number",
    _time: "a time in seconds since the epoch",
}
# Of an object: what must be there, and what may be null.
_NAMED: Mapping[str, Check] = {"uid": _text, "namespace": _text, "name": _text}
_JOB: Mapping[str, Check] = {
    **dict.fromkeys(("createdAt", "startedAt", "endedAt", "deletedAt", "phase"), _text),
    **dict.fromkeys(("attempt", "restarts", "disruptions", "step", "totalSteps"), _whole),
    **dict.fromkeys(("loss", "goodput"), is_number),
    **dict.fromkeys(("lastFailure", "result"), _mapping),
}
_ATTEMPT: Mapping[str, Check] = {
    **dict.fromkeys(("startedAt", "runningAt", "endedAt", "outcome", "trainingWith"), _text),
    **dict.fromkeys(("firstStep", "lastStep"), _whole),
    "failure": _mapping,
}
_LIFE: Mapping[str, Check] = {"createdAt": _text, "deletedAt": _text}
_SERIES: Mapping[str, Check] = {
    **dict.fromkeys(("attempt", "step"), _whole),
    **dict.fromkeys(
        ("loss", "learningRate", "gradNorm", "samplesPerSecond", "stepSeconds", "slowestStepSeconds", "goodput"),
        is_number,
    ),
    "redone": _flag,
}


class Checker:
    """Checker checks what the history at `address` answers. Every method raises NoCluster with what is wrong."""

    def __init__(self, address: str) -> None:
        self._address = address

    def jobs(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked RecordedJobList."""
        self._kind(answer, "RecordedJobList")
        items = [self._job(item, f"items[{at}]") for at, item in enumerate(self._objects(answer, "items"))]
        more = answer.get("continue") or ""
        self._require(more, _text, "continue")
        return {**answer, "items": items, "continue": more}

    def job(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked RecordedJobDetail."""
        self._kind(answer, "RecordedJobDetail")
        attempts = []
        for at, item in enumerate(self._objects(answer, "attempts")):
            place = f"attempts[{at}]"
            self._require(item.get("attempt"), _whole, f"{place}.attempt")
            workers = self._objects(item, "workers", place)
            attempts.append({**item, **self._fields(item, _ATTEMPT, place), "workers": workers})
        lives = []
        for at, item in enumerate(self._objects(answer, "lives")):
            self._require(item.get("uid"), _text, f"lives[{at}].uid")
            lives.append({**item, **self._fields(item, _LIFE, f"lives[{at}]")})
        last = answer.get("job") or {}
        self._require(last, _mapping, "job")
        return {**self._job(answer, ""), "attempts": attempts, "lives": lives, "job": last}

    def series(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked Series."""
        self._kind(answer, "Series")
        found = {**answer, **self._times(answer)}
        length = len(found["at"])
        for name, check in _SERIES.items():
            found[name] = self._list(answer.get(name), check, name, length)
        spent = answer.get("timeSpent") or {}
        self._require(spent, _mapping, "timeSpent")
        found["timeSpent"] = {
            name: self._list(values, is_number, f"timeSpent.{name}", length) for name, values in spent.items()
        }
        return found

    def heat(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked RankHeat."""
        self._kind(answer, "RankHeat")
        found = {**answer, **self._times(answer)}
        found["attempt"] = self._list(answer.get("attempt"), _whole, "attempt", len(found["at"]))
        found["ranks"] = self._list(answer.get("ranks") or [], _index, "ranks", null=False)
        ranks = len(found["ranks"])
        found["workers"] = self._list(answer.get("workers"), _index, "workers", ranks)
        rows = self._list(answer.get("values") or [], lambda row: isinstance(row, list), "values", len(found["at"]))
        found["values"] = [self._list(row, is_number, f"values[{at}]", ranks) for at, row in enumerate(rows)]
        left_out = answer.get("leftOut") or 0
        self._require(left_out, _whole, "leftOut")
        return {**found, "leftOut": left_out}

    def evidence(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked EvidenceList."""
        self._kind(answer, "EvidenceList")
        items = self._objects(answer, "items")
        for at, item in enumerate(items):
            self._require(item.get("attempt"), _whole, f"items[{at}].attempt")
        return {**answer, "items": items}

    def logs(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked LogList."""
        self._kind(answer, "LogList")
        items = []
        for at, item in enumerate(self._objects(answer, "items")):
            place = f"items[{at}]"
            self._require(item.get("worker"), _index, f"{place}.worker")
            lines = self._list(item.get("lines") or [], _text, f"{place}.lines", null=False)
            times = item.get("times")
            if times is not None:
                times = self._list(times, is_number, f"{place}.times", len(lines))
            items.append({**item, "lines": lines, "times": times, "cut": item.get("cut") is True})
        return {**answer, "items": items}

    def _job(self, item: Mapping[str, Any], place: str) -> dict[str, Any]:
        for name, check in _NAMED.items():
            self._require(item.get(name), check, f"{place}.{name}".lstrip("."))
        return {**item, **self._fields(item, _JOB, place)}

    def _fields(self, item: Mapping[str, Any], known: Mapping[str, Check], place: str) -> dict[str, Any]:
        for name, check in known.items():
            if item.get(name) is not None:
                self._require(item[name], check, f"{place}.{name}".lstrip("."))
        return {name: item.get(name) for name in known}

    def _times(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        times = self._list(answer.get("at") or [], _time, "at", null=False)
        if any(later < earlier for earlier, later in pairwise(times)):
            raise self._wrong("at: is not in the order of time")
        resolution = answer.get("resolutionSeconds") or 0.0
        self._require(resolution, _time, "resolutionSeconds")
        return {"at": times, "resolutionSeconds": resolution}

    def _list(
        self, values: object, check: Check, name: str, length: int | None = None, *, null: bool = True
    ) -> list[Any]:
        """Returns a list, of that length; a missing one has as many nulls."""
        if values is None and length is not None:
            return [None] * length
        if not isinstance(values, list):
            raise self._wrong(f"{name}: {shown(values)} is no list")
        if length is not None and len(values) != length:
            raise self._wrong(f"{name}: has {len(values)} items where there have to be {length}")
        for at, value in enumerate(values):
            if not (check(value) or (null and value is None)):
                self._require(value, check, f"{name}[{at}]")
        return values

    def _objects(self, answer: Mapping[str, Any], name: str, place: str = "") -> list[Mapping[str, Any]]:
        return self._list(answer.get(name) or [], _mapping, f"{place}.{name}".lstrip("."), null=False)

    def _kind(self, answer: Mapping[str, Any], kind: str) -> None:
        if answer.get("kind") != kind:
            raise self._wrong(f"kind: {shown(answer.get('kind'))} is not {kind}")

    def _require(self, value: object, check: Check, place: str) -> None:
        if not check(value):
            raise self._wrong(f"{place}: {shown(value)} is not {_WORDS.get(check, 'a list')}")

    def _wrong(self, problem: str) -> NoCluster:
        return NoCluster(
            f"The history at {self._address} answered what can't be read ({problem}); is it of another release?"
        )


def columns_of(series: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns a checked series as columns: `at`, each of its lists, and `timeSpent.CATEGORY` of each category."""
    spent, unknown = series["timeSpent"], [None] * len(series["at"])
    named = {name: series[name] for name in ("at", *_SERIES)}
    return {**named, **{f"timeSpent.{name}": spent.get(name, unknown) for name in TIME_CATEGORIES}}
