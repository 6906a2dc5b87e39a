"""`recording.outbox`: what waits for the history is bounded and in order, and a job's newest record is the last."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.controller.recording.lines import MAX_LINE
from trainmaster_operator.controller.recording.outbox import OVERHEAD, Entry, EntryKind, Outbox

SIZE = 100


def entry(kind: EntryKind, uid: str, text: str, facts: int = 0, size: int = SIZE) -> Entry:
    return Entry(kind, uid, text.encode().ljust(size), facts)


def outbox(entries: int = 1_000) -> tuple[Outbox, Counter[str]]:
    counted: Counter[str] = Counter()

    def count(outcome: str, records: int) -> None:
        counted[outcome] += records

    return Outbox(count, entries * (SIZE + OVERHEAD)), counted


def texts(box: Outbox, most: int = MAX_LINE) -> list[str]:
    found = [one.line.decode().strip() for one in box.take(most)]
    box.done()
    return found


def test_a_newer_record_of_a_job_takes_the_place_of_the_one_that_waits_where_its_facts_are_the_same() -> None:
    box, counted = outbox()
    box.put(entry("job", "a", "a1", facts=1))
    box.put(entry("job", "b", "b1", facts=1))
    box.put(entry("sample", "a", "a sample"))
    box.put(entry("job", "a", "a2", facts=1))
    box.put(entry("job", "a", "a3", facts=2))
    box.put(entry("job", "a", "a4", facts=2))
    box.put(entry("job", "a", "a5", facts=1))
    assert texts(box) == ["a2", "b1", "a sample", "a4", "a5"] and not counted and box.size == 0


def test_what_was_taken_is_not_replaced_any_more() -> None:
    box, _ = outbox()
    box.put(entry("job", "a", "a1"))
    assert len(box.take(MAX_LINE)) == 1
    box.put(entry("job", "a", "a2"))
    box.done()
    assert texts(box) == ["a2"]


def test_a_batch_is_bounded_and_has_one_record_at_least() -> None:
    box, _ = outbox()
    for number in range(5):
        box.put(entry("other", "a", str(number)))
    assert texts(box, 2 * (SIZE + 1)) == ["0", "1"]
    assert texts(box, 1) == ["2"]
    assert texts(box) == ["3", "4"] and len(box) == 0


def test_samples_give_way_first_then_jobs_records_that_a_newer_one_follows_then_what_is_oldest() -> None:
    box, counted = outbox(5)
    box.put(entry("other", "a", "evidence"))
    box.put(entry("job", "a", "a1", facts=1))
    box.put(entry("job", "a", "a2", facts=2))
    box.put(entry("sample", "a", "s1"))
    box.put(entry("sample", "a", "s2"))
    box.put(entry("sample", "a", "s3"))
    assert counted == {"dropped": 1} and not box.lost, "s1"
    box.put(entry("job", "b", "b1"))
    box.put(entry("job", "c", "c1"))
    assert counted == {"dropped": 3} and not box.lost, "all samples"
    box.put(entry("sample", "a", "s4"))
    assert counted == {"dropped": 4} and not box.lost, "it gives way itself"
    box.put(entry("job", "d", "d1"))
    assert counted == {"dropped": 5} and box.lost
    assert texts(box) == ["evidence", "a2", "b1", "c1", "d1"], "not the evidence, which is the oldest, but a1"


def test_where_nothing_else_gives_way_it_is_what_is_oldest() -> None:
    box, counted = outbox(2)
    for uid in "abc":
        box.put(entry("job", uid, uid))
    assert counted == {"dropped": 1} and box.lost and texts(box) == ["b", "c"]


def test_a_record_that_no_request_has_room_for_is_dropped_alone() -> None:
    box, counted = outbox(10_000)
    box.put(entry("job", "a", "a1"))
    box.put(entry("job", "a", "a2", size=MAX_LINE))
    assert counted == {"dropped": 1} and texts(box) == ["a1"]


def test_a_job_that_grows_makes_room_for_itself() -> None:
    box, counted = outbox(3)
    box.put(entry("sample", "a", "s1"))
    box.put(entry("job", "a", "a1"))
    box.put(entry("job", "b", "b1"))
    box.put(entry("job", "b", "b2", size=SIZE + 1))
    assert counted == {"dropped": 1} and texts(box) == ["a1", "b2"]


PUT = st.tuples(
    st.sampled_from(["job", "job", "sample", "other"]),
    st.sampled_from("abc"),
    st.integers(0, 2),
    st.integers(20, 400),
)
TAKE = st.integers(1, 1_000)


@given(st.lists(st.one_of(PUT, PUT, PUT, TAKE), max_size=80), st.integers(1_500, 6_000))
def test_whatever_comes_it_is_bounded_ordered_counted_and_ends_with_the_newest(steps: list[object], limit: int) -> None:
    counted: Counter[str] = Counter()

    def count(outcome: str, records: int) -> None:
        counted[outcome] += records

    box = Outbox(count, limit)
    delivered: list[Entry] = []
    put: list[Entry] = []
    replaced = 0
    for number, step in enumerate([*steps, MAX_LINE, MAX_LINE]):
        if isinstance(step, int):
            before = len(box)
            taken = box.take(step)
            assert len(taken) + len(box) == before and bool(taken) == bool(before)
            assert len(taken) == 1 or sum(len(one.line) + 1 for one in taken) <= step
            delivered += taken
            box.done()
        else:
            kind, uid, facts, size = step  # type: ignore[misc]
            one = entry(kind, uid, f"{number}", facts if kind == "job" else 0, size)
            before, dropped = len(box), counted["dropped"]
            box.put(one)
            put.append(one)
            replaced += before + 1 - (counted["dropped"] - dropped) - len(box)
        assert box.size <= limit and box.size == sum(each.size for each in box._waiting.values())
    assert len(box) == 0 and box.size == 0 and not box._samples and not box._followed and not box._last
    assert len(put) == len(delivered) + counted["dropped"] + replaced

    for uid in "abc":
        for kind in ("job", "sample", "other"):
            numbers = [int(one.line) for one in delivered if (one.uid, one.kind) == (uid, kind)]
            assert numbers == sorted(set(numbers)), "those of one job and kind come in their order, and once"
        jobs = [one for one in put if (one.uid, one.kind) == (uid, "job")]
        sent = [one for one in delivered if (one.uid, one.kind) == (uid, "job")]
        if jobs and not box.lost:
            assert sent[-1] == jobs[-1]
            # The history's facts are all there.
            changes = [one.facts for at, one in enumerate(jobs) if at == 0 or jobs[at - 1].facts != one.facts]
            facts = [one.facts for at, one in enumerate(sent) if at == 0 or sent[at - 1].facts != one.facts]
            assert facts == changes


@pytest.mark.parametrize("kind", ["sample", "job", "other"])
def test_a_full_outbox_takes_as_long_as_an_empty_one(kind: EntryKind) -> None:
    """Bounded work for each record: 200,000 into room for 2,000 would take minutes by a search from the front."""
    box, counted = outbox(2_000)
    for number in range(200_000):
        box.put(entry(kind, str(number % 5_000), "", facts=number))
    assert counted["dropped"] == 198_000 and len(box) == 2_000
