"""Many tables share these columns, with the descriptions that Kubernetes gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster_local.ages import age
from trainmaster_local.apiserver.resources import Column
from trainmaster_local.apiserver.schema.official import description

Json = dict[str, Any]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

NAME = Column("Name", format="name", description=description(_META, "name"))
AGE = Column("Age", description=description(_META, "creationTimestamp"))


def created(obj: Json, now: float) -> str:
    """Returns the cell of the Age column."""
    return age(obj["metadata"].get("creationTimestamp"), now)


def rows(*cells: Callable[[Json], Any], aged: int = -1) -> Callable[[Json, float], list[Any]]:
    """Returns a function for rows of the name and the given cells, with the age last or before the cell at `aged`."""

    def row(obj: Json, now: float) -> list[Any]:
        values = [cell(obj) for cell in cells]
        position = len(values) if aged < 0 else aged
        return [obj["metadata"]["name"], *values[:position], created(obj, now), *values[position:]]

    return row


def joined(items: list[str]) -> str:
    return ",".join(items) if items else "<none>"


def labels_text(labels: Json | None) -> str:
    """Returns labels as the Selector column shows them."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"
