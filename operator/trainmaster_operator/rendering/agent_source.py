"""A worker's pod uses the agent in the bundled image, or mounts an agent from a ConfigMap in its namespace."""

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
# The volume with the agent in a pod.
AGENT_VOLUME = "trainmaster-agent"

_NAME_PREFIX = "trainmaster-agent-"
AGENT_CONFIG_MAP_NAME = re.compile(rf"{_NAME_PREFIX}[0-9a-f]{{64}}")


def config_map_name(zipapp: bytes) -> str:
    """Returns the name of the agent's ConfigMap, which contains the SHA-256 hash that the agent must match."""
    return f"{_NAME_PREFIX}{hashlib.sha256(zipapp).hexdigest()}"


@dataclass(frozen=True)
class AgentConfigMap:
    """AgentConfigMap is a ConfigMap that contains the agent. Pods in its namespace mount it."""

    name: str

    @property
    def sha256(self) -> str:
        """Returns the hash that the agent must match before it runs in a pod."""
        return self.name.removeprefix(_NAME_PREFIX)


def agent_command(source: AgentConfigMap | None) -> tuple[str, ...]:
    """Returns the command of a worker's container. An agent from a ConfigMap is verified before it runs."""
    if source is None:
        return "python3", BUNDLED_AGENT, "run", "--"
    return "python3", "-c", _verifying(), source.sha256, MOUNTED_AGENT, "run", "--"


@cache
def _verifying() -> str:
    return Path(__file__).with_name("verified_agent.py").read_text("utf-8")
