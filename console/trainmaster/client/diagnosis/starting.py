"""A job whose pods run and whose ranks aren't all up: what is waited for, and which workers hold up the others."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import at, items, joined, name_of, plural, text, time_of
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.waiting_pods import waiting_pods
from trainmaster.client.job import worker_index
from trainmaster.client.metrics import WorkerState

# Ranks are up within a few seconds of their pods; torch on a slow processor or a cold disk may take as long as this.
ORDINARY_SECONDS = 60.0
_NOT_UP = ("Waiting", "Starting")


def starting_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what a starting job waits for, or what it has waited for in vain."""
    if situation.job.phase != "Starting" and situation.failed_reason != "StartupDeadlineExceeded":
        return
    workers = situation.job.status.workers
    waiting = [name for _, name, _ in waiting_pods(situation)]
    for name in waiting:
        event = next(situation.events_about("Pod", name), None)
        if event is not None and event.get("reason") == "Pulling":
            clause = f"pod {name} is pulling its image; large ones take minutes"
            yield Finding("Starting", clause, (f"pod {name}: {text(event, 'message')}",))
            return
    up = f"{workers.running} of {plural(workers.desired, 'worker')} have their ranks up"
    log = Step("what the workers say", f"kubectl dtj logs {situation.name} {situation.where}")
    if situation.failed_reason:
        clause = f"its ranks weren't all up in time: {situation.shown_message}"
        raised = Step("if the image or the volumes are only slow, raise failurePolicy.startupSeconds")
        yield Finding("StartupDeadline", clause, (up,), (log, raised))
    elif waiting:
        clause = f"{up} (waiting: {joined(waiting)}), and nothing looks wrong"
        yield Finding("Starting", clause, (), (log,), is_certain=False)
    else:
        yield _not_up(situation, up, log)


def _not_up(situation: Situation, up: str, log: Step) -> Finding:
    """Returns which workers' ranks aren't up, though all containers run."""
    late = [one for one in situation.worker_states if _is_late(situation, one)]
    pods = {worker_index(pod): pod for pod in situation.pods}
    names = [f"worker {one.worker} (pod {name_of(pods[one.worker])})" for one in late if one.worker in pods]
    for_whom = f", and it waits for those of {joined(names)}" if names else ""
    seconds = _seconds(situation)
    if seconds < ORDINARY_SECONDS:
        calm = "" if for_whom else ", and nothing looks wrong"
        return Finding("Starting", f"{up}{for_whom}{calm}", (), (log,), is_certain=False)
    since = f"attempt {situation.job.status.attempt} was opened {seconds:.0f} s ago"
    evidence = [since, *(_line(situation, one, text(pods.get(one.worker), "spec", "nodeName")) for one in late)]
    steps = [log]
    if names:
        pod = name_of(pods[late[0].worker])
        steps = [
            Step("what its agent says", f"kubectl logs {pod} -c worker {situation.where} --tail 20"),
            Step("have that pod made anew", f"kubectl delete pod {pod} {situation.where}"),
        ]
    else:
        for_whom = f" {seconds:.0f} s after the attempt was opened, and which workers it waits for isn't known"
        evidence.append("their agents weren't asked: that takes the right to get pods/proxy")
    return Finding("RanksNotUp", f"{up}{for_whom}", tuple(evidence), tuple(steps), is_certain=bool(names))


def _is_late(situation: Situation, one: WorkerState) -> bool:
    attempt = situation.job.status.attempt
    if one.state == "Waiting" and _has_spares(situation):
        # Perhaps it is one, which has no ranks.
        return False
    return one.attempt < attempt or (one.attempt == attempt and one.state in _NOT_UP)


def _has_spares(situation: Situation) -> bool:
    raw = situation.job.raw
    groups = items(raw, "spec", "workerGroups")
    return any(at(each, "spares") for each in (at(raw, "spec"), *groups))


def _line(situation: Situation, one: WorkerState, node: str) -> str:
    where = f"worker {one.worker}" + (f" on node {node}" if node else "")
    if one.attempt < situation.job.status.attempt:
        return f"{where}: its agent is still at attempt {one.attempt} ({one.state})"
    return f"{where}: its agent has attempt {one.attempt} and is {one.state}"


def _seconds(situation: Situation) -> float:
    opened = time_of(situation.job.status.attempt_start_time)
    return 0.0 if opened is None else (situation.now - opened).total_seconds()
