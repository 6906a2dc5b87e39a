"""The job's Python can import `trainloop.recovery`, whatever the image and however ranks start (`agent/library`)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.bare_python import bare_python
from trainmaster_operator.agent.build import library_sources, zipapp_bytes
from trainmaster_operator.rendering import AgentConfigMap
from trainmaster_operator.rendering.agent_source import agent_command, config_map_name

from .agents import Agent, Job
from .test_zipapp import pythons
from .warm.both_ways import starts, until_lines, without_memory

ROOT = Path(__file__).parents[3]
IMPORTS = """
import importlib, os, sys
print("rank", os.environ.get("RANK"), "has", importlib.import_module(sys.argv[1]).__file__, flush=True)
"""
USES = """
import os, sys
print("imported before", "trainloop.recovery.script" in sys.modules, flush=True)
import time, torch
import torch.distributed as dist
from trainloop.recovery import Recovery
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in Recovery(model, optimizer).steps(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    while step == 2 and not all(map(os.path.exists, sys.argv[1:])):
        time.sleep(0.01)
import trainloop
print("rank", os.environ["RANK"], "made step", step, "by", trainloop.__file__, flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.fixture
def zipapp(job: Job) -> list[str]:
    """Returns the command of a pod whose agent comes from a ConfigMap."""
    path = job.folder / "agent.pyz"
    path.write_bytes(zipapp_bytes())
    return [sys.executable, *agent_command(AgentConfigMap(config_map_name(zipapp_bytes())))[1:4], str(path)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("image"))


def brought(agent: Agent, module: str = "trainloop/__init__.py") -> Path:
    [library] = agent.state_dir.glob("library-*")
    return library / "site-packages" / module


def runs(job: Job, zipapp: list[str], *command: str, **environ: str) -> Agent:
    """Returns the agent of a job that has ended."""
    agent = job.agent(0, **environ).start(*command, agent=zipapp)
    job.annotate(job.assignment(1))
    agent.exit_code(60)
    return agent


def imports(job: Job, zipapp: list[str], python: str | Path, module: str = "trainloop", **environ: str) -> Agent:
    (job.folder / "train.py").write_text(IMPORTS)
    return runs(job, zipapp, str(python), str(job.folder / "train.py"), module, **environ)


def test_it_imports_nothing_of_trainloop_that_it_lacks() -> None:
    sources = library_sources()
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text if path.endswith(".py") else "")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trainloop":
                file = str(node.module).replace(".", "/")
                found = {f"{file}.py", f"{file}/__init__.py"} & set(sources)
                assert found, f"{path} imports {node.module}"


def test_the_operators_wheel_builds_the_agent_that_a_checkout_builds(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    build = [sys.executable, "-m", "trainmaster_operator.agent.build", "agent.pyz"]
    subprocess.run(build, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "installed")}, check=True)
    assert (tmp_path / "agent.pyz").read_bytes() == zipapp_bytes()


# This image has its own trainloop.
@pytest.mark.parametrize("python", sorted(set(pythons()) - {sys.executable}))
def test_every_python_reports_progress_by_it(python: str, zipapp: list[str], job: Job) -> None:
    """The notice about a script without progress names `trainloop.progress`."""
    agent = imports(job, zipapp, python, "trainloop.progress")
    until_lines(agent, f"[rank 0]: rank 0 has {brought(agent, 'trainloop/progress.py')}")


# This image has its own trainloop.
@pytest.mark.parametrize("python", sorted(set(pythons()) - {sys.executable}))
def test_the_rest_names_the_python_that_it_needs(python: str, zipapp: list[str], job: Job) -> None:
    agent = imports(job, zipapp, python, "trainloop.continuing")
    version = subprocess.check_output([python, "-c", "import platform; print(platform.python_version())"], text=True)
    if tuple(map(int, version.split("."))) >= (3, 11):
        until_lines(agent, f"[rank 0]: rank 0 has {brought(agent, 'trainloop/continuing/__init__.py')}")
        assert agent.termination()["state"] == "Finished"
    else:
        needs = f"trainloop.continuing needs Python 3.11 or newer, and this is {version.strip()}"
        assert f"ImportError: {needs}; use an image that has it" in agent.termination()["error"]


def test_the_image_s_own_trainloop_is_the_one_that_is_imported(zipapp: list[str], job: Job) -> None:
    agent = imports(job, zipapp, sys.executable)
    until_lines(agent, f"[rank 0]: rank 0 has {ROOT}/images/trainer/trainloop/__init__.py")


def test_a_module_of_an_image_s_own_trainloop_runs_as_a_program(zipapp: list[str], job: Job) -> None:
    agent = runs(job, zipapp, sys.executable, "-m", "trainloop", "--help")
    assert agent.termination()["state"] == "Finished" and "[rank 0]: usage: trainloop" in agent.output()


@pytest.mark.parametrize("name", ["trainloop.py", "trainloop/__init__.py", "trainloop/recovery.py"])
@pytest.mark.parametrize("place", ["beside the script", "on PYTHONPATH"])
def test_a_trainloop_of_the_job_s_own_is_the_one_that_is_imported(
    name: str, place: str, image: Path, zipapp: list[str], job: Job
) -> None:
    folder = job.folder if place == "beside the script" else job.folder / "own"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    agent = imports(job, zipapp, image, module, PYTHONPATH=str(job.folder / "own"))
    until_lines(agent, f"[rank 0]: rank 0 has {folder / name}")


def test_a_program_that_a_script_starts_imports_it_too(image: Path, zipapp: list[str], job: Job) -> None:
    agent = runs(job, zipapp, "sh", "-c", f"exec {image} -c 'import trainloop as it; print(it.__file__)'")
    until_lines(agent, f"[rank 0]: {brought(agent)}")


def test_a_disk_that_refuses_it_is_said_and_stops_nothing(zipapp: list[str], job: Job) -> None:
    agent = job.agent(0)
    checksum = zlib.crc32(json.dumps(library_sources()).encode())
    (agent.state_dir / f"library-{checksum:08x}.new").write_text("in the way")
    agent.start("true", agent=zipapp)
    job.annotate(job.assignment(1))
    assert agent.exit_code(60) == 0
    assert "[agent]: scripts can't import trainloop.recovery: cannot write " in agent.output()


@pytest.mark.torch
@pytest.mark.parametrize("way", ["warm", "warm again", "cold", "torchrun"])
def test_ranks_of_an_image_with_torch_alone_use_it(way: str, image: Path, zipapp: list[str], job: Job) -> None:
    (job.folder / "train.py").write_text(USES)
    environ = {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": str(way != "torchrun").lower()}
    environ |= {"NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
    if way == "cold":
        environ["TRAINMASTER_CGROUP_ROOT"] = str(without_memory(job))
    agent = job.agent(0, **environ)
    modules = agent.state_dir / "warm" / "modules"
    if way == "warm again":
        modules.parent.mkdir()
        modules.write_text('["trainloop.recovery.script"]')
    learns = [str(modules)] if way == "warm" else []
    agent.start(str(image), str(job.folder / "train.py"), *learns, agent=zipapp)
    job.annotate(job.assignment(1))
    agent.exit_code(120)
    for rank in range(2):
        until_lines(agent, f"[rank {rank}]: imported before {way == 'warm again'}")
        until_lines(agent, f"[rank {rank}]: rank {rank} made step 3 by {brought(agent)}")
    assert [line.split()[3].strip(":") for line in starts(agent)] == ([way.split()[0]] if way != "torchrun" else [])
    if learns:
        assert "trainloop.recovery.script" in json.loads(modules.read_text())


@pytest.mark.torch
def test_a_rank_that_is_forked_with_it_gets_a_group_that_can_continue() -> None:
    """The variable that names a rank's group is set after the fork, and isn't there while the warm process imports."""
    code = (
        "import trainloop.recovery.script, os, torch.distributed as dist\n"
        "before = dist.init_process_group\n"
        "os.environ['TRAINMASTER_GROUP_FILE'] = '/nowhere'\n"
        "from trainloop.recovery import Recovery\n"
        "assert dist.init_process_group is not before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
