"""torch's flight recorder records a rank's last collectives, and the agent requests these records from outside.

A process group of NCCL reads a named pipe, `$TORCH_NCCL_DEBUG_INFO_PIPE_FILE<rank>.pipe`. When something is written
into the pipe, the group dumps its records to `$TORCH_FR_DUMP_TEMP_FILE<rank>` (torch 2.13: ProcessGroupNCCL). The
bundled loop does the same for gloo. The dump is a pickle of plain values. It comes from a user's process, so the agent
unpickles nothing but plain values.

`Counters` asks a silent rank's recorder from time to time. If a rank without progress stays in one collective for
longer than a step may take, the rank hangs, whatever the script does (torch's own limit is 10 minutes with NCCL: torch
2.13, `default_pg_nccl_timeout`). If a rank is in no collective, its work is unknown. `Counters` only asks ranks whose
pipe is open (as NCCL's process groups keep it), one after the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from trainmaster_operator.agent.process.launcher import DUMP_VARIABLE, PIPE_VARIABLE
from trainmaster_operator.agent.process.rank_processes import RankProcess
from trainmaster_operator.agent.process.state_folder import wake
from trainmaster_operator.wire.limits import MAX_OPERATION_CHARACTERS, MAX_SECONDS
from trainmaster_operator.wire.values import mapping, mappings, whole

# Versions of torch that don't know TORCH_FR_DUMP_TEMP_FILE write the dump here.
OLD_DUMP = "/tmp/nccl_trace_rank_"
ANSWER_SECONDS = 3.0
"""How long to wait for a dump. A rank's first dump takes 1.7 to 1.9 s (torch 2.11, one H200), because torch reads the
pipe only once a second, and then looks up the names of each collective's frames."""
MAX_DUMP_BYTES = 16_777_216
MAX_FRAMES = 6
NCCL_TIMEOUT, OTHER_TIMEOUT = 600.0, 1_800.0
"""torch's default timeouts for collectives, in seconds (torch 2.13: torch.distributed.constants)."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
"""The bounds of the time between two questions to a rank. Within them, it is a tenth of a step's limit. An answer costs
the rank 5 ms in a thread of torch, and the agent 10 ms (measured with 2,000 recorded collectives)."""


class Recorded(NamedTuple):
    """Recorded describes a rank's last collective of the default group, and its oldest unfinished collective."""

    collective: Optional[int]
    message: str
    newest: int = -1
    """The number of the newest operation of any group; -1 if unknown. The number never decreases."""
    oldest_open: Optional[int] = None
    """The number of the oldest unfinished operation; 0 is the rank's first operation. None: all are finished."""
    timeout: float = 0.0
    """The script's own timeout for that operation, in seconds; 0 if torch's default applies."""
    operation: str = ""
    """The default group's oldest unfinished collective, such as `all_reduce`; empty if there is none."""


class FlightRecorder:
    """FlightRecorder is one rank's recorder; `environ` is the rank's environment."""

    def __init__(self, environ: Mapping[str, str], rank: int) -> None:
        self._pipe = f"{environ.get(PIPE_VARIABLE, '')}{rank}.pipe"
        dump = environ.get(DUMP_VARIABLE, "")
        self._dumps = [f"{dump}{rank}", f"{OLD_DUMP}{rank}"] if dump else [f"{OLD_DUMP}{rank}"]
        self._before: dict[str, tuple[int, int]] = {}

    def ask(self) -> bool:
        """Request a dump; False if no process reads the pipe."""
        self._before = {path: _version(path) for path in self._dumps}
        return wake(self._pipe, b"1")

    def answer(self) -> Recorded | None:
        """Returns the dump since the request; None if there is no complete one yet."""
        for path in self._dumps:
            if _version(path) in (self._before.get(path), (0, 0)):
                continue
            try:
                with open(path, "rb") as file:
                    return summarize(file.read(MAX_DUMP_BYTES + 1))
            except OSError:
                continue
        return None


def _load_plain(dump: bytes) -> Any:
    # Imported here, because they cost milliseconds of an agent's start, and are rarely needed.
    import io
    import pickle

    class PlainUnpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"{module}.{name} isn't a plain value")

    return PlainUnpickler(io.BytesIO(dump)).load()


def summarize(dump: bytes) -> Recorded | None:
    """Returns the summary of a dump; None if the dump is malformed (it may be half written)."""
    if len(dump) > MAX_DUMP_BYTES:
        return None
    try:
        data = _load_plain(dump)
        # The first group is the default group. The numbers of other groups, which some ranks lack, can't be compared.
        entries = [
            entry
            for entry in data["entries"]
            if isinstance(entry, dict) and entry.get("pg_id") == 0 and not entry.get("is_p2p")
        ]
        operations = _operations(data["entries"])
    except Exception:  # a pickle from a user's process can fail in any way
        return None
    numbers = [entry["collective_seq_id"] for entry in entries if isinstance(entry.get("collective_seq_id"), int)]
    # Other groups' collectives may fill the ring of records, but the dump still contains the default group's counter.
    status = mapping(mapping(data.get("pg_status")).get("0"))
    newest = max(numbers) if numbers else whole(status.get("last_enqueued_collective")) or None
    waits_in = next((entry for entry in entries if not _is_done(entry)), None)
    if waits_in is not None:
        message = _describe(waits_in)
    elif newest is None:
        message = "no collective yet"
    else:
        message = f"last collective {newest}{', completed' if entries else ''}"
    name = "" if waits_in is None else str(waits_in.get("profiling_name")).rpartition(":")[2][:MAX_OPERATION_CHARACTERS]
    return Recorded(newest, message, *operations, name)


def _operations(entries: Sequence[Any]) -> tuple[int, Optional[int], float]:
    """Returns the numbers of all groups' newest and oldest unfinished operation, and the unfinished one's timeout."""
    numbers = {entry["record_id"]: entry for entry in entries if isinstance(entry.get("record_id"), int)}
    oldest = min((number for number, entry in numbers.items() if not _is_done(entry)), default=None)
    waits_in = {} if oldest is None else numbers[oldest]
    timeout = whole(waits_in.get("timeout_ms"), int(MAX_SECONDS) * 1_000) or 0
    default = NCCL_TIMEOUT if str(waits_in.get("profiling_name")).startswith("nccl:") else OTHER_TIMEOUT
    return max(numbers, default=-1), oldest, timeout / 1_000 if timeout / 1_000 > default else 0.0


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or bool(entry.get("retired"))


def _describe(entry: Mapping[str, Any]) -> str:
    places = [
        f"{str(frame.get('filename'))[-80:]}:{frame.get('line')} in {str(frame.get('name'))[:60]}"
        for frame in mappings(entry.get("frames"))
        if "/torch/" not in str(frame.get("filename"))
    ][:MAX_FRAMES]
    called = f", called at {', '.join(places)}" if places else ""
    name, sizes = str(entry.get("profiling_name"))[:80], str(entry.get("input_sizes"))[:80]
    return f"waits in collective {entry.get('collective_seq_id')}: {name} of {sizes} ({entry.get('state')}){called}"


def _version(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


class Counters:
    """Counters keeps the answers of one attempt's ranks. `ranks` returns the living ranks."""

    def __init__(self, ranks: Callable[[], Sequence[RankProcess]], limit: float) -> None:
        self._ranks = ranks
        self._every = min(max(limit / 10, LEAST_SECONDS), MOST_SECONDS)
        self._asked: dict[int, float] = {}
        self._recorder: Optional[tuple[int, FlightRecorder, float]] = None
        self._last: dict[int, Recorded] = {}
        self._since: dict[int, float] = {}
        """When each rank was first seen in the state that its last answer shows."""
        self._answered_at: dict[int, float] = {}
        self.moved_at: dict[int, float] = {}
        """When a rank's answer last showed that it had advanced, on the monotonic clock."""

    def poll(self, silent: Iterable[int], now: float) -> None:
        """Read the pending answer, or ask one of the silent ranks."""
        if self._recorder is not None:
            rank, recorder, asked_at = self._recorder
            answer = recorder.answer()
            if answer is not None:
                self._take(rank, answer, now)
            if answer is None and now - asked_at < ANSWER_SECONDS:
                return
            self._recorder = None
        due = [rank for rank in silent if now - self._asked.get(rank, -self._every) >= self._every]
        if not due:
            return
        rank = min(due, key=lambda each: self._asked.get(each, 0.0))
        self._asked[rank] = now
        process = next((each for each in self._ranks() if each.rank == rank), None)
        if process is not None:
            recorder = FlightRecorder(process.environ, rank)
            if recorder.ask():
                self._recorder = rank, recorder, now

    def waiting(self, rank: int) -> Optional[tuple[Recorded, float]]:
        """Returns a rank's last answer and the seconds in the present collective; None if the rank is in none."""
        last = self._last.get(rank)
        if last is None or last.oldest_open is None:
            return None
        return last, self._answered_at[rank] - self._since[rank]

    def _take(self, rank: int, answer: Recorded, now: float) -> None:
        last = self._last.get(rank)
        moved = last is None or (last.newest, last.oldest_open) != (answer.newest, answer.oldest_open)
        if moved and now - self._answered_at.get(rank, -math.inf) < 2 * self._every + ANSWER_SECONDS:
            self.moved_at[rank] = now
        if moved:
            self._since[rank] = now
        self._last[rank], self._answered_at[rank] = answer, now
