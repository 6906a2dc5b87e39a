"""The operator signs assignments with keys, and agents derive their jobs' tokens from a Secret in their namespace.

The Secret with the operator's keys is in the namespace of the lease. The operator creates it at its first start and
reads it at every later start. If two replicas start at once, both try to create it, and the one that fails reads it.
Only the rotation (`trainmaster-operator keys`) changes the keys, in two steps: `rotate` and `prune`. The operator has
to be restarted after each step.

After its start, an operator creates the agents' Secret of a namespace before the first StatefulSet there. It can't read
that Secret and doesn't need to, because it derives the content from its keys.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainmaster_operator.api.signing import AGENTS_SECRET_KEY, AGENTS_SECRET_TYPE, SEED_BYTES, SigningKeys
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import NAMESPACES, PODS_ENVIRONMENTS, SECRETS, Cluster, RawObject
from trainmaster_operator.controller.apiserver.connection import ConnectionSettingsError, connect
from trainmaster_operator.controller.apiserver.errors import (
    AlreadyExists,
    ClusterError,
    NotFound,
    Refused,
    Unauthorized,
    Unreachable,
)
from trainmaster_operator.wire.names import JOB_UID_LABEL, MANAGED_BY_LABEL, PUBLIC_KEYS_VARIABLE
from trainmaster_operator.wire.values import mapping, mappings

logger = logging.getLogger(__name__)
SECRET_NAME = "trainmaster-signing-keys"
# The Secret's data: the private keys (one a line, newest first) and one seed. Each is 32 bytes in base64.
PRIVATE_KEYS, AGENTS_SEED = "private-keys", "agents-seed"
# The number is limited because each key adds a signature of 110 bytes to an annotation, and each agent reads all keys.
MAX_KEYS = 4


class KeysError(Exception):
    """The keys can't be used, or were not changed; the message gives the reason and the remedy."""


async def load_keys(cluster: Cluster, namespace: str, *, make_namespace: bool) -> SigningKeys:
    """Read the operator's keys from their Secret; create the Secret if it is missing.

    With `make_namespace`, create the Secret's namespace too, for an operator that a user runs outside of the cluster
    without a lease. Raises ClusterError, or KeysError.
    """
    try:
        return parse_keys(await cluster.get(SECRETS, namespace, SECRET_NAME))
    except NotFound:
        pass
    try:
        made = await cluster.create(SECRETS, namespace, keys_secret(namespace, new_keys()))
    except AlreadyExists:
        # Another replica created it first.
        return parse_keys(await cluster.get(SECRETS, namespace, SECRET_NAME))
    except NotFound as error:
        if not make_namespace:
            raise KeysError(
                "the Secret with the operator's keys can't be made, because the namespace doesn't exist: make it "
                f"(kubectl create namespace {namespace}) or choose another (--lease-namespace): {error.message}"
            ) from error
        logger.info("Making the namespace %s, for the operator's keys.", namespace)
        with suppress(AlreadyExists):
            await cluster.create(NAMESPACES, "", NAMESPACES.body(metadata={"name": namespace}))
        return await load_keys(cluster, namespace, make_namespace=False)
    logger.info("Made new keys: Secret %s/%s. Pods know only the keys they were made with.", namespace, SECRET_NAME)
    return parse_keys(made)


def new_keys() -> SigningKeys:
    return SigningKeys((os.urandom(SEED_BYTES),), os.urandom(SEED_BYTES))


def rotated(keys: SigningKeys) -> SigningKeys:
    """Returns the keys with a new key in front; each key signs every assignment. Raises KeysError."""
    if len(keys.private) >= MAX_KEYS:
        raise KeysError(f"there are {len(keys.private)} keys, and {MAX_KEYS} is the maximum; prune them first")
    return SigningKeys((os.urandom(SEED_BYTES), *keys.private), keys.agents_seed)


def pruned(keys: SigningKeys) -> SigningKeys:
    """Returns only the newest key. Pods that were created before that key accept no further assignment."""
    return SigningKeys(keys.private[:1], keys.agents_seed)


def knows_newest(pod: RawObject, keys: SigningKeys) -> bool:
    """Returns whether a pod knows the newest key, or has no keys at all."""
    newest = keys.public_keys.partition(",")[0]
    for container in mappings(mapping(pod.get("spec")).get("containers")):
        for variable in mappings(container.get("env")):
            if variable.get("name") == PUBLIC_KEYS_VARIABLE:
                return newest in str(variable.get("value")).split(",")
    return True


def parse_keys(secret: RawObject) -> SigningKeys:
    """Returns the keys in a Secret. Raises KeysError."""
    data = secret.get("data") or {}
    return SigningKeys(_seeds(data, PRIVATE_KEYS, MAX_KEYS), _seeds(data, AGENTS_SEED, 1)[0])


def keys_secret(namespace: str, keys: SigningKeys) -> dict[str, Any]:
    """Returns the Secret that holds the keys."""
    lines = "".join(f"{base64.b64encode(seed).decode()}\n" for seed in keys.private)
    seed = base64.b64encode(keys.agents_seed)
    return _secret(namespace, SECRET_NAME, "Opaque", {PRIVATE_KEYS: lines.encode(), AGENTS_SEED: seed})


def agents_secret(namespace: str, keys: SigningKeys) -> dict[str, Any]:
    """Returns the Secret from which a namespace's agents derive their jobs' tokens. The operator never reads it."""
    secret = keys.agents_secret(namespace)
    body = _secret(namespace, secret.name, AGENTS_SECRET_TYPE, {AGENTS_SECRET_KEY: secret.value.encode()})
    return {**body, "immutable": True}


def _secret(namespace: str, name: str, kind: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {MANAGED_BY_LABEL: "trainmaster"}}
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return SECRETS.body(metadata=metadata, type=kind, data=encoded)


def _seeds(data: Mapping[str, Any], name: str, most: int) -> tuple[bytes, ...]:
    """Returns the keys in a field of the Secret. Messages quote no line, because it may contain most of a key."""
    try:
        lines = base64.b64decode(str(data[name]), validate=True).decode("ascii").split()
    except KeyError:
        raise _damaged(name, "it is missing") from None
    except ValueError:
        raise _damaged(name, "it is not text in base64") from None
    if not 1 <= len(lines) <= most:
        raise _damaged(name, f"{len(lines)} lines are not 1" + (f" to {most}" if most > 1 else ""))
    try:
        seeds = tuple(base64.b64decode(line, validate=True) for line in lines)
    except binascii.Error:
        seeds = (b"",)
    if any(len(seed) != SEED_BYTES for seed in seeds):
        raise _damaged(name, f"a line is not {SEED_BYTES} bytes in base64")
    return seeds


def _damaged(name: str, problem: str) -> KeysError:
    return KeysError(
        f"the Secret {SECRET_NAME} can't be used: data.{name}: {problem}; restore it from a backup, or delete it and "
        'start the operator again (docs/access.md, "The operator\'s keys")'
    )


class AgentsSecrets:
    """Creates the agents' Secret of each namespace once."""

    def __init__(self, cluster: Cluster, keys: SigningKeys) -> None:
        self._cluster = cluster
        self._keys = keys
        self._made: set[str] = set()
        self._refused: set[str] = set()

    async def make(self, namespace: str) -> None:
        """Create the namespace's Secret once, before pods need it. Raises ClusterError.

        A refusal is only logged: without the Secret, jobs still run, and their agents report by exiting.
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
        """Let the next `make` create the namespace's Secret again, if it is missing.

        Call this if an agent has no token or a wrong token, because the Secret or its namespace may have been deleted.
        """
        self._made.discard(namespace)


async def rotate(cluster: Cluster, namespace: str) -> str:
    """Adds a new key in front of the others; returns the next step for the user."""
    secret = await cluster.get(SECRETS, namespace, SECRET_NAME)
    made = rotated(parse_keys(secret))
    await _replace(cluster, namespace, secret, made)
    return f"{len(made.private)} keys. Restart the operator; when all pods have been made again: keys prune."


async def prune(cluster: Cluster, namespace: str, *, force: bool) -> str:
    """Removes all keys but the newest, and returns the next step for the user.

    Raises KeysError if pods don't know the newest key, unless `force` is set.
    """
    secret = await cluster.get(SECRETS, namespace, SECRET_NAME)
    current, old = parse_keys(secret), []
    async for page in cluster.pages(PODS_ENVIRONMENTS, label_selector=JOB_UID_LABEL):
        old += [pod["metadata"] for pod in page if not knows_newest(pod, current)]
    if old and not force:
        first = f"{old[0]['namespace']}/{old[0]['name']}"
        raise KeysError(
            f"{len(old)} pod(s) don't know the newest key ({first}, ...) and would refuse every assignment; "
            "wait for their jobs' end, delete them, or give --force"
        )
    await _replace(cluster, namespace, secret, pruned(current))
    return "1 key. Restart the operator."


async def _replace(cluster: Cluster, namespace: str, secret: RawObject, keys: SigningKeys) -> None:
    """Writes the changed keys. Raises Conflict if another client wrote meanwhile."""
    await cluster.replace(SECRETS, namespace, SECRET_NAME, {**secret, "data": keys_secret(namespace, keys)["data"]})


async def change_keys(namespace: str, kubeconfig: str | None, context: str | None, *, prunes: bool, force: bool) -> str:
    """Rotates or prunes the keys, and returns the next step for the user. Raises KeysError."""
    try:
        connection = await connect(kubeconfig, context)
        cluster = KubernetesCluster(connection)
        try:
            return await (prune(cluster, namespace, force=force) if prunes else rotate(cluster, namespace))
        except (Unauthorized, Unreachable) as error:
            raise KeysError(connection.unusable(error)) from error
        finally:
            await cluster.close()
    except (ClusterError, ConnectionSettingsError) as error:
        raise KeysError(str(error)) from error
