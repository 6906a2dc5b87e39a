"""The Secret of each namespace from which its agents derive their jobs' tokens: written once, never read.

It is made with the first StatefulSet of the namespace in an operator's life. The operator has no right to read it, and
needs none: it derives what is in it.
"""

from __future__ import annotations

import logging

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import SECRETS, Cluster
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, Refused
from trainmaster_operator.controller.keys.signing_keys import agents_secret

logger = logging.getLogger(__name__)


class AgentsSecrets:
    """Makes the Secret of each namespace once."""

    def __init__(self, cluster: Cluster, keys: SigningKeys) -> None:
        self._cluster = cluster
        self._keys = keys
        self._made: set[str] = set()
        self._refused: set[str] = set()

    async def make(self, namespace: str) -> None:
        """Make the namespace's Secret unless it was made, before pods ask for it. Raises ClusterError.

        A refusal is logged, and the namespace does without: agents then report by exiting, and jobs run.
        """
        if namespace in self._made:
            return
        try:
            await self._cluster.create(SECRETS, namespace, agents_secret(namespace, self._keys))
        except AlreadyExists:
            logger.debug("The agents' Secret of %s is there.", namespace)
        except Refused as error:
            if namespace not in self._refused:
                self._refused.add(namespace)
                logger.warning(
                    "The agents of %s can't be reached, and recover more slowly, until their Secret can be made: %s",
                    namespace,
                    error,
                )
            return
        self._made.add(namespace)

    def doubt(self, namespace: str) -> None:
        """Have the namespace's Secret made again, where it is missing, with the next pods.

        An agent there knows no token, or another: somebody has deleted the Secret, or the namespace and all in it, and
        made one of the same name.
        """
        self._made.discard(namespace)
