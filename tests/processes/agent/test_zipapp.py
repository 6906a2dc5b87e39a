"""The agent is one file: each build gives the same bytes, and it runs on every Python from 3.9 on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipapp as zipapps
from pathlib import Path

import pytest

from trainmaster_operator.agent.build import main as build
from trainmaster_operator.agent.build import package_sources, zipapp_bytes
from trainmaster_operator.rendering.agent_source import AgentConfigMap, agent_command, config_map_name
from trainmaster_operator.wire.report import EXIT_BY_REASON

from .agents import Job

SOURCES = Path(__file__).parents[3] / "operator" / "trainmaster_operator"


def pythons() -> list[str]:
    """Returns this machine's Pythons from 3.9 on, among them the one that runs the tests."""
    found = {sys.executable}
    for minor in range(9, 15):
        program = shutil.which(f"python3.{minor}")
        versions = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        # A pyenv shim may name a version that isn't installed.
        candidates = [str(path) for path in versions] or ([program] if program and "shims" not in program else [])
        found.update(candidates[:1])
    return sorted(found)


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    assert build([str(path)]) == 0
    return path


def test_it_is_built_the_same_twice(zipapp: Path) -> None:
    assert zipapp.read_bytes() == zipapp_bytes()
    assert os.access(zipapp, os.X_OK)


def test_it_is_the_same_whatever_else_its_maker_has_loaded(zipapp: Path) -> None:
    """Its hash names the ConfigMap: a restarted operator must find the one that it has made."""
    code = "import asyncio, email, {0}, sys; from {0} import zipapp_bytes; sys.stdout.buffer.write(zipapp_bytes())"
    made = subprocess.run(
        [sys.executable, "-c", code.format("trainmaster_operator.agent.build")],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert made.stdout == zipapp.read_bytes()


def test_a_config_map_holds_it_with_a_quarter_to_spare(zipapp: Path) -> None:
    # kubernetes, pkg/apis/core/types.go: MaxSecretSize is 1 MiB, for ConfigMaps too.
    assert zipapp.stat().st_size < 3 * 1024 * 1024 // 4


def test_the_python_that_built_it_compiles_nothing(zipapp: Path) -> None:
    code = (
        "import contextlib, runpy, sys\n"
        "sys.argv[1:] = ['--version']\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    runpy.run_path({str(zipapp)!r}, run_name='__main__')\n"
        "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('trainmaster')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    files = printed.stdout.splitlines()[-1].split()
    assert files
    assert all(file.startswith(f"{zipapp}/{sys.implementation.cache_tag}/") for file in files), files


def test_its_sources_need_no_more_than_python_3_9() -> None:
    vermin = Path(sys.executable).with_name("vermin")
    checked = subprocess.run(
        [
            str(vermin),
            "-t=3.9-",
            "--no-tips",
            "--violations",
            *(str(path) for part in ("agent", "wire") for path in SOURCES.glob(f"{part}/**/*.py")),
            str(SOURCES / "rendering" / "verified_agent.py"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("python", pythons())
def test_it_runs_a_job_under_every_python_of_this_machine(python: str, zipapp: Path, job: Job) -> None:
    agents = [job.agent(worker).start("sh", "-c", "exit 0", agent=[python, str(zipapp)]) for worker in range(2)]
    job.annotate(job.assignment(1, [0, 1]))
    for agent in agents:
        assert agent.exit_code() == 0, agent.output()
        assert agent.termination()["state"] == "Finished"


@pytest.mark.parametrize("python", pythons())
def test_it_runs_verified_and_stays_what_was_verified(python: str, zipapp: Path, job: Job, tmp_path: Path) -> None:
    """A ConfigMap's volume may change under a process that still imports from it."""
    mounted = tmp_path / "agent.pyz"
    mounted.write_bytes(zipapp.read_bytes())
    _, *command = agent_command(AgentConfigMap(config_map_name(zipapp.read_bytes())))
    verified = [python, *command[:3], str(mounted)]
    agents = [job.agent(worker).start("sh", "-c", "exit 0", agent=verified) for worker in range(2)]
    for agent in agents:
        agent.until_healthy()
    mounted.write_bytes(evil(tmp_path))
    job.annotate(job.assignment(1, [0, 1]))
    for agent in agents:
        assert agent.exit_code() == 0, agent.output()
        assert agent.termination()["state"] == "Finished" and "evil" not in agent.output()


@pytest.mark.parametrize("problem", ["evil", "missing", "cut off"])
def test_another_program_in_its_place_is_not_run(problem: str, zipapp: Path, job: Job, tmp_path: Path) -> None:
    mounted = tmp_path / "agent.pyz"
    if problem != "missing":
        mounted.write_bytes(evil(tmp_path) if problem == "evil" else zipapp.read_bytes()[:-1])
    name = config_map_name(zipapp.read_bytes())
    _, *command = agent_command(AgentConfigMap(name))
    agent = job.agent(0).start("true", agent=[sys.executable, *command[:3], str(mounted)])
    assert agent.exit_code() == EXIT_BY_REASON["LaunchError"]
    said = agent.termination_log.read_text()
    assert (
        said.startswith(f"the ConfigMap {name} has another agent than the operator has put there") and "\n" not in said
    )
    assert agent.output() == f"[agent]: {said}\n"


def test_no_module_of_the_working_directory_runs_before_it(zipapp: Path, tmp_path: Path) -> None:
    for name in ("hashlib", "os", "zipimport"):
        (tmp_path / f"{name}.py").write_text("print('evil')")
    _, *command = agent_command(AgentConfigMap(config_map_name(zipapp.read_bytes())))
    printed = subprocess.run(
        [sys.executable, *command[:3], str(zipapp), "--version"],
        env={"TRAINMASTER_STATE_DIR": str(tmp_path), "TRAINMASTER_TERMINATION_LOG": str(tmp_path / "log")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert printed.stdout.startswith("trainmaster agent ") and not list(tmp_path.glob(".agent-*"))


def evil(folder: Path) -> bytes:
    """Returns somebody else's agent, whose modules are named like ours."""
    sources = folder / "evil"
    for path in package_sources():
        (sources / path).parent.mkdir(parents=True, exist_ok=True)
        (sources / path).write_text("print('evil')")
    zipapps.create_archive(sources, folder / "evil.pyz", main="trainmaster_operator.agent.main:main")
    return (folder / "evil.pyz").read_bytes()


@pytest.mark.parametrize("arguments", [["walk"], []])
def test_other_words_are_answered_with_the_usage(zipapp: Path, arguments: list[str]) -> None:
    answer = subprocess.run([sys.executable, str(zipapp), *arguments], capture_output=True, text=True, timeout=30)
    assert answer.returncode == 64
    assert answer.stderr.startswith("usage: agent run -- <command>")


def test_it_imports_only_light_modules(zipapp: Path) -> None:
    # Each costs 3 to 40 ms of the start, which is part of every recovery.
    heavy = {"asyncio", "dataclasses", "subprocess", "hashlib", "ctypes", "shutil", "inspect", "logging", "http.client"}
    code = "import sys, trainmaster_operator.agent.executor; print(*sys.modules)"
    environ = {"PYTHONPATH": str(zipapp), "PATH": os.environ["PATH"]}
    printed = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert not heavy & set(printed.stdout.split())
