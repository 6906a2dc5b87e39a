"""`trainmaster operator keys` rotates and prunes the operator's keys, against an API server over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from tests.processes.controller.fake_http import kubeconfig, serving
from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster.cli.main import app
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import PODS, SECRETS
from trainmaster_operator.controller.apiserver.errors import Unauthorized
from trainmaster_operator.controller.keys import (
    SECRET_NAME,
    keys_secret,
    parse_keys,
)


async def test_the_command_rotates_and_prunes_the_secret_and_spares_pods_that_know_no_newer_key(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.put(SECRETS, keys_secret("sys", KEYS))
    async with serving(cluster) as http:
        options = ["--namespace", "sys", "--kubeconfig", str(kubeconfig(tmp_path, http.url))]

        async def command(*words: str) -> tuple[int, str]:
            done = await asyncio.to_thread(CliRunner().invoke, app, ["operator", "keys", *words, *options])
            return done.exit_code, done.output

        def standing() -> SigningKeys:
            return parse_keys(cluster.objects["secrets", "sys", SECRET_NAME])

        assert await command("rotate") == (
            0,
            "2 keys. Restart the operator; when all pods have been made again: keys prune.\n",
        )
        assert (standing().private[1:], standing().agents_seed) == (KEYS.private, KEYS.agents_seed)
        old = b.pod(0)
        env = [{"name": "TRAINMASTER_PUBLIC_KEYS", "value": KEYS.public_keys}]
        cluster.put(PODS, {**old, "spec": {"containers": [{"name": "worker", "env": env}]}})
        code, output = await command("prune")
        assert code == 1 and "1 pod(s) don't know the newest key (team-a/bert-0, ...)" in output.replace("\n", " ")
        assert len(standing().private) == 2
        newest = standing().private[0]
        assert (await command("prune", "--force"))[0] == 0
        assert standing().private == (newest,)
        cluster.fail("get", "secrets", Unauthorized("get", "Unauthorized", status=401, reason="Unauthorized"))
        code, output = await command("rotate")
        assert (code, output) == (
            1,
            f"trainmaster operator keys: the cluster at {http.url} doesn't know you (401 Unauthorized): the token or "
            "certificate may have expired; log in again, or choose another context\n",
        )
        del cluster.objects["secrets", "sys", SECRET_NAME]
        code, output = await command("rotate")
        assert code == 1 and output.startswith("trainmaster operator keys: ")
