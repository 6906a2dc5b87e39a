"""These paths are a worker's container's."""

from __future__ import annotations

BUNDLED_AGENT = "/opt/trainmaster/agent.pyz"
AGENT_DIRECTORY = "/run/trainmaster/agent"
AGENT_FILE = "agent.pyz"
MOUNTED_AGENT = f"{AGENT_DIRECTORY}/{AGENT_FILE}"
STATE_DIRECTORY = "/run/trainmaster/state"
# In memory, and outlives ranks and containers: where ranks leave the state that the next attempt goes on from.
MEMORY_DIRECTORY = "/run/trainmaster/memory"
PODINFO_DIRECTORY = "/run/trainmaster/podinfo"
# Everything writes here that asks for no place of its own (tempfile, torchrun's logs, sockets of data loaders).
TEMPORARY_DIRECTORY = "/tmp"
CODE_DIRECTORY = "/run/trainmaster/code"
TRAINING_DIRECTORY = "/etc/trainmaster"
TRAINING_FILE = f"{TRAINING_DIRECTORY}/training.yaml"
TERMINATION_LOG = "/dev/termination-log"
