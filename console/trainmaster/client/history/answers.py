"""Defines the JSON answers of a history. The server creates them, and the client validates them before use.

A missing field counts as null, like an unknown value, because another release's history may not send this field. A
field of the wrong type causes an error that names the field. To keep a hostile answer from filling memory, validation
stops at a list's first invalid item, and lists have a maximum length.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from trainmaster.client.errors import NoCluster
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import MAX_TIME, MAX_WHOLE, shown

# Maximum counts in an answer: jobs in a list, points of curves, columns and ranks of a heat map, other items.
MOST_JOBS, MOST_POINTS, MOST_COLUMNS, MOST_RANKS, MOST_ITEMS = 500, 10_000, 240, 1_024, 20_000
MOST_LINES = 1_000_000
# Maximum counts of metrics in a series, of curves in an answer, and of a curve's lines.
MOST_METRICS, MOST_CURVES, MOST_CURVE_LINES = 64, 32, 32
Item = TypeVar("Item")

Whole = Annotated[int, Field(ge=0, lt=MAX_WHOLE)]
Index = Annotated[int, Field(ge=0, lt=MAX_INDEX)]
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]
Listed = Annotated[list[Item], Field(fail_fast=True)]
Items = Annotated[Listed[Item], Field(max_length=MOST_ITEMS)]
Column = Annotated[list[Item | None], Field(fail_fast=True, max_length=MOST_POINTS)]


class _Part(BaseModel):
    """_Part is an object within an answer."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Removes null fields, so that their defaults are used."""
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class HistoryAnswer(_Part):
    """HistoryAnswer is a whole answer of a history."""

    kind: str

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Returns an answer that contains the given fields."""
        return cls.model_validate(fields)

    def to_data(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return self.model_dump(by_alias=True)

    @classmethod
    def checked(cls, data: Mapping[str, Any], address: str) -> dict[str, Any]:
        """Validates an answer of the history at an address, and returns it with all fields. Raises NoCluster."""
        try:
            return cls.model_validate({"kind": "", **data}).to_data()
        except ValidationError as error:
            problem = _problem(error)
        raise NoCluster(f"The history at {address} answered what can't be read ({problem}); is it of another release?")


class RecordedJob(_Part):
    """RecordedJob is a job's entry in a list. Times are RFC 3339."""

    uid: str
    namespace: str
    name: str
    created_at: str | None = None
    deleted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    phase: str | None = None
    attempt: Whole | None = None
    restarts: Whole | None = None
    disruptions: Whole | None = None
    step: Whole | None = None
    total_steps: Whole | None = None
    loss: float | None = None
    goodput: float | None = None
    last_failure: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


class WorkerPlace(_Part):
    """WorkerPlace is the pod and node of a worker in an attempt."""

    worker: Index
    pod: str | None = None
    node: str | None = None


class RecordedAttempt(_Part):
    """RecordedAttempt is an attempt of a job."""

    attempt: Whole
    started_at: str | None = None
    running_at: str | None = None
    ended_at: str | None = None
    outcome: str | None = None
    training_with: str | None = None
    first_step: Whole | None = None
    last_step: Whole | None = None
    failure: dict[str, Any] | None = None
    workers: Items[WorkerPlace] = []


class Life(_Part):
    """Life is one of the jobs that had the same name."""

    uid: str
    created_at: str | None = None
    deleted_at: str | None = None


class RecordedJobList(HistoryAnswer):
    """RecordedJobList is a page of a list of jobs, newest first. `more` is the next page's start, if there is one."""

    kind: Literal["RecordedJobList"] = "RecordedJobList"
    items: Annotated[Listed[RecordedJob], Field(max_length=MOST_JOBS)] = []
    more: str = Field("", alias="continue")


class RecordedJobDetail(RecordedJob, HistoryAnswer):
    """RecordedJobDetail is a job, its attempts, its last recorded object, and all jobs that had the same name."""

    kind: Literal["RecordedJobDetail"] = "RecordedJobDetail"
    job: dict[str, Any] = {}
    attempts: Items[RecordedAttempt] = []
    lives: Items[Life] = []


class _Timed(HistoryAnswer):
    """_Timed is an answer with points that are sorted by time."""

    resolution_seconds: Time = 0.0
    at: Annotated[Listed[Time], Field(max_length=MOST_POINTS)] = []
    attempt: Column[Whole] | None = None

    # Names of the fields that contain a value for each point.
    columns: ClassVar[tuple[str, ...]] = ("attempt",)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(later < earlier for earlier, later in pairwise(self.at)):
            raise PydanticCustomError("place", "at: is not in the order of time")
        for name in self.columns:
            setattr(self, name, _filled(getattr(self, name), to_camel(name), len(self.at)))
        return self


class Series(_Timed):
    """Series contains a job's curves. Each curve has one value per point; `redone` marks repeated steps."""

    kind: Literal["Series"] = "Series"
    step: Column[Whole] | None = None
    loss: Column[float] | None = None
    learning_rate: Column[float] | None = None
    grad_norm: Column[float] | None = None
    samples_per_second: Column[float] | None = None
    step_seconds: Column[float] | None = None
    slowest_step_seconds: Column[float] | None = None
    goodput: Column[float] | None = None
    redone: Column[bool] | None = None
    time_spent: Annotated[dict[str, Column[float] | None], Field(max_length=100)] = {}
    # The ranks' own metrics that the request names.
    metrics: Annotated[dict[str, Column[float] | None], Field(max_length=MOST_METRICS)] = {}

    columns: ClassVar = (
        *("attempt", "step", "loss", "learning_rate", "grad_norm", "samples_per_second", "step_seconds"),
        *("slowest_step_seconds", "goodput", "redone"),
    )

    @model_validator(mode="after")
    def _check_spent(self) -> Self:
        for field, place in ((self.time_spent, "timeSpent"), (self.metrics, "metrics")):
            for name, values in field.items():
                field[name] = _filled(values, f"{place}.{name}", len(self.at))
        return self


class MetricName(_Part):
    """MetricName is a curve that a job has. `limited_by` names the curve that is its upper limit."""

    name: str
    kind: Literal["training", "system"] = "training"
    unit: str = ""
    limited_by: str | None = None


class MetricNames(HistoryAnswer):
    """MetricNames lists a job's curves. `note` is a sentence about metrics that were left out."""

    kind: Literal["MetricNames"] = "MetricNames"
    items: Items[MetricName] = []
    note: str | None = None


class CurveLine(_Part):
    """CurveLine is a line of a curve: of the job, a worker or a GPU, or else `of` all of them (its statistic)."""

    worker: Index | None = None
    gpu: Index | None = None
    of: Literal["minimum", "mean", "maximum"] | None = None
    # The newest value of the upper limit.
    limit: float | None = None
    values: Column[float] | None = None


class MetricCurve(_Part):
    """MetricCurve is one figure over time. All its lines have the same points."""

    name: str
    kind: Literal["training", "system"] = "training"
    unit: str = ""
    resolution_seconds: Time = 0.0
    at: Annotated[Listed[Time], Field(max_length=MOST_POINTS)] = []
    attempt: Column[Whole] | None = None
    step: Column[Whole] | None = None
    redone: Column[bool] | None = None
    lines: Annotated[Listed[CurveLine], Field(max_length=MOST_CURVE_LINES)] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("attempt", "step", "redone"):
            setattr(self, name, _filled(getattr(self, name), name, len(self.at)))
        for number, line in enumerate(self.lines):
            line.values = _filled(line.values, f"lines[{number}].values", len(self.at))
        return self


class MetricCurves(HistoryAnswer):
    """MetricCurves contains the requested curves that the job has."""

    kind: Literal["MetricCurves"] = "MetricCurves"
    curves: Annotated[Listed[MetricCurve], Field(max_length=MOST_CURVES)] = []


class RankHeat(_Timed):
    """RankHeat shows one figure of all ranks over time: a row per point with one value per rank."""

    kind: Literal["RankHeat"] = "RankHeat"
    figure: str | None = None
    ranks: Annotated[Listed[Index], Field(max_length=MOST_RANKS)] = []
    workers: Column[Index] | None = None
    values: Annotated[
        Listed[Annotated[list[float | None], Field(fail_fast=True, max_length=MOST_RANKS)]],
        Field(max_length=MOST_COLUMNS),
    ] = []
    # Number of ranks beyond the limit, which are left out.
    left_out: Whole = 0

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        self.workers = _filled(self.workers, "workers", len(self.ranks))
        _filled(self.values, "values", len(self.at))
        for at, row in enumerate(self.values):
            _filled(row, f"values[{at}]", len(self.ranks))
        return self


class KeptEvidence(_Part):
    """KeptEvidence is the evidence of an attempt (api/evidence.py)."""

    model_config = ConfigDict(extra="allow")
    attempt: Whole


class EvidenceList(HistoryAnswer):
    """EvidenceList is the evidence of the newest attempts, oldest first."""

    kind: Literal["EvidenceList"] = "EvidenceList"
    items: Items[KeptEvidence] = []


class WorkerLog(_Part):
    """WorkerLog is the end of a worker's log; `times` has each line's time of arrival, if known."""

    worker: Index
    lines: Annotated[Listed[str], Field(max_length=MOST_LINES)] = []
    times: Annotated[list[float | None] | None, Field(fail_fast=True, max_length=MOST_LINES)] = None
    cut: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.times is not None:
            _filled(self.times, "times", len(self.lines))
        return self


class LogList(HistoryAnswer):
    """LogList contains the ends of workers' logs."""

    kind: Literal["LogList"] = "LogList"
    items: Items[WorkerLog] = []


def columns_of(series: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns a validated Series as columns: `at`, each list, `timeSpent.CATEGORY` and `metrics.NAME`."""
    spent, unknown = series["timeSpent"], [None] * len(series["at"])
    named = {name: series[name] for name in ("at", *map(to_camel, Series.columns))}
    named |= {f"timeSpent.{name}": spent.get(name, unknown) for name in TIME_CATEGORIES}
    return named | {f"metrics.{name}": values for name, values in series["metrics"].items()}


def _filled(values: list[Any] | None, place: str, length: int) -> list[Any]:
    """Checks a list's length and returns the list. For a missing list, returns nulls."""
    if values is None:
        return [None] * length
    if len(values) != length:
        problem = f"{place}: has {len(values)} items where there have to be {length}"
        raise PydanticCustomError("place", "{problem}", {"problem": problem})
    return values


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] == "place":
        return f"{place}.{first['msg']}".lstrip(".")
    given = "" if first["type"] == "missing" else f" is {shown(first['input'])}"
    return f"{place}{given}: {first['msg']}"
