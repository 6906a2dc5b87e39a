"""Holds one job in a fake cluster, and the writer of its children."""

from __future__ import annotations

from typing import Any

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.cache.records import Snapshot
from trainmaster_operator.controller.keys import AgentsSecrets
from trainmaster_operator.controller.writing.agent_config_maps import AgentConfigMaps
from trainmaster_operator.controller.writing.children import ChildWriter

ZIPAPP = b"an agent"


class World(BaseWorld):
    def __init__(self) -> None:
        super().__init__()
        self.restart()
        self.put(JOBS, b.job())

    def restart(self) -> None:
        """Starts another operator, or this one again: it remembers nothing."""
        self.agents = AgentConfigMaps(self.cluster, self.store, ZIPAPP, interval=60.0)
        self.writer = ChildWriter(self.cluster, self.store, AgentsSecrets(self.cluster, KEYS), self.agents)

    async def write(self, manifest: dict[str, Any], snapshot: Snapshot | None = None) -> None:
        await self.writer.write(KEY, snapshot or self.snapshot(), manifest)

    def writes(self) -> list[tuple[str, str]]:
        """Returns the writes of children, without the agents' Secret, which is written once for a namespace."""
        return [(verb, kind) for verb, kind, _ in self.cluster.order if verb != "get" and kind != "Secret"]
