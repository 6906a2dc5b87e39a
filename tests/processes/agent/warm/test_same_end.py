"""A rank started warm ends as one of torchrun's does: with the same code, signal, traceback and error file."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.processes.agent.agents import Job, Stream

from .both_ways import start, starts

ENDS = {
    "exit with a number": "sys.exit(3)",
    "exit with a text": "sys.exit('the data is gone')",
    "abort": "os.abort()",
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "SIGPIPE": "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGPIPE)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "error file": (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise RuntimeError('recorded')\nmain()"
    ),
    "os._exit": "sys.stdout.write('unbuffered\\n')\nos._exit(7)",
    "a thread's error, then a nested one": (
        "import threading as t\nx = t.Thread(target=int, args=('x',))\nx.start()\nx.join()\n"
        "def f():\n    g()\ndef g():\n    raise KeyError('x') from ValueError('y')\nf()"
    ),
}
HEAD = """import atexit, os, signal, sys, time
atexit.register(print, "atexit", flush=True)
print("begins", flush=True)
"""


def ends(job: Job, warm: bool) -> dict[str, Any]:
    """Returns how a worker's attempts end, one after the other: the report, and the rank's output."""
    worker = int(warm)
    for at, code in enumerate(ENDS.values(), 1):
        (job.folder / f"end_{at}.py").write_text(HEAD + code + "\n")
    script = job.folder / "train.py"
    script.write_text(
        "import os, runpy\nrunpy.run_path(f'{__file__[:-8]}end_{os.environ[\"TRAINMASTER_ATTEMPT\"]}.py')\n"
    )
    agent = start(job, warm, str(script), ranks=1, worker=worker)
    agent.annotate(job.assignment(0, workers=(worker,), state="Hold"))
    stream = Stream(agent)
    found = {}
    for attempt, name in enumerate(ENDS, 1):
        assignment = job.assignment(attempt, workers=(worker,))
        agent.request("POST", "/v1/assignment", assignment)
        line = stream.until_report("Failed", attempt)
        agent.request("POST", "/v1/ack", {"seq": line["seq"]})
        report = line["report"]
        folder = agent.state_dir / f"attempt-{attempt}"
        printed = [normal((folder / f"rank-0.{stream}.log").read_text()) for stream in ("out", "err")]
        named = ("reason", "exitCode", "signal", "rank", "culprit")
        found[name] = [{key: report.get(key) for key in named}, normal(report["error"]), *printed]
    stream.close()
    assert starts(agent) == [f"attempt {attempt} starts warm" for attempt in range(1, len(ENDS) + 1)] * warm
    return found


def normal(text: str) -> str:
    """Removes addresses, pids, times and the list of C modules, of which a warm rank has more."""
    text = re.sub(r"0x[0-9a-f]+|\b\d{5,}\b|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "#", text)
    return re.sub(r"\n*Extension modules: .*", "", text).strip()


def test_every_end_of_a_rank_is_reported_and_printed_as_in_a_cold_start(job: Job) -> None:
    cold, warm = ends(job, False), ends(job, True)
    for name, end in cold.items():
        assert warm[name] == end, name
    assert cold["abort"][0]["signal"] == 6 and "Fatal Python error" in cold["abort"][3]
    assert "recorded" in cold["error file"][1] and "atexit" in cold["a thread's error, then a nested one"][2]


GROUPLESS = """import gc, os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
del model
dist.destroy_process_group()
gc.collect()
threads = sorted((task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir())
print("threads", *threads, flush=True)
"""


@pytest.mark.torch
def test_the_default_group_is_kept_beyond_its_destruction_as_in_a_cold_start(job: Job) -> None:
    """The default arguments of torch.distributed.nn.functional keep it in both; without the group its threads end."""
    script = job.folder / "train.py"
    script.write_text(GROUPLESS)
    found = []
    for warm in (False, True):
        worker = int(warm)
        learned = ["torch._dynamo", "torch.distributed.nn.functional"] if warm else None
        agent = start(job, warm, str(script), ranks=1, worker=worker, learned=learned, OMP_NUM_THREADS="1")
        agent.annotate(job.assignment(1, workers=(worker,)))
        assert agent.exit_code(120) == 0, agent.output()
        assert starts(agent) == ["attempt 1 starts warm"] * warm
        found.append(sorted(re.findall(r"\[rank (\d)\]: threads (.*)", agent.output())))
    assert found[0] == found[1] and len(found[0]) == 1
    assert all("gloo" in threads for _, threads in found[0])
