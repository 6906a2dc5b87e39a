"""A rank started warm sees the same as one of torchrun's, variable by variable."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

from tests.processes.agent.agents import Job, until

from .both_ways import NO_MEMORY, start, starts, without_memory

PROBE = Path(__file__).with_name("probe.py")
DIFFERS = {
    "environ.TRAINMASTER_WARM_START": ("false", "true"),
    "C environment.TRAINMASTER_WARM_START": ("false", "true"),
}
"""All that may differ: by torchrun, warm and without it."""
STACKS_SIGNAL = 1 << signal.SIGUSR2 - 1
"""A warm rank prints its stacks when it is asked for them; Python itself shows the signal as it was."""
C_LIBRARY_SIGNAL = 1 << 32
"""glibc's own (SIGSETXID): ignored until a process has its first thread, and then again as in torchrun's ranks."""


WAYS = ("torchrun", "cold", "warm")
"""`cold`: started by the agent, because this worker has no warm process; others may have theirs."""


def sees(job: Job, way: str, command: list[str], kinds: list[str], **environ: str) -> list[dict[str, Any]]:
    """Returns what two ranks see that were started in one of the ways."""
    worker = WAYS.index(way)
    if way == "cold":
        environ["TRAINMASTER_CGROUP_ROOT"] = str(without_memory(job))
    # Until something is learned, a rank handles a signal that nobody else uses, by which it can be asked.
    folder = str(job.folder / f"by-{way}")
    agent = start(
        job,
        way != "torchrun",
        *command,
        folder,
        *kinds,
        worker=worker,
        learned=[] if way == "warm" else None,
        **environ,
    )
    assignment = job.assignment(1, workers=(worker,))
    (job.folder / f"by-{way}").mkdir()
    agent.annotate(assignment)
    until(lambda: agent.output().count("atexit was here") == 2, 120, f"{way}: {agent.output}")
    said = {"torchrun": [], "cold": [f"attempt 1 starts cold: {NO_MEMORY}"], "warm": ["attempt 1 starts warm"]}
    assert starts(agent) == said[way]
    found = [json.loads((job.folder / f"by-{way}" / f"seen.{rank}").read_text()) for rank in range(2)]
    return [normal(each, way, agent.address, str(assignment["port"])) for each in found]


def normal(seen: dict[str, Any], way: str, address: str, port: str) -> dict[str, Any]:
    """Removes what differs between any two workers: names, addresses and ports."""
    worker = WAYS.index(way)
    life = seen["sees"]["environ"]["TORCHELASTIC_ERROR_FILE"].split("/")[-4]
    text = json.dumps(seen)
    for own, common in (
        (f"by-{way}", "by-way"),
        (f"worker-{worker}", "worker"),
        (f"uid-{worker}", "uid"),
        (f"/torchrun/{life}/", "/torchrun/life/"),
        (address, "address"),
        (f'"{port}"', '"port"'),
    ):
        text = text.replace(own, common)
    found: dict[str, Any] = json.loads(text)
    for variables in ("environ", "C environment"):
        # Each agent has another port.
        found["sees"][variables].pop("KUBEFLOW_TRAINER_SERVER_URL", None)
        del found["sees"][variables]["TRAINMASTER_WORKER"]
        # torchrun's ranks can't continue in a continued attempt.
        assert ("TRAINMASTER_GROUP_FILE" in found["sees"][variables]) == (way != "torchrun")
        found["sees"][variables].pop("TRAINMASTER_GROUP_FILE", None)
        # This test sets it for the worker that should have no warm process.
        found["sees"][variables].pop("TRAINMASTER_CGROUP_ROOT", None)
    status = found["sees"]["status"]
    if way == "warm":
        assert int(status["SigCgt"], 16) & STACKS_SIGNAL
        status["SigCgt"] = f"{int(status['SigCgt'], 16) & ~STACKS_SIGNAL:016x}"
    status["SigIgn"] = hex(int(status["SigIgn"], 16) & ~C_LIBRARY_SIGNAL)
    return found


def differences(cold: Any, warm: Any, name: str = "") -> dict[str, Any]:
    if isinstance(cold, dict) and isinstance(warm, dict):
        found = {}
        for key in sorted({*cold, *warm}):
            found.update(differences(cold.get(key), warm.get(key), f"{name}.{key}".lstrip(".")))
        return found
    return {} if cold == warm else {name: (cold, warm)}


def compare(job: Job, command: list[str], kinds: list[str], **environ: str) -> None:
    shutil.copy(PROBE, job.folder / "probe.py")
    by_torchrun, *others = (sees(job, way, command, kinds, **environ) for way in WAYS)
    for other in others:
        for rank in range(2):
            assert differences(by_torchrun[rank]["sees"], other[rank]["sees"]) == DIFFERS, f"rank {rank}"
    for seen in (by_torchrun, *others):
        for name in seen[0]["own"]:
            assert seen[0]["own"][name] != seen[1]["own"][name], f"{name} is each rank's own"
        assert len({str(rank["parent"]) for rank in seen}) == 1


def test_everything_that_a_rank_can_see_of_a_script_is_as_torchrun_gives_it(job: Job) -> None:
    compare(job, ["-W", "once", "-X", "dev", str(job.folder / "probe.py")], ["spawn", "fork", "forkserver"])


def test_everything_that_a_rank_can_see_of_a_module_is_as_torchrun_gives_it(job: Job) -> None:
    """The ranks run with the image's own sitecustomize, buffered output, a hash seed and a number of threads. They run
    below a shell that ignores signals, as it does for its background processes (`&`).
    """
    folder = job.folder / "path"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.site_runs = getattr(sys, 'site_runs', 0) + 1\n")
    environ = {"PYTHONPATH": f"{folder}:{job.folder}", "PYTHONUNBUFFERED": "", "PYTHONHASHSEED": "7"}
    ignored = (signal.SIGQUIT, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        compare(job, ["-m", "probe"], ["spawn"], OMP_NUM_THREADS="2", PYTHONFAULTHANDLER="", **environ)
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    seen = json.loads((job.folder / "by-warm" / "seen.0").read_text())["sees"]
    assert seen["site"] == [1, True, False]
