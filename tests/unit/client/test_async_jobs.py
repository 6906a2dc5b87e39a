"""The asynchronous client has the same methods as the synchronous one, and they do the same."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator

import pytest

from tests.unit.client.fakes import FakeTransport, event, job
from trainmaster.client import AsyncJobClient, InvalidRequest, JobClient
from trainmaster.client.blocking import Blocking, iterate, run

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"


def public(of: type) -> dict[str, list[tuple[str, object]]]:
    """Returns the methods with their parameters' names and defaults; `wait` has its own default function."""
    return {
        name: [(each.name, None if name == "wait" else each.default) for each in parameters(method)]
        for name, method in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_") and name != "close"
    }


def parameters(method: object) -> list[inspect.Parameter]:
    assert callable(method)
    return list(inspect.signature(method).parameters.values())


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    assert public(JobClient) == public(AsyncJobClient)


async def test_coroutines_wait_and_watch() -> None:
    transport = FakeTransport(
        {f"GET {JOBS}/reviews": job(phase="Running")},
        {JOBS: [[event("MODIFIED", job(phase="Succeeded", version="9"))]] * 2},
    )
    jobs = AsyncJobClient(transport=Blocking(transport))
    assert (await jobs.wait("reviews")).phase == "Succeeded"
    async for seen in jobs.watch("reviews"):
        if seen.finished:
            break
    else:
        pytest.fail("the end wasn't seen")


async def test_the_synchronous_client_works_within_a_running_loop_as_in_a_notebook() -> None:
    transport = FakeTransport(
        {f"GET {JOBS}/reviews": job(phase="Running")},
        {JOBS: [[event("MODIFIED", job(phase="Succeeded", version="9"))]] * 2},
    )
    jobs = JobClient("default", transport=transport)
    assert jobs.wait("reviews").phase == "Succeeded"
    assert next(seen for seen in jobs.watch("reviews") if seen.finished).phase == "Succeeded"


def test_restart_writes_another_value_each_time_and_refuses_a_job_that_has_ended() -> None:
    transport = FakeTransport({f"GET {JOBS}/reviews": job(phase="Running"), f"PATCH {JOBS}/reviews": job()})
    jobs = JobClient("default", transport=transport)
    jobs.restart("reviews")
    jobs.restart("reviews")
    patches = [body["metadata"]["annotations"] for method, _, _, body in transport.asked if method == "PATCH"]
    assert [list(each) for each in patches] == [["trainmaster.dev/restart"]] * 2
    assert patches[0] != patches[1]
    transport.answers[f"GET {JOBS}/reviews"] = job(phase="Failed")
    with pytest.raises(InvalidRequest, match=r"^Job reviews has ended \(Failed\), and ended jobs never train again"):
        jobs.restart("reviews")


def test_an_iterator_that_is_given_up_closes_what_it_reads_from() -> None:
    closed = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    reading = iterate(numbers())
    assert next(reading) == 1
    reading.close()
    assert closed == [True]


def test_a_coroutine_that_needs_a_loop_is_a_defect_and_said() -> None:
    class Never:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def waits() -> None:
        await Never()

    with pytest.raises(RuntimeError, match="waited for an event loop"):
        run(waits())
