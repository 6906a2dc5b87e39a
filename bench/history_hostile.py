"""Measures what a tenant and strangers who attack a history cost all others.

    python -m bench.history_hostile

The real process, with a fake API server, serves the file of a tenant whose job has 4,096 ranks with figures at all
levels of age. The table has a row for each attack, each on a new process: one viewer or eight request heat maps at
once; unknown tokens arrive while the API server is slow; answers aren't read; and jobs' attempts fail endlessly.
Meanwhile another viewer requests a list. The loop's lag is how much longer a probe's answer takes than at rest. The
memory is the process's resident peak.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import table
from tests.processes.history import history_process
from tests.processes.history.history_process import History, history, job, key, line, reviews, sample
from trainmaster.history.figures import HEAT, PEAK, Points
from trainmaster.history.store import HistoryStore
from trainmaster.history.upkeep import Aging
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import LogRecord, Record
from trainmaster_operator.api.v1alpha1 import JobIdentity

RANKS, POINTS, LEVELS = 4_096, 24, 6
LIST_LIMIT, LAG_LIMIT, MEMORY_LIMIT = 0.5, 100.0, 384.0
SECONDS = 10.0
# Each batch has 39 failed attempts. Together they are three times as large as the file may be. On a busy machine fewer
# batches are sent in time.
BATCHES, WRITING_SECONDS = 600, 60.0
# Seconds that the API server takes to answer about an unknown token.
REVIEW_SECONDS = 0.5
# The maximum size of the attacked file.
MEBIBYTES = 16
HEAT_PATH = "/v1/namespaces/tenant/jobs/large/heat"
TENANTS = tuple(f"tenant-{number}" for number in range(8))
RIGHTS: dict[str, Any] = {
    **history_process.RIGHTS,
    **dict.fromkeys(TENANTS, ("get distributedtrainingjobs tenant", "list distributedtrainingjobs tenant")),
}
FORK = multiprocessing.get_context("fork")
Attack = Callable[[History, Event], None]


def filled(file: Path) -> None:
    """Writes the file: the tenant's large job, and another viewer's small one."""
    store, chance = HistoryStore(file), random.Random(1)
    store.connection.execute("PRAGMA synchronous = OFF")
    aging, now = Aging(store), time.time()
    large = JobIdentity("tenant", "large", "uid-large")
    store.record([job(now, large, phase="Running"), job(now, key(), phase="Running"), sample(now, key(), 1)])
    values = array("d", (chance.random() for _ in range(RANKS * POINTS)))
    (number,) = store.connection.execute("SELECT id FROM jobs WHERE name = 'large'").fetchone()
    at = now - 10_000_000
    for level in reversed(range(LEVELS)):
        for _ in range(480 // POINTS):
            times = [round(at := at + 10.0 * 2**level, 3) for _ in range(POINTS)]
            figures: dict[str, Any] = dict.fromkeys((PEAK, "gradNorm", "loss"), values)
            workers = [rank // 8 for rank in range(RANKS)]
            block = Points(HEAT, list(range(RANKS)), workers, times, [1] * POINTS, figures)
            store.write(partial(aging._add, number, level, [block]))
    store.close()


class Watch:
    """Watch measures one process while it is attacked."""

    def __init__(self, found: History) -> None:
        self._found = found
        self._process = psutil.Process(found.process.pid)
        self._over = threading.Event()
        self.peak, self.lags, self.lists, self.refused = 0.0, list[float](), list[float](), 0
        self._usual = min(self._probe() for _ in range(20))

    def _probe(self) -> float:
        began = time.monotonic()
        self._found.text("/healthz")
        return time.monotonic() - began

    @contextmanager
    def watching(self) -> Iterator[None]:
        threads = [threading.Thread(target=each) for each in (self._memory, self._loop, self._list)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _memory(self) -> None:
        while not self._over.wait(0.02):
            self.peak = max(self.peak, self._process.memory_info().rss / 2**20)

    def _loop(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.lags.append(1000 * max(0.0, self._probe() - self._usual))
            except OSError:
                self.lags.append(10_000.0)

    def _list(self) -> None:
        while not self._over.wait(0.1):
            began = time.monotonic()
            try:
                self.refused += self._found.get("/v1/jobs?namespace=team", "alice")[0] != 200
            except OSError:
                self.refused += 1
            self.lists.append(time.monotonic() - began)


def repeat(over: Event, threads: int, ask: Callable[[int], Any]) -> None:
    """Repeats a request in this many threads until `over` is set."""

    def run(number: int) -> None:
        while not over.is_set():
            try:
                ask(number)
            except OSError:
                over.wait(0.05)

    with ThreadPoolExecutor(threads) as pool:
        for number in range(threads):
            pool.submit(run, number)


def of_one(found: History, over: Event) -> None:
    repeat(over, 16, lambda _: found.get(HEAT_PATH, TENANTS[0]))


def of_eight(found: History, over: Event) -> None:
    repeat(over, 32, lambda number: found.get(HEAT_PATH, TENANTS[number % len(TENANTS)]))


def strangers(found: History, over: Event) -> None:
    repeat(over, 140, lambda number: found.get("/v1/jobs", f"invented-{number}-{time.monotonic_ns()}"))


def unread(found: History, over: Event) -> None:
    with ExitStack() as held:
        for number in range(48):
            connection = held.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(("127.0.0.1", found.port))
            token = TENANTS[number % len(TENANTS)]
            connection.sendall(f"GET {HEAT_PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        over.wait()


def attempts(found: History, over: Event) -> None:
    chance, at, records, failures = random.Random(2), time.time(), list[Record](), list[dict[str, Any]]()
    for attempt in range(1, 40):
        failures = [{"attempt": attempt, "reason": "Error", "message": chance.randbytes(900).hex()}, *failures][:10]
        of = JobIdentity("tenant", "fails", "uid-of-one")
        records.append(job(at, of, phase="Restarting", attempt=attempt, failures=failures))
    body = b"".join(map(line, records))

    for number in range(BATCHES):
        if over.is_set():
            return
        found.post(body.replace(b"uid-of-one", f"uid-{number}".encode()))


def nothing(found: History, over: Event) -> None:
    over.wait()


ATTACKS: dict[str, Attack] = {
    "at rest": nothing,
    "16 heat maps of one viewer": of_one,
    "32 heat maps of eight viewers": of_eight,
    "140 invented tokens": strangers,
    "48 answers that nobody reads": unread,
    "attempts that fail without end": attempts,
}


def row(title: str, attack: Attack, file: Path) -> tuple[list[object], bool]:
    """Returns a row, and whether a limit was exceeded."""
    with tempfile.TemporaryDirectory() as name, reviews() as server:
        folder = Path(name)
        options: tuple[str, ...] = ()
        if attack is attempts:
            options = ("--max-bytes", f"{MEBIBYTES}Mi")
        else:
            (folder / "history.sqlite").write_bytes(file.read_bytes())
        with history(folder, server.url, *options) as found:
            if attack is attempts:
                kept = LogRecord(time.time(), key(), 0, KeptLog(("kept",)))
                found.post([job(time.time(), key(), phase="Succeeded", completionTime="2026-11-26T03:00:00Z"), kept])
            # The history knows these viewers already.
            for token in ("alice", *TENANTS):
                found.get("/v1/jobs?namespace=team", token)
            server.seconds = REVIEW_SECONDS if attack is strangers else 0.0
            watch, over = Watch(found), FORK.Event()
            # The attack has its own process, so that it doesn't slow down the measurement.
            attacking = FORK.Process(target=attack, args=(found, over))
            attacking.start()
            with watch.watching():
                attacking.join(WRITING_SECONDS if attack is attempts else SECONDS)
            over.set()
            attacking.join(SECONDS)
            attacking.kill()
            size = (folder / "history.sqlite").stat().st_size / 2**20
            is_kept = attack is not attempts or bool(
                found.get("/v1/namespaces/team/jobs/mine/logs", "admin")[1].get("items")
            )
    lag = statistics.quantiles(watch.lags, n=100)[98] if len(watch.lags) > 1 else 10_000.0
    slowest = max(watch.lists, default=SECONDS)
    is_missed = slowest > LIST_LIMIT or lag > LAG_LIMIT or watch.peak > MEMORY_LIMIT or not is_kept
    is_missed |= bool(watch.refused) or (attack is attempts and size > MEBIBYTES)
    shown = [title, f"{watch.peak:.0f}", f"{lag:.0f}", f"{slowest:.2f}", f"{watch.refused} of {len(watch.lists)}"]
    shown.append(f"{size:.1f} MiB of {MEBIBYTES}, log {'kept' if is_kept else 'lost'}" if attack is attempts else "")
    return [*shown, "missed" if is_missed else "kept"], is_missed


def main() -> int:
    """Prints the table; returns 1 if a limit is exceeded."""
    history_process.RIGHTS.update(RIGHTS)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "history.sqlite"
        filled(file)
        rows = [row(title, attack, file) for title, attack in ATTACKS.items()]
    table(
        f"A history under attack for {SECONDS:g} s a row; limits {MEMORY_LIMIT:g} MiB, {LAG_LIMIT:g} ms, "
        f"{LIST_LIMIT:g} s, none refused",
        ["", "peak (MiB)", "p99 lag (ms)", "slowest list (s)", "lists refused", "file", ""],
        [shown for shown, _ in rows],
    )
    return int(any(missed for _, missed in rows))


if __name__ == "__main__":
    sys.exit(main())
