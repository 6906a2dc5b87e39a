"""What a run's hooks keep (`trainer.stateful`) is saved and restored with the rest of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainloop.errors import listed

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


def capture(trainer: Trainer) -> dict[str, Any]:
    """Returns the states of `trainer.stateful` by name, DTensors whole on the host; collective."""
    return {name: _whole(each.state_dict()) for name, each in trainer.stateful.items()}


def restore(trainer: Trainer, saved: dict[str, Any]) -> None:
    """Load the states that `capture` returned, and warn of those that only the checkpoint or only the program has."""
    for name in trainer.stateful.keys() & saved.keys():
        trainer.stateful[name].load_state_dict(_like(saved[name], trainer.stateful[name].state_dict()))
    if lost := sorted(saved.keys() - trainer.stateful.keys()):
        trainer.warn(f"the checkpoint has a state of {listed(lost)}, which no hook of this run has: it is left out")
    if new := sorted(trainer.stateful.keys() - saved.keys()):
        trainer.warn(f"the checkpoint has no state of {listed(new)}: it stays as this run's hooks made it")


def _whole(state: Any) -> Any:
    """Returns the state with whole tensors, in dicts, lists and tuples however they are nested."""
    if isinstance(state, dict):
        return {key: _whole(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_whole, state))
    return state.full_tensor().cpu() if hasattr(state, "full_tensor") else state


def _like(saved: Any, own: Any) -> Any:
    """Returns the saved state with tensors spread over ranks where the program's own are."""
    if isinstance(saved, dict) and isinstance(own, dict):
        return {key: _like(value, own.get(key)) for key, value in saved.items()}
    if type(own) in (list, tuple) and isinstance(saved, list | tuple) and len(own) == len(saved):
        return type(own)(map(_like, saved, own))
    if not hasattr(own, "full_tensor"):
        return saved
    # Imported when used: it takes half a second, and only FSDP2 needs it.
    from trainloop.parallel.sharded import like

    return like(saved, own)
