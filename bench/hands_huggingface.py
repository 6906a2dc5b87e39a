"""Measure how much a step of Hugging Face's Trainer costs more if the agent receives its reports.

The same training runs repeatedly in one process, watched and unwatched in turn. When it is watched, it reports to an
agent's server in a separate process, and the agent's rules read its output. When it is unwatched, it has no address for
reports, and the same process only passes on its output. A round's time is that of its steps alone. The table shows the
medians of the rounds and, because other programs use the machine too, the median and the quartiles of the differences
between neighbours. A report comes every 5 s, so its own time is printed as well. Goal: under 0.5 %.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROUNDS, STEPS, WIDTH, LAYERS, BATCH = 12, 150, 512, 8, 32
GOAL = 0.005
_URL, _TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"

# The agent's part: its event loop, its server, and a pump that reads the training's output with or without the rules.
AGENT = """
import os, sys
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.process.output import PrintedEnd, Printer, Pump
from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.progress.trainer import TrainerReports
from trainmaster_operator.agent.progress.trainer import TrainerServer
from tests.signer import environment
from trainmaster_operator.agent.settings import read_settings

settings = read_settings({**environment(), "TRAINMASTER_WORKER": "0"})
loop, reports = Loop(), TrainerReports()
server = TrainerServer(loop)
server.begin(sys.argv[1], reports.receive)
printed = Printed(settings, print)
printer = Printer(loop, 2, PrintedEnd())
watched = Pump(loop, int(sys.argv[2]), "[rank 0]: ", printer, read=printed.reader(0))
plain = Pump(loop, int(sys.argv[3]), "[rank 0]: ", printer)
print(server.open(), flush=True)
while True:
    loop.run_once()
"""


def train(steps: int, output: str) -> tuple[float, float]:
    """Train, and return the wall and CPU seconds of a step."""
    import torch
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Points(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self._points = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(0))

        def __len__(self) -> int:
            return 1024

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"points": self._points[index], "labels": self._points[index].sum()}

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
            self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, 1))

        def forward(self, points: Any, labels: Any) -> dict[str, Any]:
            return {"loss": (self.layers(points).squeeze(1) - labels).square().mean()}

    times: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            times.append((time.perf_counter(), time.process_time()))

    arguments = TrainingArguments(
        output_dir=output,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        logging_steps=10,
        save_strategy="no",
    )
    Trainer(model=Tower(), args=arguments, train_dataset=Points(), callbacks=[Clock()]).train()
    # The first steps warm up.
    begun, ended = times[9], times[-1]
    count = len(times) - 10
    return (ended[0] - begun[0]) / count, (ended[1] - begun[1]) / count


def report_seconds(reports: int = 200) -> float:
    """Returns the median seconds of a report, sent as transformers sends it."""
    from transformers.integrations.integration_utils import KubeflowCallback

    callback = KubeflowCallback()
    times = []
    for step in range(reports):
        begun = time.perf_counter()
        callback._update_status(step % 100, 100, {"loss": 1.0, "current_step": step, "total_steps": 100}, force=True)
        times.append(time.perf_counter() - begun)
        # The server accepts at most this many reports a second.
        time.sleep(0.26)
    return statistics.median(times)


def main() -> None:
    """Run the rounds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    kept_out, kept_err = os.dup(1), os.dup(2)
    with tempfile.TemporaryDirectory() as folder:
        token = str(Path(folder, "token"))
        pipes = {"watched": os.pipe(), "unwatched": os.pipe()}
        readers = [pipes["watched"][0], pipes["unwatched"][0]]
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, token, *map(str, readers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=readers,
        )
        assert agent.stdout is not None
        url = f"http://127.0.0.1:{int(agent.stdout.readline())}/v1/trainer-status"
        wall: dict[str, list[float]] = {"watched": [], "unwatched": []}
        cpu: dict[str, list[float]] = {"watched": [], "unwatched": []}
        try:
            for number in range(options.rounds + 1):
                # The modes alternate in which of them runs first.
                for mode in sorted(wall, reverse=number % 2 == 0):
                    os.environ.pop(_URL, None)
                    if mode == "watched":
                        os.environ.update({_URL: url, _TOKEN: token})
                    for stream in (1, 2):
                        os.dup2(pipes[mode][1], stream)
                    seconds = train(options.steps, folder)
                    for stream, kept in ((1, kept_out), (2, kept_err)):
                        os.dup2(kept, stream)
                    if number:
                        wall[mode].append(seconds[0])
                        cpu[mode].append(seconds[1])
            os.environ.update({_URL: url, _TOKEN: token})
            report = report_seconds(40)
        finally:
            agent.kill()
            agent.wait()
    print(f"{options.rounds} rounds of {options.steps} steps, alternating; torch {torch.__version__}")
    print(f"{'':28} {'unwatched':>10} {'watched':>10} {'difference':>11} {'middle half':>20}")
    for name, times in (("wall time of a step [ms]", wall), ("its CPU time [ms]", cpu)):
        ratios = sorted(a / b - 1 for a, b in zip(times["watched"], times["unwatched"], strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        plain, seen = (statistics.median(times[mode]) * 1e3 for mode in ("unwatched", "watched"))
        print(f"{name:28} {plain:10.3f} {seen:10.3f} {middle:+11.2%} {f'{low:+.2%} to {high:+.2%}':>20}")
    print(f"a report [ms]                {report * 1e3:10.3f}   of 5 s: {report / 5:.3%}; goal: under {GOAL:.1%}")


if __name__ == "__main__":
    main()
