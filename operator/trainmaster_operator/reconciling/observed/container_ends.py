"""A container's end says how often it has ended and why its worker failed, also where the agent hasn't reported it."""

from __future__ import annotations

from trainmaster_operator.reconciling.observed.snapshot import ContainerEnd, ContainerView
from trainmaster_operator.wire.report import EXIT_FINISHED, EXIT_KILLED, REASON_BY_EXIT_CODE, Report

# Ends of a container that never ran: the runtime couldn't start it (kubernetes: pkg/kubelet/kuberuntime).
START_FAILURES = frozenset({"StartError", "ContainerCannotRun", "ContainerStatusUnknown"})

# An agent that the kubelet's probe has ended, and that still obeyed SIGTERM, gets this message.
_WELL = "its agent was well: the kubelet can't reach its port; change the worker's livenessProbe in spec.podTemplate"


def count_ends(container: ContainerView) -> int:
    """Returns how often the container has ended.

    `restartCount` counts starts after the first: it is one behind while the container waits for its next start
    (recorded on 1.36, local/tests/data/kubernetes-pods.jsonl: CrashLoopBackOff with restartCount 1 is end two).
    """
    if container.state == "running":
        return container.restarts
    return container.restarts + (1 if latest_end(container) is not None else 0)


def latest_end(container: ContainerView | None) -> ContainerEnd | None:
    """Returns the container's last end."""
    if container is None:
        return None
    return container.end or container.last_end


def is_unresponsive_report(reason: str, exit_code: int | None) -> bool:
    """Returns whether a worker counts as lost because its agent doesn't answer; whoever ends has an exit code."""
    return reason == "AgentLost" and exit_code is None


def explained(report: Report, container: ContainerView | None, kill_message: str) -> Report:
    """Returns the report with its cause. An agent that starts again only knows that it was lost; the container's
    status, or the kubelet, has the cause. One that was only asked to stop may have been well, but out of the
    kubelet's reach.

    The end that it reports is the one before its own, where it has reported by exiting.
    """
    if kill_message and _ended_by(report, latest_end(container)):
        error = "\n".join(filter(None, (report.error, kill_message, _WELL if report.state == "Stopped" else "")))
        report = report._replace(state="Failed", reason="AgentLost", culprit=True, error=error)
    ends = (container.end, container.last_end) if container is not None else ()
    killed = next((end for end in ends if end is not None and end.report is None and end.reason == "OOMKilled"), None)
    return report if killed is None else report._replace(reason="OOMKilled", exit_code=killed.exit_code)


def _ended_by(report: Report, end: ContainerEnd | None) -> bool:
    """Returns whether a container's last end, which the kubelet has brought about, is what a report speaks of."""
    if end is None or is_unresponsive_report(report.reason, report.exit_code):
        return False
    if end.report is None:
        return report.reason == "AgentLost"
    return (end.report.state, end.report.attempt) == ("Stopped", report.attempt) and report.state == "Stopped"


def reason_of(end: ContainerEnd) -> str:
    """Returns the reason of an end without a report."""
    if end.reason == "OOMKilled":
        return "OOMKilled"
    # SIGKILL without a message: the agent itself was killed. With 0 it ended without doing what it is for.
    return REASON_BY_EXIT_CODE.get(
        end.exit_code, "AgentLost" if end.exit_code in (EXIT_FINISHED, EXIT_KILLED) else "Error"
    )
