"""A model is created on the meta device, and its weights are computed later, one by one.

The constructor's operations are recorded, and computed in the same order once the model is sharded. So they draw the
same random numbers and give the same weights as usual. A whole weight is dropped after its last operation, so a rank
never holds more than its shards and the current weight. If a weight is set twice (by torch's initialisation and then by
the model's), it isn't kept in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from trainloop.errors import listed

#: Operations that are computed immediately: constructors read their results. They are small and draw no random numbers.
_AT_ONCE = ("aten::arange", "aten::linspace", "aten::logspace", "aten::scalar_tensor")
_EMPTY = ("aten::empty", "aten::empty_strided")
#: In-place operations whose result doesn't depend on the previous content.
_OVERWRITES = ("aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_", "aten::copy_", "aten::bernoulli_")


class Slot(NamedTuple):
    """A slot identifies a tensor without values by its storage and its place in the storage."""

    storage: int
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


@dataclass
class Call:
    """A call is a recorded operation, in which Slots replace tensors without values."""

    function: Callable[..., Any]
    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: list[Slot | torch.Tensor]
    #: The random generator's state if it was set since the previous call that used it, else None.
    random: torch.Tensor | None

    def storages(self) -> set[int]:
        found = tree_leaves((self.arguments, self.keywords), is_leaf=_is_slot)
        return {slot.storage for slot in [*found, *self.results] if isinstance(slot, Slot)}


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """This mode records the operations in the `with` body, whose tensors have no values.

    In the body these tensors appear to be on the CPU, because libraries skip initialisation on the meta device. If the
    body needs a tensor's value, torch or this class raises RuntimeError or NotImplementedError.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._storages: dict[int, torch.UntypedStorage] = {}  # kept, so that no other storage gets the same address
        self._states: dict[torch.Generator, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, name = kwargs or {}, func._schema.name
        given, written = _tensors((args, keywords)), _written(func, args, keywords)
        random = torch.Tag.nondeterministic_seeded in func.tags
        deferred = random or any(map(_is_fake, given)) or (not given and name not in _AT_ONCE)
        if not deferred:
            with _disable_current_modes():
                return func(*args, **keywords)
        if not all(map(_is_fake, written)):
            raise NotImplementedError(f"{name} changes a tensor that has values")
        made = func(*args, **keywords)
        results, shared = _tensors(made), {tensor.untyped_storage()._cdata for tensor in given}
        if written or any(result.untyped_storage()._cdata not in shared for result in results):  # else a view
            self.record(func, name, args, keywords, results, random)
        return made

    def record(
        self, function: Any, name: str, args: Any, keywords: Any, results: list[torch.Tensor], random: bool
    ) -> None:
        state = self._state(keywords.get("generator") or torch.default_generator) if random else None
        arguments, named = (tree_map_only(torch.Tensor, self.slot, one) for one in (args, keywords))
        self.calls.append(Call(function, name, arguments, named, [self.slot(result) for result in results], state))

    def truncated(self, whole: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Returns a replacement for torch's `trunc_normal_`, which records the whole function as one operation.

        The original draws repeatedly until all values are within the limits, so it needs values.
        """

        def trunc_normal(tensor: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
            self.record(whole, "aten::normal_", (tensor, *args), keywords, [tensor], random=True)
            return tensor

        return trunc_normal

    def slot(self, tensor: torch.Tensor) -> Slot | torch.Tensor:
        """Returns the slot of a tensor without values; a copy of any other tensor."""
        if not _is_fake(tensor):
            with _disable_current_modes():
                return tensor.detach().clone()  # a later operation may change it
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return Slot(storage._cdata, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())

    def _state(self, generator: torch.Generator) -> torch.Tensor | None:
        """Returns the generator's state if it has changed since its last use, else None.

        Recording draws no random numbers, so the state changes only if the constructor sets it.
        """
        with _disable_current_modes():
            state, before = generator.get_state(), self._states.get(generator)
            self._states[generator] = state
            return None if before is not None and torch.equal(state, before) else state

    def replay(self, wanted: dict[str, Slot | torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Computes the recorded operations; yields the `wanted` tensors by name, each after its last change."""
        by_storage: dict[int, list[tuple[str, Slot]]] = {}
        for name, slot in wanted.items():
            if isinstance(slot, Slot):
                by_storage.setdefault(slot.storage, []).append((name, slot))
            else:
                yield name, slot
        live: dict[int, torch.UntypedStorage] = {}

        def there(slot: Slot) -> torch.Tensor:
            if slot.storage not in live:
                live[slot.storage] = torch.empty(
                    self._storages[slot.storage].nbytes(), dtype=torch.uint8
                ).untyped_storage()
            return torch.empty(0, dtype=slot.dtype).set_(live[slot.storage], slot.offset, slot.shape, slot.stride)

        for call, forgotten, finished in self._lifetimes():
            if call.name not in _EMPTY:
                self._compute(call, there, live)
            for storage in forgotten | finished:
                for name, slot in by_storage.get(storage, ()) if storage in finished else ():
                    yield name, there(slot)
                live.pop(storage, None)

    def _compute(self, call: Call, there: Callable[[Slot], torch.Tensor], live: dict[int, Any]) -> None:
        arguments, keywords = tree_map_only(Slot, there, (call.arguments, call.keywords), is_leaf=_is_slot)
        if call.random is not None:
            (keywords.get("generator") or torch.default_generator).set_state(call.random)
        with torch.no_grad():
            made = call.function(*arguments, **keywords)
        for slot, result in zip(call.results, tree_leaves(made), strict=True):
            if isinstance(slot, Slot):
                live.setdefault(slot.storage, result.untyped_storage())

    def _lifetimes(self) -> Iterator[tuple[Call, set[int], set[int]]]:
        """Yields each call with two sets of its storages, whose content isn't needed after it.

        The next call that uses a storage of the first set overwrites it. No later call uses a storage of the second.
        """
        after: list[tuple[set[int], set[int]]] = []
        seen: set[int] = set()
        overwritten: set[int] = set()  # the storages that the next call that uses them overwrites
        for call in reversed(self.calls):
            touched = call.storages()
            after.append((touched & overwritten, touched - seen))
            seen |= touched
            overwritten = overwritten - touched | self._overwrites(call)
        for call, (forgotten, finished) in zip(self.calls, reversed(after), strict=True):
            yield call, forgotten, finished

    def _overwrites(self, call: Call) -> set[int]:
        target = call.arguments[0] if call.name in _OVERWRITES else None
        if not isinstance(target, Slot) or target in call.arguments[1:]:
            return set()
        whole = target.shape.numel() * target.dtype.itemsize == self._storages[target.storage].nbytes()
        return {target.storage} if whole else set()


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def replace_tensors(model: nn.Module, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces each parameter and buffer by the result of `new`. Unlike after `to_empty`, tied tensors stay tied."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for owned in tables:
            for name, tensor in owned.items():
                if tensor is not None and tensor not in made:
                    parameter = isinstance(tensor, nn.Parameter)
                    made[tensor] = nn.Parameter(new(tensor), tensor.requires_grad) if parameter else new(tensor)
                if tensor is not None:
                    owned[name] = made[tensor]


def recorded(make: Callable[[], nn.Module]) -> tuple[nn.Module, Iterator[tuple[str, torch.Tensor]]]:
    """Returns the model that `make` creates, on the meta device, and an iterator over its names and computed tensors.

    The tensors are the model's parameters and buffers. Raises RuntimeError, or its subclass NotImplementedError, if the
    model needs values in its constructor, keeps a tensor that is neither parameter nor buffer, or leaves a parameter or
    buffer without a value.
    """
    recording, trunc_normal = Recording(), torch.nn.init._no_grad_trunc_normal_
    try:
        torch.nn.init._no_grad_trunc_normal_ = recording.truncated(trunc_normal)
        with FakeTensorMode(allow_non_fake_inputs=True), recording:
            model = make()
    finally:
        torch.nn.init._no_grad_trunc_normal_ = trunc_normal
    wanted = {name: recording.slot(tensor) for name, tensor in tensors_of(model).items()}
    computed = {storage for call in recording.calls if call.name not in _EMPTY for storage in call.storages()}
    kept = [
        f"{name}.{key}"
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if _is_fake(value)
    ]
    if kept:
        raise NotImplementedError(f"{listed(kept)} is a tensor, but neither a parameter nor a buffer")
    lost = [name for name, slot in wanted.items() if isinstance(slot, Slot) and slot.storage not in computed]
    if lost:
        raise NotImplementedError(f"{listed(lost)} is given no value by an operation of torch")
    replace_tensors(model, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))
    return model, recording.replay(wanted)


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _is_slot(leaf: Any) -> bool:
    return isinstance(leaf, Slot)


def _written(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors that `function` changes."""
    named = dict(zip((argument.name for argument in function._schema.arguments), arguments, strict=False)) | keywords
    changed = [one.name for one in function._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return _tensors([named.get(name) for name in changed])
