"""The types that the operator watches, and which of their objects: for kopf, for the sweeps and for who writes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainmaster_operator.controller.apiserver.cluster import (
    CONFIG_MAPS,
    GANGS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from trainmaster_operator.wire.names import JOB_NAME_LABEL

# Kept logs are large and nobody's input: the watch leaves them out.
CONTENT_LABEL = "trainmaster.dev/content"
LOGS_CONTENT = "logs"
EVIDENCE_CONTENT = "evidence"
STACKS_CONTENT = "stacks"
# A namespace's agents have the label of no job, so no watch shows them.
AGENT_CONTENT = "agent"
SELECTORS = {
    PODS: JOB_NAME_LABEL,
    SERVICES: JOB_NAME_LABEL,
    STATEFUL_SETS: JOB_NAME_LABEL,
    NETWORK_POLICIES: JOB_NAME_LABEL,
    CONFIG_MAPS: f"{JOB_NAME_LABEL},{CONTENT_LABEL} notin ({LOGS_CONTENT},{EVIDENCE_CONTENT},{STACKS_CONTENT})",
    **dict.fromkeys(GANGS.values(), JOB_NAME_LABEL),
}
# What is always watched. `gangs` adds the types of gang schedulers; NetworkPolicies are watched where jobs have them.
WATCHED = (JOBS, PODS, SERVICES, STATEFUL_SETS, CONFIG_MAPS)


class WatchedTypes:
    """Holds the types that are watched now: some always, others while the cluster serves them and a job uses them."""

    def __init__(self, always: Collection[Resource] = WATCHED) -> None:
        self.always = tuple(always)
        self._optional: list[Resource] = []

    def __iter__(self) -> Iterator[Resource]:
        return iter((*self.always, *self._optional))

    def add(self, resource: Resource) -> bool:
        """Add an optional type; returns whether it is news."""
        if resource in self._optional:
            return False
        self._optional.append(resource)
        return True

    def discard(self, resource: Resource) -> None:
        """Leave out an optional type that isn't served any more."""
        self._optional = [served for served in self._optional if served != resource]
