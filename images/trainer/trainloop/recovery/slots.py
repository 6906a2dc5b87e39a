"""A rank's own state, its random generators and changing buffers, is copied into the pod's memory in every step.

The rank maps the file of its slots into memory, so a step costs a copy and no system call, and the copy outlives a rank
that is killed. The file has a slot for each step that may still be needed while the host is ahead of the device
(`steps.KEPT`), and two slots for the newest snapshot and the previous one. A slot's head is emptied before its content
is written, and written afterwards. A device's tensors are first copied on the device, then to the host on a separate
queue, followed by a stamp. So the host never waits.

Most buffers, such as masks and positions, never change, and are kept with the state itself instead. A tensor's version
counter shows most changes, but not those by torch's own batch normalisation or by a write to `.data`. So floating-point
vectors always count as changed, and after the first step all other buffers are compared with their first values.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Container
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

#: The job's checksum, attempt, step, rank, bytes of the encoded content, and whether a stamp must confirm the slot.
_HEAD = struct.Struct("<IQQIQ?")
_STAMP = struct.Struct("<Q")
#: Bytes of a slot before its content: the head, followed by the stamp.
_BEFORE = 2 * ALIGNMENT
_SLOTS = KEPT + 2
_SUFFIX = ".slots"


#: The value for a buffer that was removed.
_GONE = torch.empty(0)


class Buffers:
    """This class looks up a model's buffers, or only those in `names`, once.

    Looking them up in each step would take longer than a small model's step.
    """

    def __init__(self, model: nn.Module, names: Container[str] | None = None) -> None:
        self.names = [name for name, _ in model.named_buffers() if names is None or name in names]
        places = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in self.names]
        self._places = [(owner._buffers, key) for owner, key in places]

    def now(self) -> list[torch.Tensor]:
        """Returns the tensors in the order of `names`; for a sharded tensor, this rank's part of it."""
        tensors = (owner.get(key) for owner, key in self._places)
        return [_GONE if each is None else getattr(each, "_local_tensor", each) for each in tensors]

    def named(self) -> dict[str, torch.Tensor]:
        return {name: each for name, each in zip(self.names, self.now(), strict=True) if each is not _GONE}


class Slots:
    """These are one rank's slots in the pod's memory."""

    def __init__(self, place: Place, directory: Path, device: Device, buffers: Buffers) -> None:
        self._file = directory / f"{place.attempt}-{place.rank}{_SUFFIX}"
        self._place, self._device, self._buffers = place, device, buffers
        self._mapped: mmap.mmap | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._capacity = 0
        self._kept = [-1, -1]  # the steps in the last two slots, those of snapshots
        self._layout: _Layout | None = None
        tensors = buffers.now()
        #: Each buffer at the beginning of the attempt: its tensor and version, and a copy of its values on the host.
        self._first, self._firsts = _marks(tensors), tensors
        self._values = [each.detach().to("cpu", copy=True) for each in tensors]
        #: The indices of the buffers that have changed since the beginning, or may have changed.
        self._changed = [number for number, each in enumerate(tensors) if each.dim() == 1 and each.is_floating_point()]
        self._written = [_Written() for _ in range(KEPT)]
        self._before = list[torch.Tensor]()
        self._stream = device.stream()

    def write(self, step: int) -> None:
        """Write this rank's own state after `step`. Raises OSError if there is no room for it."""
        random, tensors, number = generators.packed(self._device.device), self._buffers.now(), step % KEPT
        written, marks = self._written[number], _marks(tensors)
        as_before = written.step == step and written.marks == marks
        if as_before and written.random == random:
            return
        if len(self._changed) < len(tensors):
            known = set(self._changed)
            self._add({each for each, mark in enumerate(marks) if mark != self._first[each] and each not in known})
        changed = [tensors[each] for each in self._changed]
        layout = self._laid_out(random, changed)
        self._begin(number, layout, random)
        if not as_before or written.layout is not layout:
            if written.sent is not None:
                self._device.wait(written.sent)  # the slot's previous content may still be being copied to the host
            with torch.no_grad():
                layout.fill(self._device, number, changed, step)
        sent = self._end(number, layout, step, number)
        self._written[number] = _Written(step, random, tensors, marks, layout, sent)

    def compare(self) -> None:
        """Find the buffers that the first step has changed. Waits for the device."""
        pairs = enumerate(zip(self._buffers.now(), self._values, strict=True))
        self._add({number for number, (each, first) in pairs if not torch.equal(each.detach().cpu(), first)})

    def _add(self, changed: set[int]) -> None:
        if not changed <= set(self._changed):
            self._changed = sorted({*self._changed, *changed})

    def keep(self, step: int, other: int) -> None:
        """Copy the content of `step`, which is the newest, into a snapshot's slot; the step `other` keeps its slot."""
        written = self._written[step % KEPT]
        if written.step != step or written.layout is None:
            return
        place = 1 if self._kept[0] == other else 0
        self._kept[place] = step
        self._begin(KEPT + place, written.layout, written.random)
        written.sent = self._end(KEPT + place, written.layout, step, step % KEPT)

    def wait(self, step: int) -> None:
        """Wait until the content of `step`, which the device has made, is in the pod's memory."""
        written = self._written[step % KEPT]
        if written.step == step and written.sent is not None:
            written.sent.synchronize()

    def own(self, step: int) -> dict[str, Any] | None:
        """Returns the own state after `step`, one of the last few steps, without copying; None if it wasn't written."""
        written = self._written[step % KEPT]
        if written.step != step or written.layout is None:
            return None
        buffers = dict(zip(written.layout.names, written.layout.views[step % KEPT], strict=True))
        return {"random": generators.as_tensor(written.random), "buffers": buffers}

    def constant(self, step: int) -> dict[str, torch.Tensor]:
        """Returns the buffers that aren't in the content of `step`, because no step had changed them."""
        written, tensors = self._written[step % KEPT], self._buffers.now()
        there = written.layout.names if written.step == step and written.layout else ()
        firsts = zip(_marks(tensors), self._first, strict=True)
        values = [
            now if mark == first else value
            for now, value, (mark, first) in zip(tensors, self._values, firsts, strict=True)
        ]
        return {name: value for name, value in zip(self._buffers.names, values, strict=True) if name not in there}

    def _laid_out(self, random: bytes, changed: list[torch.Tensor]) -> _Layout:
        """Returns the layout of slots with this content, a new one if the content's form has changed."""
        key = (len(random), self._changed, [(each.shape, each.dtype) for each in changed])
        if self._layout is None or self._layout.key != key:
            names = [self._buffers.names[number] for number in self._changed]
            layout = _Layout(key, random, dict(zip(names, changed, strict=True)))
            if layout.encoded.size > self._capacity:
                self._make(layout.encoded.size)
            layout.place(self._device, [self._content(number) for number in range(KEPT)])
            self._layout = layout
        return self._layout

    def _content(self, number: int) -> torch.Tensor:
        begin = number * (_BEFORE + self._capacity)
        return self._memory[begin + _BEFORE : begin + _BEFORE + self._capacity]

    def _begin(self, number: int, layout: _Layout, random: bytes) -> None:
        """Write the part of the content that is on the host into a slot, and leave the slot's head empty."""
        assert self._mapped is not None
        begin, text = number * (_BEFORE + self._capacity), layout.encoded.text
        self._mapped[begin : begin + _HEAD.size] = bytes(_HEAD.size)
        begin += _BEFORE
        self._mapped[begin : begin + len(text)] = text
        self._mapped[begin + len(text) : begin + len(text) + len(random)] = random

    def _end(self, number: int, layout: _Layout, step: int, source: int) -> Event | None:
        """Copy the content of the slot `source` into the slot `number`, and write the head.

        Returns the event after which the device's copy of `source` may be overwritten; None if there is none.
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
        """Replace the file by a larger one with at least `needed` bytes for each slot's content; copies the slots."""
        capacity = needed + needed // 8
        capacity += -capacity % mmap.PAGESIZE
        size = _SLOTS * (_BEFORE + capacity)
        with room.made(self._file, size) as stream:
            mapped = mmap.mmap(stream.fileno(), size)
            if (old := self._mapped) is not None:
                before, after = _BEFORE + self._capacity, _BEFORE + capacity
                for number in range(_SLOTS):
                    mapped[number * after : number * after + before] = old[number * before : (number + 1) * before]
        # The old file stays mapped, because a device's queue may be writing to it.
        self._before.append(self._memory)
        self._mapped, self._capacity = mapped, capacity
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self._device.pin(self._memory)  # a failure is reported with the state's files

    def close(self) -> None:
        """Delete the file."""
        remove(self._file)


class _Layout:
    """A layout decides where a slot's content lies.

    The buffers are copied into the slots themselves or, on a device with a queue, into memory on the device first.
    """

    def __init__(self, key: Any, random: bytes, buffers: dict[str, torch.Tensor]) -> None:
        self.key, self.names, self._buffers = key, list(buffers), list(buffers.values())
        self.encoded = Encoded({"random": generators.as_tensor(random), "buffers": buffers})
        #: The offset of the buffers' bytes in the content, and each buffer's offset from there.
        self.begin = len(self.encoded.text) + len(random) + -len(random) % ALIGNMENT
        self._places = [(each, len(self.encoded.text) + begin - self.begin) for each, begin in self.encoded.tensors[1:]]
        self.encoded.tensors = []
        kinds = dict[torch.dtype, list[int]]()
        for each, tensor in enumerate(self._buffers):
            kinds.setdefault(tensor.dtype, []).append(each)
        self._kinds = list(kinds.values())
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
        """Copy the buffers to their places, type by type, because torch copies tensors of one type in one kernel."""
        for kind in self._kinds:
            device.copy([self.views[number][each] for each in kind], [tensors[each] for each in kind])
        if self.stamps:
            self._steps[number] = step
            device.copy([self.stamps[number]], [self._steps[number : number + 1].view(torch.uint8)])


def _marks(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Returns marks that stay equal as long as the tensors are the same, in the same versions, and aren't freed."""
    return [(id(each), each._version) for each in tensors]


@dataclass
class _Written:
    """This is what was last written to one slot."""

    step: int = -1
    random: bytes = b""
    tensors: list[torch.Tensor] = field(default_factory=list)
    marks: list[tuple[int, int]] | None = None
    layout: _Layout | None = None
    sent: Event | None = None


def read(directory: Path, job: str, attempt: int, step: int) -> dict[int, bytes]:
    """Returns the complete contents of slots that ranks left in `directory` for a step, by rank."""
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
    """Delete the files of all attempts except `attempts`."""
    for file in directory.glob(f"*{_SUFFIX}"):
        if file.name.partition("-")[0] not in map(str, attempts):
            remove(file)
