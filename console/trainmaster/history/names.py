"""Names a job's curves: their kinds, units and limits, and which of the ranks' own metrics are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from trainmaster.client.history.answers import MetricNames
from trainmaster.history.figures import CURVES, GPUS, RULES, SPENT, STEP, SYSTEM
from trainmaster_operator.api.records import MAX_JOB_METRICS

# A job's list of names contains this one if it has more metrics than are kept.
MORE_METRICS = ""
BUILT_IN = tuple(name for name in RULES[CURVES] if name != STEP and not name.startswith(SPENT))
SYSTEM_NAMES = (*RULES[SYSTEM], *RULES[GPUS])
_UNITS = {
    "samplesPerSecond": "samples/s",
    "stepSeconds": "s",
    "slowestStepSeconds": "s",
    "goodput": "ratio",
    "cpuCores": "cores",
    "memoryBytes": "bytes",
    "networkReceiveBytesPerSecond": "bytes/s",
    "networkTransmitBytesPerSecond": "bytes/s",
    "gpuUtilization": "ratio",
    "gpuMemoryBytes": "bytes",
}
LIMITS = {"cpuCores": "cpuLimitCores", "memoryBytes": "memoryLimitBytes", "gpuMemoryBytes": "gpuMemoryLimitBytes"}
_TOO_MANY = f"Only the first {MAX_JOB_METRICS} metrics of this job are kept; the script reports more names."


def unit_of(name: str) -> str:
    """Returns the unit of a curve; empty if there is none, or if only the script knows it."""
    return _UNITS.get(name, "")


def own_names(names: Iterable[str]) -> set[str]:
    """Returns the names of the ranks' own metrics among those of a job's figures."""
    return set(names).difference(RULES[CURVES], SYSTEM_NAMES, [MORE_METRICS])


def kept_metrics(names: Set[str], metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of a sample that are kept of a job for which these names are known already."""
    room = MAX_JOB_METRICS - len(own_names(names))
    kept = {}
    for name, value in metrics.items():
        if name in names or room > 0:
            room -= name not in names
            kept[name] = value
    return kept


def names_answer(names: Iterable[str]) -> MetricNames:
    """Returns the list of a job's curves: the built-in ones in their order, then its own by name, then the system's."""
    known = set(names)
    items = [
        {"name": name, "kind": kind, "unit": unit_of(name), "limitedBy": LIMITS.get(name)}
        for kind, part in (
            ("training", [*(name for name in BUILT_IN if name in known), *sorted(own_names(known))]),
            ("system", [name for name in SYSTEM_NAMES if name in known and name not in LIMITS.values()]),
        )
        for name in part
    ]
    return MetricNames.of(items=items, note=_TOO_MANY if MORE_METRICS in known else None)
