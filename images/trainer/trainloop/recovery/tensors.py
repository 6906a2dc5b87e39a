"""A state's tensors are copied as late as possible, but the host's part of a state is copied in each step.

The host changes its part while the device is behind: learning rates, a scheduler's numbers, and an optimizer's step
counts unless they are on the device. If a tensor is sharded (DTensor), only this rank's part of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: The largest tensor on the host that is copied in each step [elements].
_SMALL = 4096


def parameters_between_steps(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the model's parameters by name, the same tensors that the optimizer changes.

    FSDP2 replaces the root module's parameters by whole copies from the forward to the backward pass. If no backward
    pass follows, the copies stay until the next step. This function frees the copies, so no pass may be under way.
    """
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "reshard")]
    for module in modules:
        module.reshard()
    return dict(model.named_parameters())


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns nested dicts, lists and tuples in which each tensor is replaced by what `change` returns for it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return type(value)(mapped(item, change) for item in value) if isinstance(value, list | tuple) else value


def local(value: Any) -> Any:
    """Returns nested values in which each sharded tensor is replaced by this rank's part."""
    return mapped(value, lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor)


def spread_as(part: Any, parameter: Any) -> Any:
    """Returns a rank's part of a moment as a tensor that is sharded like its parameter.

    Other values are returned unchanged.
    """
    if not hasattr(parameter, "device_mesh") or not isinstance(part, torch.Tensor):
        return part
    if part.shape != parameter.to_local().shape:
        return part  # a step count
    from torch.distributed.tensor import DTensor  # takes half a second, and only sharded tensors need it

    mesh, placements = parameter.device_mesh, parameter.placements
    whole = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part.to(parameter.device), mesh, placements, run_check=False, **whole)


def _any(value: Any, found: Callable[[torch.Tensor], bool]) -> bool:
    hits = list[bool]()
    mapped(value, lambda tensor: hits.append(found(tensor)))
    return any(hits)


def on_device(value: Any) -> bool:
    """Returns whether nested values contain a tensor that isn't on the host."""
    return _any(value, lambda tensor: tensor.device.type != "cpu")


def on_host(value: Any) -> bool:
    """Returns whether a value is a tensor on the host."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _is_small(tensor: torch.Tensor) -> bool:
    return on_host(tensor) and tensor.numel() <= _SMALL


def is_large(value: Any) -> bool:
    """Returns whether nested values contain a tensor on the host that is too large for `as_now` to copy."""
    return _any(value, lambda tensor: on_host(tensor) and not _is_small(tensor))


def cloned(value: Any) -> Any:
    """Returns the value with copies of its tensors, which don't share memory with the bytes it was decoded from."""
    return mapped(value, torch.clone)


def as_now(value: Any) -> Any:
    """Returns nested values with copies of the small tensors on the host.

    Large tensors aren't copied. If one is an average of weights on the host, computing it has waited for the device.
    """
    return mapped(value, lambda tensor: tensor.clone() if _is_small(tensor) else tensor)


def state_of(each: Any) -> Any:
    """Returns the current state of a scheduler, a scaler or the like, without waiting for the device."""
    if isinstance(each, torch.amp.GradScaler) and each.is_enabled() and each._scale is not None:
        own = {"growth_factor": each.get_growth_factor(), "backoff_factor": each.get_backoff_factor()}
        own["growth_interval"] = each.get_growth_interval()
        return {**own, "scale": each._scale, "_growth_tracker": each._growth_tracker}
    return as_now(each.state_dict())


def load(each: Any, state: Any) -> None:
    """Load a state from `state_of`."""
    if isinstance(each, torch.amp.GradScaler):
        state = {key: value.item() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    each.load_state_dict(cloned(state))


class OptimizerState:
    """This class rebuilds an optimizer's state after a step from the host's part of that state."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, around: torch.optim.Optimizer | None = None
    ) -> None:
        """For ZeroRedundancyOptimizer, `optimizer` is this rank's part, and `around` contains it and the settings."""
        self._optimizer, self._around, self._beside = optimizer, around or optimizer, device.type != "cpu"
        #: The keys of each parameter's state; then the numbers that are on the host although the weights aren't.
        self._there = dict[Any, tuple[str, ...]]()
        self._numbers = list[tuple[Any, str]]()

    def host(self) -> Any:
        """Returns the groups' settings, and the result of `now`."""
        groups = [
            {key: as_now(value) for key, value in group.items() if key != "params"}
            for group in self._around.param_groups
        ]
        return groups, self.now()

    def now(self) -> Any:
        """Returns the keys of the state by parameter, and the numbers that are on the host.

        The keys are needed because the next step may add some before the device has made this step.
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
        """Returns each parameter's state at the time when `now` was called."""
        there, places, numbers = now
        state = {of: {key: self._optimizer.state[of][key] for key in keys} for of, keys in there.items()}
        for (of, key), number in zip(places, numbers, strict=True):
            state[of][key] = number
        return state

    def whole(self, host: Any) -> dict[str, Any]:
        """Returns the optimizer's `state_dict`, in which the host's part is replaced by `host`."""
        groups, now = host
        ordered = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        moments, whole = self.moments(now), self._optimizer.state_dict()
        state = {of: {**own, **moments[ordered[of]]} for of, own in whole["state"].items() if ordered[of] in moments}
        settings = [{**group, **now} for group, now in zip(whole["param_groups"], groups, strict=True)]
        return {**whole, "state": state, "param_groups": settings}
