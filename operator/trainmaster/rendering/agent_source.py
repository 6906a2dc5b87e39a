"""A worker's pod has the agent from its image, where that is the bundled one, or from elsewhere: an `AgentSource`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

# The volume in which pods have the agent, and the init container that fills it in sets with an `AgentImage`.
AGENT_VOLUME = AGENT_CONTAINER = "trainmaster-agent"

AGENT_CONFIG_MAP_NAME = re.compile(r"trainmaster-agent-[0-9a-f]{20}")


def config_map_name(zipapp: bytes) -> str:
    """Returns the name of the ConfigMap that holds this agent: who reads it can tell whether it is what it says."""
    return f"trainmaster-agent-{hashlib.sha256(zipapp).hexdigest()[:20]}"


@dataclass(frozen=True)
class AgentConfigMap:
    """AgentConfigMap is the ConfigMap of the job's namespace that pods mount."""

    name: str


@dataclass(frozen=True)
class AgentImage:
    """AgentImage is the image that an init container copies the agent from.

    Operators of 0.1.0 made their sets so. These stay as they are: agents of two versions in one job needn't understand
    each other.
    """

    reference: str
    pull_policy: str | None


AgentSource = AgentConfigMap | AgentImage
