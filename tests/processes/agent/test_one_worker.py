"""One worker runs with real processes: start, end, failure, the saved report, and what reaches the kubelet."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from .agents import Job, Stream, is_gone, until

PYTHON = sys.executable


def script(folder: Path, text: str) -> str:
    path = folder / f"rank-{abs(hash(text))}.py"
    path.write_text(text)
    return str(path)


def test_a_rank_that_ends_with_0_is_finished_and_the_agent_exits_where_nobody_follows(job: Job) -> None:
    agent = job.agent(0).start("sh", "-c", "echo hello; echo trouble >&2")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 0
    report = agent.termination()
    assert (report["state"], report["exitCode"], report["attempt"], report["uid"]) == ("Finished", 0, 1, "uid-0")
    assert agent.saved_report()["exited"] is True
    assert "[rank 0]: hello\n" in agent.output()
    assert "[rank 0]: trouble\n" in agent.output()
    assert (agent.state_dir / "attempt-1" / "rank-0.out.log").read_text() == "hello\n"


def test_a_rank_gets_the_environment_of_its_attempt(job: Job) -> None:
    out = job.folder / "env"
    first = job.agent(0, NPROC_PER_NODE="1").start("sh", "-c", f"env > {out}")
    assignment = job.assignment(1)
    job.annotate(assignment)
    first.exit_code()
    environ = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert environ["MASTER_ADDR"] == job.address(0), "by the hosts file, the address"
    assert environ["MASTER_PORT"] == str(assignment["port"])
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["NODE_RANK"], environ["LOCAL_RANK"]) == ("0", "1", "0", "0")
    assert environ["TRAINMASTER_ATTEMPT"] == "1"
    assert environ["PET_RDZV_BACKEND"] == "static"
    assert environ["TRAINMASTER_PROGRESS_FILE"] == str(agent_folder(job, 0) / "attempt-1" / "progress")
    assert environ["TORCHELASTIC_ERROR_FILE"].endswith("attempt-1/error.json")


def until_gone(pid: int) -> None:
    until(lambda: is_gone(pid), what=f"{pid} is gone")


def until_lines(path: Path, count: int) -> None:
    until(lambda: path.exists() and len(path.read_text().split()) == count, what=f"{count} lines in {path}")


def agent_folder(job: Job, worker: int) -> Path:
    return job.agents[worker].state_dir


def test_a_failed_rank_ends_the_container_with_its_code_and_its_last_lines(job: Job) -> None:
    agent = job.agent(0).start("sh", "-c", "echo fine; echo 'ValueError: bad batch' >&2; exit 7")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 7
    report = agent.termination()
    assert (report["state"], report["reason"], report["exitCode"], report["rank"]) == ("Failed", "Error", 7, 0)
    assert report["error"] == "ValueError: bad batch"
    assert report["culprit"] is True
    assert report["node"] == "node-a"


def test_a_report_says_what_a_rank_has_printed_that_it_runs_on(job: Job) -> None:
    """Here a script prints the line as trainloop does (`distributed/machine`)."""
    agent = job.agent(0).start("sh", "-c", "echo 'environment: 2 x H200, backend nccl'; sleep 0.5; exit 7")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 7
    assert agent.termination()["environment"] == "2 x H200, backend nccl"
    assert "[rank 0]: environment: 2 x H200, backend nccl\n" in agent.output()


def test_a_killed_rank_is_reported_with_its_signal(job: Job) -> None:
    agent = job.agent(0).start("sh", "-c", "kill -9 $$")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 137
    report = agent.termination()
    assert (report["reason"], report["signal"], report["exitCode"]) == ("Signal", 9, 137)


def test_torchs_error_file_is_preferred_to_the_last_lines(job: Job) -> None:
    text = '{"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "stack", "timestamp": "1"}}}'
    agent = job.agent(0).start("sh", "-c", f"echo noise >&2; echo '{text}' > $TORCHELASTIC_ERROR_FILE; exit 1")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 1
    assert agent.termination()["error"] == "stack\nRuntimeError: boom"


def test_a_command_that_is_not_there_is_a_launch_error(job: Job) -> None:
    agent = job.agent(0).start("no-such-program", "--flag")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 65
    report = agent.termination()
    assert report["reason"] == "LaunchError"
    assert report["error"] == (
        "command not found: 'no-such-program' is in no folder of PATH; check spec.command and the image"
    )


@pytest.mark.parametrize("command", [("sh", "-c", "true"), ("bare-python", "train.py")])
def test_an_image_without_torch_is_a_launch_error_that_says_so(job: Job, command: tuple[str, ...]) -> None:
    """Either torchrun is in no folder of PATH, or the Python that would run it doesn't find torch."""
    programs = job.folder / "bin"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    bare = programs / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    command = tuple("python3" if word == "bare-python" else word for word in command)
    agent = job.agent(0, TRAINMASTER_LAUNCHER="torchrun", PATH=str(programs)).start(*command)
    job.annotate(job.assignment(1))
    agent.exit_code()
    report = agent.termination()
    assert (report["reason"], report["error"]) == (
        "LaunchError",
        "this image has no torch, which the launcher torchrun needs; use an image with torch, or set spec.launcher to "
        "exec",
    )


def test_an_empty_command_is_a_usage_error(job: Job) -> None:
    agent = job.agent(0).start()
    assert agent.exit_code() == 64
    assert agent.termination_log.read_text() == "no command to run: use `agent run -- <command>`, or set spec.command"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TRAINMASTER_LAUNCHER", "mpirun", "TRAINMASTER_LAUNCHER: 'mpirun' is no launcher; use torchrun or exec"),
        ("NPROC_PER_NODE", "0", "NPROC_PER_NODE: '0' is not a whole number of at least 1"),
        ("TRAINMASTER_GRACE_SECONDS", "-3", "TRAINMASTER_GRACE_SECONDS: '-3' is not a number of seconds of at least 0"),
    ],
)
def test_bad_settings_are_refused_by_name(job: Job, name: str, value: str, sentence: str) -> None:
    agent = job.agent(0).start("true", **{name: value})
    assert agent.exit_code() == 64
    assert agent.termination_log.read_text() == sentence


def test_a_port_in_use_is_a_launch_error(job: Job) -> None:
    first = job.agent(0).start("sleep", "60")
    first.until_healthy()
    second = job.agent(1, TRAINMASTER_POD_IP=job.address(0)).start("true")
    second.annotate(job.assignment(3, [0, 1]))
    assert second.exit_code() == 65
    report = second.termination()
    assert (report["reason"], report["worker"]) == ("LaunchError", 1)
    assert report["error"].startswith(f"the agents' port is in use: port {job.agent_port} of {job.address(0)};")


def test_without_an_assignment_nothing_starts(job: Job) -> None:
    agent = job.agent(0).start("sh", "-c", "touch ran")
    agent.until_healthy()
    agent.annotate(job.assignment(1, state="Hold"))
    assert agent.until_state("Waiting")
    assert not (agent.state_dir / "saved-report.json").exists()


def test_a_pod_that_is_not_listed_waits_until_it_is(job: Job) -> None:
    agent = job.agent(0).start("sh", "-c", "exit 0")
    agent.annotate(job.assignment(2, uids=["another-uid"]))
    agent.until_state("Waiting", 2)
    agent.annotate(job.assignment(3, [1]))
    agent.until_state("Waiting", 3)
    agent.annotate(job.assignment(4))
    assert agent.exit_code() == 0
    assert agent.termination()["attempt"] == 4


def test_the_restarted_agent_never_trains_an_attempt_again(job: Job) -> None:
    ran = job.folder / "ran"
    agent = job.agent(0).start("sh", "-c", f"echo again >> {ran}; exit 0")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 0
    agent.start("sh", "-c", f"echo again >> {ran}; exit 0")
    assert agent.until_state("Finished")["exitCode"] == 0
    time.sleep(0.3)
    assert agent.process is not None and agent.process.poll() is None, "it has reported by exiting once: it stays"
    assert ran.read_text() == "again\n"
    agent.process.terminate()
    assert agent.exit_code() == 0


def test_after_the_agent_was_killed_its_left_over_ranks_are_killed_and_it_reports_agent_lost(job: Job) -> None:
    pid_file = job.folder / "pid"
    command = ["sh", "-c", f"echo $$ >> {pid_file}; exec sleep 300"]
    agent = job.agent(0).start(*command)
    job.annotate(job.assignment(1))
    until(lambda: pid_file.exists() and pid_file.read_text().strip())
    rank = int(pid_file.read_text())
    agent.kill()
    os.kill(rank, 0)
    agent.start(*command)
    assert agent.exit_code() == 69
    report = agent.termination()
    assert (report["state"], report["reason"], report["exitCode"]) == ("Failed", "AgentLost", 69)
    until_gone(rank)
    agent.start(*command)
    agent.until_state("Failed")
    agent.annotate(job.assignment(2))
    agent.until_state("Running", 2)
    until_lines(pid_file, 2)


def test_sigterm_gives_the_ranks_the_whole_grace_period(job: Job) -> None:
    saved = job.folder / "saved"
    code = script(
        job.folder,
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        f"    time.sleep(1); pathlib.Path({str(saved)!r}).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"pathlib.Path({str(job.folder / 'up')!r}).touch()\n"
        "while True: time.sleep(0.05)\n",
    )
    agent = job.agent(0).start(PYTHON, code)
    job.annotate(job.assignment(1))
    until((job.folder / "up").exists)
    assert agent.process is not None
    agent.process.terminate()
    assert agent.exit_code() == 143
    assert saved.exists()
    assert (agent.termination()["state"], agent.termination()["exitCode"]) == ("Stopped", 0)


def test_sigterm_reaches_the_program_behind_a_waiting_shell(job: Job) -> None:
    up = job.folder / "up"
    agent = job.agent(0, TRAINMASTER_GRACE_SECONDS="60").start("sh", "-c", f"touch {up}; sleep 300; exit 5")
    job.annotate(job.assignment(1))
    until(up.exists)
    time.sleep(0.1)
    assert agent.process is not None
    agent.process.terminate()
    assert agent.exit_code() == 143, "a shell waits for its program, and would be killed after 60 s"


def test_a_rank_that_ignores_sigterm_is_killed_with_all_that_it_started(job: Job) -> None:
    pids = job.folder / "pids"
    program = f"trap '' TERM; (setsid sleep 300 & echo $! >> {pids}); echo $$ >> {pids}; while :; do sleep 0.1; done"
    agent = job.agent(0, TRAINMASTER_GRACE_SECONDS="0.5").start("bash", "-c", program)
    job.annotate(job.assignment(1))
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    assert agent.process is not None
    agent.process.terminate()
    assert agent.exit_code() == 143
    for pid in pids.read_text().split():
        until_gone(int(pid))


def test_a_setup_line_changes_the_ranks_environment(job: Job) -> None:
    toolkit = job.folder / "set_env.sh"
    toolkit.write_text("export TOOLKIT='two words\nand a line'\n")
    out = job.folder / "out"
    agent = job.agent(0, TRAINMASTER_SETUP=f"source {toolkit}; echo from setup").start(
        "sh", "-c", f'printf "%s" "$TOOLKIT" > {out}'
    )
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 0, agent.output()
    assert out.read_text() == "two words\nand a line"
    assert "[setup]: from setup" in agent.output()


def test_a_setup_line_that_fails_is_a_launch_error(job: Job) -> None:
    agent = job.agent(0, TRAINMASTER_SETUP="source /no/such/file").start("true")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 65
    error = agent.termination()["error"]
    assert "/no/such/file: No such file or directory" in error
    assert error.endswith("spec.setup ended with exit code 1; its output is in the worker's log")


@pytest.mark.parametrize(
    "setup",
    [
        "export TOKEN=hunter2; false",
        "export TOKEN=hunter2\nif ( then",
        "TOKEN=hunter2 )",
        "set -x; TOKEN=hunter2; false",
    ],
)
def test_a_setup_line_is_quoted_by_nobody(job: Job, setup: str) -> None:
    agent = job.agent(0, TRAINMASTER_SETUP=setup).start("true")
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 65
    assert "spec.setup ended with exit code" in agent.termination()["error"]
    assert "hunter2" not in json.dumps(agent.termination())


def test_an_out_of_memory_kill_is_recognized_by_the_cgroups_counter(job: Job) -> None:
    cgroup = job.folder / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.events").write_text("low 0\noom 0\noom_kill 2\n")
    program = f"printf 'low 0\\noom 1\\noom_kill 3\\n' > {cgroup}/memory.events; kill -9 $$"
    agent = job.agent(0, TRAINMASTER_CGROUP_ROOT=str(cgroup)).start("sh", "-c", program)
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 137
    report = agent.termination()
    assert (report["reason"], report["rank"], report["signal"]) == ("OOMKilled", 0, 9)
    assert report["error"].endswith("killed by the kernel for memory: 1 such kill in this container during the attempt")


def test_a_newer_assignment_in_the_file_alone_starts_a_new_attempt(job: Job) -> None:
    attempts = job.folder / "attempts"
    agent = job.agent(0).start("sh", "-c", f"echo $TRAINMASTER_ATTEMPT >> {attempts}; sleep 300")
    for attempt in (1, 2, 3):
        agent.annotate(job.assignment(attempt))
        until_lines(attempts, attempt)
    agent.annotate(job.assignment(2))
    time.sleep(0.2)
    assert attempts.read_text().split() == ["1", "2", "3"]
    agent.annotate(job.assignment(3, state="Hold"))
    assert agent.until_state("Stopped", 3)["culprit"] is False
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
    assert agent.exit_code() == 143


def test_a_stall_is_reported_as_hung_with_what_the_kernel_sees(job: Job) -> None:
    code = script(
        job.folder,
        "import json, os, pathlib\n"
        "path = pathlib.Path(os.environ['TRAINMASTER_PROGRESS_FILE'])\n"
        "path.write_text(json.dumps({'step': 2, 'loss': 0.5}))\n"
        "os.kill(os.getpid(), 19)\n",
    )
    agent = job.agent(0, TRAINMASTER_PROGRESS_TIMEOUT="1").start(PYTHON, code)
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 68
    report = agent.termination()
    assert (report["reason"], report["rank"], report["culprit"]) == ("Hung", 0, True)
    assert "at step 2; the limit is failurePolicy.hang.progressSeconds 1 s" in report["error"]
    assert "\nrank 0 is stopped by a signal (state T); it made no progress" in report["error"]


@pytest.mark.parametrize(("code", "state"), [(0, "Finished"), (3, "Failed")])
def test_the_last_progress_is_published_before_the_end(job: Job, code: int, state: str) -> None:
    go = job.folder / "go"
    write = 'echo \'{"step": %d}\' > "$TRAINMASTER_PROGRESS_FILE"; '
    wait = f"until [ -e {go} ]; do sleep 0.02; done; "
    agent = job.agent(0).start("sh", "-c", f"{write % 1}{wait}{write % 2}exit {code}")
    job.annotate(job.assignment(1))
    agent.until_state("Running")
    stream = Stream(agent)
    go.touch()
    stream.until_report(state)
    steps = [line["ranks"]["0"]["step"] for line in stream.seen if line["type"] == "progress"]
    stream.close()
    assert steps[-1] == 2


def test_a_rank_that_aborts_says_why_and_where(job: Job) -> None:
    code = script(
        job.folder,
        "import os, sys, threading, time\n"
        "def wait(): time.sleep(300)\n"
        "for _ in range(40): threading.Thread(target=wait, daemon=True).start()\n"
        "def give_up():\n"
        "    print('terminate called: out of luck', file=sys.stderr, flush=True); os.abort()\n"
        "give_up()\n",
    )
    agent = job.agent(0).start(PYTHON, code)
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 134
    report = agent.termination()
    assert (report["reason"], report["signal"]) == ("Signal", 6)
    assert "terminate called: out of luck" in report["error"], "stacks of 40 threads don't hide it"
    assert "in give_up" in report["error"]
    assert report["error"].endswith("killed by SIGABRT")


def test_the_kubelet_gets_its_answer_while_a_file_server_hangs_and_nobody_reads_what_ranks_print(job: Job) -> None:
    """Otherwise its probe would end a healthy training."""
    torch = job.folder / "packages" / "torch"
    torch.mkdir(parents=True)
    # Opening a pipe without a writer takes forever, as does opening a file whose server is gone.
    os.mkfifo(torch / "version.py")
    unread, output = os.pipe()
    agent = job.agent(0)
    talk = 'for at in $(seq 40); do head -c 100000 /dev/zero | tr "\\0" "\\n"; done; touch "$1/end"; exec sleep 300'
    command = ("sh", "-c", talk, "sh", str(job.folder))
    agent.annotate(job.assignment(1))
    agent.start(*command, stdout=output, PYTHONPATH=str(torch.parent))
    agent.until_state("Running")
    until(lambda: not select.select([], [output], [], 0)[1], what="the agent's output is full")
    assert agent.request("GET", "/healthz", token=None) == (200, "ok")
    assert not (job.folder / "end").exists(), "the rank waits for a reader"
    for descriptor in (unread, output):
        os.close(descriptor)
