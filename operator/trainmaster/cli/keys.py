"""`trainmaster operator keys` rotates the operator's keys, in two steps with a restart after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.api.signing import SigningKeys
    from trainmaster.controller.apiserver.client import KubernetesCluster

app = Part(help="Rotate the keys that the operator signs assignments with.")

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", envvar="TRAINMASTER_LEASE_NAMESPACE", help="The operator's own namespace.")
]
Kubeconfig = Annotated[
    str | None, typer.Option(envvar="TRAINMASTER_KUBECONFIG", help="Kubeconfig file; default: KUBECONFIG.")
]
Context = Annotated[
    str | None, typer.Option(envvar="TRAINMASTER_CONTEXT", help="Context of the kubeconfig; default: its current.")
]
HOME = "trainmaster-system"


@app.callback()
def keys() -> None:
    """Rotate the keys that the operator signs assignments with."""


@app.command()
def rotate(namespace: Namespace = HOME, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Add a new key in front of the others. After the operator's restart all of them sign, and new pods know all."""
    from trainmaster.controller.keys.signing_keys import rotated

    async def add(cluster: KubernetesCluster) -> str:
        made = await _change(cluster, namespace, rotated)
        return f"{len(made.private)} keys. Restart the operator; when all pods have been made anew: keys prune."

    _run(add, kubeconfig, context)


@app.command()
def prune(
    namespace: Namespace = HOME,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    force: Annotated[bool, typer.Option("--force", help="Also while pods don't know the newest key.")] = False,
) -> None:
    """Remove all keys but the newest, unless pods still run that don't know it: these would refuse every assignment."""
    from trainmaster.controller.apiserver.cluster import PODS_ENVIRONMENTS
    from trainmaster.controller.keys.signing_keys import knows_newest, pruned, read_keys
    from trainmaster.wire.names import JOB_UID_LABEL

    async def remove(cluster: KubernetesCluster) -> str:
        current = (await read_keys(cluster, namespace))[0]
        old = []
        async for page in cluster.pages(PODS_ENVIRONMENTS, label_selector=JOB_UID_LABEL):
            old += [pod["metadata"] for pod in page if not knows_newest(pod, current)]
        if old and not force:
            first = f"{old[0]['namespace']}/{old[0]['name']}"
            raise _Refused(
                f"{len(old)} pod(s) don't know the newest key ({first}, ...) and would refuse every assignment; "
                "wait for their jobs' end, delete them, or give --force"
            )
        await _change(cluster, namespace, pruned)
        return "1 key. Restart the operator."

    _run(remove, kubeconfig, context)


class _Refused(Exception):
    """The change would do harm; one sentence says which."""


async def _change(
    cluster: KubernetesCluster, namespace: str, change: Callable[[SigningKeys], SigningKeys]
) -> SigningKeys:
    """Writes the changed keys, and returns them. Raises Conflict where somebody else wrote meanwhile."""
    from trainmaster.controller.apiserver.cluster import SECRETS
    from trainmaster.controller.keys.signing_keys import SECRET_NAME, keys_secret, read_keys

    current, secret = await read_keys(cluster, namespace)
    made = change(current)
    body = {**secret, "data": keys_secret(namespace, made)["data"]}
    await cluster.replace(SECRETS, namespace, SECRET_NAME, body)
    return made


def _run(
    work: Callable[[KubernetesCluster], Coroutine[None, None, str]], kubeconfig: str | None, context: str | None
) -> None:
    import asyncio

    from trainmaster.controller.apiserver.connection import ConnectionSettingsError
    from trainmaster.controller.apiserver.errors import ClusterError
    from trainmaster.controller.keys.signing_keys import DamagedKeys, TooManyKeys

    async def main() -> str:
        async with _connected(kubeconfig, context) as cluster:
            return await work(cluster)

    try:
        say(asyncio.run(main()))
    except (ClusterError, ConnectionSettingsError, DamagedKeys, TooManyKeys, _Refused) as error:
        say(f"trainmaster operator keys: {error}", error=True)
        raise typer.Exit(1) from error


@asynccontextmanager
async def _connected(kubeconfig: str | None, context: str | None) -> AsyncIterator[KubernetesCluster]:
    from trainmaster.controller.apiserver.client import KubernetesCluster
    from trainmaster.controller.apiserver.connection import ConnectionSettingsError, connect
    from trainmaster.controller.apiserver.errors import Unauthorized, Unreachable

    connection = await connect(kubeconfig, context)
    cluster = KubernetesCluster(connection)
    try:
        yield cluster
    except (Unauthorized, Unreachable) as error:
        raise ConnectionSettingsError(connection.unusable(error)) from error
    finally:
        await cluster.close()
