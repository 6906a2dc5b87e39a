"""Where each rank has a part of the state (ZeRO-1, FSDP2) all parts of a step are needed, and snapshots have them.

With FSDP2 a part is all that its rank needs; any other number of ranks puts its shards together from all parts, as from
a sharded checkpoint. With ZeRO-1 every rank needs the weights, of which each writes a share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainloop.checkpoints.shards import Shards, is_mine, own_pieces
from trainloop.checkpoints.surviving import InMemory
from trainloop.distributed.world import World
from trainloop.parallel.copies import copies, is_mirrored
from trainloop.recovery.agreement import Found
from trainloop.recovery.place import Place

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
        self._first = -1  # the first step of this attempt

    def _placed(self, world: World) -> Place:
        place = super()._placed(world)
        # Where a neighbour has an equal shard anyway, it needs none of this rank's snapshots.
        return replace(place, local_ranks=world.size) if is_mirrored(self.trainer.optimizer) else place

    def go_on(self, attempt: int) -> None:
        self._first = self.trainer.state.step + 1
        super().go_on(attempt)

    def finished(self) -> None:
        trainer, world = self.trainer, self.trainer.world
        pauses = is_mirrored(trainer.optimizer) and len(world.present) < world.size
        if not pauses or trainer.state.step == self._first:
            super().finished()
        else:
            # A snapshot that lacks a rank's part is none, and would take the place of one that is whole.
            self._keeper.made(trainer.state.step, as_before=not trainer.after_step)

    def tensors(self, host: dict[str, Any]) -> dict[str, Any]:
        world, others = self.trainer.replica.world, copies(self.trainer.optimizer)
        moments = {name: own for name, own in self.moments(host).items() if self._parameters[name] not in others}
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
