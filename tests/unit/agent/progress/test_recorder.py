"""The agent reads dumps of torch's flight recorder as torch 2.13 writes them (FlightRecorder, version 2.10).

The keys and types are those of a dump of this version. tests/trainer/test_stall_evidence.py asks a real rank for a
real dump through its pipe.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.agent.process.launcher import recorder_environment
from trainmaster_operator.agent.progress.recorder import FlightRecorder, Recorded, summarize

TORCH = "/site-packages/torch/distributed"
FRAMES = [
    {"name": "all_reduce", "filename": f"{TORCH}/distributed_c10d.py", "line": 3245},
    {"name": "wrapper", "filename": f"{TORCH}/c10d_logger.py", "line": 83},
    {"name": "step", "filename": "/app/train.py", "line": 8},
]


def entry(number: int, state: str = "completed", **fields: Any) -> dict[str, Any]:
    """Returns one collective of the default group."""
    return {
        "collective_seq_id": number,
        "frames": FRAMES,
        "input_dtypes": ["Float"],
        "input_sizes": [[3]],
        "is_p2p": False,
        "op_id": number,
        "output_dtypes": ["Float"],
        "output_sizes": [[3]],
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "record_id": number,
        "retired": state == "completed",
        "state": state,
        "thread_id": "140337093004160",
        "thread_name": "pt_main_thread",
        "time_created_ns": 1795312332974501937,
        "time_discovered_completed_ns": 1795312332974601937 if state == "completed" else None,
        "time_discovered_started_ns": 1795312332974551937 if state != "scheduled" else None,
        "timeout_ms": 600000,
        **fields,
    }


def dump(*entries: dict[str, Any], enqueued: int = -1) -> bytes:
    """Returns a dump as a rank writes it."""
    status = {"last_completed_collective": 2, "last_enqueued_collective": enqueued, "last_started_collective": enqueued}
    data = {
        "comm_lib_version": "2.29.3",
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": status, "1": {**status, "last_enqueued_collective": 99}},
        "nccl_comm_state": {"0x7f": {"rank": "0", "n_ranks": "2"}},
        "entries": list(entries),
    }
    return pickle.dumps(data, protocol=2)


OTHER_GROUP: dict[str, Any] = {"pg_id": 1, "process_group": ("1", "mesh_tp")}
WAITS = "waits in collective 17: nccl:all_reduce of [[3]] ({}), called at /app/train.py:8 in step"


@pytest.mark.parametrize(
    ("written", "recorded"),
    [
        (dump(entry(16), entry(17, "started"), enqueued=17), Recorded(17, WAITS.format("started"))),
        (dump(entry(16), entry(17, "scheduled"), enqueued=17), Recorded(17, WAITS.format("scheduled"))),
        # The rank has entered another, asynchronous collective since: the oldest one is the reason.
        (dump(entry(17, "started"), entry(18, "scheduled"), enqueued=18), Recorded(18, WAITS.format("started"))),
        # A collective of gloo stays `scheduled`, and is retired when it is done.
        (dump(entry(16, "scheduled", retired=True), enqueued=16), Recorded(16, "last collective 16, completed")),
        # Numbers of other groups, and of point-to-point messages, can't be compared between ranks.
        (dump(entry(16), entry(40, "started", **OTHER_GROUP)), Recorded(16, "last collective 16, completed")),
        (dump(entry(16), entry(16, "started", is_p2p=True)), Recorded(16, "last collective 16, completed")),
        # The ring holds only the newest of all groups.
        (dump(entry(98, **OTHER_GROUP), enqueued=16), Recorded(16, "last collective 16")),
        (dump(), Recorded(None, "no collective yet")),
        (dump(entry(16), enqueued=16)[:-40], None),
        (pickle.dumps([1, 2]), None),
        (b"", None),
    ],
)
def test_how_far_a_rank_has_come_and_what_it_waits_in(written: bytes, recorded: Recorded | None) -> None:
    found = summarize(written)
    assert (None if found is None else found[:2]) == (None if recorded is None else recorded[:2])


def test_a_rank_is_asked_through_its_pipe_and_answers_into_its_file(tmp_path: Path) -> None:
    environ = recorder_environment(str(tmp_path))
    recorder = FlightRecorder(environ, 3)
    assert not recorder.ask(), "nobody reads a pipe"
    pipe = Path(environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "3.pipe")
    os.mkfifo(pipe)
    assert not recorder.ask(), "and an agent never waits for a reader"
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    answer = Path(environ["TORCH_FR_DUMP_TEMP_FILE"] + "3")
    answer.write_bytes(dump(entry(9)))
    assert recorder.ask()
    assert os.read(reading, 10) == b"1"
    os.close(reading)
    assert recorder.answer() is None, "what was there before is of another hang"
    answer.write_bytes(dump(entry(16), entry(17, "started"))[:-40])
    assert recorder.answer() is None, "half written"
    answer.write_bytes(dump(entry(16), entry(17, "started")))
    found = recorder.answer()
    assert found is not None and found[:2] == (17, WAITS.format("started"))
