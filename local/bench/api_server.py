"""Requests a second that the local cluster's API server answers on one core: `python local/bench/api_server.py`.

The server runs in a process of its own; the client keeps a few connections busy. `in process` is the same without HTTP,
by CPU seconds, so that other programs on the machine don't change it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from trainmaster_local.apiserver.api import Api, Options
from trainmaster_local.apiserver.http.server import ApiServer
from trainmaster_local.apiserver.resources import Registry
from trainmaster_local.kinds import BUILTIN_TYPES
from trainmaster_local.kinds.bootstrap import bootstrap

Action = Callable[[int], Awaitable[Any]]


def pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench", "index": name}, "annotations": {"note": "x" * 200}},
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "image": "example/trainer:1",
                    "command": ["python3", "-m", "train"],
                    "env": [{"name": f"NAME_{index}", "value": str(index)} for index in range(20)],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                }
            ]
        },
    }


def config(index: int, value: int) -> dict[str, Any]:
    data = {f"key-{number}": f"value-{value}" for number in range(10)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c-{index}"}, "data": data}


async def new_api() -> Api:
    registry = Registry()
    for type_ in BUILTIN_TYPES:
        registry.add(type_)
    api = Api(registry)
    await bootstrap(api)
    await api.create("serviceaccounts", {"metadata": {"name": "default"}}, "default")
    return api


async def _serve(pipe: Connection) -> None:
    server = ApiServer(await new_api())
    pipe.send(await server.start())
    await asyncio.to_thread(pipe.recv)
    await server.stop()


def serve(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def rate(action: Action, count: int, start: int, connections: int, clock: Callable[[], float]) -> float:
    """Actions a second of `clock`, `connections` at a time."""
    numbers = iter(range(start, start + count))

    async def work() -> None:
        for number in numbers:
            await action(number)

    began = clock()
    await asyncio.gather(*(work() for _ in range(connections)))
    return count / (clock() - began)


async def measured(
    action: Action, count: int, repeats: int, connections: int, clock: Callable[[], float] = time.perf_counter
) -> str:
    """Median (and range) of several rates."""
    rates = [await rate(action, count, repeat * count, connections, clock) for repeat in range(repeats)]
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


async def over_http(url: str, count: int, repeats: int) -> list[tuple[str, str]]:
    base = f"{url}/api/v1/namespaces/default"
    async with aiohttp.ClientSession() as session:

        async def send(method: str, path: str, body: Any = None, kind: str = "application/json") -> bytes:
            data = None if body is None else json.dumps(body)
            async with session.request(method, base + path, data=data, headers={"Content-Type": kind}) as answer:
                content = await answer.read()
                assert answer.status < 300, content
                return content

        async def create(index: int) -> None:
            await send("POST", "/pods", pod(f"p-{index}"))

        async def apply(index: int) -> None:
            path = f"/configmaps/c-{index % 50}?fieldManager=bench"
            await send("PATCH", path, config(index % 50, index), "application/apply-patch+yaml")

        async def apply_again(index: int) -> None:
            path = f"/configmaps/same-{index % 50}?fieldManager=bench"
            body = {**config(0, 0), "metadata": {"name": f"same-{index % 50}"}}
            await send("PATCH", path, body, "application/apply-patch+yaml")

        async def patch(index: int) -> None:
            body = {"metadata": {"annotations": {"note": str(index)}}}
            await send("PATCH", f"/pods/p-{index % 50}", body, "application/merge-patch+json")

        rows = [("create pod", await measured(create, count, repeats, 4))]
        rows.append(("get pod", await measured(lambda index: send("GET", f"/pods/p-{index % 50}"), count, repeats, 4)))
        rows.append(("merge patch pod", await measured(patch, count, repeats, 4)))
        rows.append(("apply, changed", await measured(apply, count, repeats, 4)))
        rows.append(("apply, unchanged", await measured(apply_again, count, repeats, 4)))
        have = count * repeats
        for index in range(have, 4000):
            await create(index)
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            content = await send("GET", "/pods?labelSelector=app=bench")
            seconds.append(time.perf_counter() - began)
        size = len(content) / 1e6
        rows.append((f"list {max(have, 4000):,} pods", f"{statistics.median(seconds) * 1e3:,.0f} ms, {size:.1f} MB"))
        return rows


async def in_process(count: int, repeats: int) -> list[tuple[str, str]]:
    api = await new_api()
    options = Options(manager="bench")
    rows = []

    async def create(index: int) -> None:
        await api.create("pods", pod(f"p-{index}"), "default", options=options)

    async def get(index: int) -> None:
        await api.get("pods", f"p-{index % 50}", "default")

    async def patch(index: int) -> None:
        await api.patch("pods", f"p-{index % 50}", {"metadata": {"annotations": {"note": str(index)}}}, "default")

    async def apply(index: int) -> None:
        await api.apply("configmaps", f"c-{index % 50}", config(index % 50, index), "default", options=options)

    for name, action in (
        ("create pod", create),
        ("get pod", get),
        ("merge patch pod", patch),
        ("apply, changed", apply),
    ):
        rows.append((name, await measured(action, count, repeats, 1, time.process_time)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="requests in each repeat")
    parser.add_argument("--repeats", type=int, default=5, help="repeats; the median is shown")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    server.start()
    try:
        remote = asyncio.run(over_http(ours.recv(), arguments.count, arguments.repeats))
    finally:
        ours.send("stop")
        server.join(10)
    local = dict(asyncio.run(in_process(arguments.count, arguments.repeats)))
    table = Table("request", "over HTTP, a second", "in process, a CPU second", title="Local API server")
    for name, value in remote:
        table.add_row(name, value, local.get(name, ""))
    Console().print(table)


if __name__ == "__main__":
    main()
