"""The ranks of a new attempt agree on the newest state that any rank holds, and send it to the ranks that lack it.

Every rank sends all ranks the seals (small descriptions) of the states in its worker's memory. All ranks derive the
same order of candidates, the newest first, and try each in turn. The state comes from the first holder whose bytes
match the checksum. If a holder can't send the state, or sends wrong bytes, it is skipped, and a message is logged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainloop.continuing.start import check, messages
from trainloop.recovery import sealed, slots
from trainloop.recovery.encoding import EncodingError, decode
from trainloop.recovery.place import Place
from trainloop.recovery.sealed import Seal, SealError

#: The size limit of one rank's message in `gather`.
_MOST_BYTES = 256 << 20
#: The maximum number of seals that one rank may name.
_MOST_SEALS = 1024
#: The interval between two questions, in microseconds, and its upper limit in steps.
_ASKING_MICROSECONDS, _MOST_STEPS = 250_000, 10
_NOTHING = torch.empty(0, dtype=torch.uint8)


class Group:
    """A group lets all ranks exchange bytes on the host. A single rank needs no group."""

    def __init__(self, place: Place, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self._group = place.rank, place.ranks, group

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's plain value, in rank order; None in place of a value that can't be decoded.

        Raises GroupLostError if ranks were lost and the group can continue without them.
        """
        if self.size == 1:
            return [value]
        message = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(message)]), self._group)
        check()
        longest = max(int(length) for length in lengths)
        if longest > _MOST_BYTES:
            raise EncodingError(f"a rank has sent {longest:,} bytes, more than any rank needs")
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded, self._group)
        check()
        return [_plain(one[: int(length)]) for one, length in zip(found, lengths, strict=True)]

    def begin_to_ask(self, *numbers: int) -> Callable[[], list[int]]:
        """Begin to exchange `numbers` with all ranks.

        Returns a function that waits for the answers: the maximum of each number over the ranks.
        """
        if self.size == 1:
            return lambda: list(numbers)
        answer = torch.tensor(numbers)
        work = dist.all_reduce(answer, dist.ReduceOp.MAX, self._group, async_op=True)
        assert work is not None

        def waited() -> list[int]:
            work.wait()
            return list(answer.tolist())

        return waited

    def pass_on(self, sent: torch.Tensor | None, target: int, received: torch.Tensor, source: int) -> None:
        """Send bytes to one rank, and receive another rank's bytes at the same time."""
        messages.own = True
        try:
            work = [dist.irecv(received, source, self._group)] if received.numel() else []
            work += [dist.isend(sent, target, self._group)] if sent is not None else []
        finally:
            messages.own = False
        for each in filter(None, work):
            each.wait()


class Questions:
    """Questions are exchanges of numbers among all ranks, every few steps.

    They aren't asked in each step, because an exchange costs as much as the reduction of a small step's gradients.
    Ranks ask about four times a second, and at least in every tenth step.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._begun = self._next = 0
        self._at, self._longest = 0.0, 0.0  # the last step's start, and the longest step since the last question

    def restart(self, step: int) -> None:
        """Count steps from `step` again; called on all ranks.

        The ranks ask in each of the next ten steps, because those take longer or shorter than later steps.
        """
        self._begun, self._next, self._at, self._longest = step, step + 1, 0.0, 0.0

    def begin(self, step: int, *numbers: int) -> Callable[[], list[int]] | None:
        """Begin to ask if that is due in `step`; otherwise returns None.

        Returns a function that waits for the answers: the maximum of each number over the ranks.
        """
        now = time.monotonic()
        self._at, self._longest = now, max(self._longest, now - self._at)
        if step != self._next:
            return None
        wait = self._group.begin_to_ask(*numbers, round(self._longest * 1e6))

        def waited() -> list[int]:
            *answers, longest = wait()
            self._longest = 0.0
            most = _MOST_STEPS if step >= self._begun + _MOST_STEPS else 1
            self._next = step + max(1, min(most, _ASKING_MICROSECONDS // max(longest, 1)))
            return answers

        return waited


class Found:
    """This is a state that all ranks have agreed on, and the own state of each rank of the attempt that made it."""

    def __init__(self, seal: Seal, parts: dict[int, Any], own: dict[int, Any]) -> None:
        self.attempt, self.step = seal.attempt, seal.step
        #: The number of parts of the state, and the parts that this rank has received.
        self.count, self.parts = seal.parts, parts
        self._own = own

    def state(self, part: int = 0) -> Any:
        return self.parts[part]["state"]

    def first(self) -> Any:
        """Returns the state of the lowest part that this rank has received."""
        return self.state(min(self.parts))

    def buffers(self, rank: int) -> dict[str, torch.Tensor]:
        """Returns the model's buffers: the unchanged ones in the state, overridden by a rank's own buffers.

        If the state is divided, `rank` is the index of the part, and the own buffers are its writer's. If all ranks
        have the same state, rank 0's own buffers are used, because DistributedDataParallel would broadcast them in its
        next forward pass; if they are lost, `rank`'s are used.
        """
        divided = self.count > 1
        own = self.own_of_part(rank) if divided else self.own_of(0) or self.own_of(rank)
        return {**self.parts[rank if divided else 0].get("buffers", {}), **(own or {}).get("buffers", {})}

    def own_of(self, rank: int) -> Any:
        """Returns a rank's own state in the attempt that made this state; None if it is lost."""
        return self._own.get(rank)

    def own_of_part(self, part: int) -> Any:
        """Returns the own state of the rank that wrote a part; None if it is lost."""
        return self.own_of(self.parts[part].get("rank", part))


def newest(
    place: Place,
    group: Group,
    say: Callable[[str], None],
    memory: Path | None,
    disk: Path | None = None,
    than: tuple[int, int] = (0, 0),
    *,
    all_parts: bool = False,
) -> Iterator[Found]:
    """Yields the states in `memory` or on `disk` that aren't older than `than`, the newest first; collective.

    `than` consists of attempt and step. Every rank gets the same sequence.

    If a state has as many parts as this attempt's states, a rank gets only its own part. Otherwise, or with
    `all_parts`, it gets all parts.
    """
    here = dict[Seal, Path]()
    for directory in filter(None, (disk, memory)):
        found, wrong = sealed.sealed_files(directory, place.job, adopting=directory == disk)
        here |= found
        for sentence in wrong:
            say(f"state passed over: {sentence}")
    claims = _claims(group.gather([vars(seal) for seal in here]), place.attempt)
    for age in sorted({seal.age for seal in claims if seal.age >= than}, reverse=True):
        # If a step was saved both whole and in parts, the whole state is preferred.
        for count in sorted({seal.parts for seal in claims if seal.age == age}):
            holders = {seal: ranks for seal, ranks in claims.items() if seal.age == age and seal.parts == count}
            missing = set(range(count)) - {seal.part for seal in holders}
            if missing:
                say(f"state passed over: step {age[1]} lacks {len(missing)} of its {count} parts")
                continue
            in_all, part = place.part(True)
            needed = {part} if count == in_all and not all_parts else set(range(count))
            parts = _parts(group, say, here, holders, count, needed)
            if parts is not None:
                own = _own(place, group, memory, *age)
                for part, content in parts.items():
                    # A part contains its writer's own state (in memory) or all ranks' own states (on a disk).
                    own |= {content.get("rank", part): content["own"]} if "own" in content else {}
                    own |= _decoded(dict(enumerate(content.get("ranks", []))))
                yield Found(next(iter(holders)), parts, own)


def _claims(gathered: list[Any], attempt: int) -> dict[Seal, list[int]]:
    """Returns the seals from `attempt` or earlier attempts, each with the ranks that claim to hold its state."""
    claims = dict[Seal, list[int]]()
    for rank, plain in enumerate(gathered):
        for seal in map(sealed.seal_of, plain[:_MOST_SEALS] if isinstance(plain, list) else []):
            if seal is not None and seal.attempt <= attempt:
                claims.setdefault(seal, []).append(rank)
    return claims


def _parts(
    group: Group,
    say: Callable[[str], None],
    here: dict[Seal, Path],
    holders: dict[Seal, list[int]],
    count: int,
    needed: set[int],
) -> dict[int, Any] | None:
    """Returns the parts that this rank needs; None, on every rank, if any part is unavailable."""
    parts = dict[int, Any]()
    for part in range(count):
        for seal in sorted(seal for seal in holders if seal.part == part):
            data = _from_holders(group, say, here.get(seal), seal, holders[seal], part in needed)
            state, problem = None, None
            if data is not None and part in needed:
                try:
                    state = decode(data)
                    if not isinstance(state, dict) or "state" not in state:
                        problem = "it is no state of a run"
                except EncodingError as error:
                    problem = str(error)
            good = group.gather(data is not None and problem is None)
            if problem:
                say(f"state passed over: step {seal.step}: {problem}")
            if all(good):
                if part in needed:
                    parts[part] = state
                break
        else:
            return None
    return parts


def _from_holders(
    group: Group, say: Callable[[str], None], file: Path | None, seal: Seal, ranks: list[int], needed: bool
) -> torch.Tensor | None:
    """Returns the state's bytes, or no bytes if this rank neither needs nor holds them.

    Returns None on every rank if a rank needs the bytes and no holder could send them.

    A holder sends the bytes to one rank at a time. Each receiver becomes a holder, so their number doubles every round.
    """
    own: torch.Tensor | None = None
    if file is not None:
        try:
            own = sealed.read(file, seal)
        except SealError as error:
            say(f"state passed over: {error}")
    there = group.gather([own is not None, needed])
    holders = [rank for rank in ranks if there[rank][0]]
    lacking = [rank for rank, (has, needs) in enumerate(there) if needs and not has]
    while lacking and holders:
        pairs = list(zip(holders, lacking, strict=False))
        problem = None
        for source, target in pairs:
            if group.rank == source:
                group.pass_on(own, target, _NOTHING, target)
            elif group.rank == target:
                data = torch.empty(seal.size, dtype=torch.uint8)
                group.pass_on(None, source, data, source)
                try:
                    own = sealed.verified(data, seal, f"what rank {source} has sent of step {seal.step}")
                except SealError as error:
                    problem = str(error)
                    say(f"state passed over: {problem}")
        problems = group.gather(problem)
        holders = [rank for rank in holders if not any(source == rank and problems[to] for source, to in pairs)]
        holders += [target for _, target in pairs if not problems[target]]
        lacking = [rank for rank in lacking if rank not in holders]
    if lacking:
        return None
    return own if own is not None else _NOTHING


def _own(place: Place, group: Group, memory: Path | None, attempt: int, step: int) -> dict[int, Any]:
    """Returns the own states, by rank, that the ranks of the attempt left after `step`."""
    left = slots.read(memory, place.job, attempt, step) if memory else {}
    own = dict[int, Any]()
    for gathered in group.gather({str(rank): content.hex() for rank, content in left.items()}):
        own |= _decoded(gathered)
    return own


def _decoded(contents: Any) -> dict[int, Any]:
    """Returns the ranks' own states that can be decoded; the others are left out."""
    own = dict[int, Any]()
    for rank, content in contents.items() if isinstance(contents, dict) else ():
        try:
            own[int(rank)] = decode(torch.frombuffer(bytearray.fromhex(content), dtype=torch.uint8))
        except (ValueError, TypeError):
            continue
    return own


def _plain(message: torch.Tensor) -> Any:
    try:
        return json.loads(message.numpy().tobytes())
    except (ValueError, RecursionError):
        return None
