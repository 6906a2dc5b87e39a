"""Measures what a history costs the operator, with many jobs whose ranks report: `python -m bench.history_cost [JOBS]`.

Each job has four faked pods, whose ranks do a step a second. The operator runs alternately without and with a history,
on the same cluster and jobs. The history runs in the benchmark's process, and accepts all records without storing them.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import statistics
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from bench.clusters import World, job, operator, table, until, world
from bench.operator_scale import WORKERS, settled

TURNS, SETTLE_SECONDS, MEASURED_SECONDS = 3, 10.0, 20.0


@contextmanager
def history() -> Iterator[tuple[str, list[int]]]:
    """Serves a history that accepts all records; yields its address, and the bytes of each request."""
    sizes: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sizes.append(len(body))
            answer = json.dumps({"kind": "Recorded", "records": body.count(b"\n")}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sizes
    finally:
        server.shutdown()
        server.server_close()


async def measure(made: World, jobs: int, *arguments: str) -> dict[str, float]:
    """Runs an operator; returns its CPU (per cent of a core), memory (MB), and writes and records a second."""
    agents = ("--reach", "direct", "--agent-port", str(made.agent_port))
    with operator(made, *agents, *arguments) as running:
        running.serving()
        await until(lambda: settled(running, jobs), 300)
        await asyncio.sleep(SETTLE_SECONDS)
        process = psutil.Process(running.process.pid)
        before, cpu = running.metrics(), sum(process.cpu_times()[:2])
        await asyncio.sleep(MEASURED_SECONDS)
        after, used = running.metrics(), sum(process.cpu_times()[:2]) - cpu
    writes = 'trainmaster_api_writes_total{kind="DistributedTrainingJob/status",verb="patch"}'
    records = 'trainmaster_records_total{outcome="sent"}'
    return {
        "CPU, per cent of a core": 100 * used / MEASURED_SECONDS,
        "resident memory, MB": after["process_resident_memory_bytes"] / 1e6,
        "writes of a status a second": (after.get(writes, 0) - before.get(writes, 0)) / MEASURED_SECONDS,
        "records a second": (after[records] - before[records]) / MEASURED_SECONDS,
    }


async def main(jobs: int) -> None:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with world(fake=True, step_seconds=1.0) as made:
        agents = ("--reach", "direct", "--agent-port", str(made.agent_port))
        with operator(made, *agents) as running:
            running.serving()
            for first in range(0, jobs, 50):
                await asyncio.gather(
                    *(made.apply(job(f"job-{n}", WORKERS)) for n in range(first, min(first + 50, jobs)))
                )
            await until(lambda: running.metrics().get('trainmaster_jobs{phase="Running"}', 0) >= jobs, 900)
        with history() as (url, sizes):
            for _ in range(TURNS):
                for name, arguments in (("without", ()), ("with", (f"--history-url={url}",))):
                    sizes.clear()
                    for measured, value in (await measure(made, jobs, *arguments)).items():
                        found[measured][name].append(value)
                found["bytes of a request"]["with"].append(statistics.mean(sizes))
    rows = [
        [measured, *(f"{statistics.median(values[name]):.1f}" if values[name] else "" for name in ("without", "with"))]
        for measured, values in found.items()
    ]
    title = f"{jobs} jobs of {WORKERS} ranks that report each second; median of {TURNS} turns of {MEASURED_SECONDS:g} s"
    table(title, ["", "without a history", "with one"], rows)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
