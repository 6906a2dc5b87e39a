"""A job's events are selected, counted and sorted, and their ages are shown as kubectl does (`cli/events.py`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.cli.dtj_command import run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.cli.events import JobEvent, Owners, events_of, owners_of
from trainmaster.client import TrainingJob
from trainmaster.client.view import duration


def event(kind: str, name: str, message: str = "text", *, uid: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": f"{name}.{message}", "uid": f"{name}{message}{fields}"},
        "involvedObject": {"kind": kind, "name": name, "uid": uid},
        **{"type": "Normal", "reason": "Created", "message": message, "lastTimestamp": "2026-11-21T05:00:00Z"},
        **fields,
    }


def owners(*specs: dict[str, Any]) -> Owners:
    names = ("reviews", "other")
    return owners_of([TrainingJob.of({**job(names[at]), "spec": spec}) for at, spec in enumerate(specs)])


def objects(*raw: dict[str, Any], of: Owners) -> list[str]:
    return [found.object for found in events_of(raw, of)]


def test_a_job_s_own_events_are_those_of_its_uid() -> None:
    mine = event("DistributedTrainingJob", "reviews", uid="uid-reviews")
    before = event("DistributedTrainingJob", "reviews", uid="deleted long ago")
    assert objects(mine, before, of=owners({"workers": 2})) == ["dtj/reviews"]


def test_pods_and_sets_belong_to_the_job_by_their_names_also_when_they_are_gone() -> None:
    found = [
        event("Pod", "reviews-11"),
        event("StatefulSet", "reviews"),
        event("Pod", "reviews"),
        event("Pod", "reviews-a-0"),
        event("Service", "reviews"),
        event("Pod", "elsewhere-0"),
    ]
    assert objects(*found, of=owners({"workers": 2})) == ["pod/reviews-11", "statefulset/reviews"]
    groups = {"workerGroups": [{"name": "a"}, {"name": "b"}]}
    assert objects(*found, of=owners(groups)) == ["pod/reviews-11", "statefulset/reviews", "pod/reviews-a-0"]


def test_events_of_pods_from_before_the_job_arent_its_own() -> None:
    old = event("Pod", "reviews-0", lastTimestamp="2026-11-21T03:59:00Z")
    assert objects(old, of=owners({"workers": 2})) == []


def test_both_kinds_of_events_have_the_same_facts() -> None:
    core = {"firstTimestamp": "2026-11-21T04:00:00Z", "lastTimestamp": "2026-11-21T05:00:00Z", "count": 3}
    newer: dict[str, Any] = {
        "metadata": {"namespace": "default", "name": "e", "creationTimestamp": "2026-11-21T04:00:00Z"},
        "regarding": {"kind": "Pod", "name": "reviews-0"},
        **{"type": "Normal", "reason": "Created", "note": "text", "eventTime": "2026-11-21T04:00:00.000000Z"},
    }
    series = {**newer, "series": {"count": 3, "lastObservedTime": "2026-11-21T05:00:00.000000Z"}}
    deprecated = {**newer, "deprecatedCount": 3, "deprecatedLastTimestamp": "2026-11-21T05:00:00Z"}
    facts = set()
    for raw in (event("Pod", "reviews-0", **core), series, deprecated):
        parsed = JobEvent.parse(raw)
        assert parsed is not None
        facts.add((parsed.object, parsed.message, parsed.first, parsed.last, parsed.count))
    assert len(facts) == 1
    assert JobEvent.parse({"metadata": {"name": "e"}}) is None


def test_events_of_one_object_that_say_the_same_are_one_and_the_oldest_is_first() -> None:
    twice = [
        event("Pod", "reviews-0", count=2, firstTimestamp="2026-11-21T04:10:00Z"),
        event("Pod", "reviews-0", count=3, lastTimestamp="2026-11-21T06:00:00Z"),
    ]
    between = event("Pod", "reviews-0", "another", lastTimestamp="2026-11-21T05:30:00Z")
    found = events_of([twice[1], between, twice[0]], owners({"workers": 1}))
    assert [(each.message, each.count) for each in found] == [("another", 1), ("text", 5)]
    assert found[1].first.isoformat() == "2026-11-21T04:10:00+00:00"


def test_events_of_one_second_are_in_the_order_in_which_they_were_written() -> None:
    def numbered(reason: str, version: str, **fields: Any) -> dict[str, Any]:
        found = event("Pod", "reviews-0", reason, **{"reason": reason, **fields})
        found["metadata"]["resourceVersion"] = version
        return found

    scheduled = numbered("Scheduled", "998", lastTimestamp=None, eventTime="2026-11-21T05:00:00.900000Z")
    pulled = numbered("Pulled", "999", firstTimestamp="2026-11-21T05:00:00Z")
    created = numbered("Created", "1000")
    before = numbered("Before", "2000", lastTimestamp="2026-11-21T04:59:59Z")
    found = events_of([created, pulled, scheduled, before], owners({"workers": 1}))
    assert [each.reason for each in found] == ["Before", "Scheduled", "Pulled", "Created"]
    now = found[1].last + timedelta(seconds=51.5)
    assert [each.seen(now) for each in found] == ["52s", "51s", "51s", "51s"]


def test_events_of_one_second_without_a_version_stay_in_the_order_of_the_list() -> None:
    listed = [event("Pod", "reviews-0", "b"), event("Pod", "reviews-0", "a"), event("Pod", "reviews-0", "c")]
    listed[1]["metadata"]["resourceVersion"] = "opaque"
    assert [each.message for each in events_of(listed, owners({"workers": 1}))] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *[(-5, "0s"), (119, "119s"), (120, "2m"), (320, "5m20s"), (600, "10m"), (10_799, "179m"), (10_800, "3h")],
        *[(11_000, "3h3m"), (28_800, "8h"), (172_799, "47h"), (172_800, "2d"), (180_000, "2d2h"), (700_000, "8d")],
    ],
)
def test_ages_are_kubectl_s(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_the_command_shows_them_by_type(transport: FakeTransport) -> None:
    jobs = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
    transport.answers = {
        f"GET {jobs}/reviews": job(),
        "GET /api/v1/namespaces/default/events": {
            "items": [event("Pod", "reviews-0"), event("Pod", "reviews-1", "longer", type="Warning")]
        },
    }
    lines = run("events", "reviews").stdout.splitlines()
    assert lines[0].startswith("LAST SEEN") and len(lines) == 3
    assert [line for line in lines if line.endswith(" ")] == [], "no blanks fill the last column in a pipe"
    assert "pod/reviews-1" in run("events", "reviews", "--types", "warning").stdout.splitlines()[1]
    wrong = run("events", "reviews", "--types", "Bad")
    assert (wrong.exit_code, "'Bad' is no type of event; use Normal or Warning" in wrong.stderr) == (2, True)
