"""Builds Grafana dashboards from panels, each with its queries, unit and a description.

No plug-ins are used. Panels are placed from left to right in a grid of 24 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLUMNS = 24
# Grafana 10.4 and newer read this version without migration.
SCHEMA_VERSION = 39
TAG = "trainmaster"
RATE = "$__rate_interval"
JOB_LINK = (
    "/d/trainmaster-job?var-namespace=${__data.fields.namespace}&var-job=${__data.fields.job_name}&${__url_time_range}"
)
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Grafana's own names of colours.
GOOD, WARN, BAD = "green", "orange", "red"
RATIO_STEPS = ((BAD, None), (WARN, 0.5), (GOOD, 0.8))
NONE_IS_GOOD = ((GOOD, None), (BAD, 1))


def query(expression: str, legend: str = "", **options: Any) -> dict[str, Any]:
    """Returns one query of a panel. The panel sets the query's letter."""
    return {"datasource": _SOURCE, "expr": expression, "legendFormat": legend, "editorMode": "code", **options}


def instant(expression: str, legend: str = "") -> dict[str, Any]:
    """Returns a query of only the newest value."""
    return query(expression, legend, instant=True, range=False)


def panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[dict[str, Any]],
    *,
    size: tuple[int, int] = (8, 7),
    unit: str = "short",
    options: dict[str, Any] | None = None,
    steps: Sequence[tuple[str, float | None]] = (("text", None),),
    overrides: Sequence[dict[str, Any]] = (),
    transformations: Sequence[dict[str, Any]] = (),
    **defaults: Any,
) -> dict[str, Any]:
    """Returns a panel. `size` is in columns and rows. `steps` are colours, each with its lowest value."""
    thresholds = {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "gridPos": {"w": size[0], "h": size[1]},
        "targets": [{**one, "refId": chr(ord("A") + number)} for number, one in enumerate(queries)],
        "fieldConfig": {"defaults": {"unit": unit, "thresholds": thresholds, **defaults}, "overrides": [*overrides]},
        "options": options or {},
        "transformations": [*transformations],
    }


def lines(
    title: str, description: str, queries: Sequence[dict[str, Any]], *, stacked: bool = False, **rest: Any
) -> dict[str, Any]:
    """Returns curves over time, or stacked areas."""
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 50 if stacked else 5, "showPoints": "never"}
    custom["stacking"] = {"mode": "normal" if stacked else "none"}
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, description, queries, options=options, custom=custom, **rest)


def number(title: str, description: str, expression: str, *, legend: str = "", **rest: Any) -> dict[str, Any]:
    """Returns one large figure, or text with `legend`."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "name" if legend else "auto",
    }
    return panel("stat", title, description, [instant(expression, legend)], size=(4, 4), options=options, **rest)


def bars(title: str, description: str, expression: str, legend: str, **rest: Any) -> dict[str, Any]:
    """Returns a bar for the current value of each of a few series."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal", "displayMode": "basic"}
    return panel("bargauge", title, description, [instant(expression, legend)], options=options, min=0, **rest)


def heat_map(title: str, description: str, expression: str, unit: str) -> dict[str, Any]:
    """Returns a heat map over time with a row for each rank. The legend is the rank's number."""
    options = {
        "calculate": False,
        "cellGap": 0,
        "cellValues": {"unit": unit},
        "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "axisLabel": "rank", "unit": "none"},
    }
    return panel("heatmap", title, description, [query(expression, "{{rank}}")], size=(24, 9), options=options)


def states(title: str, description: str, expression: str, legend: str, **rest: Any) -> dict[str, Any]:
    """Returns a row for each series of ones, filled at the times for which the series has values."""
    options = {"mergeValues": True, "showValue": "never", "rowHeight": 0.8, "legend": {"showLegend": False}}
    return panel("state-timeline", title, description, [query(expression, legend)], options=options, **rest)


def table(
    title: str, description: str, columns: Sequence[tuple[str, str, str]], *, link: str = "", **rest: Any
) -> dict[str, Any]:
    """Returns a table with a row for each set of labels. Each column has a title, a unit and an expression."""
    queries = [{**instant(expression), "format": "table"} for _, _, expression in columns]
    values = [f"Value #{chr(ord('A') + number)}" for number in range(len(columns))] if len(columns) > 1 else ["Value"]
    renamed = {value: name for value, (name, _, _) in zip(values, columns, strict=True)}
    # A column without a title is only needed for its labels.
    hidden = {"Time": True, **{value: True for value, name in renamed.items() if not name}}
    organize = {"excludeByName": hidden, "renameByName": {value: name for value, name in renamed.items() if name}}
    overrides = [_override(name, "unit", unit) for name, unit, _ in columns if name]
    if link:
        overrides.append(_override("job_name", "links", [{"title": "The job", "url": link}]))
    transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    return panel("table", title, description, queries, overrides=overrides, transformations=transformations, **rest)


def _override(name: str, field: str, value: Any) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": field, "value": value}]}


def variable(name: str, label: str, values: str, *, several: bool = False) -> dict[str, Any]:
    """Returns a variable that the viewer chooses among a label's values. With `several`, all are chosen at first."""
    everything = {
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _SOURCE,
        "definition": values,
        "query": {"query": values, "refId": name},
        # Values are read again when the time range changes, because deleted jobs have series only in the past.
        "refresh": 2,
        "sort": 1,
        **(everything if several else {}),
    }


def annotation(name: str, color: str, expression: str, title: str) -> dict[str, Any]:
    """Returns marks on all curves at the times at which a query has a value."""
    return {
        "name": name,
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": color,
        "expr": expression,
        "titleFormat": title,
        "step": "30s",
    }


def dashboard(
    name: str,
    title: str,
    variables: Sequence[dict[str, Any]],
    panels: Sequence[dict[str, Any]],
    annotations: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Returns a dashboard with placed panels and links to the other dashboards."""
    source = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "current": {}}
    return {
        "uid": f"trainmaster-{name}",
        "title": f"Trainmaster / {title}",
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "annotations": {"list": [*annotations]},
        "links": [{"type": "dashboards", "title": "Trainmaster", "tags": [TAG], "keepTime": True, "asDropdown": True}],
        "panels": _placed(panels),
    }


def _placed(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    placed, x, y, height = [], 0, 0, 0
    for number, one in enumerate(panels, 1):
        size = one["gridPos"]
        if x + size["w"] > COLUMNS:
            x, y, height = 0, y + height, 0
        placed.append({**one, "id": number, "gridPos": {**size, "x": x, "y": y}})
        x, height = x + size["w"], max(height, size["h"])
    return placed
