"""What a rank has alone, its random generators and the buffers that its steps change, is copied into the pod's memory
in every step.

It lies in a file that the rank has mapped, so a step costs a copy and no call of the kernel, and what was copied
outlives a rank that is killed. The file has a slot for each of the last steps, as many as the host may be ahead of the
device, and two for the newest snapshot and the one before. A slot's head is emptied before its content is written, and
written after it. What is on a device gets there through a copy on the device, by a queue of its own, and a stamp that
follows it: the host never waits.

Most buffers never change (masks, positions), and those go with a state itself. A tensor's version counter says which,
but torch's own batch normalisation doesn't count, nor does what writes to `.data`: floating numbers in a row always
count as changed, and after the first step all others are compared with what they were.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainloop.recovery import generators, room
from trainloop.recovery.device import Device, Event
from trainloop.recovery.encoding import ALIGNMENT, Encoded
from trainloop.recovery.place import Place
from trainloop.recovery.sealed import remove
from trainloop.recovery.steps import KEPT

#: Job (its checksum), attempt, step, rank, bytes of what is encoded, and whether a stamp is to say that it is there.
_HEAD = struct.Struct("<IQQIQ?")
_STAMP = struct.Struct("<Q")
#: Bytes of a slot before its content: the head, and behind it the stamp.
_BEFORE = 2 * ALIGNMENT
_SLOTS = KEPT + 2
_SUFFIX = ".slots"
_PARTIAL = ".partial"

Buffers = Callable[[], list[tuple[str, torch.Tensor]]]


def buffers_of(model: nn.Module, names: Iterable[str] | None = None) -> Buffers:
    """Returns what lists a model's buffers by name, of all or of `names`; looking for them takes longer than a step of
    a small model.
    """
    wanted = None if names is None else set(names)
    places = [
        (name, model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
        for name, _ in model.named_buffers()
        if wanted is None or name in wanted
    ]

    def found() -> list[tuple[str, torch.Tensor]]:
        tensors = ((name, owner._buffers.get(key)) for name, owner, key in places)
        return [(name, getattr(each, "_local_tensor", each)) for name, each in tensors if each is not None]

    return found


class Slots:
    """Writes one rank's slots."""

    def __init__(self, place: Place, directory: Path, device: Device, buffers: Buffers) -> None:
        self._file = directory / f"{place.attempt}-{place.rank}{_SUFFIX}"
        self._place, self._device, self._buffers = place, device, buffers
        self._mapped: mmap.mmap | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._capacity = 0
        self._kept = KEPT  # the slot of the newest snapshot: this or the next one
        self._layout: _Layout | None = None
        #: Each buffer as it was at the attempt's begin: the tensor, its version, and its values on the host.
        self._first = {
            name: (each, each._version, each.detach().to("cpu", copy=True)) for name, each in self._buffers()
        }
        #: Those that have changed since, or may have.
        self._changed = {name for name, each in self._buffers() if each.dim() == 1 and each.is_floating_point()}
        self._written = [_Written() for _ in range(KEPT)]
        self._before = list[torch.Tensor]()
        self._stream = device.stream()
        #: Why the file isn't pinned, where it isn't.
        self.unpinned: str | None = None

    @torch.no_grad()
    def write(self, step: int) -> None:
        """Write what is to outlive this rank as it is after `step`. Raises OSError where there is no room for it."""
        random, named, number = generators.packed(self._device.device), self._buffers(), step % KEPT
        self._changed |= {name for name, each in named if name not in self._changed and not self._is_first(name, each)}
        tensors = [(name, tensor) for name, tensor in named if name in self._changed]
        versions = [(tensor, tensor._version) for _, tensor in tensors]
        written, layout = self._written[number], self._laid_out(random, tensors)
        as_before = written.step == step and written.layout is layout and _are_same(written.versions, versions)
        if as_before and written.random == random:
            return
        self._begin(number, layout, random)
        if not as_before:
            if written.sent is not None:
                self._device.wait(written.sent)  # what this place had is on its way from there
            layout.fill(self._device, number, [tensor for _, tensor in tensors], step)
        sent = self._end(number, layout, step, number)
        self._written[number] = _Written(step, random, versions, layout, sent)

    def compare(self) -> None:
        """See which buffers the first step has changed; waits for the device."""
        self._changed |= {
            name
            for name, each in self._buffers()
            if name not in self._changed
            and not (name in self._first and torch.equal(each.detach().cpu(), self._first[name][2]))
        }

    def keep(self, step: int) -> None:
        """Keep what was written after `step`, the newest, until that was done twice more: a snapshot goes with it."""
        written = self._written[step % KEPT]
        if written.step != step or written.layout is None:
            return
        self._kept = 2 * KEPT + 1 - self._kept
        self._begin(self._kept, written.layout, written.random)
        written.sent = self._end(self._kept, written.layout, step, step % KEPT)

    def own(self, step: int) -> dict[str, Any] | None:
        """Returns what was written after `step`, of the last few, where it lies; None where that isn't there."""
        written = self._written[step % KEPT]
        if written.step != step or written.layout is None:
            return None
        buffers = dict(zip(written.layout.names, written.layout.views[step % KEPT], strict=True))
        return {"random": generators.as_tensor(written.random), "buffers": buffers}

    def constant(self, step: int) -> dict[str, torch.Tensor]:
        """Returns the buffers that aren't in what was written after `step`: nothing had changed them by then."""
        written = self._written[step % KEPT]
        there = written.layout.names if written.step == step and written.layout else ()
        return {
            name: tensor if self._is_first(name, tensor) else self._first[name][2]
            for name, tensor in self._buffers()
            if name not in there and name in self._first
        }

    def _is_first(self, name: str, tensor: torch.Tensor) -> bool:
        first = self._first.get(name)
        return first is not None and tensor is first[0] and tensor._version == first[1]

    def _laid_out(self, random: bytes, tensors: list[tuple[str, torch.Tensor]]) -> _Layout:
        """Returns how slots are laid out, for what is to be written; anew where that has changed."""
        key = (len(random), [(name, each.shape, each.dtype) for name, each in tensors])
        if self._layout is None or self._layout.key != key:
            layout = _Layout(key, random, tensors)
            if layout.encoded.size > self._capacity:
                self._make(layout.encoded.size)
            layout.place(self._device, [self._content(number) for number in range(KEPT)])
            self._layout = layout
        return self._layout

    def _content(self, number: int) -> torch.Tensor:
        begin = number * (_BEFORE + self._capacity)
        return self._memory[begin + _BEFORE : begin + _BEFORE + self._capacity]

    def _begin(self, number: int, layout: _Layout, random: bytes) -> None:
        """Write into a slot what the host has; it has no head then."""
        assert self._mapped is not None
        begin, text = number * (_BEFORE + self._capacity), layout.encoded.text
        self._mapped[begin : begin + _HEAD.size] = bytes(_HEAD.size)
        begin += _BEFORE
        self._mapped[begin : begin + len(text)] = text
        self._mapped[begin + len(text) : begin + len(text) + len(random)] = random

    def _end(self, number: int, layout: _Layout, step: int, source: int) -> Event | None:
        """Bring into a slot what lies elsewhere, in the place `source`, and write the head. Returns what then is there
        when the place may be used again.
        """
        content, sent = self._content(number)[layout.begin : layout.encoded.size], None
        if layout.stamps:
            begin = number * (_BEFORE + self._capacity) + ALIGNMENT
            filled = self._device.event()
            with self._device.on(self._stream):
                self._device.wait(filled)
                self._device.copy([content], [layout.memory[source]])
                self._device.copy([self._memory[begin : begin + _STAMP.size]], [layout.stamps[source]])
                sent = self._device.event()
        elif number != source:
            content.copy_(layout.memory[source])
        place = self._place
        head = (
            zlib.crc32(place.job.encode()),
            place.attempt,
            step,
            place.rank,
            layout.encoded.size,
            bool(layout.stamps),
        )
        assert self._mapped is not None
        begin = number * (_BEFORE + self._capacity)
        self._mapped[begin : begin + _HEAD.size] = _HEAD.pack(*head)
        return sent

    def _make(self, needed: int) -> None:
        """Make a file with slots of at least so many bytes, in place of a smaller one, whose content it gets."""
        capacity = needed + needed // 8
        capacity += -capacity % mmap.PAGESIZE
        size = _SLOTS * (_BEFORE + capacity)
        if lacking := room.lacking(self._file.parent, size):
            raise OSError(lacking)
        partial = self._file.with_name(f"{self._file.name}.{os.getpid()}{_PARTIAL}")
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as stream:
            # All of it now: where memory ends later, a copy into a mapped file is a SIGBUS.
            os.posix_fallocate(stream.fileno(), 0, size)
            mapped = mmap.mmap(stream.fileno(), size)
        if (old := self._mapped) is not None:
            before, after = _BEFORE + self._capacity, _BEFORE + capacity
            for number in range(_SLOTS):
                mapped[number * after : number * after + before] = old[number * before : (number + 1) * before]
        # The file before stays mapped: a queue may be writing to it.
        self._before.append(self._memory)
        self._mapped, self._capacity = mapped, capacity
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self.unpinned = self._device.pin(self._memory)
        partial.rename(self._file)

    def close(self) -> None:
        """Delete the file."""
        remove(self._file)


class _Layout:
    """How a slot's content is laid out, and where the buffers' values are put in each step: in the slots themselves, or
    on their device.
    """

    def __init__(self, key: Any, random: bytes, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.key, self.names = key, [name for name, _ in tensors]
        self.encoded = Encoded({"random": generators.as_tensor(random), "buffers": dict(tensors)})
        #: Where the buffers' bytes begin, and, from there, those of each.
        self.begin = len(self.encoded.text) + len(random) + -len(random) % ALIGNMENT
        self._places = [(each, len(self.encoded.text) + begin - self.begin) for each, begin in self.encoded.tensors[1:]]
        self.encoded.tensors = []
        self.memory: list[torch.Tensor] = []
        self.views: list[list[torch.Tensor]] = []
        self.stamps: list[torch.Tensor] = []

    def place(self, device: Device, contents: list[torch.Tensor]) -> None:
        size = self.encoded.size - self.begin
        if device.queues and self._places:
            self.memory = [torch.empty(size, dtype=torch.uint8, device=device.device) for _ in contents]
            self._steps = torch.zeros(len(contents), dtype=torch.int64, pin_memory=device.device.type == "cuda")
            stamps = torch.zeros(len(contents), dtype=torch.int64, device=device.device)
            self.stamps = [each.reshape(1).view(torch.uint8) for each in stamps.unbind()]
        else:
            self.memory = [content[self.begin : self.encoded.size] for content in contents]
        for memory in self.memory:
            self.views.append([])
            for tensor, begin in self._places:
                view = memory[begin:][: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
                self.views[-1].append(view)
        self._places = []

    def fill(self, device: Device, number: int, tensors: list[torch.Tensor], step: int) -> None:
        """Copy the buffers to their place; those of a type together, because torch does so in one kernel."""
        groups = dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]]()
        for view, tensor in zip(self.views[number], tensors, strict=True):
            views, sources = groups.setdefault(tensor.dtype, ([], []))
            views.append(view)
            sources.append(tensor)
        for views, sources in groups.values():
            device.copy(views, sources)
        if self.stamps:
            self._steps[number] = step
            device.copy([self.stamps[number]], [self._steps[number : number + 1].view(torch.uint8)])


def _are_same(some: list[tuple[torch.Tensor, int]], others: list[tuple[torch.Tensor, int]]) -> bool:
    """Returns whether these are the same tensors in the same versions."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a is b and m == n for (a, m), (b, n) in pairs)


@dataclass
class _Written:
    """What a place has."""

    step: int = -1
    random: bytes = b""
    versions: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    layout: _Layout | None = None
    sent: Event | None = None


def read(directory: Path, job: str, attempt: int, step: int) -> dict[int, bytes]:
    """Returns what ranks have left in `directory` of a step, by rank. What isn't whole is left out."""
    found = dict[int, bytes]()
    for file in directory.glob(f"{attempt}-*{_SUFFIX}"):
        try:
            data = memoryview(file.read_bytes())
        except OSError:
            continue
        size = len(data) // _SLOTS
        for slot in (data[number * size : (number + 1) * size] for number in range(_SLOTS)):
            if len(slot) < _BEFORE:
                continue
            owner, of, at, rank, length, stamped = _HEAD.unpack_from(slot)
            if (owner, of, at) != (zlib.crc32(job.encode()), attempt, step) or not length:
                continue
            if length <= len(slot) - _BEFORE and (not stamped or _STAMP.unpack_from(slot, ALIGNMENT) == (step,)):
                found[rank] = bytes(slot[_BEFORE : _BEFORE + length])
    return found


def clean(directory: Path, attempts: set[int | None]) -> None:
    """Delete what ranks have left of other attempts than these."""
    for file in directory.glob(f"*{_SUFFIX}"):
        if file.name.partition("-")[0] not in map(str, attempts):
            remove(file)
