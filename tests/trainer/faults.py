"""Runs' ranks die on purpose, and the next attempt continues from memory; every rank is a worker with its own memory
unless they share one.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.trainer.ranks import environment, free_port, start_rank
from tests.trainer.toy import weights
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.recovery.sealed import HEADER_BYTES, MEMORY, read_seal
from trainloop.trainer import Trainer

#: A rank's fault: the name of the function that causes it, and the step before which it happens.
Fault = tuple[str, int]


def attempt(
    number: int,
    ranks: int,
    memory: Path,
    settings: Any,
    faults: dict[int, Fault] | None = None,
    function: Callable[..., Any] | None = None,
    local_ranks: int = 1,
    meanwhile: Callable[[list[int]], None] | None = None,
    **variables: str,
) -> list[Any]:
    """Run an attempt; returns what each rank returned, or the name of the signal or error that ended it.

    `meanwhile` is called with the ranks' processes, which are killed when it returns.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(rank) for rank in range(ranks)]
        processes = []
        for rank, out in enumerate(outs):
            worker = memory / f"worker-{rank // local_ranks}"
            worker.mkdir(parents=True, exist_ok=True)
            mine = {
                **environment(rank, ranks, port),
                "LOCAL_RANK": str(rank % local_ranks),
                "LOCAL_WORLD_SIZE": str(local_ranks),
                "TRAINMASTER_MEMORY_DIR": str(worker),
                "TRAINMASTER_ATTEMPT": str(number),
                "TRAINMASTER_JOB_UID": "job",
                **variables,
            }
            what = (function or train, mine, settings, (faults or {}).get(rank), memory / f"rank-{rank}.log")
            processes.append(start_rank(_surviving, rank, ranks, port, out, *what))
        if meanwhile is not None:
            meanwhile([process.pid for process in processes if process.pid])
            for process in processes:
                process.kill()
        for process in processes:
            process.join(120)
        alive = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        assert not alive, f"rank {alive} of attempt {number} hung"
        return [_ended(process.exitcode, out) for process, out in zip(processes, outs, strict=True)]


def _ended(code: int | None, out: Path) -> Any:
    if code and code < 0:
        return signal.Signals(-code).name
    kind, value = pickle.loads(out.read_bytes())
    return value if kind == "value" else f"error: {value}"


def _surviving(
    function: Callable[..., Any], variables: dict[str, str], settings: Any, fault: Fault | None, log: Path
) -> Any:
    os.environ.update(variables)
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    try:
        return function(settings, fault)
    except RuntimeError:  # raised by a collective of a rank that has lost another one
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # as the interpreter does where nobody catches it
        return f"error: {traceback.format_exc()}"
    except SystemExit as stopped:
        return f"exit code {stopped.code}"


def train(settings: Config, fault: Fault | None) -> dict[str, Any]:
    """Train, and meet the fault; returns weights, samples seen and the step at which the attempt began."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        if fault:
            name, step = fault
            trainer.before_step.append(lambda trainer: FAULTS[name]() if trainer.state.step == step else None)
        trainer.run()
        return {
            "weights": weights(trainer),
            "seen": list(trainer.task.seen),  # type: ignore[attr-defined]
            "began": trainer._started_at,
            "state": trainer.state,
        }


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail() -> None:
    raise RuntimeError("this rank fails")


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


FAULTS: dict[str, Callable[[], None]] = {"kill": _kill, "fail": _fail, "stop": _stop, "terminate": _terminate}


def said(memory: Path) -> str:
    """Returns everything that the ranks of all attempts have printed."""
    return "\n".join(log.read_text() for log in sorted(memory.glob("rank-*.log")))


def sealed(memory: Path) -> list[str]:
    """Returns the states sealed in all workers' memories, as attempt, step, part and number of parts."""
    return sorted(seal.name for file in files(memory) if (seal := read_seal(file)))


def files(memory: Path) -> list[Path]:
    """Returns the non-empty state files in all workers' memories."""
    return sorted(file for file in memory.rglob(f"*{MEMORY}") if any(file.read_bytes()[:HEADER_BYTES]))


def began(results: Sequence[Any]) -> list[int]:
    return [result["began"] for result in results]
