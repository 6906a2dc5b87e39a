"""Where each rank has a part of the state (ZeRO-1, FSDP2) all parts of a step are needed, and snapshots have them.

With FSDP2 a part is all that its rank needs; any other number of ranks puts its shards together from all parts, as from
a sharded checkpoint. With ZeRO-1 every rank needs the weights, of which each writes a share.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainloop.checkpoints.shards import Shards, is_mine, own_pieces
from trainloop.checkpoints.surviving import InMemory
from trainloop.recovery.agreement import Found

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


class PartsInMemory(InMemory):
    """Keeps this rank's part of the state."""

    divided = True

    def __init__(self, trainer: Trainer, directory: Path) -> None:
        self._sharded = trainer.config.parallel.strategy == "fsdp"
        # Of what ranks share with a neighbour (tensor parallelism) one of them writes it.
        self.all_parts = not self._sharded or trainer.world.tensor > 1
        super().__init__(trainer, directory)
        # As `_parameters` are; and a `state_dict` would free whole copies that the training thread may be reading when
        # another one writes.
        self._model = trainer.replica.model.state_dict(keep_vars=True)

    def tensors(self, host: dict[str, Any]) -> dict[str, Any]:
        world, moments = self.trainer.replica.world, self.moments(host)
        buffers = {f"model/{name}" for name in self._buffers.names}

        def writes(name: str) -> bool:
            return self._sharded or name.startswith("optimizer/") or (name not in buffers and is_mine(name, world))

        return {"pieces": list(own_pieces(self._model, moments, world, writes))}

    def loading(self, found: Found) -> Callable[[], None]:
        replica = self.trainer.replica
        parts = [(f"the part of rank {rank}", found.state(rank)["pieces"]) for rank in sorted(found.parts)]
        shards = Shards(self._keeper.directory, parts)
        first = min(found.parts)
        # A part of FSDP2's has the buffers too, as they were when it was written: within a step, maybe.
        lost = self._sharded and found.own_of_part(first) is None
        left = {} if lost else self.buffers(found.buffers(first))
        model = {**shards.model_state(replica, left), **left}
        optimizer = shards.optimizer_state(replica)

        def load() -> None:
            replica.load_model(model)
            replica.load_optimizer(self.trainer.optimizer, optimizer)

        return load
