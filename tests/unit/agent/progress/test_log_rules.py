"""Lines of frameworks, and lines that match patterns, become progress. The programs print exactly these lines."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from trainmaster_operator.agent.progress.log_rules import LineMatcher, read_fields


def read(rules: LineMatcher, *lines: str, unfinished: str = "") -> dict[str, Any]:
    """Returns the progress in the lines, which arrive in one piece."""
    encoded = [line.encode() for line in lines]
    rules.read(encoded, unfinished.encode())
    return {} if rules.progress is None else rules.progress.to_wire()


def drawn(**options: Any) -> list[str]:
    """Returns the lines of a bar that tqdm itself draws to its end, as the agent splits them."""
    file = io.StringIO()
    postfix = options.pop("postfix", {})
    with tqdm(file=file, mininterval=0, miniters=1, **options) as bar:
        for _ in range(options["total"]):
            if postfix:
                bar.set_postfix(postfix)
            bar.update(1)
    return file.getvalue().replace("\r", "\n").split("\n")


# torchtune 0.6, recipes/full_finetune_distributed.py: pbar.set_description(f"{epoch + 1}|{step}|Loss: {loss}").
TORCHTUNE = "1|12|Loss: 1.2345678:   5%|▌         | 12/240 [00:10<03:10,  1.20it/s]"
# DeepSpeed 0.19, runtime/engine.py, `_report_progress`, and utils/logging.py.
DEEPSPEED = (
    "[2026-11-25 03:21:57,055] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001], "
    "mom=[[0.9, 0.999]]"
)
# The same, utils/timer.py, `ThroughputTimer.stop`.
DEEPSPEED_SPEED = (
    "[2026-11-25 03:21:57,056] [INFO] [timer.py:264:stop] epoch=0/micro_step=20/global_step=20, "
    "RunningAvgSamplesPerSec=123.5, CurrSamplesPerSec=130.25, MemAllocated=0.5GB, MaxMemAllocated=1.0GB"
)
# The same, runtime/pipe/engine.py, `train_batch`.
DEEPSPEED_PIPELINE = "steps: 30 loss: 2.3456 iter time (s): 0.250 samples/sec: 128.000"
# Lightning 2.5, callbacks/progress/tqdm_progress.py: set_description(f"Epoch {trainer.current_epoch}").
LIGHTNING = "Epoch 2:  12%|█▏        | 12/100 [00:01<00:10,  8.50it/s, v_num=0, train_loss=2.300]"


@pytest.mark.parametrize("preset", ["own", "auto"])
@pytest.mark.parametrize(
    ("framework", "line", "fields"),
    [
        ("torchtune", TORCHTUNE, {"step": 12, "loss": 1.2345678, "stepSeconds": pytest.approx(1 / 1.2)}),
        ("deepspeed", DEEPSPEED, {"step": 10, "learningRate": 0.001}),
        ("deepspeed", DEEPSPEED_SPEED, {"step": 20, "samplesPerSecond": 123.5}),
        (
            "deepspeed",
            DEEPSPEED_PIPELINE,
            {"step": 30, "loss": 2.3456, "stepSeconds": 0.25, "samplesPerSecond": 128.0},
        ),
        (
            "lightning",
            LIGHTNING,
            {"step": 212, "epoch": 2.12, "loss": 2.3, "stepSeconds": pytest.approx(1 / 8.5)},
        ),
        # Lines of transformers 5.24, and of 4, whose values were numbers.
        (
            "huggingface",
            "{'loss': '1.146', 'grad_norm': '0.7252', 'learning_rate': '2.5e-05', 'epoch': '0.75'}",
            {"loss": 1.146, "gradNorm": 0.7252, "learningRate": 2.5e-05, "epoch": 0.75},
        ),
        (
            "huggingface",
            "{'loss': 0.6931, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
            {"loss": 0.6931, "gradNorm": 1.2, "learningRate": 5e-05, "epoch": 0.1},
        ),
        (
            "huggingface",
            "{'loss': '1.1', 'grad_norm': 'nan', 'learning_rate': '0', 'train_speed': '7.5', 'epoch': '0.5'}",
            {"loss": 1.1, "learningRate": 0.0, "epoch": 0.5},
        ),
        # Lines of versions before 4.38, without a norm, and of a script that removes the figures.
        (
            "huggingface",
            "{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 2}",
            {"loss": 0.5, "learningRate": 5e-05, "epoch": 2},
        ),
        ("huggingface", "{'loss': 0.5, 'epoch': 2}", {"loss": 0.5, "epoch": 2}),
    ],
)
def test_a_frameworks_line_is_progress(preset: str, framework: str, line: str, fields: dict[str, Any]) -> None:
    assert read(LineMatcher("", framework if preset == "own" else "auto"), "noise", line, "noise") == fields


@pytest.mark.parametrize(
    "line",
    [
        "Map:  45%|████▌     | 4500/10000 [00:01<00:01, 3000.00 examples/s]",
        "model.safetensors:  45%|████▌     | 450M/1.00G [00:01<00:01, 300MB/s]",
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.00s/it]",
        "Epoch 1:  12%|█▏        | 12/100 [00:01<00:10,  8.50it/s]",
        "100%|██████████| 8/8 [00:00<00:00, 86.38it/s]",
        "{'eval_loss': '1.134', 'eval_runtime': '0.1197', 'epoch': '0.625'}",
        "step 12 of the installation",
    ],
)
def test_what_others_print_too_is_not_recognised_by_itself(line: str) -> None:
    assert read(LineMatcher("", "auto"), line) == {}


def test_a_bar_of_tqdm_is_read_as_tqdm_draws_it() -> None:
    rules = LineMatcher("", "tqdm")
    lines = drawn(total=3, desc="train", postfix={"loss": 0.25})
    assert read(rules, lines[1]) == {"step": 0, "totalSteps": 3}, "the first one, without a speed"
    seen = read(rules, *lines)
    assert (seen["step"], seen["totalSteps"], seen["loss"]) == (3, 3, 0.25) and seen["stepSeconds"] > 0
    assert read(rules, "downloads", *drawn(total=2, unit="B"))["step"] == 3


def test_a_bar_for_each_epoch_is_added_up() -> None:
    """Steps never go back, because they would count as repeated work."""
    rules = LineMatcher("", "tqdm")
    first = read(rules, *drawn(total=4))
    assert (first["step"], first["totalSteps"]) == (4, 4), "one bar may be all of the training"
    second = read(rules, drawn(total=4)[2])
    assert second["step"] == 5 and second["epoch"] == 1.25
    assert "totalSteps" not in second, "how many epochs there are is not known"
    named = LineMatcher("", "tqdm")
    assert read(named, drawn(total=4, desc="Epoch 1/3")[-2])["totalSteps"] == 12
    assert read(named, drawn(total=4, desc="Epoch 2/3")[2])["step"] == 5


def test_ranks_that_draw_into_one_stream_are_not_taken_for_epochs() -> None:
    rules = LineMatcher("", "tqdm")
    bar = "Epoch {}: 50%|█| {}/100 [00:01<00:01, 2.00it/s]"
    assert [read(rules, bar.format(1, n))["step"] for n in (98, 97, 100)] == [98, 97, 100]
    assert read(rules, bar.format(2, 1))["step"] == 101
    assert read(rules, bar.format(1, 99))["step"] == 101, "who is behind says nothing"
    assert read(rules, bar.format(2, 2))["step"] == 102


def test_of_several_bars_the_longest_is_the_trainings() -> None:
    rules = LineMatcher("", "tqdm")
    assert read(rules, drawn(total=6)[3])["step"] == 2
    assert read(rules, *drawn(total=3, desc="validate"))["step"] == 2
    assert read(rules, drawn(total=6)[4])["step"] == 3


def test_the_bar_of_an_evaluation_below_the_trainings_is_none() -> None:
    """transformers' `ProgressCallback` draws it on the next line, and moves back up with an escape sequence."""
    rules = LineMatcher("", "huggingface")
    read(rules, " 50%|█████     | 5/10 [00:00<00:00, 20.18it/s]")
    seen = read(rules, "100%|██████████| 12/12 [00:00<00:00, 86.38it/s]\x1b[A")
    assert (seen["step"], seen["totalSteps"]) == (5, 10)
    after = read(rules, "\x1b[A 60%|██████    | 6/10 [00:00<00:00, 20.18it/s]")
    assert after["step"] == 6


def test_a_bar_that_is_not_ended_yet_is_read_where_it_is_whole() -> None:
    rules = LineMatcher("", "tqdm")
    assert read(rules, unfinished=" 50%|█████     | 5/10 [00:00<00:00, 20.18it/s]")["step"] == 5
    assert read(rules, unfinished=" 60%|██████    | 6/1")["step"] == 5


def test_a_pattern_of_the_jobs_own() -> None:
    rules = LineMatcher(
        r"step (?P<step>[\d,]+)/(?P<totalSteps>\d+).*loss (?P<loss>\S+).*left (?P<etaSeconds>\S+)", "auto"
    )
    assert read(rules, LIGHTNING, DEEPSPEED) == {}, "the only one"
    line = "\x1b[32mINFO\x1b[0m step {}/2000 | loss {} | left {}"
    assert read(rules, line.format("1,200", "1.5e-3", "1:02:03"), "later") == {
        "step": 1200,
        "totalSteps": 2000,
        "loss": 0.0015,
        "etaSeconds": 3723.0,
    }
    assert read(rules, line.format("1,201", "nan", "?"))["step"] == 1201
    assert rules.progress is not None and rules.progress.loss == 0.0015, "what isn't a number says nothing"
    # If several lines arrive together, the newest one counts.
    assert read(rules, line.format(1202, 1, 2), line.format(1203, 1, 2))["step"] == 1203


def test_only_what_says_something_new_is_news() -> None:
    rules = LineMatcher(r"step (?P<step>\d+)", "auto")
    assert rules.read([b"step 1"]) is True
    assert rules.read([b"step 1"]) is False
    assert rules.read([b"other"]) is False


def test_speeds_are_told_in_seconds() -> None:
    assert read_fields({"stepsPerSecond": "4"}) == {"stepSeconds": 0.25}
    assert read_fields({"stepsPerSecond": "0", "step": None, "loss": "x", "epoch": "1:2:3:4:5"}) == {}


@given(st.lists(st.binary(max_size=200), max_size=5), st.binary(max_size=100))
def test_any_output_is_read(lines: list[bytes], unfinished: bytes) -> None:
    for preset in ("auto", "tqdm", "lightning", "huggingface", "torchtune", "deepspeed"):
        LineMatcher("", preset).read(lines, unfinished)
    LineMatcher(r"(?P<step>.*) (?P<loss>.*)(?P<etaSeconds>.)", "auto").read(lines)
