"""Real agents read real ranks' progress from their output, and detect hangs by it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from .agents import Agent, Job, Stream, until

STEPS = """
import time
for step in range(1, {last} + 1):
    print(f"{{time.time():.0f}} step {{step}}/100 loss {{1 / step:.3f}}", flush=True)
    time.sleep({pause})
{then}
"""
PATTERN = r"step (?P<step>\d+)/(?P<totalSteps>\d+) loss (?P<loss>[\d.]+)"


def start(job: Job, code: str, **environ: str) -> Agent:
    path = job.folder / "train.py"
    path.write_text(code)
    agent = job.agent(0).start(sys.executable, str(path), **environ)
    job.annotate(job.assignment(1))
    return agent


def shown(agent: Agent) -> dict[str, Any]:
    return dict((agent.state().get("progress") or {}).get("0", {}))


def test_lines_of_a_pattern_are_progress_and_their_absence_is_a_hang(job: Job) -> None:
    agent = start(
        job,
        STEPS.format(last=5, pause=0.1, then="while True:\n    print('waiting', flush=True); time.sleep(0.2)"),
        TRAINMASTER_PROGRESS_PATTERN=PATTERN,
        TRAINMASTER_PROGRESS_TIMEOUT="2",
    )
    stream = Stream(agent)
    line = stream.until(lambda line: line["type"] == "progress" and line["ranks"]["0"].get("step") == 5)
    assert line["ranks"]["0"] == {"step": 5, "totalSteps": 100, "loss": 0.2}
    failed = stream.until_report("Failed")["report"]
    assert (failed["reason"], failed["rank"]) == ("Hung", 0)
    assert (
        "rank 0 made no progress for 2 s at step 5; the limit is failurePolicy.hang.progressSeconds 2 s"
        in failed["error"]
    )
    stream.close()


def test_a_script_that_says_its_steps_alone_has_a_speed(job: Job) -> None:
    agent = start(job, STEPS.format(last=100, pause=0.25, then=""), TRAINMASTER_PROGRESS_PATTERN=PATTERN)
    stream = Stream(agent)
    line = stream.until(lambda line: line["type"] == "progress" and "stepSeconds" in line["ranks"]["0"])
    # A step takes at least its sleep, apart from delays in seeing steps; a shared machine may be slower.
    assert 0.2 < line["ranks"]["0"]["stepSeconds"] < 1.0
    stream.close()


def test_a_plain_script_shows_its_steps_without_a_setting(job: Job) -> None:
    code = "import time\nfor step in range(1, 4): print(f'epoch 0 step {step}/192 loss 0.9{step}'); time.sleep(0.3)"
    stream = Stream(start(job, code))
    line = stream.until(lambda line: line["type"] == "progress" and line["ranks"]["0"].get("step") == 3)
    assert line["ranks"]["0"]["loss"] == 0.93
    stream.until_report("Finished")
    stream.close()


@pytest.mark.parametrize("preset", ["auto", "none"])
def test_what_nobody_asked_for_is_never_a_hang(job: Job, preset: str) -> None:
    """The line is DeepSpeed's, printed by its pipeline engine."""
    then = "print('steps: 30 loss: 2.3 iter time (s): 0.250 samples/sec: 128.0', flush=True); time.sleep(4)"
    agent = start(
        job,
        STEPS.format(last=1, pause=0, then=then),
        TRAINMASTER_PROGRESS_PRESET=preset,
        TRAINMASTER_PROGRESS_TIMEOUT="1",
    )
    stream = Stream(agent)
    finished = stream.until(lambda line: (line.get("report") or {}).get("state") in ("Finished", "Failed"))["report"]
    assert finished["state"] == "Finished", finished
    assert shown(agent).get("step") == (30 if preset == "auto" else None)
    stream.close()


def test_a_pattern_that_takes_forever_blinds_the_agent_and_never_stops_it(job: Job) -> None:
    line = "print('1' * 900, flush=True); time.sleep(3)"
    agent = start(
        job,
        STEPS.format(last=1, pause=0, then=line),
        TRAINMASTER_PROGRESS_PATTERN=r"(?P<step>\d*)\d*\d*\d*\d*\d*\d*\d*x",
        TRAINMASTER_PROGRESS_TIMEOUT="1",
    )
    stream = Stream(agent)
    until(lambda: "spec.progress took longer than 0.1 s to match" in agent.output(), what="given up")
    assert agent.request("GET", "/healthz", token=None) == (200, "ok")
    stream.until_report("Finished")
    stream.close()


def test_an_agent_with_a_pattern_that_is_none_ends_with_a_sentence(job: Job) -> None:
    agent = start(job, "", TRAINMASTER_PROGRESS_PATTERN="step")
    assert agent.exit_code() == 64
    assert "TRAINMASTER_PROGRESS_PATTERN: 'step' has no named group" in agent.output()
