"""A report that nobody has acknowledged is made the sure way, by exiting.

Then the kubelet brings the code and the termination message to the API server. Exits cost a restart of the container
and, repeated, a back-off, so they are put off as long as somebody may still be about to record the report
(docs/protocol.md, "The sure way").
"""

from __future__ import annotations

from trainmaster_operator.agent.planner.state import LeaderContact, State

NEW_LEADER_SECONDS = 2.0
"""An operator is assumed to be on its way to a leader that is new: without that, the loss of the leader makes each
worker with a report exit before anybody could have watched, into the kubelet's back-off (measured: 10, 20, 40 s)."""
PATIENCE_SECONDS = 3.0
"""How long a report waits for its acknowledgement or a newer assignment before it is made by exiting."""
FORGOTTEN_SECONDS = 30.0
"""Without any operator for this long, one that had acknowledged a report, or had said Hold, may have died."""


def contact_changed(state: State, contact: LeaderContact, now: float) -> State:
    """Remember since when nobody watches, and until when a new leader counts as watched."""
    if contact.leader is not None and contact.leader != state.known_leader:
        state = state._replace(known_leader=contact.leader, new_leader_until=now + NEW_LEADER_SECONDS)
    if contact.watched:
        state = state._replace(unwatched_at=None)
    elif state.unwatched_at is None:
        state = state._replace(unwatched_at=now)
    return state._replace(contact=contact)


def exit_at(state: State) -> float | None:
    """Returns when the last report has to be made by exiting, on the monotonic clock; None: not at all."""
    report, assignment = state.report, state.assignment
    if report is None or report.state not in ("Failed", "Finished"):
        return None
    if state.saved is not None and state.saved.exited:
        return None
    if assignment is None or assignment.attempt > report.attempt:
        return None
    held = assignment.state == "Hold"
    if state.acknowledged >= report.attempt:
        # An operator that says Hold has recorded it.
        if held or state.unwatched_at is None:
            return None
        return max(state.unwatched_at, state.ended_at) + FORGOTTEN_SECONDS
    if report.state == "Failed" and (not report.culprit or report.reason == "AgentLost"):
        # The kubelet has already reported the end of a lost agent's container, and the operator is on its way back to
        # this one. An operator that says Hold knows that the attempt is over, and may be waiting for another pod.
        return state.ended_at + (FORGOTTEN_SECONDS if held else PATIENCE_SECONDS)
    patient = state.ended_at + PATIENCE_SECONDS
    return patient if state.contact.watched else min(patient, max(state.ended_at, state.new_leader_until))
