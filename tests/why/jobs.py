"""The jobs of `recorded.yaml` that docs/troubleshooting.md doesn't already show."""

from __future__ import annotations

from tests.cluster.test_troubleshooting import FAILING, SITUATIONS, WAIT, Situation, program

IN_USE = """
import os, socket, time
if os.environ["RANK"] == "1":
    time.sleep(600)
first = socket.create_server((os.environ["POD_IP"] if "POD_IP" in os.environ else "127.0.0.1", 18123))
second = socket.create_server(first.getsockname())
"""
DENIED = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(600)
raise PermissionError(13, "Permission denied", "/checkpoints/step-10")
"""
# A step of a tenth of a second after `wait` seconds for data.
STEPS = """
import json, os, time
waited, path = 0.0, os.environ["TRAINMASTER_PROGRESS_FILE"]
for step in range(1, 100000):
    time.sleep({wait})
    waited += {wait}
    time.sleep(0.1)
    figures = {{"step": step, "totalSteps": 100000, "samplesPerSecond": 31.0, "dataSeconds": waited, "loss": 1.0}}
    with open(path + ".new", "w") as file:
        json.dump(figures, file)
    os.replace(path + ".new", path)
"""
_ONCE = {"failurePolicy": {"maxRestarts": 0}}
_FETCH = {"name": "fetch", "image": "python:3.12", "command": ["python3", "-c", "raise SystemExit(4)"]}

JOBS: dict[str, Situation] = {
    **SITUATIONS,
    "unmoduled": Situation(program("import transformerz", **_ONCE), "Failed", "MaxRestartsExceeded"),
    "denied": Situation(program(DENIED, **_ONCE), "Failed", "MaxRestartsExceeded"),
    "three": Situation(program("raise SystemExit(3)", **_ONCE), "Failed", "MaxRestartsExceeded"),
    "inuse": Situation(program(IN_USE, **_ONCE), "Failed", "MaxRestartsExceeded"),
    "slow": Situation(program(STEPS.format(wait=0.4)), "Running", "AllRanksUp"),
    "well": Situation(program(STEPS.format(wait=0.0)), "Running", "AllRanksUp"),
    "uninitialized": Situation(
        program(WAIT, podTemplate={"spec": {"initContainers": [_FETCH]}}), "Starting", "InitFailed"
    ),
    "done": Situation(program("print('done')"), "Succeeded", "Finished"),
    "starved": Situation(
        program(WAIT, resources={"gpus": 64}, failurePolicy={"startupSeconds": 4}), "Failed", "Unschedulable"
    ),
    "crashed": Situation(
        program(
            "import os; os.environ['RANK'] == '0' and os.kill(os.getpid(), 11); import time; time.sleep(9)", **_ONCE
        ),
        "Failed",
        "MaxRestartsExceeded",
    ),
    "restarting": Situation(
        program(FAILING, failurePolicy={"maxRestarts": 9, "backoff": {"initialSeconds": 60}}),
        "Restarting",
        "BackOff",
    ),
}
