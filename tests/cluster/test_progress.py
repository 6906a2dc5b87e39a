"""kubectl shows progress and hangs of scripts that know nothing of Trainmaster."""

from __future__ import annotations

import re

from tests.cluster.scenarios import Scenario

# It uses no torch, and no progress file: it prints. In attempt 1 it stops at step 12, but keeps printing.
PRINTS = """
import os, time
for step in range(1, 41):
    print(f"step {step}/40 loss {1 / step:.3f} ({step * 10} it/s)", flush=True)
    time.sleep(0.1)
    while step == 12 and os.environ["TRAINMASTER_ATTEMPT"] == "1":
        print("waiting for data", flush=True)
        time.sleep(0.2)
"""
PATTERN = r"step (?P<step>\d+)/(?P<totalSteps>\d+) loss (?P<loss>[\d.]+) .(?P<stepsPerSecond>\d+) it/s"


def test_what_a_script_prints_is_shown_and_watched(scenario: Scenario) -> None:
    # The last report before the silence is shown while it lasts, and kubectl has to be started meanwhile.
    hang = {"hang": {"progressSeconds": 20}, "maxRestarts": 2}
    scenario.apply(PRINTS, workers=1, progress={"pattern": PATTERN}, failurePolicy=hang)

    scenario.until(lambda: (scenario.status.get("progress") or {}).get("etaSeconds") == round(28 / 120, 1), "its ETA")
    assert re.search(r" 12 +40 +0[.]083 ", scenario.cluster.kubectl("get", "dtj", scenario.name).stdout)
    scenario.succeeds(attempt=2, restarts=1)
    [failure] = scenario.failures
    assert (failure["reason"], failure["rank"]) == ("Hung", 0)
    assert "at step 12; the limit is failurePolicy.hang.progressSeconds 20 s" in failure["message"]
    assert scenario.status["progress"]["step"] == 40
    assert scenario.status["progress"]["goodput"] > 0
