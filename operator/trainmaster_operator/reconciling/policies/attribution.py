"""Attribution chooses the cause of an attempt's end from the reports of its workers and the state of their pods.

The first report is usually not the culprit's (measured: in 15 of 24 kills a bystander was faster), so the time of a
report only breaks ties. The causes in order of precedence are a pod that the cluster removed, an out-of-memory kill or
a signal, an error of the program, and a lost connection.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace

from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.reconciling.status.doubts import finished_early
from trainmaster_operator.wire.report import FAILURE_REASONS, Report
from trainmaster_operator.wire.tracebacks import read_exception

# Reasons of the DisruptionTarget condition (kubernetes: pkg/apis/core/types.go, KEP-3329).
_DISRUPTIONS: Mapping[str, str] = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
}
# Reasons of a pod that failed as a whole (kubernetes: pkg/kubelet/eviction, nodeshutdown; podgc).
_POD_REASONS: Mapping[str, str] = {
    "Evicted": "Evicted",
    "Preempting": "Preempted",
    **dict.fromkeys(("NodeLost", "NodeShutdown", "Terminated", "Shutdown", "NodeAffinity"), "NodeLost"),
}
# The eviction manager's message about a pod that used more than its limit (kubernetes:
# pkg/kubelet/eviction/helpers.go). If the node was under pressure, the message is "The node was low on resource".
_OWN_LIMIT = re.compile(r"\bexceed(?:s|ed)\b.*\blimit\b", re.DOTALL)
# Reasons whose text the agent writes, so that an exception in the output isn't the cause.
_BY_AGENT = frozenset({"PreflightMismatch", "LaunchError", "Hung", "AgentLost", "OOMKilled"})
# Reasons whose text contains nothing of the program's output.
_WITHOUT_OUTPUT = frozenset({"PreflightMismatch", "MasterUnreachable", "Usage"})
# Words that show a failure of the machine (from NVIDIA's Xid catalogue, NCCL and CUDA).
HARDWARE = re.compile(
    r"uncorrectable|\bECC\b|\bXid\b|NVLink|hardware (?:error|failure)|unspecified launch failure|fell off the bus"
    r"|ncclUnhandledCudaError(?!.*out of memory)|ncclInternalError|device (?:is )?(?:unavailable|lost)"
    r"|Input/output error",
    re.IGNORECASE,
)
# How a rank or worker ended, by the reason.
_ENDS: Mapping[str, str] = {
    "OOMKilled": "was killed for memory (OOMKilled)",
    "Hung": "made no progress (Hung)",
    "PeerLost": "lost its connection to a peer",
    "MasterUnreachable": "couldn't reach rank 0",
    "LaunchError": "couldn't start its program",
    "PreflightMismatch": "has a different environment than its peers",
    "Stopped": "was stopped from outside",
    "Signal": "was killed{code}",
    "AgentLost": "was lost: its agent or container ended{code}",
    "Diverged": "diverged{code}",
}
# The agent's last line about a signal, which the message names anyway.
_KILLED = re.compile(r"killed by (?:SIG\w+|signal \d+)")
MAX_ERROR_LINES = 3
MAX_LINE_CHARACTERS, MAX_HUNG_CHARACTERS = 300, 800


def cause_of(situation: Situation, attempt: int) -> Failure | None:
    """Returns the currently known cause of an attempt's end, or None if the attempt hasn't ended."""
    reports = _reports_of(situation, attempt)
    lost = _lost_worker(situation, attempt, reports)
    if lost is not None:
        return lost
    ended = [report for report in reports.values() if report.state in ("Failed", "Stopped")]
    culprits = [report for report in ended if _is_culprit(report)]
    if culprits:
        first = min(culprits, key=lambda report: (-known_reason(report.reason).strength, report.at, report.worker))
        return failure_of(situation, first)
    if ended:
        return failure_of(situation, min(ended, key=lambda each: (each.state == "Stopped", each.at, each.worker)))
    return None


def failure_of(situation: Situation, report: Report) -> Failure:
    """Returns the failure in a report of a worker's end."""
    if _is_culprit(report):
        reason = report.reason if report.reason in FAILURE_REASONS else "Error"
    elif report.state == "Stopped":
        reason = "Stopped"
    else:
        reason = "MasterUnreachable" if report.reason == "MasterUnreachable" else "PeerLost"
    pod = situation.pods.get(report.worker)
    name = pod.name if pod is not None else situation.pod_name(report.worker)
    node = (pod.node if pod is not None else None) or report.node or None
    keeps_output = situation.settings.keep_logs and situation.spec.run_policy.keep_logs
    by_program = reason not in _BY_AGENT and report.signal != signal.SIGKILL
    raised = read_exception(report.error) if keeps_output and by_program else None
    details = [f"worker {report.worker}"] if report.rank is not None else []
    details += [f"pod {name}", *([f"node {node}"] if node else [])]
    who = f"worker {report.worker}" if report.rank is None else f"rank {report.rank}"
    ended = f"{who} ({', '.join(details)}) {_how_it_ended(report, reason)}"
    early = finished_early(situation, report) if reason in ("PeerLost", "Hung") else ""
    if early:
        message = f"{early}; {ended}"
    elif raised is not None:
        place = f", at {raised.location}" if raised.location else ""
        message = f"{raised.exception}{place}; {ended}"
    elif reason == "Hung" and (hung := _hung_line(report)):
        message = f"{hung}; {ended}"
    else:
        said = _said(report, reason, keeps_output=keeps_output)
        message = f"{ended}: {said}" if said else ended
    return Failure(
        attempt=report.attempt,
        reason=reason,
        message=message,
        worker=report.worker,
        rank=report.rank,
        pod=name,
        node=node,
        exit_code=report.exit_code,
        exception=raised.exception if raised is not None else None,
        location=(raised.location or None) if raised is not None else None,
        failed_at=to_text(situation.now),
    )


def _hung_line(report: Report) -> str:
    """Returns the agent's sentence about a hang, which begins with the rank. It follows the stack and the threads."""
    lines = (line.strip() for line in reversed(report.error.splitlines()))
    return next((line[:MAX_HUNG_CHARACTERS] for line in lines if line.startswith(f"rank {report.rank} ")), "")


def _said(report: Report, reason: str, *, keeps_output: bool) -> str:
    """Returns what the agent said about the end, or the last line of the program's output."""
    if not keeps_output and reason not in _WITHOUT_OUTPUT:
        # If output isn't kept, only the words that show a failure of the machine are used.
        found = HARDWARE.search(report.error)
        return found[0] if found else ""
    lines = [line for line in report.error.splitlines() if not _KILLED.fullmatch(line)]
    return _one_line(lines, MAX_ERROR_LINES if reason in _BY_AGENT | _WITHOUT_OUTPUT else 1)


def _reports_of(situation: Situation, attempt: int) -> Mapping[int, Report]:
    """Returns the reports that can end an attempt. Workers that hadn't joined the attempt's group are left out."""
    if attempt == situation.status.attempt:
        others = situation.members.absent | situation.finished
        return {worker: report for worker, report in situation.reports.items() if worker not in others}
    reports = situation.reports_of(attempt)
    before = situation.members.absent - situation.recorded_uids.keys()
    return {worker: report for worker, report in reports.items() if worker not in before}


def _is_culprit(report: Report) -> bool:
    return report.state != "Stopped" and report.culprit and known_reason(report.reason).strength > Strength.PEER


def _lost_worker(situation: Situation, attempt: int, reports: Mapping[int, Report]) -> Failure | None:
    """Returns the failure of the first worker whose pod is gone, replaced, terminating or ended.

    Pods that the operator itself replaces don't count.
    """
    if attempt not in (situation.status.attempt, situation.status.attempt - 1):
        return None
    finished = {worker for worker, report in reports.items() if report.state == "Finished"}
    if attempt == situation.status.attempt:
        finished |= situation.finished
    uids = situation.worker_uids if attempt == situation.status.attempt else situation.recorded_uids
    for worker, uid in uids.items():
        if worker in finished or uid in situation.status.replacing_pod_uids:
            continue
        pod = situation.pods.get(worker)
        if pod is None or pod.uid != uid:
            gone = situation.observed.gone.get(uid)
            if gone is not None:
                return lost(situation, attempt, gone, _loss_reason(replace(gone, deleting=True)) or "PodDeleted")
            name = pod.name if pod is not None else situation.pod_name(worker)
            return Failure(
                attempt=attempt,
                reason="PodDeleted",
                message=f"pod {name} of worker {worker} is gone",
                worker=worker,
                pod=name,
                failed_at=to_text(situation.now),
            )
        reason = _loss_reason(pod)
        if reason is not None:
            return lost(situation, attempt, pod, reason)
    return None


def lost(situation: Situation, attempt: int, pod: PodView, reason: str, message: str = "") -> Failure:
    """Returns the failure of an attempt whose pod is lost."""
    return Failure(
        attempt=attempt,
        reason=reason,
        message=message or _loss_message(pod, reason),
        worker=pod.worker,
        pod=pod.name,
        node=pod.node,
        failed_at=to_text(situation.now),
    )


def _loss_reason(pod: PodView) -> str | None:
    if pod.phase == "Failed" and pod.reason == "Evicted" and _OWN_LIMIT.search(pod.message):
        return "LimitExceeded"
    if pod.disruption is not None and (pod.deleting or pod.phase == "Failed"):
        return _DISRUPTIONS.get(pod.disruption, "Evicted")
    return None if pod.alive else _POD_REASONS.get(pod.reason, "PodDeleted")


def _loss_message(pod: PodView, reason: str) -> str:
    verbs = {
        "Evicted": "was evicted",
        "Preempted": "was preempted",
        "NodeLost": "lost its node",
        "LimitExceeded": "was evicted for exceeding its limit",
    }
    where = f" on node {pod.node}" if pod.node else ""
    because = f": {_one_line(pod.message.splitlines(), MAX_ERROR_LINES)}" if pod.message else ""
    return f"pod {pod.name} of worker {pod.worker}{where} {verbs.get(reason, 'was deleted')}{because}"


def _how_it_ended(report: Report, reason: str) -> str:
    if reason == "Signal" and report.signal is not None:
        return f"was killed by signal {report.signal}{_signal_name(report.signal)}"
    if reason == "AgentLost" and report.exit_code is None:
        return "was lost: its agent doesn't answer"
    code = "" if report.exit_code is None else f" with exit code {report.exit_code}"
    return _ENDS.get(reason, "ended{code}").format(code=code)


def _signal_name(number: int) -> str:
    return next((f" ({each.name})" for each in signal.Signals if each == number), "")


def _one_line(lines: Iterable[str], most: int) -> str:
    """Returns the last lines as one. A line that introduces the next one ends with a colon."""
    last = [line.strip()[:MAX_LINE_CHARACTERS] for line in lines if line.strip()]
    return "; ".join(last[-most:]).replace(":; ", ": ")
