"""Measures what a job's size costs the operator and its other jobs.

    python -m bench.hostile_jobs [JOBS [SECONDS [KINDS ...]]]

First one job of each kind runs alone, with a new operator. The table shows the store's time for the job on the event
loop, the longest decision on the job, the event loop's longest lag, and the memory that stays in use. Then JOBS of the
largest legal jobs run together, without an API server, which would take most of the time. SECONDS limits the wait for a
job; a longer wait is reported. KINDS are the kinds to try alone, or `-` for none.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import psutil

from bench.clusters import NAMESPACE, Operator, World, job, table, world
from trainmaster_operator.controller.apiserver.cluster import JOBS, Cluster, RawObject, Resource
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.controller.apiserver.kept import Fields, decoded, listed
from trainmaster_operator.controller.cache.large_jobs import LargeJobs, LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keys import new_keys
from trainmaster_operator.reconciling import decide
from trainmaster_operator.rendering import Settings

KIB = 1024
# The limits: the longest lag that one job may cause, and the memory of 200 of the largest legal jobs.
# With many jobs, one job in this many is decided on. Rendered objects aren't kept.
DECIDED = 10
LAG_LIMIT, MEMORY_LIMIT = 0.050, 300.0
SETTLE_SECONDS, SILENT_SECONDS = 2.0, 5.0


def spec_of(kind: str) -> dict[str, Any]:
    """Returns the spec of a kind of large job, without its program."""
    match kind:
        case "20,000 tolerations":
            return {"podTemplate": {"spec": {"tolerations": [{"key": f"k{n}"} for n in range(20_000)]}}}
        case "1.3 MB of training":
            return {"training": {"data": mappings(1_300 * 1000)}}
        case "largest training, mappings":
            return {"training": {"data": mappings(511 * KIB)}}
        case "largest training, text":
            return {"training": {"data": texts(511 * KIB)}}
        case "largest podTemplate":
            return {"podTemplate": {"spec": {"containers": containers(255 * KIB)}}}
        case "lists of 1,000":
            return {
                "podTemplate": {"spec": {"tolerations": [{"key": f"k{n}"} for n in range(1000)]}},
                "training": {"data": [[n] * 1000 for n in range(50)]},
            }
        case "training 1,100 lists deep":
            return {"training": {"data": nested(1_100)}}
        case "a small job" | "256 KiB of annotations":
            return {}
        case "largest legal":
            return {
                "training": {"data": texts(511 * KIB)},
                "podTemplate": {"spec": {"containers": containers(255 * KIB)}},
                "args": ["a" * 120 for _ in range(1000)],
            }
    raise ValueError(kind)


KINDS = (
    "a small job",
    "20,000 tolerations",
    "1.3 MB of training",
    "largest training, mappings",
    "largest training, text",
    "largest podTemplate",
    "lists of 1,000",
    "training 1,100 lists deep",
    "256 KiB of annotations",
    "largest legal",
)


def mappings(size: int) -> list[Any]:
    """Returns as many Python objects as this many bytes of JSON can contain."""
    return [[{"a": 0}] * min(1000, size // 8 - first) for first in range(0, size // 8, 1000)]


def texts(size: int, seed: int = 0) -> list[str]:
    """Returns random texts, which hardly compress."""
    generator = random.Random(seed)
    return [base64.b64encode(generator.randbytes(447)).decode() for _ in range(size // 600)]


def containers(size: int) -> list[Any]:
    """Returns sidecars with many variables."""
    one = {"name": "side-00", "image": "x", "env": [{"name": f"V{n:03}", "value": f"{n:08}"} for n in range(500)]}
    each = len(json.dumps(one, separators=(",", ":"))) + 1
    return [{**one, "name": f"side-{n:02}"} for n in range(size // each)]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


class Watched:
    """Watched is an operator that measures itself."""

    def __init__(self, running: Operator, file: Path) -> None:
        self.running = running
        self._file = file

    def since(self, moment: float) -> dict[str, float]:
        """Returns the maximum of each value since a time, and the memory at the end (`kept`)."""
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        lines = [line for line in lines if line["at"] >= moment] or lines[-1:]
        most = {name: max(line[name] for line in lines) for name in ("lag", "upsert", "decide", "memory")}
        silent = time.time() - lines[-1]["at"]
        if silent > SILENT_SECONDS:
            # The operator writes nothing while its event loop is blocked.
            most["lag"] = silent
        return {**most, "kept": lines[-1]["memory"]}


@contextmanager
def watched(made: World) -> Iterator[Watched]:
    """Starts an operator in a separate process."""
    stamp = time.monotonic_ns()
    log, file = made.folder / f"operator-{stamp}.log", made.folder / f"operator-{stamp}.jsonl"
    command = [sys.executable, "-m", "bench.clusters.watched_operator", str(file), "operator", "run"]
    command += ["--namespace", NAMESPACE, "--kubeconfig", str(made.kubeconfig), "--no-leader-elect"]
    command += ["--reach", "direct", "--agent-port", str(made.agent_port)]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Watched(Operator(process, log, started), file)
    finally:
        process.kill()
        process.wait(20)


def large(name: str, kind: str) -> RawObject:
    """Returns a job of a kind, whose workers are faked."""
    body = job(name, 1, **spec_of(kind))
    if kind == "256 KiB of annotations":
        body["metadata"]["annotations"] = {f"example.com/{n}": "a" * 1000 for n in range(255)}
    return body


async def reconciled(made: World, name: str, seconds: float) -> str:
    """Waits until the operator has reconciled a job; returns the outcome as text."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = await made.status(name)
        if status.get("phase") == "Failed":
            return "refused in its status"
        if (status.get("workers") or {}).get("created"):
            return "pods made"
        await asyncio.sleep(0.1)
    return f"not done in {seconds:.0f} s"


async def gone(made: World, name: str) -> None:
    found = await made.cluster.get(JOBS, NAMESPACE, name)
    await made.cluster.delete(JOBS, NAMESPACE, name, uid=found["metadata"]["uid"])
    while True:
        try:
            await made.cluster.get(JOBS, NAMESPACE, name)
        except NotFound:
            return
        await asyncio.sleep(0.05)


def row(kind: str, body: RawObject | None, found: dict[str, float], before: float, outcome: str) -> list[object]:
    size = f"{len(json.dumps(body, separators=(',', ':'))) / 1e6:.2f} MB" if body is not None else ""
    lag = f"{1000 * found['lag']:.0f} ms ({found['lag'] / LAG_LIMIT:.1f})"
    memory = f"{(found['kept'] - before) / 1e6:+.0f} MB"
    return [kind, size, f"{1000 * found['upsert']:.0f} ms", f"{1000 * found['decide']:.0f} ms", lag, memory, outcome]


async def one_of(made: World, kind: str, seconds: float) -> list[object]:
    with watched(made) as operator:
        operator.running.serving()
        await asyncio.sleep(SETTLE_SECONDS)
        moment, body = time.time(), large("large", kind)
        before = operator.since(moment)["kept"]
        try:
            await made.cluster.create(JOBS, NAMESPACE, body)
        except ClusterError as error:
            return [
                kind,
                row(kind, body, {"lag": 0, "upsert": 0, "decide": 0, "kept": 0}, 0, "")[1],
                "",
                "",
                "",
                "",
                f"refused at apply ({error.message[-60:]})",
            ]
        outcome = await reconciled(made, "large", seconds)
        await asyncio.sleep(SETTLE_SECONDS)
        found = operator.since(moment)
        if operator.running.process.poll() is not None:
            outcome = "the operator ended"
        await gone(made, "large")
        return row(kind, body, found, before, outcome)


async def made_and_deleted(made: World, seconds: float) -> list[object]:
    kind, count = "largest training, mappings", 12
    with watched(made) as operator:
        operator.running.serving()
        await asyncio.sleep(SETTLE_SECONDS)
        moment = time.time()
        before = operator.since(moment)["kept"]
        for n in range(count):
            await made.cluster.create(JOBS, NAMESPACE, large(f"large-{n}", kind))
            outcome = await reconciled(made, f"large-{n}", seconds)
            await gone(made, f"large-{n}")
        await asyncio.sleep(SETTLE_SECONDS)
        return row(f"{count} of it made and deleted", None, operator.since(moment), before, outcome)


class Files:
    """Files keeps each job in a file, in place of an API server."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self.names = [f"large-{n}" for n in range(count)]
        for n, name in enumerate(self.names):
            body = large(name, "largest legal")
            # Each job has different data, so that no memory can be shared.
            body["spec"]["training"]["data"] = texts(511 * KIB, n)
            body["metadata"] |= {"uid": name, "resourceVersion": "1", "creationTimestamp": "2026-11-22T04:00:00Z"}
            # An API server writes no spaces, and a field's size matters.
            (folder / name).write_text(json.dumps(body, separators=(",", ":")))

    async def get(self, resource: Resource, namespace: str, name: str) -> RawObject:
        assert resource.kept is not None
        found: RawObject = await trimmed((self._folder / name).read_bytes(), resource.kept)
        return found

    async def pages(self) -> AsyncIterator[list[RawObject]]:
        assert JOBS.kept is not None
        for first in range(0, len(self.names), JOBS.page):
            texts = [(self._folder / name).read_bytes() for name in self.names[first : first + JOBS.page]]
            yield (await trimmed(b'{"items":[%s]}' % b",".join(texts), listed(JOBS.kept)))["items"]


async def trimmed(text: bytes, kept: Fields) -> Any:
    """Returns a document, decoded as the operator's client decodes it."""
    return await decoded(cast(aiohttp.StreamReader, Answered(text)), kept)


@dataclass(frozen=True)
class Answered:
    """Answered is an answer that can be read as aiohttp's answers."""

    text: bytes

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yields the answer in pieces."""
        for start in range(0, len(self.text), size):
            yield self.text[start : start + size]
            await asyncio.sleep(0)


async def many(count: int) -> list[object]:
    """Measures a start with many jobs: listing, reading one by one, and deciding until their objects are rendered."""
    process, most = psutil.Process(), {"lag": 0.0, "memory": 0.0}

    async def watch() -> None:
        while True:
            before, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.005)
            waited = min(time.perf_counter() - before - 0.005, time.process_time() - used)
            most["lag"] = max(most["lag"], waited)
            most["memory"] = max(most["memory"], process.memory_info().rss)

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cluster = Files(Path(folder), count)
        gc.freeze()
        keys = new_keys()
        started, watching, thread = time.perf_counter(), asyncio.create_task(watch()), LargeJobThread()
        # Files has all methods that are called here.
        reader = LargeJobs(cast(Cluster, cluster), thread)
        changed: asyncio.Queue[JobKey] = asyncio.Queue()
        store = Store(changed.put_nowait, keys, read_large=reader.add)
        async for page in cluster.pages():
            for raw in page:
                store.upsert(JOBS, raw)
            await asyncio.sleep(0)
        del page, raw
        reading = asyncio.create_task(reader.run(store))
        for number in range(count):
            snapshot = store.snapshot(await changed.get())
            assert snapshot is not None
            if number % DECIDED:
                continue
            decision = await thread.run(
                partial(decide, snapshot.job, snapshot.observed, 1_795_000_000.0, Settings(keys=keys))
            )
            assert len(decision.actions) >= 3, decision.status
        reading.cancel()
        watching.cancel()
        await thread.close()
        seconds = time.perf_counter() - started
    del decision, snapshot
    gc.collect()
    kept = process.memory_info().rss / 1e6
    return [
        f"{1000 * most['lag']:.0f} ms ({most['lag'] / LAG_LIMIT:.1f})",
        f"{most['memory'] / 1e6:.0f} MB ({most['memory'] / 1e6 / MEMORY_LIMIT:.2f})",
        f"{kept:.0f} MB ({kept / MEMORY_LIMIT:.2f})",
        f"{seconds / count:.2f} s",
    ]


async def main(count: int, seconds: float, kinds: Sequence[str]) -> None:
    rows: list[list[object]] = []
    for kind in kinds:
        async with world(fake=True) as made:
            rows.append(await one_of(made, kind, seconds))
            print(rows[-1], flush=True)
    if kinds:
        async with world(fake=True) as made:
            rows.append(await made_and_deleted(made, seconds))
        columns = ["", "as JSON", "store", "decision", "longest lag (of 50 ms)", "memory", "outcome"]
        table("one job of each kind", columns, rows)
    if count:
        columns = ["longest lag (of 50 ms)", f"most memory (of {MEMORY_LIMIT:g} MB)", "memory at the end", "a job"]
        table(f"{count} of the largest legal jobs, 0.9 MB each", columns, [await many(count)])


if __name__ == "__main__":
    # This process encodes a body of 1,100 levels.
    sys.setrecursionlimit(10_000)
    given = sys.argv[1:]
    chosen = [kind for kind in given[2:] if kind != "-"] if given[2:] else KINDS
    asyncio.run(main(int(given[0]) if given else 200, float(given[1]) if len(given) > 1 else 120.0, chosen))
