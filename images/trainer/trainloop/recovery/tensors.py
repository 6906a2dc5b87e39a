"""A state's tensors are kept where they lie until they are copied; of a sharded one (DTensor) this rank's part is kept.

The host's part, which changes while the device is behind, is taken in each step: learning rates, a scheduler's numbers,
an optimizer's counts of steps where they aren't on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: Numbers of a tensor of the host's that is copied in each step.
_SMALL = 4096


def parameters_between_steps(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the model's parameters by name: those that the optimizer has, and that a step changes.

    From its forward to its backward FSDP2 has whole copies in the place of the root's parameters, and after a forward
    without a backward until the next step. They are freed here, so no pass may be under way.
    """
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "reshard")]
    for module in modules:
        module.reshard()
    return dict(model.named_parameters())


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns nested dicts, lists and tuples with each tensor as `change` returns it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return type(value)(mapped(item, change) for item in value) if isinstance(value, list | tuple) else value


def local(value: Any) -> Any:
    """Returns nested values with this rank's parts in place of sharded tensors."""
    return mapped(value, lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor)


def spread_as(part: Any, parameter: Any) -> Any:
    """Returns a rank's part of a moment as a tensor that is sharded as its parameter is; other values as they are."""
    if not hasattr(parameter, "device_mesh") or not isinstance(part, torch.Tensor):
        return part
    if part.shape != parameter.to_local().shape:
        return part  # a step's number
    from torch.distributed.tensor import DTensor  # half a second, which only what is sharded needs

    mesh, placements = parameter.device_mesh, parameter.placements
    whole = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part.to(parameter.device), mesh, placements, run_check=False, **whole)


def _any(value: Any, found: Callable[[torch.Tensor], bool]) -> bool:
    hits = list[bool]()
    mapped(value, lambda tensor: hits.append(found(tensor)))
    return any(hits)


def on_device(value: Any) -> bool:
    """Returns whether there is a tensor among nested values that isn't the host's."""
    return _any(value, lambda tensor: tensor.device.type != "cpu")


def on_host(value: Any) -> bool:
    """Returns whether a value is a tensor of the host's."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _is_small(tensor: torch.Tensor) -> bool:
    return on_host(tensor) and tensor.numel() <= _SMALL


def is_large(value: Any) -> bool:
    """Returns whether nested values have a tensor of the host's that `as_now` takes as it lies."""
    return _any(value, lambda tensor: on_host(tensor) and not _is_small(tensor))


def cloned(value: Any) -> Any:
    """Returns the value with tensors of its own, independent of the bytes that it was decoded from."""
    return mapped(value, torch.clone)


def as_now(value: Any) -> Any:
    """Returns nested values as they are now, as far as the host changes them. Its large tensors are taken as they lie:
    an average of weights on the host has waited for the device.
    """
    return mapped(value, lambda tensor: tensor.clone() if _is_small(tensor) else tensor)


def state_of(each: Any) -> Any:
    """Returns the state of a scheduler, a scaler or their like as it is now; nothing in it waits for the device."""
    if isinstance(each, torch.amp.GradScaler) and each.is_enabled() and each._scale is not None:
        own = {"growth_factor": each.get_growth_factor(), "backoff_factor": each.get_backoff_factor()}
        own["growth_interval"] = each.get_growth_interval()
        return {**own, "scale": each._scale, "_growth_tracker": each._growth_tracker}
    return as_now(each.state_dict())


def load(each: Any, state: Any) -> None:
    """Load what `state_of` returned."""
    if isinstance(each, torch.amp.GradScaler):
        state = {key: value.item() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    each.load_state_dict(cloned(state))


class OptimizerState:
    """An optimizer's state, by what the host had of it after a step."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, around: torch.optim.Optimizer | None = None
    ) -> None:
        """For ZeroRedundancyOptimizer `optimizer` is this rank's part, and `around`, which contains it, has the
        settings.
        """
        self._optimizer, self._around, self._beside = optimizer, around or optimizer, device.type != "cpu"
        #: The state of each parameter that has one; of that the numbers that are on the host while weights aren't.
        self._there = dict[Any, tuple[str, ...]]()
        self._numbers = list[tuple[Any, str]]()

    def host(self) -> Any:
        """Returns the groups' settings, and what `now` does."""
        groups = [
            {key: as_now(value) for key, value in group.items() if key != "params"}
            for group in self._around.param_groups
        ]
        return groups, self.now()

    def now(self) -> Any:
        """Returns what state there is by parameter, because the next step may make more of it before the device has
        made this one, and the numbers that are on the host.
        """
        state = self._optimizer.state
        if len(state) != len(self._there):
            self._there = {of: tuple(own) for of, own in state.items()}
            found = [(of, key) for of, own in state.items() for key, each in own.items() if on_host(each)]
            self._numbers = found if self._beside else []
        numbers = [state[of][key] for of, key in self._numbers]
        alike = len({(each.dtype, each.shape) for each in numbers}) == 1
        return self._there, self._numbers, list(torch.stack(numbers)) if alike else list(map(torch.clone, numbers))

    def moments(self, now: Any) -> dict[Any, dict[str, Any]]:
        """Returns by parameter the state that there was `now`."""
        there, places, numbers = now
        state = {of: {key: self._optimizer.state[of][key] for key in keys} for of, keys in there.items()}
        for (of, key), number in zip(places, numbers, strict=True):
            state[of][key] = number
        return state

    def whole(self, host: Any) -> dict[str, Any]:
        """Returns what `state_dict` does, with what the host had."""
        groups, now = host
        ordered = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        moments, whole = self.moments(now), self._optimizer.state_dict()
        state = {of: {**own, **moments[ordered[of]]} for of, own in whole["state"].items() if ordered[of] in moments}
        settings = [{**group, **now} for group, now in zip(whole["param_groups"], groups, strict=True)]
        return {**whole, "state": state, "param_groups": settings}
