"""An operator, a real process, that was stopped for longer than its lease lasts writes nothing when it continues."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from tests.cluster.faked_agents import Script
from tests.cluster.faked_cluster import WRITES, FakedCluster, faked_cluster
from tests.cluster.operator_account import HOME

LEASE = "leases.coordination.k8s.io"
LED: dict[str, Any] = {"leader_elect": True, "lease_seconds": 6.0, "renew_seconds": 4.0, "retry_seconds": 0.2}


def holder(world: FakedCluster) -> str:
    found = world.api.peek(LEASE, "trainmaster-operator", HOME) or {}
    return str((found.get("spec") or {}).get("holderIdentity") or "")


def leads(world: FakedCluster, after: str = "") -> None:
    world.until(lambda: holder(world) not in ("", after), 60.0, lambda: f"nobody but {after!r} leads")


def works(world: FakedCluster, namespace: str) -> None:
    world.until(lambda: world.at_rest(namespace), 60.0, lambda: world.describe(namespace))


def test_a_leader_that_was_stopped_for_too_long_writes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    """It is stopped during a pass: when it continues, the answer to its first write is waiting, and the next write is
    due.
    """
    with faked_cluster(tmp_path) as world:
        old = world.start_operator(**LED)
        leads(world)
        namespace = world.namespace()
        stopped = threading.Event()

        def stop(verb: str, resource: str, name: str, where: str) -> None:
            if (verb, where) == ("patch", namespace) and not stopped.is_set():
                os.kill(old.pid, signal.SIGSTOP)
                stopped.set()

        world.threaded.cluster.faults.hook = stop
        world.submit(namespace, Script(seconds=0.05))
        assert stopped.wait(60)
        first = holder(world)
        new = world.start_operator(**LED)
        leads(world, first)
        works(world, namespace)
        os.kill(new.pid, signal.SIGSTOP)
        writes: list[tuple[str, str, str]] = []

        def record(verb: str, resource: str, name: str, where: str) -> None:
            if verb in WRITES and where == namespace:
                writes.append((verb, resource, name))

        world.threaded.cluster.faults.hook = record
        os.kill(old.pid, signal.SIGCONT)
        old.process.join(60)
        assert old.process.exitcode == 1, "it ends, so that it is started again as a candidate"
        assert writes == []
        os.kill(new.pid, signal.SIGCONT)
        world.stop_operators()
