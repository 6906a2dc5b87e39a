"""Rotates the operator's keys in two steps, `rotate` and `prune`. The operator has to be restarted after each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import PODS_ENVIRONMENTS, SECRETS
from trainmaster_operator.controller.apiserver.connection import ConnectionSettingsError, connect
from trainmaster_operator.controller.apiserver.errors import ClusterError, Unauthorized, Unreachable
from trainmaster_operator.controller.keys.signing_keys import (
    SECRET_NAME,
    DamagedKeys,
    TooManyKeys,
    keys_secret,
    knows_newest,
    pruned,
    read_keys,
    rotated,
)
from trainmaster_operator.wire.names import JOB_UID_LABEL

Work = Callable[[KubernetesCluster], Awaitable[str]]


class KeysError(Exception):
    """The keys were not changed. The text says why, in one sentence."""


def rotate(namespace: str) -> Work:
    """Returns the work that adds a new key in front of the others."""

    async def work(cluster: KubernetesCluster) -> str:
        made = await _change(cluster, namespace, rotated)
        return f"{len(made.private)} keys. Restart the operator; when all pods have been made anew: keys prune."

    return work


def prune(namespace: str, force: bool) -> Work:
    """Returns the work that removes all keys but the newest; it refuses while pods don't know that one."""

    async def work(cluster: KubernetesCluster) -> str:
        current = (await read_keys(cluster, namespace))[0]
        old = []
        async for page in cluster.pages(PODS_ENVIRONMENTS, label_selector=JOB_UID_LABEL):
            old += [pod["metadata"] for pod in page if not knows_newest(pod, current)]
        if old and not force:
            first = f"{old[0]['namespace']}/{old[0]['name']}"
            raise KeysError(
                f"{len(old)} pod(s) don't know the newest key ({first}, ...) and would refuse every assignment; "
                "wait for their jobs' end, delete them, or give --force"
            )
        await _change(cluster, namespace, pruned)
        return "1 key. Restart the operator."

    return work


async def with_cluster(work: Work, kubeconfig: str | None, context: str | None) -> str:
    """Does the work in the cluster, and returns what it reports. Raises KeysError."""
    try:
        connection = await connect(kubeconfig, context)
        cluster = KubernetesCluster(connection)
        try:
            return await work(cluster)
        except (Unauthorized, Unreachable) as error:
            raise KeysError(connection.unusable(error)) from error
        finally:
            await cluster.close()
    except (ClusterError, ConnectionSettingsError, DamagedKeys, TooManyKeys) as error:
        raise KeysError(str(error)) from error


async def _change(
    cluster: KubernetesCluster, namespace: str, change: Callable[[SigningKeys], SigningKeys]
) -> SigningKeys:
    """Writes the changed keys, and returns them. Raises Conflict if somebody else wrote meanwhile."""
    current, secret = await read_keys(cluster, namespace)
    made = change(current)
    body = {**secret, "data": keys_secret(namespace, made)["data"]}
    await cluster.replace(SECRETS, namespace, SECRET_NAME, body)
    return made
