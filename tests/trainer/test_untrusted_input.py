"""Nothing from the network (`distributed/world`) or the checkpoints' volume (`checkpoints/shards`) is unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import config, train
from trainloop import run
from trainloop.checkpoints import saving, storage
from trainloop.config import Config
from trainloop.distributed import world as distributed
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError
from trainloop.trainer import Trainer


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a pickle was read")


def _without_pickle(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function while no pickle can be read, by torch either."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler")):
            patch.setattr(module, name, _refuse)
        patch.setattr(dist.distributed_c10d, "_unpickler", _refuse)
        patch.setattr(dist.distributed_c10d, "_tensor_to_object", _refuse)
        return function(*arguments)


@pytest.mark.torch
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"strategy": "zero1"}},
        {"parallel": {"strategy": "fsdp"}, "checkpoint": {"format": "sharded"}},
        {"task": {"name": "tests.trainer.toy:Toy", "options": {"poison": [9], "poisoned_rank": 1}}},
    ],
    ids=["zero1", "sharded", "ddp-anomaly"],
)
def test_ranks_train_evaluate_save_and_resume_without_reading_a_pickle(tmp_path: Path, changes: dict[str, Any]) -> None:
    checkpoint = {"path": str(tmp_path / "checkpoints"), "every_steps": 2, **changes.get("checkpoint", {})}
    settings = {
        **changes,
        "checkpoint": checkpoint,
        "evaluation": {"every_steps": 2},
        "anomaly": {"least": 4, "window": 8},
        "gradients": {"checksum_every": 1},
        "balance": {"enabled": "parallel" not in changes, "every": 2, "warmup": 1},
    }
    run_ranks(2, _without_pickle, train, config(tmp_path, **settings), 3)
    run_ranks(2, _without_pickle, run.train, config(tmp_path, **settings, steps=12))
    log = (tmp_path / "report" / "metrics.jsonl").read_text()
    assert '"event": "resumed", "step": 3' in log
    assert storage.complete(tmp_path / "checkpoints")[0].step == 12


@pytest.mark.torch
def test_a_rank_that_sends_what_is_no_message_ends_the_others_with_a_sentence() -> None:
    sentence = r"TrainingError: what came over the network isn't a message of trainloop: 'run' is not a kind of value"
    with pytest.raises(RankFailed, match=sentence):
        run_ranks(2, _hostile_rank, b'[{"run": ["os.system", "true"]}, []]')


def _hostile_rank(text: bytes) -> None:
    with joined(config().distributed) as world:
        if world.rank == 1:
            message = torch.frombuffer(bytearray(len(text).to_bytes(8, "big") + text), dtype=torch.uint8)
            distributed.encode = lambda _: message  # type: ignore[assignment]
            distributed.decode = lambda _: None
        world.gather("hello")


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "/etc/passwd", "a/b", 3])
def test_another_rank_names_no_file_outside_of_the_directory(tmp_path: Path, name: object) -> None:
    with pytest.raises(storage.CheckpointError, match="which is no file's name"):
        storage.inside(tmp_path, name)


class Harm:
    """Makes a file where its pickle is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def _put(checkpoint: storage.Checkpoint, name: str, content: bytes) -> None:
    """Put a file into a checkpoint, with matching hashes: a program that can write there can do that too."""
    file = checkpoint.path / name
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_bytes(content)
    _hash_again(checkpoint)


def _hash_again(checkpoint: storage.Checkpoint) -> None:
    path = checkpoint.path / storage.MANIFEST
    body = json.loads(path.read_bytes())
    del body["sha256"]
    body["files"] = {
        str(file.relative_to(checkpoint.path)): {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bytes": file.stat().st_size,
        }
        for file in checkpoint.path.rglob("*")
        if file.is_file() and file != path
    }
    body["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body))
    assert storage.verify(checkpoint.path) is None


def _saved_by_torch(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.torch
@pytest.mark.parametrize("reads", ["full", "sharded"])
def test_a_checkpoint_made_to_harm_runs_nothing_and_is_passed_over(tmp_path: Path, reads: str) -> None:
    """The newest checkpoint is an attacker's: torch's pickled `.metadata`, and a rank's file."""
    mark, path = tmp_path / "harmed", tmp_path / "checkpoints"
    changes: dict[str, Any] = {"checkpoint": {"path": str(path), "format": reads, "every_steps": 2}}
    run_ranks(2, train, config(tmp_path, **changes), 2)
    state = storage.load(storage.complete(path)[0])
    harmful = saving.write(path, 4, {**{key: state[key] for key in state if key not in ("model", "optimizer")}}, {})
    _put(harmful, "shards/.metadata", pickle.dumps(Harm(mark)))
    _put(harmful, "shards/__0_0.distcp", _saved_by_torch(Harm(mark)))
    _put(harmful, "shards/rank-00000.pt", _saved_by_torch([Harm(mark)]))
    other = saving.write(path, 5, {}, {})
    _put(other, storage.STATE, _saved_by_torch(Harm(mark)))
    run_ranks(2, run.train, config(tmp_path, **changes))
    assert not mark.exists()
    assert '"event": "resumed", "step": 2' in (tmp_path / "report" / "metrics.jsonl").read_text()


@pytest.mark.torch
def test_a_sharded_checkpoint_is_read_only_where_the_configuration_says_sharded(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoints")
    run_ranks(1, train, config(tmp_path, checkpoint={"path": path, "format": "sharded"}), 2)
    with pytest.raises(RankFailed, match="ConfigError: no checkpoint can be used"):
        run_ranks(1, train, config(tmp_path, checkpoint={"path": path}))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("piece", "sentence"),
    [
        ({"name": "model/0.weight", "data": torch.zeros(2)}, "has something that is no piece of a tensor"),
        (["x"], "has something that is no piece of a tensor"),
        ({"name": "model/0.weight", "shape": [2], "offset": [1], "data": torch.zeros(2)}, "is no piece of a tensor"),
        ({"name": "model/0.weight", "shape": [8, 6], "offset": [0, 0], "data": torch.zeros(1, 6)}, "6 of 48 numbers"),
    ],
)
def test_a_damaged_piece_is_a_sentence(tmp_path: Path, piece: Any, sentence: str) -> None:
    from trainloop.checkpoints.shards import Shards

    torch.save([piece], tmp_path / "rank-00000.pt")
    with pytest.raises(storage.CheckpointError, match=sentence):
        Shards(tmp_path).region("model/0.weight", [0, 0], torch.Size([8, 6]))


@pytest.mark.torch
def test_a_sharded_checkpoint_of_another_model_or_layout_is_a_sentence_on_every_rank(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "parallel": {"strategy": "fsdp"},
        "checkpoint": {"path": str(tmp_path / "checkpoints"), "format": "sharded"},
    }
    run_ranks(2, train, config(tmp_path, **changes), 2)
    task = {"name": "tests.trainer.toy:Toy", "options": {"hidden": 9}}
    assert run_ranks(2, _config_error, config(tmp_path, **changes, task=task)) == [True, True]


def _config_error(settings: Config) -> bool:
    with joined(settings.distributed) as world:
        try:
            Trainer(settings, world).prepare()
        except ConfigError as error:
            return "is of another model or optimizer" in str(error)
    return False
