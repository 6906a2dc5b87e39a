"""`trainloop checkpoints diff` and `export` (`versions`) read weights of either format, one tensor at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.trainer.damage import flip_a_byte
from trainloop.checkpoints import export, saving, storage
from trainloop.versions import differences
from trainloop.versions.tensors import Weights


def model(folder: Path, step: int, weights: dict[str, Any], **more: Any) -> storage.Checkpoint:
    return saving.write(folder, step, {"model": weights}, {"results": {}}, **more)


@pytest.mark.torch
def test_diff_equals_what_torch_computes(saved: Path, checkpoints: Any) -> None:
    before, after = (
        torch.load(saved / f"checkpoints/step-{step:09d}.1/state.pt", weights_only=True)["model"] for step in (4, 10)
    )
    document = json.loads(checkpoints("diff checkpoints 4 10 -o json"))
    expected = {
        name: (
            float((after[name] - before[name]).norm() / before[name].norm()),
            float((after[name] - before[name]).abs().max()),
        )
        for name in before
    }
    found = {one["name"]: (one["relative"], one["largest"]) for one in document["weights"]["tensors"]}
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        assert found[name] == pytest.approx(pair, rel=1e-12, abs=0)
    relative = [one["relative"] for one in document["weights"]["tensors"]]
    assert relative == sorted(relative, reverse=True)
    flat = [torch.cat([weights[name].flatten() for name in before]) for weights in (before, after)]
    whole = float((flat[1] - flat[0]).norm() / flat[0].norm())
    assert document["weights"]["relative"] == pytest.approx(whole, rel=1e-12)


@pytest.mark.torch
def test_diff_names_settings_and_results_that_differ(saved: Path, checkpoints: Any) -> None:
    printed = checkpoints("diff checkpoints 4 10")
    assert printed.code == 0
    assert "settings: 2 differ\n  SETTING        BEFORE   AFTER\n  steps          6        10\n" in printed
    assert "  optimizer.lr   0.05     0.02\n" in printed
    assert ", the same\n" in printed
    assert "weights: 4 of 4 tensors differ, relative change " in printed
    assert checkpoints("diff checkpoints 4 10 --exit-code").code == 1
    same = checkpoints("diff checkpoints 4 4 --exit-code")
    assert same.code == 0 and "settings: the same\n" in same and "weights: all 4 tensors are the same\n" in same
    assert (
        checkpoints("diff checkpoints/step-000000004.1 checkpoints/latest").splitlines()[3:] == printed.splitlines()[3:]
    )


@pytest.mark.torch
def test_a_sharded_checkpoint_is_compared_with_a_full_one(saved: Path, checkpoints: Any) -> None:
    weights = load_file(saved / "sharded" / "model.safetensors")
    read = Weights(saved / "sharded" / "step-000000004.1")
    assert (
        read.sharded and set(read) == set(weights) and all(torch.equal(read[name], weights[name]) for name in weights)
    )
    document = json.loads(checkpoints("diff sharded/4 checkpoints/4 -o json"))
    full = torch.load(saved / "checkpoints/step-000000004.1/state.pt", weights_only=True)["model"]
    for one in document["weights"]["tensors"]:
        difference = (full[one["name"]] - weights[one["name"]]).norm() / weights[one["name"]].norm()
        assert one["relative"] == pytest.approx(float(difference), rel=1e-12)
    changed = {one["name"]: (one["before"], one["after"]) for one in document["settings"]}
    assert changed["checkpoint.format"] == ("sharded", "full") and changed["parallel.strategy"] == ("fsdp", "ddp")


def test_a_model_of_many_tensors_is_shown_by_layer(tmp_path: Path, checkpoints: Any) -> None:
    """The model has 1,000 tensors in 250 layers; layer 7 has changed most, and the last ones not at all."""
    names = [f"model.layers.{layer}.{part}" for layer in range(250) for part in ("q.weight", "k.weight", "q.bias", "n")]
    before = {name: torch.ones(3) for name in names}
    after = {name: value.clone() for name, value in before.items()}
    for layer in range(200):
        after[f"model.layers.{layer}.k.weight"] += 0.001 * (1 + layer % 5) + (layer == 7)
    model(tmp_path, 1, before)
    model(tmp_path, 2, after)
    lines = checkpoints(f"diff {tmp_path} 1 2").splitlines()
    assert len(lines) < 32
    assert "weights: 200 of 1000 tensors differ" in "\n".join(lines)
    rows = [line.split() for line in lines[lines.index(next(line for line in lines if "LAYER" in line)) + 1 :]]
    assert rows[0][:2] == ["model.layers.7", "1/4"]
    assert float(rows[0][2]) == pytest.approx(1.003 / 2, rel=1e-2), "over the numbers of the whole layer"
    assert " ".join(rows[-1]) == "... and 180 more that changed less (--top, or --all for every tensor)"
    assert len(rows) == 21
    assert len(checkpoints(f"diff {tmp_path} 1 2 --top 3").splitlines()) == len(lines) - 17
    every = checkpoints(f"diff {tmp_path} 1 2 --all")
    assert every.count("k.weight") == 200 and "LAYER" not in every and "more" not in every


def test_what_only_one_has_and_other_forms_are_named(tmp_path: Path, checkpoints: Any) -> None:
    gone, new = torch.ones(2), torch.ones(4)
    model(tmp_path, 1, {"gone": gone, "wide": torch.ones(2, 3), "half": torch.ones(2), "zero": torch.zeros(2)})
    after = {"new": new, "wide": torch.ones(3, 2), "half": torch.ones(2).bfloat16(), "zero": torch.ones(2)}
    model(tmp_path, 2, after)
    lines = checkpoints(f"diff {tmp_path} 1 2").splitlines()
    assert "only before: gone" in lines and "only after: new" in lines
    assert "other form: wide, float32 [2, 3] -> float32 [3, 2]" in lines
    assert "other form: half, float32 [2] -> bfloat16 [2]" in lines
    assert lines[-1].split() == ["zero", "1/1", "from", "zero", "1"], "half has the same values, in another type"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_first_and_said(bad: float, tmp_path: Path, checkpoints: Any) -> None:
    weights = {"a": torch.ones(3), "b": torch.ones(3)}
    model(tmp_path, 1, weights)
    model(tmp_path, 2, {"a": torch.ones(3) * 2, "b": torch.tensor([1.0, bad, 1.0])})
    for order in ("1 2", "2 1"):
        lines = checkpoints(f"diff {tmp_path} {order}").splitlines()
        assert [line.split()[:3] for line in lines[-2:]] == [["b", "1/1", "not"], ["a", "1/1", lines[-1].split()[2]]]
        assert "relative change not finite" in lines[-4]
    json.loads(checkpoints(f"diff {tmp_path} 1 2 -o json"), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.bool, torch.uint8, torch.bfloat16, torch.complex64, torch.float8_e5m2]
)
def test_every_type_is_compared_and_exported(dtype: torch.dtype, tmp_path: Path, checkpoints: Any) -> None:
    before, after = torch.tensor([0.0, 1.0, 0.0]).to(dtype), torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    for step, tensor in ((1, before), (2, after)):
        model(
            tmp_path,
            step,
            {"x": tensor, "scalar": torch.ones((), dtype=dtype), "empty": torch.empty(0, 3, dtype=dtype)},
        )
    [row] = [line for line in checkpoints(f"diff {tmp_path} 1 2").splitlines() if line.startswith("  x ")]
    assert row.split() == ["x", "1/1", "1.00e+00", "1"]
    file = tmp_path / "x.safetensors"
    assert checkpoints(f"export {tmp_path} 2 {file}").code == 0
    loaded = load_file(file)
    assert loaded["x"].dtype == dtype and torch.equal(loaded["x"].view(torch.uint8), after.view(torch.uint8))
    assert loaded["scalar"].shape == () and loaded["empty"].shape == (0, 3)


def test_chunks_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(7, 11, 5), torch.randn(7, 11, 5)
    model(tmp_path, 1, {"x": one})
    model(tmp_path, 2, {"x": other.permute(2, 1, 0).contiguous().permute(2, 1, 0)})
    pair = [Weights(tmp_path / f"step-{step:09d}.1") for step in (1, 2)]
    [whole] = differences.weight_changes(*pair).changes
    monkeypatch.setattr(export.chunks, "__defaults__", (13,))
    [parts] = differences.weight_changes(*pair).changes
    assert parts.largest == whole.largest and parts.relative == pytest.approx(whole.relative, rel=1e-14)
    exact = float((other.double() - one.double()).norm() / one.double().norm())
    assert whole.relative == pytest.approx(exact, rel=1e-14)


def test_a_damaged_checkpoint_is_neither_compared_nor_exported(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2):
        model(tmp_path, step, {"x": torch.ones(100)})
    flip_a_byte(tmp_path / "step-000000002.1" / "state.pt")
    for command in ("diff {0} 1 2", "diff {0} 2 1", "export {0} 2 {0}/x", "tag {0} 2 x"):
        printed = checkpoints(command.format(tmp_path))
        assert (printed.code, printed) == (1, "")
        assert "step-000000002.1 can't be used: " in printed.errors and "SHA-256" in printed.errors
    assert not (tmp_path / "x").exists() and storage.tags(tmp_path) == {}


def test_an_older_checkpoint_has_no_configuration_to_compare(tmp_path: Path, checkpoints: Any) -> None:
    model(tmp_path, 1, {"x": torch.ones(1)})
    model(tmp_path, 2, {"x": torch.ones(1)}, configuration="steps: 3\n")
    printed = checkpoints(f"diff {tmp_path} 1 2")
    assert (
        "settings: unknown, step-000000001.1 has no configuration: an older version of the loop wrote it\n" in printed
    )
    assert "code: unknown, a checkpoint has no hash of it\n" in printed


@pytest.mark.parametrize("text", ["a: &a [1]\nb: *a\n", "[" * 600, "- 1", "a: b: c", "\x00"])
def test_a_configuration_that_is_none_is_a_sentence(text: str, tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2):
        model(tmp_path, step, {"x": torch.ones(1)}, configuration=text)
    for command in ("diff {0} 1 2", "show {0} 1", "prune {0} --keep 1"):
        printed = checkpoints(command.format(tmp_path))
        assert printed.code == 1 and "config.yaml is no configuration: " in printed.errors


def test_settings_are_compared_by_path() -> None:
    one = {"a": {"b": 1, "c": [1, 2]}, "d": None, "e": True, "f": {}, "g": 1.0}
    other = {"a": {"b": 2, "c": [2, 1]}, "d": None, "e": 1, "h": "x", "f": {}, "g": 1}
    missing = differences.MISSING
    assert differences.setting_changes(one, other) == [
        ("a.b", 1, 2),
        ("a.c", [1, 2], [2, 1]),
        ("e", True, 1),
        ("h", missing, "x"),
    ]


@pytest.mark.torch
@pytest.mark.parametrize("directory", ["checkpoints", "sharded"])
def test_export_writes_what_the_run_exports(directory: str, saved: Path, checkpoints: Any) -> None:
    printed = checkpoints(f"export {directory} latest mine.safetensors")
    file = saved / "mine.safetensors"
    assert printed.startswith(f"mine.safetensors: 4 tensors, {file.stat().st_size:,} bytes")
    expected, mine = load_file(saved / directory / "model.safetensors"), load_file(file)
    assert mine.keys() == expected.keys() and all(torch.equal(mine[name], expected[name]) for name in mine)
    with safe_open(file, "pt") as opened:  # type: ignore[no-untyped-call]
        assert opened.metadata()["format"] == "pt" and opened.metadata()["checkpoint"].startswith("step-")


def test_export_converts_floating_point_weights_only(tmp_path: Path, checkpoints: Any) -> None:
    weights = {"w": torch.randn(5, 3), "large": torch.tensor([1e10, 1.0]), "count": torch.tensor([70000])}
    model(tmp_path, 1, weights)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        printed = checkpoints(f"export {tmp_path} 1 {tmp_path}/{name} --dtype {name}")
        loaded = load_file(tmp_path / name)
        assert torch.equal(loaded["w"], weights["w"].to(dtype)) and loaded["count"].dtype == torch.int64
        warned = "large has numbers that fp16 can't hold: they are infinite in" in printed.errors
        assert warned == (name == "fp16")


def test_export_never_overwrites_without_force_nor_leaves_half_a_file(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path, 1, {"x": torch.ones(3)})
    file = tmp_path / "x.safetensors"
    file.write_text("precious")
    refused = checkpoints(f"export {tmp_path} 1 {file}")
    assert (refused.code, refused.errors) == (1, f"trainloop: {file} is there already: --force replaces it\n")
    assert file.read_text() == "precious"
    for place, sentence in ((tmp_path / "no" / "x", "no directory"), (tmp_path, "it is a directory")):
        wrong = checkpoints(f"export {tmp_path} 1 {place}")
        assert wrong.code == 1 and sentence in wrong.errors

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        failed = checkpoints(f"export {tmp_path} 1 {file} --force")
    assert failed.code == 1
    assert failed.errors == f"trainloop: {file} can't be written (156 B are needed): No space left on device\n"
    assert file.read_text() == "precious" and len(list(tmp_path.iterdir())) == 2
    assert checkpoints(f"export {tmp_path} 1 {file} --force").code == 0
    assert load_file(file)["x"].tolist() == [1, 1, 1]


def test_tied_weights_are_exported_under_both_names(tmp_path: Path, checkpoints: Any) -> None:
    tied = torch.randn(4, 3)
    model(tmp_path, 1, {"embedding": tied, "head": tied, "part": tied[1:3, :2], "turned": tied.t()})
    checkpoints(f"export {tmp_path} 1 {tmp_path}/x")
    loaded = load_file(tmp_path / "x")
    assert torch.equal(loaded["head"], tied) and torch.equal(loaded["embedding"], tied)
    assert torch.equal(loaded["part"], tied[1:3, :2]) and torch.equal(loaded["turned"], tied.t())
