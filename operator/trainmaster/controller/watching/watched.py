"""The types that the operator watches, and which of their objects: for kopf, for the sweeps and for who writes them."""

from __future__ import annotations

from trainmaster.controller.apiserver.cluster import (
    CONFIG_MAPS,
    GANGS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
)
from trainmaster.wire.names import JOB_NAME_LABEL

# Kept logs are large and nobody's input: the watch leaves them out.
CONTENT_LABEL = "trainmaster.dev/content"
LOGS_CONTENT = "logs"
EVIDENCE_CONTENT = "evidence"
SELECTORS = {
    PODS: JOB_NAME_LABEL,
    SERVICES: JOB_NAME_LABEL,
    STATEFUL_SETS: JOB_NAME_LABEL,
    NETWORK_POLICIES: JOB_NAME_LABEL,
    CONFIG_MAPS: f"{JOB_NAME_LABEL},{CONTENT_LABEL}!={LOGS_CONTENT},{CONTENT_LABEL}!={EVIDENCE_CONTENT}",
    **dict.fromkeys(GANGS.values(), JOB_NAME_LABEL),
}
# What is always watched. `gangs` adds the types of gang schedulers; NetworkPolicies are watched where jobs have them.
WATCHED = (JOBS, PODS, SERVICES, STATEFUL_SETS, CONFIG_MAPS)
