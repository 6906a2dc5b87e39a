"""Measures what one tenant's large objects cost the operator: its resident memory, and its event loop's lag.

    python -m bench.hostile_objects [COUNT [MEGABYTES [SHAPES ...]]]

The table has a row for each shape of COUNT objects of MEGABYTES each, which have a job's label. They exist when the
operator starts, are listed again after their watches expire, and are then changed one after the other. The row `usual`
has no such objects. A fake API server writes the large part as prepared text, so that its work adds no load.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.clusters import NAMESPACE, job, table
from bench.hostile_pods import Child
from tests.processes.controller.fake_http import FakeHttp, kubeconfig, serving
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, JOBS, PODS, SERVICES, STATEFUL_SETS, Resource

COUNT, MEGABYTES = 200, 1.5
# The memory limit in MB (three quarters of the chart's 512 Mi would be 384 Mi), and the lag's in ms.
MEMORY_LIMIT, LAG_LIMIT = 350.0, 100.0
SETTLE_SECONDS, PATIENCE_SECONDS = 3.0, 600.0
CHANGES = 40
# A placeholder in a fake object, which is replaced when the object is written.
LARGE = "something large"

LABELS = {"trainmaster.dev/job-name": "good"}
USUAL = "usual"


def repeated(one: Callable[[int], str], size: int, opening: str, closing: str) -> str:
    length = len(one(100_000)) + 1
    return opening + ",".join(one(100_000 + n) for n in range(size // length)) + closing


def variables(size: int) -> str:
    return repeated(lambda n: f'{{"name":"V{n}","value":"x"}}', size, "[", "]")


def texts(size: int) -> str:
    return repeated(lambda n: f'"a{n}":""', size, "{", "}")


def small(size: int) -> str:
    """Returns JSON of this many bytes that makes as many Python objects as possible."""
    return "[" + ",".join(['[{"a":0}]'] * (size // 10)) + "]"


def owners(size: int) -> str:
    def one(n: int) -> str:
        return f'{{"apiVersion":"v1","kind":"ConfigMap","name":"a{n}","uid":"{n}-0000","controller":false}}'

    return repeated(one, size, "[", "]")


def controlled(kind: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": "good", "uid": "theirs", "controller": True}]


def pod(**more: Any) -> dict[str, Any]:
    return {
        "metadata": {"labels": LABELS, "ownerReferences": controlled("StatefulSet")},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
        "status": {"phase": "Pending"},
        **more,
    }


def child(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"labels": LABELS, "ownerReferences": controlled(JOBS.kind), **metadata}}


SHAPES: dict[str, tuple[Resource, Callable[[int], str], dict[str, Any]]] = {
    "pods, variables": (PODS, variables, pod(spec={"containers": [{"name": "a", "image": "x", "env": LARGE}]})),
    "pods, owners": (PODS, owners, pod(metadata={"labels": LABELS, "ownerReferences": LARGE})),
    "pods, managed fields": (
        PODS,
        lambda size: repeated(lambda n: f'"f:a{n}":{{}}', size, "{", "}"),
        pod(metadata={"labels": LABELS, "managedFields": [{"manager": "x", "fieldsV1": LARGE}]}),
    ),
    "ConfigMaps, data": (CONFIG_MAPS, texts, {**child(), "data": LARGE}),
    "ConfigMaps, annotations": (CONFIG_MAPS, texts, child(annotations=LARGE)),
    "StatefulSets": (
        STATEFUL_SETS,
        variables,
        {**child(), "spec": {"template": {"spec": {"containers": [{"name": "a", "env": LARGE}]}}}},
    ),
    "Services": (SERVICES, owners, {**child(), "spec": {"ports": LARGE}}),
    "jobs, small objects": (JOBS, small, {"metadata": {}, "spec": {**job("good", 1)["spec"], "training": LARGE}}),
}


class Attacked:
    """Attacked is one fake API server with large objects of a shape."""

    def __init__(self, http: FakeHttp, resource: Resource, raw: dict[str, Any], count: int) -> None:
        self.http = http
        self.resource = resource
        self.raw = raw
        self.count = count

    def put(self, number: int) -> None:
        metadata = {**self.raw["metadata"], "namespace": NAMESPACE, "name": f"large-{number}"}
        self.http.cluster.put(self.resource, {**self.raw, "metadata": metadata})

    async def change(self) -> None:
        """Changes objects one after the other. The fake keeps the events that watches have sent."""
        for number in range(min(CHANGES, self.count)):
            self.put(number)
            await asyncio.sleep(0.05)


async def row(title: str, count: int, size: int, folder: Path) -> list[object]:
    resource, text, raw = SHAPES.get(title, next(iter(SHAPES.values())))
    count = 0 if title == USUAL else count
    cluster = FakeCluster()
    async with serving(cluster) as http:
        http.written_as[LARGE] = text(size)
        attacked = Attacked(http, resource, raw, count)
        for number in range(count):
            attacked.put(number)
        cluster.history.clear()
        operator = Child(
            "bench.clusters.probed_operator", kubeconfig(folder, http.url), "direct", str(folder / "operator.log")
        )
        try:
            began, cells = time.monotonic(), []
            await operator.answer("begin")
            await ready(http, operator)
            start = time.monotonic() - began
            cells.append(await measured(operator))
            http.expire()
            await quiet(http)
            cells.append(await measured(operator))
            await attacked.change()
            await quiet(http)
            cells.append(await measured(operator))
        finally:
            operator.kill()
    if not all(cells):
        return [title, f"{count}", "ended", "", "", "", "", ""]
    resident = max(cell["resident"] for cell in cells)
    p99 = max(cell["p99"] for cell in cells)
    memory = [f"{cell['resident']:.0f}" for cell in cells]
    late = "/".join(f"{cell['p99']:.0f}" for cell in cells)
    return [
        title,
        f"{count}",
        *memory,
        f"{resident / MEMORY_LIMIT:.2f}",
        late,
        f"{p99 / LAG_LIMIT:.2f}",
        f"{start:.0f}",
    ]


async def ready(http: FakeHttp, operator: Child) -> None:
    """Waits until all types are watched and all requests are answered, or the operator has ended."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(http.watches) < 5 and operator.process.poll() is None:
            await asyncio.sleep(0.1)
    await quiet(http)


async def quiet(http: FakeHttp) -> None:
    """Waits until no request has arrived for some time."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < SETTLE_SECONDS:
        if http.cluster.calls.total() != last:
            last, since = http.cluster.calls.total(), time.monotonic()
        await asyncio.sleep(0.1)


async def measured(operator: Child) -> dict[str, float]:
    said = await operator.answer("end")
    await operator.answer("begin")
    return json.loads(said) if said else {}


async def main(count: int, size: int, shapes: list[str]) -> None:
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for title in shapes:
            rows.append(await row(title, count, size, Path(folder)))
            print(*rows[-1], sep=" | ", flush=True)
    table(
        f"{count} objects of {size / 1e6:.1f} MB: resident memory at the most, MB; the loop's lag, ms (p99); start, s",
        ["", "objects", "start", "relist", "changes", f"of {MEMORY_LIMIT:g}", "lag", f"of {LAG_LIMIT:g}", "start"],
        rows,
    )


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = given[2:] or [USUAL, *SHAPES]
    asyncio.run(main(int(given[0]) if given else COUNT, int(float(given[1] if given[1:] else MEGABYTES) * 1e6), chosen))
