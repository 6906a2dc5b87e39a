"""The ranks of a new attempt agree on the newest state that is held anywhere, and who lacks it is given it.

Every rank says what it sees in its worker's memory: seals, which are small. All come to the same order of candidates,
the newest first, and try one after the other. Of a state the first holder whose bytes have the checksum counts; a
holder that can't give what it has claimed, or gives something else, is passed over with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainloop.recovery import sealed, slots
from trainloop.recovery.encoding import EncodingError, decode
from trainloop.recovery.place import Place
from trainloop.recovery.sealed import Seal, SealError

#: Bytes that travel in one broadcast.
CHUNK = 16 << 20
#: No message of what a rank sees is longer.
_MOST_BYTES = 256 << 20
#: Seals that one rank may name.
_MOST_SEALS = 1024


class Group:
    """All ranks exchange bytes, on the host. One rank alone needs no group."""

    def __init__(self, place: Place, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self._group = place.rank, place.ranks, group

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's plain value, in rank order; None for what isn't one."""
        if self.size == 1:
            return [value]
        message = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(message)]), self._group)
        longest = max(int(length) for length in lengths)
        if longest > _MOST_BYTES:
            raise EncodingError(f"a rank has sent {longest:,} bytes, more than any has to say")
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded, self._group)
        return [_plain(one[: int(length)]) for one, length in zip(found, lengths, strict=True)]

    def broadcast(self, data: torch.Tensor, source: int) -> None:
        """Send the bytes of the rank `source` to all others, who have memory of the same size for them."""
        for chunk in torch.split(data, CHUNK):
            dist.broadcast(chunk, source, self._group)


class Found:
    """A state that all ranks have agreed on, where it may be had, and what each rank of then has left of its own."""

    def __init__(self, attempt: int, step: int, parts: dict[int, Any], own: dict[int, Any], ranks: int) -> None:
        self.attempt, self.step = attempt, step
        #: The state, by part; one that was in one part has the part 0 alone.
        self.parts = parts
        #: The ranks' own states, by the rank of then, as far as they were left, and how many ranks there were.
        self.own, self.ranks = own, ranks


def newest(place: Place, group: Group, say: Callable[[str], None], than: tuple[int, int]) -> Iterator[Found]:
    """Yields the newest state in memory that isn't older than `than` (attempt and step), and then, if the caller wants
    another, the next; the same on every rank. Collective.
    """
    here, wrong = sealed.sealed_files(place.directory, place.job)
    for sentence in wrong:
        say(f"state in memory passed over: {sentence}")
    claims = _claims(group.gather([vars(seal) for seal in here]), place.attempt)
    for age in sorted({seal.age for seal in claims if seal.age >= than}, reverse=True):
        # Of a step that was saved in one piece and by parts, the one piece.
        for count in sorted({seal.parts for seal in claims if seal.age == age}):
            holders = {seal: ranks for seal, ranks in claims.items() if seal.age == age and seal.parts == count}
            missing = set(range(count)) - {seal.part for seal in holders}
            if missing:
                say(f"state in memory passed over: step {age[1]} lacks {len(missing)} of its {count} parts")
                continue
            parts = _parts(place, group, say, here, holders, count)
            if parts is not None:
                yield Found(*age, parts, *_own(place, group, *age))


def _claims(gathered: list[Any], attempt: int) -> dict[Seal, list[int]]:
    """Returns which ranks say that they hold what, of attempts up to this one."""
    claims = dict[Seal, list[int]]()
    for rank, plain in enumerate(gathered):
        for seal in map(sealed.seal_of, plain[:_MOST_SEALS] if isinstance(plain, list) else []):
            if seal is not None and seal.attempt <= attempt:
                claims.setdefault(seal, []).append(rank)
    return claims


def _parts(
    place: Place,
    group: Group,
    say: Callable[[str], None],
    here: dict[Seal, Path],
    holders: dict[Seal, list[int]],
    count: int,
) -> dict[int, Any] | None:
    """Returns the parts that this rank needs, or None, on every rank, where some part can't be had."""
    needed = {place.rank} if count == group.size else set(range(count))
    parts = dict[int, Any]()
    for part in range(count):
        for seal in sorted(seal for seal in holders if seal.part == part):
            data = _from_holders(group, say, here.get(seal), seal, holders[seal], part in needed)
            state, problem = None, None
            if data is not None and part in needed:
                try:
                    state = decode(data)
                except EncodingError as error:
                    problem = str(error)
            good = group.gather(data is not None and problem is None)
            if problem:
                say(f"state in memory passed over: step {seal.step}: {problem}")
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
    """Returns the state's bytes, empty where this rank has no use for them; None, on every rank, where no holder has
    given them.
    """
    own: torch.Tensor | None = None
    if file is not None:
        try:
            own = sealed.read(file, seal)
        except SealError as error:
            say(f"state in memory passed over: {error}")
    there = group.gather([own is not None, needed])
    lacking = [rank for rank, (has, needs) in enumerate(there) if needs and not has]
    for source in (rank for rank in ranks if there[rank][0]):
        if not lacking:
            return own if own is not None else torch.empty(0, dtype=torch.uint8)
        # Others than the source receive it beside their own, in a broadcast of all.
        data = own if source == group.rank else torch.empty(seal.size, dtype=torch.uint8)
        assert data is not None
        group.broadcast(data, source)
        problem = None
        if group.rank in lacking:
            try:
                own = sealed.verified(data, seal, f"what rank {source} has sent of step {seal.step}")
            except SealError as error:
                problem = str(error)
        if not any(group.gather(problem)):
            return own if own is not None else torch.empty(0, dtype=torch.uint8)
        if problem:
            say(f"state in memory passed over: {problem}")
            own = None
    return None


def _own(place: Place, group: Group, attempt: int, step: int) -> tuple[dict[int, Any], int]:
    """Returns what the ranks of the attempt have left of their own after `step`, by rank, and how many they were."""
    left = slots.read(place.directory, place.job, attempt, step)
    mine = {str(rank): [ranks, content.hex()] for rank, (ranks, content) in left.items()}
    own, count = dict[int, Any](), 0
    for gathered in group.gather(mine):
        for rank, entry in gathered.items() if isinstance(gathered, dict) else ():
            try:
                ranks, content = int(entry[0]), bytes.fromhex(entry[1])
                own[int(rank)] = decode(torch.frombuffer(bytearray(content), dtype=torch.uint8))
                count = max(count, ranks)
            except (ValueError, TypeError, LookupError):
                continue  # that rank's generators are seeded anew, as those of one that has left nothing
    return own, count


def _plain(message: torch.Tensor) -> Any:
    try:
        return json.loads(message.numpy().tobytes())
    except (ValueError, RecursionError):
        return None
