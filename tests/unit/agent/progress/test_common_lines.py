"""Lines that plain scripts print become progress without a setting, and lines about other work don't.

Each line is one that the named program prints.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.agent.progress.log_rules import LineMatcher

from .test_log_rules import read

KERAS_3 = (
    "\x08\x08\x08\x1b[1m120/1875\x1b[0m \x1b[32m━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m5s\x1b[0m 3ms/step "
    "- accuracy: 0.9012 - loss: 0.3012"
)
ULTRALYTICS = (
    "    {}/1000      6.73G      1.081     0.4706      1.084         10        640:  50%|█████     | {}/16 "
    "[00:05<00:00,  2.78it/s]"
)


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["epoch 0 step 10/192 loss 0.92"], {"step": 10, "loss": 0.92, "epoch": 10 / 192}),
        # github.com/yunjey/pytorch-tutorial, tutorials/02-intermediate.
        (
            ["Epoch [2/10], Step [100/600], Loss: 0.5123"],
            {"step": 700, "totalSteps": 6000, "loss": 0.5123, "epoch": 1 + 1 / 6},
        ),
        # github.com/pytorch/examples, mnist/main.py. Its unit is the sample.
        (
            ["Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.301234"],
            {"step": 640, "loss": 2.301234, "epoch": 640 / 60000},
        ),
        # The same, imagenet/main.py.
        (
            [
                "Epoch: [0][  10/5005]\tTime  0.123 (  0.512)\tData  0.001 (  0.211)\tLoss 6.9812e+00 (7.0101e+00)\t"
                "Acc@1   0.00 (  0.09)\tAcc@5   0.39 (  0.43)"
            ],
            {"step": 10, "loss": 6.9812, "epoch": 10 / 5005},
        ),
        # The same, word_language_model/main.py.
        (
            ["| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.34 | loss  7.63 | ppl  2062.44"],
            {"step": 200, "loss": 7.63, "learningRate": 20.0, "epoch": 200 / 2983},
        ),
        # The same, dcgan/main.py.
        (
            ["[1/5][100/1583] Loss_D: 0.2741 Loss_G: 5.1030 D(x): 0.8801 D(G(z)): 0.1083 / 0.0093"],
            {"step": 100, "totalSteps": 7915, "loss": 0.2741, "epoch": 100 / 1583},
        ),
        # The same, distributed/ddp-tutorial-series/multigpu_torchrun.py, which prints no loss.
        (
            ["[GPU0] Epoch 0 | Batchsize: 32 | Steps: 32", "[GPU0] Epoch 3 | Batchsize: 32 | Steps: 32"],
            {"step": 96, "epoch": 3},
        ),
        # PyTorch's tutorials: beginner/blitz/cifar10_tutorial and beginner/basics/quickstart_tutorial.
        (["[1,  2000] loss: 2.215", "[1,  4000] loss: 1.872"], {"step": 4000, "loss": 1.872, "epoch": 0}),
        (
            [
                "Epoch 1",
                "-------------------------------",
                "loss: 2.303494  [   64/60000]",
                "loss: 2.294637  [ 6464/60000]",
            ],
            {"step": 6464, "loss": 2.294637, "epoch": 6464 / 60000},
        ),
        # github.com/karpathy: nanoGPT, minGPT, build-nanogpt, llm.c, nanochat.
        (["iter 250: loss 1.8000, time 12.30ms, mfu 4.50%"], {"step": 250, "loss": 1.8}),
        (["step 250: train loss 1.7321, val loss 1.8123"], {"step": 250, "loss": 1.7321}),
        (["iter_dt 12.34ms; iter 100: train loss 2.10043"], {"step": 100, "loss": 2.10043}),
        (
            ["step     3 | loss: 10.955029 | lr 8.3916e-07 | norm: 15.3666 | dt: 3100.12ms | tok/sec: 169121.11"],
            {"step": 3, "loss": 10.955029, "learningRate": 8.3916e-07},
        ),
        (
            ["step   10/1000 | loss 3.270007 (+1.02z)| norm 2.2959 (+0.12z)| lr 4.29e-07 | 100.12 ms | 45.5% bf16 MFU"],
            {"step": 10, "totalSteps": 1000, "loss": 3.270007, "learningRate": 4.29e-07},
        ),
        (
            ["step 00010/21400 (0.05%) | loss: 8.123456 | lrm: 1.00 | dt: 120.52ms | tok/sec: 434,121 | mfu: 45.12"],
            {"step": 10, "totalSteps": 21400, "loss": 8.123456},
        ),
        # github.com/KellerJordan/modded-nanogpt, which prints no training loss.
        (["step:10/1750 train_time:1234ms step_avg:123.41ms"], {"step": 10, "totalSteps": 1750}),
        # github.com/epfLLM/Megatron-LLM/issues/11.
        (
            [
                " iteration      201/  250000 | consumed samples:       205824 | elapsed time per iteration (ms): "
                "139113.4 | learning rate: 1.507E-05 | global batch size:  1024 | lm loss: 2.373574E+00 | "
                "loss scale: 1.0 | grad norm: 0.811 | number of skipped iterations:   0 |"
            ],
            {"step": 201, "totalSteps": 250000, "loss": 2.373574, "learningRate": 1.507e-05, "gradNorm": 0.811},
        ),
        # github.com/pytorch/torchtitan/pull/3393.
        (
            [
                "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - \x1b[31mstep: 14  \x1b[32mloss:  3.24405  "
                "\x1b[38;2;180;60;0mgrad_norm:  0.8319  \x1b[38;2;54;234;195mmemory:  9.46GiB(64.99%)  tps: 7,282"
            ],
            {"step": 14, "loss": 3.24405, "gradNorm": 0.8319},
        ),
        # fairseq, logging/progress_bar.py: SimpleProgressBar and JsonProgressBar.
        (
            [
                "2026-01-02 03:04:05 | INFO | train_inner | epoch 001:    100 / 1000 loss=14.512, nll_loss=14.4, "
                "ppl=21543, wps=12000, ups=2.5, num_updates=100, lr=1.25e-05, gnorm=3.4, train_wall=40"
            ],
            {"step": 100, "loss": 14.512, "learningRate": 1.25e-05, "gnorm": 0}
            and {
                "step": 100,
                "loss": 14.512,
                "learningRate": 1.25e-05,
                "gradNorm": 3.4,
                "epoch": 0.1,
            },
        ),
        (
            ['train_inner | {"epoch": 1, "update": 0.102, "loss": "14.512", "num_updates": "100", "lr": "1.25e-05"}'],
            {"step": 100, "loss": 14.512, "learningRate": 1.25e-05, "epoch": 0},
        ),
        # MMEngine and Detectron2.
        (
            [
                "2026/01/02 03:04:05 - mmengine - INFO - Epoch(train)  [1][  50/1000]  lr: 1.0000e-02  eta: 1:00:00  "
                "time: 0.1234  data_time: 0.0012  memory: 1024  loss: 1.2345"
            ],
            {"step": 50, "loss": 1.2345, "learningRate": 0.01, "epoch": 0.05},
        ),
        (
            ["01/02 03:04:05 - mmengine - INFO - Iter(train) [   50/40000]  lr: 1.0000e-02  loss: 2.0101"],
            {"step": 50, "totalSteps": 40000, "loss": 2.0101, "learningRate": 0.01},
        ),
        (
            [
                "[01/02 03:04:05 d2.utils.events]: \x1b[0m eta: 0:12:34  iter: 19  total_loss: 1.203  loss_cls: 0.812  "
                "time: 0.1234  lr: 1.6e-05  max_mem: 2345M"
            ],
            {"step": 19, "loss": 1.203, "learningRate": 1.6e-05},
        ),
        # timm, train.py; DETR and MAE, util/misc.py (MetricLogger).
        (
            ["Train: 0 [  50/1251 (  4%)]  Loss: 6.912 (6.92)  Time: 0.512s, 2000.12/s  LR: 1.000e-06  Data: 0.01"],
            {"step": 50, "loss": 6.912, "learningRate": 1e-06, "epoch": 50 / 1251},
        ),
        (
            ["Epoch: [0]  [  20/1251]  eta: 0:10:20  lr: 0.000001  loss: 6.9123 (6.9201)  time: 0.4512  max mem: 1234"],
            {"step": 20, "loss": 6.9123, "learningRate": 1e-06, "epoch": 20 / 1251},
        ),
        # Keras 2 and 3 (src/utils/progbar.py); with verbose=2, one line for each epoch.
        (
            ["Epoch 2/5", " 120/1875 [>.............................] - ETA: 5s - loss: 0.3012 - accuracy: 0.9012"],
            {"step": 1995, "totalSteps": 9375, "loss": 0.3012, "epoch": 1 + 120 / 1875},
        ),
        (["Epoch 1/5", "", KERAS_3], {"step": 120, "totalSteps": 9375, "loss": 0.3012, "epoch": 120 / 1875}),
        (
            ["Epoch 1/5", "1875/1875 - 5s - 3ms/step - accuracy: 0.9012 - loss: 0.3012"],
            {"step": 1875, "totalSteps": 9375, "loss": 0.3012, "epoch": 1},
        ),
        # github.com/ultralytics/ultralytics/issues/7653, and the bar of newer versions (utils/tqdm.py).
        ([ULTRALYTICS.format(70, 8)], {"step": 69 * 16 + 8, "totalSteps": 16000, "epoch": 69.5}),
        (
            ["      1/100      2.5G      1.2      2.3      1.1   12   640: 45% ━━━━╸───── 12/40 8.2it/s 1.5s<3.4s"],
            {"step": 12, "totalSteps": 4000, "epoch": 0.3},
        ),
        # Lightning 2.6 with Rich, whose last line is printed even if the output is no terminal.
        (
            ["Epoch 2/2  ━━━━━━━━━━━━━━━━━ 20/20 0:00:01 • 0:00:00 18.76it/s train_loss: 0.125"],
            {"step": 60, "totalSteps": 60, "loss": 0.125, "epoch": 3},
        ),
        # tqdm with set_postfix(loss=…).
        (
            ["Epoch 1:  12%|█▏        | 12/100 [00:01<00:10,  8.00it/s, loss=0.5]"],
            {"step": 12, "loss": 0.5, "stepSeconds": 0.125, "epoch": 0.12},
        ),
        # JSON, key=value, and prefixes of logging and torchrun.
        (['{"step": 10, "loss": 0.9}'], {"step": 10, "loss": 0.9}),
        (
            ['{"loss": 0.9, "lr": 0.001, "epoch": 0.5, "global_step": 10}'],
            {"step": 10, "loss": 0.9, "learningRate": 0.001},
        ),
        (["{'train/loss': 0.9, 'train/step': 10}"], {"step": 10, "loss": 0.9}),
        (["step=10 loss=0.9 lr=1e-3"], {"step": 10, "loss": 0.9, "learningRate": 0.001}),
        (
            ["2026-11-27 10:11:12,123 INFO train: step 1,200 of 2,000, loss 0.9"],
            {"step": 1200, "totalSteps": 2000, "loss": 0.9},
        ),
        (["[rank0]: [2026-11-27] Batch 3/100 - training loss: 0.9"], {"step": 3, "totalSteps": 100, "loss": 0.9}),
        (["step 10 loss tensor(0.9012, grad_fn=<NllLossBackward0>)"], {"step": 10, "loss": 0.9012}),
        (["Iteration 10: loss is 0.9"], {"step": 10, "loss": 0.9}),
        (["step 10 loss 0.9", "step 11 loss nan"], {"step": 11, "loss": 0.9}),
        (["step 20: 12.5 steps/s"], {"step": 20}),
        # A script that prints only epochs.
        (
            ["Epoch 3/10, train loss: 0.5, val loss: 0.6, val acc: 0.9"],
            {"step": 3, "totalSteps": 10, "loss": 0.5, "epoch": 3},
        ),
        (["Epoch: 0, Loss: 0.5", "Epoch: 1, Loss: 0.4"], {"step": 2, "loss": 0.4, "epoch": 2}),
    ],
)
def test_a_common_line_is_progress(lines: list[str], fields: dict[str, Any]) -> None:
    assert read(LineMatcher("", "auto"), "noise", *lines, "noise") == pytest.approx(fields)


@pytest.mark.parametrize(
    "line",
    [
        "step 1/3 downloading",
        "Step 2/3 : RUN pip install torch",
        "step 1/3 downloading 30 it/s",
        "Collecting torch==2.5.0 (from -r requirements.txt (line 1))",
        "   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 12.3/45.6 MB 8.2 MB/s eta 0:00:05",
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.00s/it]",
        "Tokenizing step 3:  50%|█████     | 2/4 [00:01<00:01,  1.00it/s]",
        "Test: [ 10/196]\tTime  0.123 (  0.512)\tLoss 6.9812e-01 (7.0101e-01)\tAcc@1  81.00 ( 80.09)",
        "Test set: Average loss: 0.0512, Accuracy: 9830/10000 (98%)",
        "Epoch(val) [1][50/79]  eta: 0:00:10  loss: 0.5",
        "Eval step 10/20 loss 0.5",
        "[validation] epoch 3 step 10/20 loss 0.5",
        "step 250: val loss 1.8123",
        "eval_loss: 0.5 at step 100",
        " validation loss at iteration 1000 | lm loss value: 2.1E+00 | lm loss PPL: 8.2E+00 |",
        "Saving checkpoint at step 100 (loss 0.5)",
        "Resuming from epoch 3, step 1000, loss 0.5",
        "New best model at step 100: loss 0.5",
        "Using loss scale 65536 at step 10",
        "Namespace(steps=1000, loss_weight=0.5, batch_size=32)",
        "{'loss': 'mse', 'steps': 1000, 'lr': 0.1}",
        "Epoch 1/5",
        "loss: 0.5",
        "  Class     Images  Instances      Box(P    R    mAP50): 100%|██████████| 8/8 [00:03<00:00,  2.17it/s]",
    ],
)
def test_lines_about_other_work_are_none(line: str) -> None:
    assert read(LineMatcher("", "auto"), line) == {}


def steps(*lines: str) -> list[int | None]:
    """Returns the step after each line."""
    rules = LineMatcher("", "auto")
    return [read(rules, line).get("step") for line in lines]


def test_a_batch_that_counts_anew_in_each_epoch_is_added_up() -> None:
    line = "epoch {} step {}/192 loss 0.5"
    assert steps(line.format(0, 191), line.format(1, 1), line.format(2, 192)) == [191, 193, 576]
    assert steps(line.format(1, 191), line.format(2, 1)) == [191, 193], "epochs count from 1"
    assert steps("step 90/100 loss 1", "step 10/100 loss 1") == [90, 110], "an epoch without a number"
    assert steps("epoch 1 batch 500 loss 1", "epoch 2 batch 100 loss 1", "epoch 2 batch 200 loss 1") == [500, 600, 700]


def test_a_step_that_continues_in_the_next_epoch_is_the_step() -> None:
    line = "epoch {} step {}/1000 loss 0.5"
    assert steps(line.format(0, 190), line.format(1, 200), line.format(2, 410)) == [190, 200, 410]
    assert steps("epoch 1 step 190 loss 1", "epoch 2 step 200 loss 1", "epoch 3 step 390 loss 1") == [190, 200, 390]


def test_steps_never_decrease_for_ranks_that_are_behind_or_lines_about_the_past() -> None:
    assert steps("step 10 loss 1", "step 9 loss 1", "step 11 loss 1", "step 10 loss 1") == [10, 10, 11, 11]
    assert steps("step 10 loss 1", "lowest loss 0.5, step 3", "step 11 loss 1") == [10, 10, 11]
    assert steps("epoch 1 batch 90 loss 1", "epoch 2 batch 1 loss 1", "epoch 1 batch 91 loss 1") == [90, 91, 91]


def test_a_training_that_begins_again_is_followed() -> None:
    lines = [f"step {step} loss 1" for step in (500, 1, 2, 3, 4)]
    assert steps(*lines) == [500, 500, 500, 3, 4]


def test_something_shorter_is_an_evaluation() -> None:
    assert steps("step 10/1000 loss 1", "step 20/30 loss 1", "step 11/1000 loss 1") == [10, 10, 11]


def test_lines_with_a_step_and_a_loss_count_more_than_others() -> None:
    assert steps("epoch 3 loss 1", "step 20: 5 it/s", "step 10 loss 1", "step 30: 5 it/s", "epoch 4 loss 1") == [
        *(4, 20, 10, 10, 10)
    ]


def test_a_line_that_arrives_in_two_parts_counts_when_it_is_whole() -> None:
    rules = LineMatcher("", "auto")
    assert read(rules, unfinished="step 10 loss 0.9") == {}
    assert read(rules, "step 10 loss 0.91") == {"step": 10, "loss": 0.91}


@given(
    st.lists(
        st.sampled_from(["step", "epoch", "loss", "batch", " ", "/", "[", "]", ":", "1", "20", "0.5", "val", "it/s"])
    )
)
def test_any_line_of_these_words_is_read(words: list[str]) -> None:
    found = read(LineMatcher("", "auto"), "".join(words), " ".join(words))
    assert found.get("step", 0) >= 0 and found.get("totalSteps", 1) >= 0
