"""The local cluster has to know two things of Trainmaster: its images, and how the agents find each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainmaster_local.config import ClusterConfig, Image
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.rendering.agent_source import BUNDLED_AGENT

# By this name `trainmaster_local.cluster.up` calls it in the cluster's own process.
CONFIGURE = f"{__name__}:configure"
# The trainer image has these at /opt/trainmaster/examples; only a checkout of the project has it here.
EXAMPLE_SCRIPTS = Path(__file__).parents[3] / "images" / "trainer" / "examples"


def configure(config: ClusterConfig) -> ClusterConfig:
    """Adds Trainmaster's images, and the variable by which agents find their hosts file.

    The trainer image's agent is built into the cluster's state folder.
    """
    agent = config.state_dir / "images" / "agent.pyz"
    # Before the cluster has made it, for its owner alone as the cluster does.
    config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    agent.parent.mkdir(exist_ok=True)
    temporary = agent.with_suffix(".tmp")
    temporary.write_bytes(zipapp_bytes())
    temporary.replace(agent)
    image = Image(
        patterns=("ghcr.io/trainmaster/*", "docker.io/trainmaster/*", "trainmaster.dev/*"),
        paths={BUNDLED_AGENT: agent, "/opt/trainmaster/examples": EXAMPLE_SCRIPTS},
        command=("python3",),
    )
    return replace(config, images=(*config.images, image), hosts_variable="TRAINMASTER_HOSTS_FILE")
