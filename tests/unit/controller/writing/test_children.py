"""`writing.children` creates children, then applies them, and never overwrites another owner's object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller import builders as b
from trainmaster_operator.controller.apiserver.cluster import SERVICES, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Conflict, Invalid, Refused
from trainmaster_operator.controller.writing.children import as_applied

from .world import World


def from_create(name: str = "bert") -> dict[str, Any]:
    """Returns a StatefulSet whose fields still belong to the create, as a real API server shows it."""
    made = b.child("StatefulSet", name)
    entry = {
        "manager": "trainmaster",
        "operation": "Update",
        "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }
    made["metadata"]["managedFields"] = [entry]
    return made


async def test_the_first_write_of_a_child_is_a_create_and_the_next_an_apply() -> None:
    world = World()
    await world.write(b.child("StatefulSet"))
    await world.write(b.child("StatefulSet", rendered_hash="h2"))
    assert world.writes() == [("create", "StatefulSet"), ("apply", "StatefulSet")]
    assert world.cluster.calls["get", "StatefulSet"] == 0


async def test_an_object_that_somebody_made_a_moment_ago_is_not_written_over() -> None:
    """It was made after the decision and before our write, and a forced apply would overwrite it."""
    world = World()
    snapshot = world.snapshot()
    world.cluster.put(SERVICES, b.child("Service", owner_uid=None))
    before = dict(world.stored("services"))
    with pytest.raises(Refused, match="belongs to nobody; delete it or rename the job"):
        await world.write(b.child("Service"), snapshot)
    assert world.stored("services") == before


async def test_our_own_child_that_was_believed_absent_is_decided_on_anew() -> None:
    """The answer to the create was lost, or another operator made it."""
    world = World()
    snapshot = world.snapshot()
    world.cluster.put(STATEFUL_SETS, b.child("StatefulSet", rendered_hash="newer"))
    with pytest.raises(Conflict):
        await world.write(b.child("StatefulSet"), snapshot)
    (child,) = world.snapshot().observed.children
    assert child.rendered_hash == "newer"
    assert world.stored("statefulsets")["metadata"]["annotations"] == {"trainmaster.dev/rendered-hash": "newer"}


async def test_a_late_apply_of_an_operator_that_was_deposed_loses() -> None:
    world = World()
    await world.write(b.child("StatefulSet", rendered_hash="attempt 1"))
    # The new leader wrote; the old one's watch hasn't shown it yet.
    world.cluster.put(STATEFUL_SETS, b.child("StatefulSet", rendered_hash="attempt 3"))
    with pytest.raises(Conflict):
        await world.write(b.child("StatefulSet", rendered_hash="attempt 2"))
    assert world.stored("statefulsets")["metadata"]["annotations"] == {"trainmaster.dev/rendered-hash": "attempt 3"}
    (child,) = world.snapshot().observed.children
    assert child.rendered_hash == "attempt 3", "the next decision is on what is there now"


@pytest.mark.parametrize(("changes", "applied"), [(1, True), (2, True), (3, False)])
async def test_a_set_whose_status_alone_has_moved_on_is_applied_to_all_the_same(changes: int, applied: bool) -> None:
    """The status changes while pods come and go and the watch lags. Retries are limited: other jobs are waiting."""
    world = World()
    await world.write(b.child("StatefulSet"))
    apply, left = world.cluster.apply, changes

    async def outrun(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            world.cluster.put(STATEFUL_SETS, {**b.child("StatefulSet"), "status": {"readyReplicas": left}})
        return await apply(*arguments, **options)

    world.cluster.apply = outrun  # type: ignore[method-assign]
    if applied:
        await world.write(b.child("StatefulSet", rendered_hash="h2"))
    else:
        with pytest.raises(Conflict):
            await world.write(b.child("StatefulSet", rendered_hash="h2"))
    written = world.stored("statefulsets")["metadata"]["annotations"]["trainmaster.dev/rendered-hash"] == "h2"
    assert written is applied


async def test_an_object_that_was_deleted_and_made_anew_by_somebody_is_not_adopted() -> None:
    world = World()
    await world.write(b.child("StatefulSet"))
    world.cluster.remove(STATEFUL_SETS, b.NAMESPACE, "bert")
    world.cluster.put(STATEFUL_SETS, b.child("StatefulSet", owner_uid=None, rendered_hash="theirs"))
    for error in (Conflict, Refused):
        # At first the object isn't the one that was decided on, and then it isn't the job's.
        with pytest.raises(error):
            await world.write(b.child("StatefulSet", rendered_hash="h2"))
    assert world.stored("statefulsets")["metadata"]["annotations"] == {"trainmaster.dev/rendered-hash": "theirs"}


async def test_a_child_that_is_gone_is_not_made_again_by_an_apply() -> None:
    """It may have been deleted with its job; the next decision will see that."""
    world = World()
    await world.write(b.child("StatefulSet"))
    world.cluster.remove(STATEFUL_SETS, b.NAMESPACE, "bert")
    with pytest.raises(Conflict):
        await world.write(b.child("StatefulSet", rendered_hash="h2"))
    assert ("statefulsets", b.NAMESPACE, "bert") not in world.cluster.objects
    assert world.snapshot().observed.children == ()


async def test_what_the_watch_shows_otherwise_by_now_is_not_written() -> None:
    world = World()
    await world.write(b.child("StatefulSet"))
    snapshot = world.snapshot()
    world.put(STATEFUL_SETS, b.child("StatefulSet", rendered_hash="newer"))
    with pytest.raises(Conflict):
        await world.write(b.child("StatefulSet", rendered_hash="h2"), snapshot)
    assert world.cluster.calls["apply", "StatefulSet"] == 0


async def test_a_status_that_moved_on_is_no_reason_to_decide_anew() -> None:
    world = World()
    await world.write(b.child("StatefulSet"))
    snapshot = world.snapshot()
    moved = {**b.child("StatefulSet"), "status": {"readyReplicas": 1}}
    world.put(STATEFUL_SETS, moved)
    await world.write(b.child("StatefulSet", rendered_hash="h2"), snapshot)
    assert world.stored("statefulsets")["metadata"]["annotations"] == {"trainmaster.dev/rendered-hash": "h2"}


async def test_a_refusal_of_the_content_is_an_error_of_its_own() -> None:
    world = World()
    await world.write(b.child("StatefulSet"))
    world.cluster.fail("apply", "statefulsets", Invalid("apply", "spec.selector: field is immutable", status=422))
    with pytest.raises(Refused, match="immutable"):
        await world.write(b.child("StatefulSet", rendered_hash="h2"))


async def test_a_refusal_of_a_set_names_the_fields_that_the_user_wrote() -> None:
    world = World()
    message = "spec.template.spec.newField: unknown field; spec.template.labels: Invalid value"
    world.cluster.fail("create", "statefulsets", Invalid("create", message, status=400, reason="Invalid"))
    with pytest.raises(Invalid) as refused:
        await world.write(b.child("StatefulSet"))
    assert (refused.value.message, refused.value.reason) == (
        "spec.podTemplate.spec.newField: unknown field; spec.podTemplate.metadata.labels: Invalid value",
        "Invalid",
    )


async def test_what_the_create_wrote_is_declared_to_be_applied_once() -> None:
    world = World()
    world.put(STATEFUL_SETS, from_create())
    for rendered_hash in ("h2", "h3"):
        await world.write(b.child("StatefulSet", rendered_hash=rendered_hash))
    assert world.writes() == [("patch", "StatefulSet"), ("apply", "StatefulSet"), ("apply", "StatefulSet")]
    (entry,) = world.stored("statefulsets")["metadata"]["managedFields"]
    assert (entry["operation"], entry["fieldsV1"]) == ("Apply", {"f:spec": {"f:replicas": {}}})


async def test_a_set_that_is_scaled_to_zero_costs_one_write() -> None:
    world = World()
    world.put(STATEFUL_SETS, from_create())
    nothing = {**b.child("StatefulSet", rendered_hash="h2"), "spec": {"replicas": 0}}
    await world.write(nothing)
    assert world.writes() == [("apply", "StatefulSet")]


def test_entries_of_a_create_and_an_apply_become_one_and_those_of_others_stay() -> None:
    ours = {"manager": "trainmaster", "apiVersion": "apps/v1", "fieldsType": "FieldsV1"}
    created = {**ours, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:template": {"f:a": {}}}}}
    applied = {**ours, "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {"f:b": {}}}}}
    status = {**ours, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}}
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:template": {"f:c": {}}}}}
    one, *others = as_applied([created, theirs, applied, status])
    assert (one["manager"], one["operation"]) == ("trainmaster", "Apply")
    assert one["fieldsV1"] == {"f:spec": {"f:replicas": {}, "f:template": {"f:a": {}, "f:b": {}}}}
    assert others == [theirs, status]
