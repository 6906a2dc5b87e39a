"""Several workers run on one machine: one failure stops all, a push restarts all, and the leader can be lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.signer import JOB_UID, TOKEN, environment

from .agents import Agent, Job, Stream, until

# Lives until it is ended; writes its pid, so that a test can choose a rank.
RANK = 'echo "$TRAINMASTER_ATTEMPT $$" >> "$1/rank-$NODE_RANK"; exec sleep 300'


def start_group(job: Job, size: int, program: str = RANK, **environ: str) -> list[Agent]:
    agents = [job.agent(worker).start("sh", "-c", program, "sh", str(job.folder), **environ) for worker in range(size)]
    job.annotate(job.assignment(1, range(size)))
    return agents


def rank_pid(job: Job, rank: int, attempt: int) -> int:
    """Returns the pid of a rank in an attempt, once it runs."""

    def find() -> int:
        path = job.folder / f"rank-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return next((int(line.split()[1]) for line in lines if line.split()[0] == str(attempt)), 0)

    return until(find, what=f"rank {rank} runs in attempt {attempt}")


def joined(leader: Agent, size: int) -> None:
    """Wait until all workers have joined the leader."""
    until(
        lambda: sum(worker["connected"] for worker in leader.state().get("workers", [])) == size,
        what=f"{size} workers; state is {leader.state()}",
    )


def test_one_killed_rank_stops_all_and_a_push_to_the_leader_starts_all_again(job: Job) -> None:
    agents = start_group(job, 3)
    joined(agents[0], 3)
    stream = Stream(agents[0])
    assert stream.until(lambda line: line["type"] == "hello")["leader"] == 0
    for attempt in (1, 2, 3):
        victim = attempt % 3
        for rank in range(3):
            rank_pid(job, rank, attempt)
        os.kill(rank_pid(job, victim, attempt), signal.SIGKILL)
        failed = stream.until_report("Failed", attempt)
        assert (failed["report"]["worker"], failed["report"]["signal"]) == (victim, 9)
        stopped = {stream.until_report("Stopped", attempt)["report"]["worker"] for _ in range(2)}
        assert stopped == {0, 1, 2} - {victim}
        assert agents[0].request("POST", "/v1/ack", {"seq": failed["seq"]}) == (204, "")
        assert agents[0].request("POST", "/v1/assignment", job.assignment(attempt + 1, range(3)))[0] == 204
        for rank in range(3):
            rank_pid(job, rank, attempt + 1)
    assert all(agent.process is not None and agent.process.poll() is None for agent in agents)
    stream.close()


def test_an_operator_that_watches_another_worker_than_the_leader_learns_who_failed_first(job: Job) -> None:
    agents = start_group(job, 2)
    rank_pid(job, 1, 1)
    joined(agents[0], 2)
    stream = Stream(agents[1])
    os.kill(rank_pid(job, 0, 1), signal.SIGKILL)
    reported = [
        stream.until(lambda line: line["type"] == "report" and line["report"]["state"] in ("Failed", "Stopped"))
        for _ in range(2)
    ]
    assert [(line["report"]["worker"], line["report"]["state"]) for line in reported] == [(0, "Failed"), (1, "Stopped")]
    assert (reported[0]["report"]["uid"], reported[0]["report"]["signal"]) == ("uid-0", 9)
    stream.close()


def test_a_new_stream_gets_every_kept_report_again(job: Job) -> None:
    agents = start_group(job, 2, "if [ $NODE_RANK = 1 ]; then exit 3; fi; exec sleep 300")
    first = Stream(agents[0])
    report = first.until_report("Failed")["report"]
    first.until_report("Stopped")
    second = Stream(agents[0])
    first.close()
    again = second.until_report("Failed")
    assert again["report"] == report
    assert report["exitCode"] == 3
    second.until_report("Stopped")
    assert agents[0].request("POST", "/v1/ack", {"seq": 99})[0] == 204
    time.sleep(3.5)
    assert agents[1].process is not None and agents[1].process.poll() is None, "acknowledged, so it stays"
    second.close()


def test_a_watched_but_unacknowledged_failure_is_made_by_exiting_after_three_seconds(job: Job) -> None:
    agents = start_group(job, 2)
    joined(agents[0], 2)
    stream = Stream(agents[0])
    pid = rank_pid(job, 1, 1)
    rank_pid(job, 0, 1)
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert agents[1].exit_code() == 137
    assert time.monotonic() - begun > 2.5
    assert agents[0].until_state("Stopped")["culprit"] is False
    stream.close()


def test_a_bystander_waits_for_a_newer_assignment_before_it_exits(job: Job) -> None:
    program = "echo 'ConnectionResetError: [Errno 104] Connection reset by peer' >&2; exit 1"
    agent = job.agent(0).start("sh", "-c", program)
    begun = time.monotonic()
    job.annotate(job.assignment(1))
    assert agent.exit_code() == 1
    assert time.monotonic() - begun > 2.5
    assert agent.termination()["culprit"] is False


def test_the_rank_at_fault_may_still_leave_with_its_own_code_after_a_bystander_has_failed(job: Job) -> None:
    # Worker 1 loses its connection first; worker 0, which closed it, exits with its code a moment later.
    program = (
        'touch "$1/up-$NODE_RANK"; if [ $NODE_RANK = 1 ]; then until [ -e "$1/up-0" ]; do sleep 0.02; done; '
        'echo "BrokenPipeError: broken pipe" >&2; exit 1; fi; '
        "until [ -e \"$1/go\" ]; do :; done; echo 'ValueError: mine' >&2; exit 9"
    )
    agents = start_group(job, 2, program)
    stream = Stream(agents[0])
    bystander = stream.until_report("Failed")["report"]
    (job.folder / "go").touch()
    assert (bystander["worker"], bystander["culprit"], bystander["exitCode"]) == (1, False, 1)
    fault = stream.until(
        lambda line: (line.get("report") or {}).get("state") in ("Failed", "Stopped") and line["report"]["worker"] == 0
    )["report"]
    assert (fault["state"], fault["culprit"], fault["exitCode"]) == ("Failed", True, 9)
    stream.close()


@pytest.mark.parametrize("planned", [False, True])
def test_a_rank_at_fault_that_is_slow_to_leave_is_recognized_by_its_exception(job: Job, planned: bool) -> None:
    """Worker 0 has raised an exception and closed its connections, but is ended because of worker 1 before it exits."""
    raised = json.dumps({"message": {"message": "ValueError: mine", "extraInfo": {"py_callstack": "stack"}}})
    program = (
        'if [ $NODE_RANK = 1 ]; then until [ -e "$1/raised" ]; do sleep 0.02; done; '
        'if [ $PLANNED = True ]; then exec sleep 300; fi; echo "BrokenPipeError: broken pipe" >&2; exit 1; fi; '
        f"trap '' TERM; echo '{raised}' > $TORCHELASTIC_ERROR_FILE; touch \"$1/raised\"; while :; do sleep 0.1; done"
    )
    agents = start_group(job, 2, program, PLANNED=str(planned))
    stream = Stream(agents[0])
    if planned:
        until(lambda: (job.folder / "raised").exists())
        stop = job.assignment(1, range(2), state="Hold", graceSeconds=2.5)
        assert agents[0].request("POST", "/v1/assignment", stop)[0] == 204
    fault = stream.until(
        lambda line: (line.get("report") or {}).get("state") in ("Failed", "Stopped") and line["report"]["worker"] == 0
    )["report"]
    if planned:
        assert fault["state"] == "Stopped", "whoever is asked to leave may raise something on the way"
    else:
        assert (fault["state"], fault["culprit"], fault["rank"], fault["reason"]) == ("Failed", True, 0, "Error")
        assert fault["error"] == "stack\nValueError: mine"
    stream.close()


def test_when_the_leader_is_lost_the_next_one_takes_over_and_receives_everything_again(job: Job) -> None:
    agents = start_group(job, 3)
    joined(agents[0], 3)
    for rank in range(3):
        rank_pid(job, rank, 1)
    agents[0].kill()
    joined(agents[1], 2)
    stream = Stream(agents[1])
    hello = stream.until(lambda line: line["type"] == "hello")
    assert hello["leader"] == 1
    stream.until_reports("Running", [1, 2])
    os.kill(rank_pid(job, 2, 1), signal.SIGKILL)
    failed = stream.until_report("Failed")
    assert failed["report"]["worker"] == 2
    agents[1].request("POST", "/v1/ack", {"seq": failed["seq"]})
    stream.until_report("Stopped", worker=1)
    # The container of worker 0 is restarted: all workers return to their first choice, and report to it again.
    agents[0].start("sh", "-c", RANK, "sh", str(job.folder))
    joined(agents[0], 3)
    first = Stream(agents[0])
    failed_ones = first.until_reports("Failed", [0, 2])
    assert failed_ones[0]["report"]["reason"] == "AgentLost"
    assert agents[0].request("POST", "/v1/ack", {"seq": failed_ones[2]["seq"]})[0] == 204
    stream.close()
    first.close()


def test_a_replaced_pod_waits_for_an_assignment_that_names_it(job: Job) -> None:
    agents = start_group(job, 2)
    job.annotate(job.assignment(2, [0, 1]))
    rank_pid(job, 1, 2)
    agents[1].kill()
    replacement = Agent(job, 7, {"TRAINMASTER_WORKER": "1", "TRAINMASTER_POD_UID": "uid-new"})
    replacement.address = job.address(1)
    replacement.annotate(job.assignment(2, [0, 1]))
    replacement.start("sh", "-c", RANK, "sh", str(job.folder), TRAINMASTER_POD_IP=job.address(1))
    replacement.until_state("Waiting", 2)
    # Its link to the leader isn't the connection on which it answers, and may come later.
    until(
        lambda: {"uid-0", "uid-new"} == {worker["uid"] for worker in agents[0].state()["workers"]},
        what="the leader knows the new pod",
    )
    stream = Stream(agents[0])
    worker = stream.until(lambda line: line["type"] == "hello")["workers"][-1]
    assert (worker["worker"], worker["uid"]) == (1, "uid-new")
    third = job.assignment(3, [0, 1], uids=["uid-0", "uid-new"])
    assert agents[0].request("POST", "/v1/assignment", third)[0] == 204
    rank_pid(job, 1, 3)
    rank_pid(job, 0, 3)
    stream.close()


@pytest.mark.parametrize("named", [None, ["uid-0", "uid-1"]], ids=["names no pods", "names the old one"])
def test_a_deleted_pod_that_lives_on_gives_way_to_the_new_one_once(job: Job, named: list[str] | None) -> None:
    agents = start_group(job, 2)
    second = job.assignment(2, [0, 1], uids=named)
    job.annotate(second)
    rank_pid(job, 1, 2)
    stream = Stream(agents[0])
    new = Agent(job, 7, {"TRAINMASTER_WORKER": "1", "TRAINMASTER_POD_UID": "uid-new"})
    new.annotate(second)
    new.start("sh", "-c", RANK, "sh", str(job.folder))
    new.until_state("Waiting" if named else "Running", 2)
    # Joining takes milliseconds, so a hundred rounds would fit if each agent were let in repeatedly.
    time.sleep(1.5)
    third = job.assignment(3, [0, 1], uids=["uid-0", "uid-new"])
    assert agents[0].request("POST", "/v1/assignment", third)[0] == 204
    stream.until(lambda line: line["type"] == "worker" and (line["uid"], line["seen"]) == ("uid-new", 3))
    uids = [line["uid"] for line in stream.seen if line["type"] == "worker" and line["worker"] == 1]
    assert uids == sorted(uids, key=["uid-1", "uid-new"].index) and len(uids) < 8, uids
    rank_pid(job, 0, 3)
    rank_pid(job, 1, 3)
    stream.close()


def test_a_planned_stop_gives_the_seconds_of_its_assignment(job: Job) -> None:
    program = (
        'trap "sleep 1; touch $1/saved-$NODE_RANK; exit 0" TERM; touch "$1/up-$NODE_RANK"; while :; do sleep 0.05; done'
    )
    agents = start_group(job, 2, program)
    until(lambda: all((job.folder / f"up-{rank}").exists() for rank in range(2)))
    stream = Stream(agents[0])
    joined(agents[0], 2)
    hold = job.assignment(2, [0, 1], state="Hold", graceSeconds=10)
    assert agents[0].request("POST", "/v1/assignment", hold)[0] == 204
    for _ in agents:
        assert stream.until_report("Stopped")["report"]["exitCode"] == 0
    for rank, agent in enumerate(agents):
        assert (job.folder / f"saved-{rank}").exists()
        agent.until_state("Waiting", 2)
    stream.close()


def test_progress_and_the_workers_environment_reach_the_stream_and_the_metrics(job: Job) -> None:
    program = (
        'echo "{\\"step\\": 5, \\"loss\\": 0.25, \\"gradNorm\\": 1.5, \\"mine\\": 1, '
        '\\"metrics\\": {\\"accuracy\\": 0.75}}" '
        "> $TRAINMASTER_PROGRESS_FILE.new; "
        "mv $TRAINMASTER_PROGRESS_FILE.new $TRAINMASTER_PROGRESS_FILE; exec sleep 300"
    )
    agents = start_group(job, 2, program)
    stream = Stream(agents[0])
    lines: dict[int, Any] = {}
    while len(lines) < 2:
        line = stream.until(lambda line: line["type"] == "progress")
        lines[line["worker"]] = line["ranks"]
    said = {"step": 5, "loss": 0.25, "gradNorm": 1.5, "metrics": {"accuracy": 0.75}}
    assert lines == {0: {"0": said}, 1: {"1": said}}
    status, text = agents[1].request("GET", "/metrics", token=None)
    assert status == 200
    assert 'trainmaster_step{job_name="job",worker="1",rank="1"} 5\n' in text
    assert 'trainmaster_gradient_norm{job_name="job",worker="1",rank="1"} 1.5\n' in text
    assert 'trainmaster_worker_state{job_name="job",worker="1",state="Running"} 1\n' in text
    assert 'trainmaster_metric{job_name="job",worker="1",name="accuracy",rank="1"} 0.75\n' in text
    assert "mine" not in text
    systems: dict[int, Any] = {}
    while len(systems) < 2:
        line = stream.until(lambda line: line["type"] == "system")
        systems[line["worker"]] = line
    for line in systems.values():
        assert line["attempt"] == 1 and line["cpuCores"] >= 0 and line["memoryLimitBytes"] > line["memoryBytes"] > 0
    shown = 'trainmaster_cpu_cores{job_name="job",worker="1"} '
    until(lambda: shown in agents[1].request("GET", "/metrics", token=None)[1], what="the page has the sample")
    stream.close()


def test_workers_whose_environments_differ_all_fail_with_the_differing_lines(job: Job) -> None:
    for worker, version in ((0, "2.13.0"), (1, "2.12.0")):
        packages = job.folder / f"packages-{worker}"
        (packages / f"torch-{version}.dist-info").mkdir(parents=True)
        job.agent(worker, PYTHONPATH=str(packages) + ":" + os.environ.get("PYTHONPATH", ""))
    agents = [agent.start("sh", "-c", "exec sleep 300") for agent in job.agents.values()]
    job.annotate(job.assignment(1, [0, 1]))
    for agent in agents:
        assert agent.exit_code() == 67
        report = agent.termination()
        assert report["reason"] == "PreflightMismatch"
        assert report["error"] == (
            "the workers' environments differ:\ntorch differs: 2.13.0 on worker 0; 2.12.0 on worker 1"
        )


def test_programs_start_when_all_workers_are_there(job: Job) -> None:
    started = [job.agent(worker).start("sh", "-c", RANK, "sh", str(job.folder)) for worker in (0, 1)]
    job.annotate(job.assignment(1, range(3)))
    joined(started[0], 2)
    assert not list(job.folder.glob("rank-*"))
    job.agent(2).start("sh", "-c", RANK, "sh", str(job.folder))
    job.annotate(job.assignment(1, range(3)))
    for rank in range(3):
        rank_pid(job, rank, 1)


def test_a_worker_waits_for_worker_0_and_says_where_it_tried_to_find_it(job: Job) -> None:
    job.hosts_file.write_text(f"{job.address(1)} {job.host(1)}\n")
    agent = job.agent(1, TRAINMASTER_FIRST_STEP_TIMEOUT="1").start("touch", str(job.folder / "ran"))
    job.annotate(job.assignment(1, [0, 1]))
    assert agent.exit_code() == 66
    report = agent.termination()
    assert report["reason"] == "MasterUnreachable"
    assert report["error"].startswith(
        f"worker 0 is not within reach after 1 s: {job.host(0)} (no address) port {job.agent_port}: "
    )
    assert not (job.folder / "ran").exists()


def test_without_the_agents_port_outcomes_travel_by_exit_alone(job: Job) -> None:
    agents = start_group(job, 2, TRAINMASTER_AGENT_PORT="0")
    os.kill(rank_pid(job, 1, 1), signal.SIGKILL)
    assert agents[1].exit_code() == 137
    agents[1].start("sh", "-c", RANK, "sh", str(job.folder), TRAINMASTER_AGENT_PORT="0")
    rank_pid(job, 0, 1)
    job.annotate(job.assignment(2, [0, 1]))
    rank_pid(job, 0, 2)
    rank_pid(job, 1, 2)


def test_foreign_half_requests_and_slow_readers_hold_nothing_up(job: Job) -> None:
    agents = start_group(job, 2)
    joined(agents[0], 2)
    address = (job.address(0), job.agent_port)
    half = [socket.create_connection(address, timeout=5) for _ in range(40)]
    for sock in half:
        sock.sendall(b"POST /v1/assignment HTTP/1.1\r\nContent-")
    slow = socket.create_connection(address, timeout=5)
    slow.sendall(f"GET /v1/stream HTTP/1.1\r\nTrainmaster-Token: {TOKEN}\r\n\r\n".encode())
    for method, path, body in (
        ("GET", "/v1/state", None),
        ("GET", "/v1/stream", None),
        ("POST", "/v1/assignment", job.assignment(9, [0, 1])),
        ("POST", "/v1/ack", {"seq": 1}),
    ):
        for token in (None, "", "wrong"):
            assert agents[0].request(method, path, body, token=token)[0] == 401
    assert agents[0].request("POST", "/v1/assignment", b"{")[0] == 400
    assert agents[0].request("POST", "/v1/assignment", {"attempt": 0})[0] == 400
    assert agents[0].request("POST", "/v1/assignment", b"x" * 300_000)[0] == 413
    assert agents[0].request("DELETE", "/v1/state")[0] == 405
    assert agents[0].request("GET", "/nothing")[0] == 404
    status, text = agents[0].request("POST", "/v1/assignment", job.assignment(1, [0, 1], state="Run"))
    assert status == 204 and text == "", "the same one again is no conflict"
    rank_pid(job, 1, 1)
    assert agents[0].request("POST", "/v1/assignment", job.assignment(2, [0, 1]))[0] == 204
    rank_pid(job, 1, 2)
    status, text = agents[0].request("POST", "/v1/assignment", job.assignment(1, [0, 1]))
    assert status == 409 and '"attempt": 2' in text
    for sock in (*half, slow):
        sock.close()


def test_the_state_command_prints_this_workers_state(job: Job, tmp_path: Path) -> None:
    import json
    import subprocess

    from .agents import AGENT

    agent = start_group(job, 1)[0]
    agent.until_state("Running")
    environ = {
        "PATH": os.environ["PATH"],
        **environment(),
        "TRAINMASTER_WORKER": "0",
        "TRAINMASTER_POD_IP": agent.address,
        "TRAINMASTER_AGENT_PORT": str(job.agent_port),
        "TRAINMASTER_ASSIGNMENT_FILE": str(agent.podinfo / "assignment"),
        "TRAINMASTER_STATE_DIR": str(agent.state_dir),
    }
    printed = subprocess.run([*AGENT, "state"], env=environ, capture_output=True, text=True, timeout=20)
    state = json.loads(printed.stdout)
    assert state["report"]["state"] == "Running"
    assert state["assignment"]["attempt"] == 1
    secrets = [TOKEN, environ["TRAINMASTER_AGENTS_SECRET"]]
    assert not any(secret in printed.stdout for secret in secrets), "for people, and logs of theirs"
    agent.kill()
    printed = subprocess.run([*AGENT, "state"], env=environ, capture_output=True, text=True, timeout=20)
    assert json.loads(printed.stdout)["report"]["state"] == "Running"
    assert "doesn't answer" in printed.stderr


def test_a_follower_speaks_for_itself_only(job: Job) -> None:
    agent = start_group(job, 1)[0]
    stream = Stream(agent)
    with socket.create_connection((agent.address, job.agent_port), timeout=5) as worker:
        worker.sendall(
            f"GET /v1/join HTTP/1.1\r\nTrainmaster-Token: {TOKEN}\r\nUpgrade: trainmaster/1\r\n\r\n".encode()
            + b'{"type":"hello","job":"%s","worker":5,"uid":"five","seen":1}\n' % JOB_UID.encode()
            + b'{"type":"report","report":{"state":"Failed","attempt":1,"worker":0}}\n'
            b'{"type":"report","report":{"state":"Running","attempt":1,"worker":5,"uid":"zero","error":7}}\n'
        )
        report = stream.until(lambda line: (line.get("report") or {}).get("state") in ("Failed", "Running"))["report"]
        while report["worker"] == 0:
            assert report["state"] == "Running"
            report = stream.until(lambda line: line["type"] == "report")["report"]
        assert (report["worker"], report["uid"], report["error"]) == (5, "five", "")
    gone = stream.until(lambda line: line["type"] == "worker" and not line["connected"] and line["seen"] == 1)
    assert gone["worker"] == 5
    stream.close()


WRITES_ITS_STATE = """
echo "$TRAINMASTER_ATTEMPT $$" >> "$1/rank-$NODE_RANK"
save() {
    echo 10 > "$TRAINMASTER_SAVING_FILE.new" && mv "$TRAINMASTER_SAVING_FILE.new" "$TRAINMASTER_SAVING_FILE.$RANK"
    sleep 1.5
    touch "$1/state-$NODE_RANK"
    echo 0 > "$TRAINMASTER_SAVING_FILE.new" && mv "$TRAINMASTER_SAVING_FILE.new" "$TRAINMASTER_SAVING_FILE.$RANK"
    # It doesn't leave by itself, as a rank inside a collective doesn't.
    sleep 300
}
trap 'save "$1"' TERM
while true; do sleep 0.05; done
"""


def test_a_rank_that_writes_its_state_when_another_fails_is_given_time_for_it(job: Job) -> None:
    """They get far more than the usual 0.4 s, and only as long as they need."""
    agents = start_group(job, 2, WRITES_ITS_STATE)
    pids = [rank_pid(job, rank, 1) for rank in range(2)]
    joined(agents[0], 2)
    stream = Stream(agents[0])
    os.kill(pids[1], signal.SIGKILL)
    stream.until_report("Failed", 1)
    assert agents[0].request("POST", "/v1/assignment", job.assignment(2, range(2)))[0] == 204
    rank_pid(job, 1, 2)
    assert not (job.folder / "state-0").exists(), "the other worker's next attempt waits for nobody"
    rank_pid(job, 0, 2)
    assert (job.folder / "state-0").exists()
    assert not (job.folder / "state-1").exists()
    stream.close()


LOOKS_WHETHER_IT_IS_PLANNED = """
echo "$TRAINMASTER_ATTEMPT $$" >> "$1/rank-$NODE_RANK"
trap 'cat "$TRAINMASTER_SAVING_FILE.planned" > "$1/planned-$NODE_RANK" 2>/dev/null; exit 143' TERM
while true; do sleep 0.05; done
"""


@pytest.mark.parametrize(("grace", "told"), [(10.0, "10.0"), (0.4, "")])
def test_ranks_are_told_that_a_stop_is_planned_before_they_are_stopped(job: Job, grace: float, told: str) -> None:
    """Before a planned stop they write their state once, at their end; after a fault, at once."""
    agents = start_group(job, 2, LOOKS_WHETHER_IT_IS_PLANNED)
    for rank in range(2):
        rank_pid(job, rank, 1)
    joined(agents[0], 2)
    assert agents[0].request("POST", "/v1/assignment", job.assignment(2, range(2), graceSeconds=grace))[0] == 204
    for rank in range(2):
        rank_pid(job, rank, 2)
        assert (job.folder / f"planned-{rank}").read_text() == told
