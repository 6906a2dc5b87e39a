"""A worker's pod has the agent from its image, where that is the bundled one, or from elsewhere: an `AgentSource`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BUNDLED_AGENT = "/opt/trainmaster/agent.pyz"
AGENT_DIRECTORY = "/run/trainmaster/agent"
AGENT_FILE = "agent.pyz"
MOUNTED_AGENT = f"{AGENT_DIRECTORY}/{AGENT_FILE}"
# The volume in which pods have the agent, and the init container that fills it in sets with an `AgentImage`.
AGENT_VOLUME = AGENT_CONTAINER = "trainmaster-agent"

_NAME_PREFIX = "trainmaster-agent-"
AGENT_CONFIG_MAP_NAME = re.compile(rf"{_NAME_PREFIX}[0-9a-f]{{64}}")


def config_map_name(zipapp: bytes) -> str:
    """Returns the name of the ConfigMap that holds this agent. It has the SHA-256 that the content must have."""
    return f"{_NAME_PREFIX}{hashlib.sha256(zipapp).hexdigest()}"


@dataclass(frozen=True)
class AgentConfigMap:
    """AgentConfigMap is the ConfigMap of the job's namespace that pods mount."""

    name: str

    @property
    def sha256(self) -> str:
        """Returns what the agent's hash must be for a pod to run it."""
        return self.name.removeprefix(_NAME_PREFIX)


@dataclass(frozen=True)
class AgentImageVolume:
    """AgentImageVolume is the image that pods mount as a volume (Kubernetes' KEP-4639).

    All of it is mounted, and the agent lies in it where the bundled image has it: containerd applies a mount's subPath
    from 2.2 on, and 2.1 leaves it out without a word (containerd/containerd#11580).
    """

    reference: str


@dataclass(frozen=True)
class AgentImage:
    """AgentImage is the image that an init container copies the agent from.

    Operators of 0.1.0 made their sets so. These stay as they are: agents of two versions in one job needn't understand
    each other.
    """

    reference: str
    pull_policy: str | None


AgentSource = AgentConfigMap | AgentImageVolume | AgentImage


def agent_path(source: AgentSource | None) -> str:
    """Returns where a worker's container has the agent; None is the bundled image."""
    match source:
        case None:
            return BUNDLED_AGENT
        case AgentImageVolume():
            return f"{AGENT_DIRECTORY}{BUNDLED_AGENT}"
        case _:
            return MOUNTED_AGENT


def agent_command(source: AgentSource | None) -> tuple[str, ...]:
    """Returns the command of a worker's container. An agent from a ConfigMap is verified before it runs."""
    runs = agent_path(source), "run", "--"
    if isinstance(source, AgentConfigMap):
        return "python3", "-c", _verifying(), source.sha256, *runs
    return "python3", *runs


@cache
def _verifying() -> str:
    return Path(__file__).with_name("verified_agent.py").read_text("utf-8")
