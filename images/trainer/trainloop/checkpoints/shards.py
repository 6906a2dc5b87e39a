"""In a sharded checkpoint every rank writes its own part of the weights and the optimizer's state to its own file.

A rank collects its part from all files, so any number of ranks can load a checkpoint. A file is a list of pieces. Each
piece contains name, full shape, offset and data. Files are read with torch's allow-list of tensors and plain values.
torch.distributed.checkpoint isn't used, because it sends and stores its plans as pickles, which can run code when they
are read.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from trainloop.checkpoints import retention, storage
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.storage import Checkpoint, CheckpointError
from trainloop.distributed.world import World
from trainloop.parallel import sharded
from trainloop.parallel.strategies import NamedState, Replica
from trainloop.state import RunState

#: The folder in a sharded checkpoint to which all ranks write.
SHARDS = "shards"


def write_own(folder: Path, rank: int, pieces: list[dict[str, Any]]) -> None:
    """Write and sync this rank's pieces in `folder`. Raises OSError or RuntimeError if writing fails."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank-{rank:05d}.pt"
    with file.open("wb") as stream:  # if torch opened the file, it would hide the disk's error
        torch.save(pieces, stream)
    # Each rank syncs its own file, because on a network file system no other rank can.
    storage.sync(file)
    storage.sync(folder)


class Shards:
    """Shards hold all ranks' pieces of a state. Raises CheckpointError unless they have the form of `own_pieces`."""

    def __init__(self, folder: Path, ranks: Iterable[tuple[object, Any]] | None = None) -> None:
        """Reads a checkpoint's folder; or, if `ranks` is given, takes each rank's pieces and its name for messages."""
        self.folder = folder
        self.pieces: dict[str, list[dict[str, Any]]] = {}
        files = sorted(folder.glob("rank-*.pt")) if ranks is None else []
        for source, pieces in ranks or ((file, storage.load_file(file, mapped=True)) for file in files):
            for piece in pieces:
                if not _is_piece(piece):
                    raise CheckpointError(f"{source} has something that is no piece of a tensor")
                known = self.pieces.setdefault(piece["name"], [])
                # Several ranks may have written the same piece.
                if not known or all(piece.get("offset") != other.get("offset") for other in known):
                    known.append(piece)
        if not self.pieces:
            raise CheckpointError(f"{folder} has no files rank-*.pt that can be read: it is of another version")

    def model_state(self, replica: Replica, without: Container[str] = ()) -> dict[str, torch.Tensor]:
        """Returns the model's state, sharded like `replica`, but without the names in `without`.

        Raises KeyError or RuntimeError if the state belongs to another model.
        """
        wanted = {name: own for name, own in replica.model.state_dict().items() if name not in without}
        return {name: self._like(f"model/{name}", own) for name, own in wanted.items()}

    def optimizer_state(self, replica: Replica) -> NamedState:
        """Returns the optimizer's state by parameter name, sharded like the parameters."""
        parameters, state = dict(replica.model.named_parameters()), NamedState()
        for full in self.pieces:
            kind, _, rest = full.partition("/")
            name, _, key = rest.rpartition("/")
            if kind == "optimizer":
                state.setdefault(name, {})[key] = self._like(full, parameters[name], moment=True)
        return state

    def _like(self, name: str, own: torch.Tensor, *, moment: bool = False) -> Any:
        """Returns the value of `name`, sharded like `own` if the shapes are the same.

        If the shapes differ, a parameter's `moment` is returned as a complete tensor. Any other value raises
        RuntimeError then.
        """
        first = self.pieces[name][0]
        if "value" in first:
            return first["value"]
        shape = torch.Size(first["shape"])
        if shape != own.shape and not moment:
            raise RuntimeError(f"{name} has shape {list(shape)} in the checkpoint, {list(own.shape)} in the model")
        if shape != own.shape or not isinstance(own, DTensor):
            return self.region(name, [0] * len(shape), shape)
        offset, lengths = zip(*sharded.region(own), strict=True)
        return sharded.from_part(self.region(name, list(offset), torch.Size(lengths)).to(own.device), own)

    def region(self, name: str, offset: list[int], shape: torch.Size) -> torch.Tensor:
        """Returns the part of `name` that begins at `offset`, assembled from all ranks' pieces."""
        pieces = self.pieces[name]
        region, found = torch.empty(shape, dtype=pieces[0]["data"].dtype), 0
        for piece in pieces:
            data, begin = piece["data"], piece["offset"]
            low = [max(a, b) for a, b in zip(offset, begin, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(offset, shape, begin, data.shape, strict=True)]
            if all(a < b for a, b in zip(low, high, strict=True)):
                here = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
                there = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begin, strict=True))
                region[here] = data[there]
                found += region[here].numel()
        if found != region.numel():
            raise CheckpointError(f"{self.folder} has {found} of {region.numel()} numbers of {name}")
        return region


def own_pieces(
    model: Mapping[str, Any], optimizer: NamedState, world: World, writes: Callable[[str], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields those pieces of the given model's and optimizer's state that this rank writes.

    `writes` is given only if the pieces are written to memory and not by torch. It returns whether this rank writes the
    value of a name that isn't sharded.
    """
    named: dict[str, Any] = {f"model/{name}": tensor for name, tensor in model.items()}
    for name, state in optimizer.items():
        named |= {f"optimizer/{name}/{key}": value for key, value in state.items()}
    for name, value in named.items():
        # If all ranks have a value, only one rank writes it. For different names, different ranks write.
        mine = writes(name) if writes else is_mine(name, world)
        if isinstance(value, DTensor):
            local = value.to_local().detach()
            # In memory an empty part is kept too, because each rank must find its own part again.
            if (local.numel() or writes) and not _is_copy(value, world):
                offset = [begin for begin, _ in sharded.region(value)]
                data = local if writes else _alone(local)
                yield {"name": name, "shape": list(value.shape), "offset": offset, "data": data}
        elif mine and isinstance(value, torch.Tensor):
            data = value.detach() if writes else _alone(value.detach())
            yield {"name": name, "shape": list(value.shape), "offset": [0] * value.dim(), "data": data}
        elif mine:
            yield {"name": name, "value": value}


def is_mine(name: str, world: World) -> bool:
    """Returns whether this rank writes the value of `name`, which all ranks of this rank's replica have."""
    return zlib.crc32(name.encode()) % world.unit == world.rank % world.unit


def _is_copy(tensor: DTensor, world: World) -> bool:
    """Returns whether an earlier rank that shares the layer has the same part of the tensor."""
    placed = dict(zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True))
    return not hasattr(placed.get("tensor"), "dim") and world.rank % world.tensor > 0


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with its own memory, because torch.save writes the whole storage behind a tensor."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _is_piece(piece: Any) -> bool:
    if not isinstance(piece, dict) or not isinstance(piece.get("name"), str):
        return False
    if "value" in piece:
        return isinstance(piece["value"], bool | int | float | str | None)
    data, shape, offset = piece.get("data"), piece.get("shape"), piece.get("offset")
    if type(data) is not torch.Tensor or not isinstance(shape, list) or not isinstance(offset, list):
        return False
    return len(shape) == len(offset) == data.dim() and all(
        isinstance(whole, int) and isinstance(begin, int) and 0 <= begin <= begin + part <= whole
        for whole, begin, part in zip(shape, offset, data.shape, strict=True)
    )


def save_shards(run: RunState, checkpoints: Checkpointer) -> Path:
    """Save the first replica's weights and optimizer state as shards; returns their folder.

    On failure, raises CheckpointError on every rank.
    """
    world, directory, step = run.world, checkpoints.path, run.train.step
    replica = run.replica
    own = Replica.optimizer_state(replica, run.optimizer)  # not gathered, unlike the strategy's own method
    writes = world.rank // world.unit == world.first // world.unit
    pieces = list(own_pieces(replica.model.state_dict(), own, world)) if writes else []
    needed = int(world.sum([storage.size_of(pieces)])[0])
    for last in (False, True):
        name, has_room = world.from_rank(
            0, (storage.partial_name(directory, step).name, storage.has_room(directory, needed))
        )
        partial = storage.inside(directory, name)
        problem: OSError | RuntimeError | None = None
        try:
            if not has_room:
                raise storage.disk_full()
            if writes:
                write_own(partial / SHARDS, world.rank, pieces)
        except (OSError, RuntimeError) as error:
            problem = error
        refused = [rank for rank, failed in enumerate(world.gather(problem is not None)) if failed]
        if not refused:
            break
        made, sentence = False, ""
        if problem is not None and world.rank == refused[0]:
            shutil.rmtree(partial, ignore_errors=True)
            made = not last and retention.make_room(directory, problem, needed, checkpoints.parent)
            sentence = retention.refusal(directory, step, problem, needed)
        made, sentence = world.from_rank(refused[0], (made, sentence))
        if not made:
            raise CheckpointError(sentence)
    return partial


def load_shards(run: RunState, checkpoint: Checkpoint) -> None:
    """Load the weights and the optimizer's state from a sharded checkpoint, which any number of ranks may have written.

    Raises CheckpointError on every rank if a file is damaged, and RuntimeError if the model is a different one.
    """
    damaged = different = None
    try:
        shards = Shards(checkpoint.path / SHARDS)
        model, optimizer = shards.model_state(run.replica), shards.optimizer_state(run.replica)
    except CheckpointError as error:
        damaged = str(error)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, KeyError) as error:
        different = str(error)
    gathered = run.world.gather((damaged, different))
    for text in (one for one, _ in gathered if one):
        raise CheckpointError(text)
    for text in (other for _, other in gathered if other):
        raise RuntimeError(text)
    run.replica.load_model(model)
    run.replica.load_optimizer(run.optimizer, optimizer)
