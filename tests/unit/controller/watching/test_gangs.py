"""`watching.gangs` notices when types of gang schedulers are installed or removed."""

from __future__ import annotations

from typing import cast

from tests.unit.controller import builders as b
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.controller.apiserver.cluster import GANGS, JOBS
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import NotFound
from trainmaster_operator.controller.watching.gangs import GangWatcher
from trainmaster_operator.controller.watching.resync import WATCHED
from trainmaster_operator.wire.names import JOB_NAME_LABEL

POD_GROUPS = GANGS["volcano"]
SPEC = JobSpec.model_validate({"workers": 2, "scheduling": {"gang": {"scheduler": "volcano"}}})


async def test_what_was_written_to_a_type_that_was_gone_before_it_was_ever_listed_is_gone_too() -> None:
    world = BaseWorld()
    cluster, store = world.cluster, world.store
    world.put(JOBS, b.job())
    labels = {JOB_NAME_LABEL: "bert"}
    written = {"metadata": {"name": "bert", "namespace": b.NAMESPACE, "labels": labels, "ownerReferences": b.owner()}}
    world.put(POD_GROUPS, written)
    assert [name for _, name, _ in store.known(POD_GROUPS)] == ["bert"]
    cluster.fail("list", POD_GROUPS.plural, NotFound("list", "the cluster doesn't serve it", status=404))
    world.changes.clear()
    watched = [*WATCHED]
    watching = GangWatcher(
        cast(ApiConnection, None), cluster, store, watched, (), receive=lambda _event: None, relisted=lambda: None
    )
    await watching.fill([SPEC])
    assert list(store.known(POD_GROUPS)) == []
    assert world.changes == [KEY], "the job is looked at again"
    assert POD_GROUPS not in set(watched)
