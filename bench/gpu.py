"""Measure Trainmaster on a GPU: the cost of a killed rank, of a restart and of keeping the state in memory, how long
loading that state takes, the training loop beside a bare one, and MFU. Each title contains the card's name.

Two ranks share the GPU (`bench.programs.gpu_ranks`). A step counts as done when the device has finished it, so steps
that the host has only queued don't count as repeated. The cost of snapshots is measured by alternating with the same
loop without them (`bench.programs.gpu_state`). A goal of 0 applies to every measurement, other goals to the median.

    python -m bench gpu
    python -m bench.gpu [--only hangs ranks large state loop decoder] [--seconds 340]

/dev/shm must have room for three times the largest state (6 GB). Otherwise the state is smaller, and a message is
printed. Without a GPU the benchmark uses tiny sizes and gloo, and only shows that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from bench.clusters import NAMESPACE, operator, table, world
from bench.clusters.failures import Failures
from bench.clusters.faults import Cost, FaultyJob
from bench.clusters.stepping_jobs import environment, stepping_job, steps_file
from bench.clusters.steps import Steps
from bench.programs.installed import ROOT, trainloop_installed
from trainmaster.client import JobClient

SCRIPT = ROOT / "bench" / "programs" / "gpu_ranks.py"
MEMORY = Path("/dev/shm")
#: Bytes of state for each parameter: the fp32 weight and AdamW's two moments.
STATE_BYTES = 12
#: Number of kills of one of two ranks, and of kills and restarts of a single rank with a large state.
KILLS, LARGE_KILLS, RESTARTS = 3, 2, 2
#: Seconds for which an attempt with a large state trains before it is killed.
LARGE_SECONDS = 20.0
#: If a job makes no new step within this many seconds of a fault, it is lost. The longest known recovery took 32 s.
LOST_SECONDS = 60.0
LOADS = 2
#: Seconds for both loops of the decoder, including compilation.
DECODER_SECONDS = 50.0
HANGS = 40
#: Maximum seconds for another program.
PROGRAM_SECONDS = 150.0


@dataclass
class Row:
    """Row is one repeated measurement with its goal: a maximum, or with `at_least` a minimum."""

    what: str
    values: list[float]
    goal: float | None = None
    at_least: bool = False

    def cells(self) -> list[object]:
        """Returns the table's cells."""
        if not self.values:
            return [self.what, "not measured", "", _shown(self.goal), ""]
        middle, worst = statistics.median(self.values), (min if self.at_least else max)(self.values)
        held = ""
        if self.goal is not None:
            judged = middle if self.goal else worst
            held = "yes" if judged == self.goal or (judged > self.goal) == self.at_least else "no"
        times = f" (x {len(self.values)})" if len(self.values) > 1 else ""
        return [f"{self.what}{times}", _shown(middle), _shown(worst), _shown(self.goal), held]


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class Model:
    """Model is a tower of linear layers, the samples of its step, and buffers beside its weights."""

    layers: int
    width: int
    batch: int
    buffers: str = ""

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES * self.layers * (self.width + 1) * self.width

    @property
    def size(self) -> str:
        """Returns the state's size as text."""
        return f"{self.state_bytes / 1e9:.2g} GB" if self.state_bytes > 1e8 else f"{self.state_bytes / 1e6:.2g} MB"


TINY = Model(1, 64, 8)


@dataclass
class Bench:
    """Bench contains the data that all sections share."""

    card: str
    on_gpu: bool
    python_path: str
    until: float
    failures: Failures = field(default_factory=Failures)

    def model(self, layers: int, width: int, batch: int, buffers: str = "") -> Model:
        """Returns a model of this size, or smaller if memory is short. Without a GPU it is tiny."""
        if not self.on_gpu:
            return Model(TINY.layers, TINY.width, TINY.batch, buffers)
        free, wanted = shutil.disk_usage(MEMORY).free, Model(layers, width, batch, buffers)
        fits = min(layers, free // 3 // (wanted.state_bytes // layers))
        if not fits:
            raise RuntimeError(f"{MEMORY} has {free:,} bytes free: mount -o remount,size=20G {MEMORY} makes it larger")
        found = Model(fits, width, batch, buffers)
        if fits < layers:
            print(
                f"{MEMORY} has {free:,} bytes free, and a state of {wanted.size} needs three times its size: the state "
                f"is one of {found.size} instead"
            )
        return found

    def show(self, title: str, rows: list[Row]) -> None:
        """Prints a section's table."""
        table(f"{title}, {self.card}", ["", "median", "worst", "goal", "held"], [row.cells() for row in rows])

    def require_time(self) -> None:
        """Raises TimeoutError if there is no time for another measurement."""
        if time.monotonic() > self.until:
            raise TimeoutError("the time for all of this benchmark (--seconds) is over")

    def program(self, *words: str, **variables: str) -> str:
        """Runs one of this project's Python programs; returns its output."""
        self.require_time()
        own = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
        done = subprocess.run(
            [sys.executable, *words],
            env={**own, **variables},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout


async def hangs(bench: Bench) -> None:
    """Measures how often the wrong rank is blamed if one of two hangs after 79 steps of 20 ms."""
    import random

    from trainloop import progress as ranks_progress
    from trainmaster_operator.agent.hang.hung_rank import classify_stall
    from trainmaster_operator.agent.progress.sources import Heartbeats
    from trainmaster_operator.wire.ranks import RankState

    chance, wrong = random.Random(0), 0
    for _ in range(HANGS):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(ranks_progress, "time") as clock:
            clock.time.return_value, clock.monotonic.return_value = time.time(), chance.uniform(0, 10)
            ranks = [ranks_progress.Progress(Path(folder) / f"progress.{rank}") for rank in range(2)]
            late = [chance.uniform(0, 0.01) for _ in ranks]
            for rank in ranks:
                rank.begin(0)
            began = clock.monotonic.return_value
            for step in range(1, 80):
                for rank, seconds in zip(ranks, late, strict=True):
                    clock.monotonic.return_value = began + step * 0.02 + seconds + chance.uniform(0, 0.002)
                    rank.step(step)
            found = Heartbeats(str(Path(folder) / "progress"), range(2))
            found.poll(0.0)
            states = {
                rank: RankState(found.ranks[rank].step, "train", 30.0, 24.0, "a limit", False)._replace(
                    waits="collective" if rank == 0 else ""
                )
                for rank in found.ranks
            }
            named = classify_stall(states)
            wrong += named is None or named.rank != 1
    bench.show("Hangs", [Row(f"wrong rank named, of {HANGS} simulated hangs", [wrong], 0)])


async def ranks(bench: Bench) -> None:
    """Measures kills of one of two ranks that use NCCL."""
    model, rows = bench.model(3, 2048, 4096), list[Row]()
    backend = "NCCL" if bench.on_gpu else "gloo"
    async with world() as made:
        with operator(made) as running:
            running.serving()
            for item in (True, False):
                reads = "loss.item() in each step" if item else "the host ahead of the device"
                name, title = f"ranks-{'item' if item else 'ahead'}", f"{backend}, {model.size}, {reads}"
                costs = list[Cost]()
                with bench.failures.of(title):
                    job = await _start(bench, made, name, model, 2, item=item)
                    for _ in range(KILLS):
                        bench.require_time()
                        costs.append(await job.measure("kill"))
                        _say(title, costs[-1])
                rows.append(Row(f"{title}: steps repeated", [cost.redone for cost in costs], 0))
                rows.append(Row(f"{title}: to the next new step, s", [cost.seconds for cost in costs], 3.0))
                with bench.failures.of(f"{title}: the job's end"):
                    await made.delete(name)
    bench.show("Two workers, one rank killed", rows)


async def large(bench: Bench) -> None:
    """Measures kills and planned restarts of a single worker with a large state."""
    model, rows = bench.model(30, 4096, 1024), list[Row]()
    kills, restarts, written = list[Cost](), list[Cost](), list[float]()
    async with world() as made:
        with operator(made) as running:
            running.serving()
            title = f"one worker, {model.size}"
            job = await _start(bench, made, "large", model, 1)
            jobs = JobClient(NAMESPACE, kubeconfig=made.kubeconfig)
            with bench.failures.of(f"{title}, killed"):
                for _ in range(LARGE_KILLS):
                    bench.require_time()
                    await job.steady()
                    await asyncio.sleep(LARGE_SECONDS if bench.on_gpu else 2.0)
                    kills.append(await job.measure("kill"))
                    _say(f"{title}, killed", kills[-1])
            with bench.failures.of(f"{title}, restarted"):
                for _ in range(RESTARTS):
                    bench.require_time()
                    await job.steady()
                    before = await asyncio.to_thread(_writes, jobs, "large")
                    restarts.append(await job.measure("restart"))
                    _say(f"{title}, restarted", restarts[-1])
                    written.append(await asyncio.to_thread(_writes, jobs, "large") - before)
            with bench.failures.of(f"{title}: the job's end"):
                await made.delete("large")
    repeated = [cost.repeated_seconds for cost in kills]
    rows.append(Row(f"{title}, killed: steps repeated", [cost.redone for cost in kills]))
    rows.append(Row(f"{title}, killed: work repeated, s", repeated, 15.0))
    goal = 3.0 + (statistics.median(repeated) if repeated else 0.0)
    rows.append(Row(f"{title}, killed: to the next new step, s", [cost.seconds for cost in kills], goal))
    rows.append(Row(f"{title}, dtj restart: to the next step, s", [cost.seconds for cost in restarts], 4.0))
    rows.append(Row(f"{title}, dtj restart: steps repeated", [cost.redone for cost in restarts], 0))
    rows.append(Row(f"{title}, dtj restart: times that the state is written", written, 1))
    bench.show("One worker, killed and restarted", rows)


async def _start(bench: Bench, made: Any, name: str, model: Model, workers: int, *, item: bool = False) -> FaultyJob:
    """Starts a job of `bench.programs.gpu_ranks`."""
    variables = environment(made.folder, name, bench.python_path, in_memory=True, checkpoint_steps=1000)
    variables |= {"LAYERS": str(model.layers), "WIDTH": str(model.width), "BATCH": str(model.batch)}
    variables |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"} | ({"ITEM": "1"} if item else {})
    spec = {"resources": {"gpus": 1}, "failurePolicy": {"maxRestarts": 1000}}
    await made.apply(stepping_job(name, workers, variables, command=["python", str(SCRIPT)], **spec))
    return FaultyJob(made, name, Steps(steps_file(made.folder, name)), workers, LOST_SECONDS)


def _writes(jobs: JobClient, name: str) -> int:
    """Returns how often a job's ranks have logged that they have written their state."""
    return sum(re.search(r"state of step \d+ kept in memory", line) is not None for line in jobs.logs(name))


def _say(title: str, cost: Cost) -> None:
    parts = " ".join(f"{part} {seconds:.2f}" for part, seconds in cost.parts.items())
    repeated = f"{cost.redone} steps repeated, which had taken {cost.repeated_seconds:.1f} s"
    print(f"{title}: {cost.seconds:.2f} s, {repeated}; {parts}", flush=True)


async def state(bench: Bench) -> None:
    """Measures keeping the state in memory during training, and loading it from there."""
    rows = list[Row]()
    cases = {
        "a tiny model": (bench.model(4, 256, 64), 3.0),
        "": (bench.model(3, 4096, 8192), 3.0),
        "buffers of 12 MB": (bench.model(3, 4096, 8192, "mask"), 3.0),
        "159 small buffers": (bench.model(3, 4096, 8192, "statistics"), 3.0),
        "large": (bench.model(30, 4096, 4096), 36.0),
    }
    for what, (model, seconds) in cases.items():
        is_large = what == "large"
        title = model.size if is_large or not what else f"{model.size}, {what}"
        with bench.failures.of(title), tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY) as folder:
            told = {"TRAINMASTER_MEMORY_DIR": folder, "TRAINMASTER_JOB_UID": "bench"}
            told["TRAINMASTER_PROGRESS_FILE"] = f"{folder}/progress"
            sizes = json.dumps({**vars(model), "seconds": seconds if bench.on_gpu else 2.0})
            text = bench.program("-m", "bench.programs.gpu_state", "measure", sizes, **told, TRAINMASTER_ATTEMPT="1")
            found = _json(text)
            rows += _costs(title, found, is_large)
            if is_large:
                rows.append(Row(f"{title}: written when the script ends, s", _seconds_written(text)))
                loads = list[float]()
                for attempt in range(2, 2 + LOADS):
                    told["TRAINMASTER_ATTEMPT"] = str(attempt)
                    loaded = _json(bench.program("-m", "bench.programs.gpu_state", "load", sizes, **told))
                    if loaded["checksum"] != found["checksum"]:
                        raise RuntimeError(f"what was loaded in attempt {attempt} isn't what was written")
                    loads.append(loaded["seconds"])
                rows.append(Row(f"{title}: loaded, s", loads, 1.0))
    bench.show("State in memory, one worker", rows)


def _costs(title: str, found: dict[str, Any], is_large: bool) -> list[Row]:
    """Returns the rows about the cost of keeping a state."""
    bare, snapshots = statistics.median(found["byHand"]), found["snapshots"]
    own = [(ours / by_hand - 1) * 100 for ours, by_hand in zip(found["ours"], found["byHand"], strict=True)]
    rows = [
        Row(f"{title}: a step by hand, ms", [each * 1e3 for each in found["byHand"]]),
        Row(f"{title}: a step's own work, %", own),
    ]
    if snapshots and found["every"]:
        share = statistics.median(each["all"] for each in snapshots) / statistics.median(found["every"]) * 100
        rows.append(Row(f"{title}: snapshots, %", [share]))
        rows.append(Row(f"{title}: both, %", [statistics.median(own) + share], 1.0))
    else:
        rows.append(Row(f"{title}: both, %", [], 1.0))
    if found["synchronizations"] is not None:
        rows.append(Row(f"{title}: host synchronisations in a step", [found["synchronizations"]], 0))
    if is_large:
        rows.append(
            Row(f"{title}: the host's step with a snapshot, longer by, s", [each["host"] for each in snapshots], 0.05)
        )
        rows.append(
            Row(f"{title}: the longest step beside it, longer by, s", [each["longest"] for each in snapshots], 0.05)
        )
        rows.append(Row(f"{title}: from one snapshot to the next, s", found["every"]))
        rows.append(Row(f"{title}: memory made and pinned, once, s", [found["first"]]))
    print(f"{title}: {bare * 1e3:.2f} ms by hand, {statistics.median(found['ours']) * 1e3:.2f} ms kept", flush=True)
    return rows


def _json(text: str) -> dict[str, Any]:
    """Returns the JSON in a program's output."""
    found: dict[str, Any] = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    return found


def _seconds_written(text: str) -> list[float]:
    return [float(seconds) for seconds in re.findall(r"kept in memory: [\d,]+ bytes in ([\d.]+) s", text)]


async def loop(bench: Bench) -> None:
    """Compares the training loop with a bare loop, as `trainloop_step` does."""
    rows = list[Row]()
    with bench.failures.of("the loop"):
        words = ["-m", "bench.trainloop_step", "--ranks", "1", *([] if bench.on_gpu else ["--sizes", "1"])]
        for model, by_hand, cost in re.findall(r"^ +1 +(.+?) +wall +(\S+) +\S+ +(\S+)", bench.program(*words), re.M):
            rows.append(Row(f"{model} model: a step by hand, ms", [float(by_hand)]))
            rows.append(Row(f"{model} model: trainloop's step, longer by, ms", [float(cost)], 0.1))
    bench.show("The training loop over a bare loop", rows or [Row("trainloop's step, longer by, ms", [], 0.1)])


async def decoder(bench: Bench) -> None:
    """Measures a decoder of about a billion parameters, as `trainloop_decoder` does."""
    from bench import trainloop_decoder as measures

    rows = [Row("trainloop, MFU, %", [], 50.0, at_least=True)]
    with bench.failures.of("the decoder"):
        program = "import json; from bench.trainloop_decoder import measured; print(json.dumps(measured({})))"
        found = _json(bench.program("-c", program.format(DECODER_SECONDS if bench.on_gpu else 5.0)))
        rounds, peak = found["rounds"], measures.peak_tflops(found["card"])
        work = found["tokens"] * measures.operations(found["parameters"], **found["sizes"])
        names = {"trainloop": "trainloop", "bare": "by hand"}
        used = {each: [work / seconds / peak / 1e10 for seconds in rounds[each]] if peak else [] for each in names}
        rows = [Row("trainloop, MFU, %", used["trainloop"], 50.0, at_least=True), Row("by hand, MFU, %", used["bare"])]
        rows += [Row(f"{names[each]}: a step, ms", [seconds * 1e3 for seconds in rounds[each]]) for each in names]
        longer = [(ours - bare) * 1e3 for ours, bare in zip(rounds["trainloop"], rounds["bare"], strict=True)]
        rows.append(Row("trainloop's step, longer by, ms", longer, 0.1))
        between = measures.CHECKPOINT_STEPS * statistics.median(rounds["trainloop"])
        stall = found["stallSeconds"]["checkpoint"] / between * 100
        rows.append(Row(f"a checkpoint every {measures.CHECKPOINT_STEPS} steps, %", [stall], 0.5))
        print(
            f"{found['parameters']:,} parameters, {found['tokens']:,} tokens a step, {found['precision']}", flush=True
        )
    bench.show("A decoder", rows)


#: The sections in their order. Each prints a table.
SECTIONS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "hangs": hangs,
    "ranks": ranks,
    "large": large,
    "state": state,
    "loop": loop,
    "decoder": decoder,
}


def card() -> str | None:
    """Returns the GPU's name, or None. A separate process asks, so that it keeps none of the GPU's memory."""
    program = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.strip() or None


async def run(bench: Bench, names: list[str]) -> None:
    """Runs sections. If one fails, the others still run."""
    for name in names:
        began = time.monotonic()
        with bench.failures.of(name):
            bench.require_time()
            await SECTIONS[name](bench)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=340.0, help="Start no measurement after this many seconds")
    given = parser.parse_args()
    found = card()
    if found is None:
        print("There is no GPU here: with tiny sizes and gloo, nothing of this is a measurement of a GPU.", flush=True)
    with trainloop_installed() as python_path:
        bench = Bench(found or "no GPU", found is not None, python_path, time.monotonic() + given.seconds)
        await run(bench, given.only)
    return bench.failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
