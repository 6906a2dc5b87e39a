"""Reports problems that prevent workers from starting, and limits the time for the start.

No job may hold GPUs forever. If some ranks aren't up `startupSeconds` after their attempt was opened, the job fails
with the gravest problem. Problems that waiting can't solve (an invalid image name, a missing program) end the job at
once. For a gang, `startupSeconds` begins when its pods have nodes, and only `gang.timeoutSeconds` limits the wait
before that.

A job that gives up its nodes (`scheduling_backoff`) and requests them again is still starting, so `startupSeconds`
keeps running. Until all pods have nodes again, the last problem is still reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainmaster_operator.api.printable import listed
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import ContainerView, PodView, RefusedWrite, failed_init
from trainmaster_operator.reconciling.observed.spares import next_workers
from trainmaster_operator.reconciling.policies.attempts import fail, held_since
from trainmaster_operator.reconciling.policies.opening import have_nodes
from trainmaster_operator.reconciling.transition import Transition, condition

# The problems behind waiting reasons of containers (kubernetes: pkg/kubelet/images/types.go,
# kuberuntime/kuberuntime_container.go).
_WAITING = {
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError"), "ImagePull"),
    **dict.fromkeys(("RegistryUnavailable", "SignatureValidationFailed"), "ImagePull"),
    **dict.fromkeys(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"), "CreateContainer"),
    **dict.fromkeys(("PreCreateHookError", "PreStartHookError", "PostStartHookError"), "CreateContainer"),
    "InvalidImageName": "InvalidImageName",
}
# The API server's reasons for refusing an object regardless of the cluster's state.
_UNFIT = frozenset({"Invalid", "BadRequest", "RequestEntityTooLarge"})
# Parts of the API server's messages when a policy of the cluster refuses an object.
_ADMISSION = ("admission webhook ", "ValidatingAdmissionPolicy ")
_ORDER = (
    "InvalidImageName",
    "LaunchError",
    "NameTaken",
    "NotInstalled",
    "QuotaExceeded",
    "Refused",
    "ImagePull",
    "CreateContainer",
    "InitFailed",
    "Unschedulable",
)


@dataclass(frozen=True)
class StartProblem:
    """A problem that prevents a worker from starting. `is_unrecoverable` means that waiting can't solve it."""

    reason: str
    message: str
    is_unrecoverable: bool = False


def unrecoverable(situation: Situation) -> Transition | None:
    """Fails the job at once for a problem that waiting can't solve."""
    if not situation.starting:
        return None
    problem = next((item for item in start_problems(situation) if item.is_unrecoverable), None)
    return None if problem is None else fail(situation, problem.reason, problem.message)


def deadline(situation: Situation) -> Transition | None:
    """Fails the job with the gravest problem if some ranks aren't up in time."""
    due = due_at(situation)
    if due is None or situation.now < due:
        return None
    problem = gravest_problem(situation) or StartProblem("StartupDeadlineExceeded", _missing(situation))
    return fail(situation, problem.reason, f"{_limit(situation)[1]}: {problem.message}")


def due_at(situation: Situation) -> float | None:
    """Returns the deadline for the job's ranks to be up, or None."""
    if not situation.starting:
        return None
    began, (seconds, _) = began_at(situation), _limit(situation)
    return None if began is None or seconds is None else began + seconds


def _limit(situation: Situation) -> tuple[float | None, str]:
    """Returns the seconds that the startup may take, and the message if the startup takes longer."""
    gang, is_delayed = situation.spec.scheduling.gang, bool(situation.observed.refused_writes)
    if gang is not None and not is_delayed and not any(pod.node is not None for pod in situation.living.values()):
        seconds = gang.timeout_seconds
        return seconds, f"the gang had no nodes within {seconds} s (scheduling.gang.timeoutSeconds)"
    limit = situation.spec.failure_policy.startup_seconds
    return limit, f"not all ranks were up within {limit:g} s (startupSeconds)"


def began_at(situation: Situation) -> float | None:
    """Returns the start of the current startup."""
    status = situation.status
    before_backoffs = to_seconds(status.startup_start_time) if status.scheduling_backoffs else None
    if before_backoffs is not None:
        return before_backoffs
    times = [to_seconds(text) for text in (status.attempt_start_time, status.next_attempt_time, held_since(situation))]
    if situation.spec.scheduling.gang is not None:
        scheduled = [pod.scheduled_at for worker, pod in situation.living.items() if worker in situation.workers]
        times += [at for at in scheduled if at is not None and at <= situation.now]
    return max((moment for moment in times if moment is not None), default=None)


def gravest_problem(situation: Situation) -> StartProblem | None:
    """Returns the gravest problem. The reasons are ordered by gravity."""
    problems = start_problems(situation)
    return min(problems, key=lambda problem: _ORDER.index(problem.reason), default=_remembered_problem(situation))


def _remembered_problem(situation: Situation) -> StartProblem | None:
    """Returns the last problem of a job that gave up its nodes and doesn't have all nodes again.

    Such a job has no pods, or new pods without messages from the scheduler.
    """
    shown = condition(situation.status.conditions, "Running")
    if not situation.status.scheduling_backoffs or shown is None or shown.reason not in _ORDER:
        return None
    if have_nodes(situation, next_workers(situation)):
        return None
    return StartProblem(shown.reason, shown.message)


def start_problems(situation: Situation) -> Iterator[StartProblem]:
    """Returns all problems that prevent workers from starting."""
    yield from _children(situation)
    for worker in situation.workers:
        if worker in situation.living:
            yield from pod_problems(situation.living[worker], situation.observed.init_output)


def is_quota(problem: RefusedWrite) -> bool:
    """Returns whether a write was refused by a full ResourceQuota (plugin/pkg/admission/resourcequota)."""
    return "exceeded quota" in problem.message


def _children(situation: Situation) -> Iterator[StartProblem]:
    for problem in situation.observed.refused_writes:
        known = {"NotOurs": "NameTaken", "NotInstalled": "NotInstalled"}
        reason = "QuotaExceeded" if is_quota(problem) else known.get(problem.reason, "Refused")
        message = f"{problem.action} was refused ({problem.reason}): {problem.message}"
        yield StartProblem(reason, message, is_unrecoverable=_can_never_be_made(situation, problem))


def _can_never_be_made(situation: Situation, problem: RefusedWrite) -> bool:
    """Returns whether the API server will always refuse to create a child, because the child is invalid.

    If only a change is refused, the job may start with the existing child. A refusal by a policy of the cluster doesn't
    count, because policies change. Only the message shows such a refusal, because webhooks choose their codes (400 by
    default; Kyverno's is 400), and a ValidatingAdmissionPolicy's default reason is Invalid (k8s.io/apiserver:
    pkg/admission/plugin/webhook/errors/statuserror.go, pkg/admission/plugin/policy/validating).
    """
    if problem.reason not in _UNFIT or situation.status.attempt > 1 or situation.status.phase != "Pending":
        return False
    if any(sign in problem.message for sign in _ADMISSION):
        return False
    # The kind of a gang's child includes its API group.
    made = {f"apply {child.kind.partition('.')[0]} {child.name}" for child in situation.observed.children}
    return problem.action.startswith("apply ") and problem.action not in made


def pod_problems(pod: PodView, init_output: Mapping[tuple[str, str, float], str]) -> Iterator[StartProblem]:
    """Returns all problems that prevent a pod from starting. `init_output` is as in `Observed`."""
    if pod.unschedulable is not None and pod.node is None:
        yield StartProblem("Unschedulable", f"pod {pod.name} can't be scheduled: {pod.unschedulable}")
    for container in pod.init_containers:
        yield from _container(pod, container)
    if (failed := failed_init(pod)) is not None:
        container, end = failed
        said = end.message or init_output.get((pod.uid, container.name, end.finished_at or 0.0))
        details = f": {said}" if said else ""
        yield StartProblem(
            "InitFailed",
            f"init container {container.name} of pod {pod.name} ended with exit code {end.exit_code}{details}",
        )
    if pod.worker_container is not None:
        yield from _container(pod, pod.worker_container)


def _container(pod: PodView, container: ContainerView) -> Iterator[StartProblem]:
    where = f"container {container.name} of pod {pod.name}"
    end = container.latest_end
    if container.state != "running" and end is not None and end.reason in ("StartError", "ContainerCannotRun"):
        yield StartProblem(
            "LaunchError", f"{where} couldn't be started: {end.message or container.message}", is_unrecoverable=True
        )
    elif container.state == "waiting":
        details = f"{container.reason}: {container.message}" if container.message else container.reason
        reason = _WAITING.get(container.reason)
        if reason is not None:
            yield StartProblem(reason, f"{where}: {details}", is_unrecoverable=reason == "InvalidImageName")


def _missing(situation: Situation) -> str:
    absent = [str(situation.pod_name(worker)) for worker in situation.workers if worker not in situation.pods]
    if absent:
        return f"{listed(absent)} {_verb(absent)} not created; {_why_absent(situation, absent[0])}"
    pods = [situation.pods[worker] for worker in situation.workers if worker not in situation.up]
    down, waiting = [pod.name for pod in pods], [pod.name for pod in pods if not pod.container_runs]
    if waiting:
        return f"{listed(waiting)} {_verb(waiting)} not running; `kubectl describe pod {waiting[0]}` shows why"
    if down:
        return f"the ranks of {listed(down)} were not up; `kubectl logs {down[0]}` shows why"
    return "unknown"


def _why_absent(situation: Situation, pod: str) -> str:
    """Returns where to find the reason for a missing pod: its StatefulSet's events, or else the operator's log."""
    name = pod.rpartition("-")[0]
    own = (child for child in situation.observed.children if child.owner_uid == situation.job.uid)
    if any((child.kind, child.name) == ("StatefulSet", name) for child in own):
        return f"`kubectl describe statefulset {name}` shows why"
    return f"StatefulSet {name} couldn't be created; the operator's log has the reason"


def _verb(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"
