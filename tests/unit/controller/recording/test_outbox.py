"""`recording.outbox` keeps records for the history in order, within bounds, and always with a job's newest record."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller import builders as b
from trainmaster_operator.api.records import (
    FIGURES,
    MAX_JOB_METRICS,
    JobIdentity,
    JobRecord,
    PodPlace,
    SampleRecord,
    parse_record,
)
from trainmaster_operator.controller.apiserver.kept import MAX_RECORDED_BYTES
from trainmaster_operator.controller.recording.outbox import (
    MAX_LINE,
    MAX_RANKS,
    OVERHEAD,
    EntryKind,
    Outbox,
    WaitingRecord,
    facts_of,
    job_line,
    sample_line,
)
from trainmaster_operator.wire.ranks import RankProgress

SIZE = 100


def entry(kind: EntryKind, uid: str, text: str, facts: int = 0, size: int = SIZE) -> WaitingRecord:
    return WaitingRecord(kind, uid, text.encode().ljust(size), facts)


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
    delivered: list[WaitingRecord] = []
    put: list[WaitingRecord] = []
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
            # The history gets every change of the facts.
            changes = [one.facts for at, one in enumerate(jobs) if at == 0 or jobs[at - 1].facts != one.facts]
            facts = [one.facts for at, one in enumerate(sent) if at == 0 or sent[at - 1].facts != one.facts]
            assert facts == changes


@pytest.mark.parametrize("kind", ["sample", "job", "other"])
def test_a_full_outbox_takes_as_long_as_an_empty_one(kind: EntryKind) -> None:
    """A search from the front would take minutes to put 200,000 records into room for 2,000."""
    box, counted = outbox(2_000)
    for number in range(200_000):
        box.put(entry(kind, str(number % 5_000), "", facts=number))
    assert counted["dropped"] == 198_000 and len(box) == 2_000


KEY = JobIdentity(b.NAMESPACE, "bert", b.JOB_UID)
PLACES = (PodPlace(0, "bert-0", "node-1"), PodPlace(1, "bert-1"))


def read(line: bytes) -> Any:
    assert b"\n" not in line and len(line) < MAX_LINE
    return parse_record(json.loads(line))


def read_job(raw: dict[str, Any], *, large: bool = True) -> dict[str, Any]:
    record = read(job_line(1.5, raw, PLACES, large=large))
    assert isinstance(record, JobRecord) and (record.at, record.key, record.pods) == (1.5, KEY, PLACES)
    return dict(record.job)


def test_a_job_is_recorded_as_it_is_without_who_wrote_which_field() -> None:
    raw = b.job(status={"phase": "Running", "attempt": 1})
    raw["metadata"]["labels"] = {"team": "ä\ud800"}
    with_fields = {**raw, "metadata": {**raw["metadata"], "managedFields": [{"manager": "kubectl"}]}}
    assert read_job(with_fields) == raw == read_job(with_fields, large=False)
    assert "managedFields" in with_fields["metadata"], "the object is its owner's"


def test_of_a_job_that_is_too_large_the_spec_is_left_out_first() -> None:
    raw = b.job(status={"phase": "Running", "failures": [{"attempt": 1}]}, env="x" * MAX_RECORDED_BYTES)
    assert read_job(raw) == {name: value for name, value in raw.items() if name != "spec"}


def test_then_what_the_status_has_of_each_worker_and_what_people_wrote_into_the_metadata() -> None:
    status = {"phase": "Running", "attempt": 2, "podUIDs": ["u" * 36] * 10_000, "failures": [{"attempt": 1}]}
    raw = b.job(status=status, env="x" * MAX_RECORDED_BYTES)
    raw["metadata"]["annotations"] = {"note": "x" * 10_000}
    recorded = read_job(raw)
    assert recorded["status"] == {"phase": "Running", "attempt": 2, "failures": [{"attempt": 1}]}
    assert recorded["metadata"] == {"namespace": b.NAMESPACE, "name": "bert", "uid": b.JOB_UID}


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({f"field{number}": "x" * 10_000 for number in range(1_000)}, id="many fields"),
        pytest.param({"phase": {"a": ["\x00" * 200_000]}}, id="characters that need six"),
        pytest.param([["x" * 1_000_000]], id="a list"),
        pytest.param("x" * 1_500_000, id="a text"),
    ],
)
@pytest.mark.parametrize("large", [True, False])
def test_whatever_stands_in_a_job_its_record_is_bounded(status: Any, large: bool) -> None:
    raw = {**b.job(), "status": status}
    raw["metadata"]["annotations"] = {"note": "\x00" * 250_000}
    recorded = read_job(raw, large=large)
    assert recorded["metadata"]["uid"] == b.JOB_UID
    facts_of(raw)


def test_facts_are_attempt_phase_and_failures() -> None:
    def facts(**status: Any) -> int:
        return facts_of(b.job(status={"phase": "Running", "attempt": 1, "failures": [], **status}))

    assert facts() == facts(progress={"step": 3}, replicas=2)
    assert len({facts(), facts(phase="Failed"), facts(attempt=2), facts(failures=[{"attempt": 1}])}) == 4


def test_a_sample_has_columns_in_the_order_of_ranks_with_six_digits() -> None:
    reports = [
        (2, 1, RankProgress(step=12_345_678, loss=0.123456789, step_seconds=1e-9)),
        (0, 0, RankProgress(step=12_345_679, loss=None)),
        (1, 0, RankProgress(step=None, loss=123456.789)),
    ]
    record = read(sample_line(7.25, KEY, 3, reports))
    assert record == SampleRecord(
        7.25,
        KEY,
        3,
        (0, 1, 2),
        (0, 0, 1),
        {
            "step": [12_345_679, None, 12_345_678],
            "loss": [None, 123457.0, 0.123457],
            "step_seconds": [None, None, 1e-9],
        },
    ), "and no column of what nobody reports"


def test_a_sample_has_the_first_ranks_value_of_each_metric_and_a_limited_number() -> None:
    def own(rank: int) -> RankProgress:
        return RankProgress(metrics=tuple((f"rank_{rank}_{number}", 1.0) for number in range(32)))

    reports = [(1, 0, RankProgress(metrics=(("f1", 0.1), ("own", 1.0)))), (0, 0, RankProgress(metrics=(("f1", 0.9),)))]
    assert read(sample_line(7.25, KEY, 3, reports)).metrics == {"f1": 0.9, "own": 1.0}
    reports += [(rank, 1, own(rank)) for rank in (2, 3, 4)]
    assert len(read(sample_line(7.25, KEY, 3, reports)).metrics) == MAX_JOB_METRICS + 1, "one more than are kept"


REPORTS = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(-5, 2**60),
        **{
            name: st.one_of(st.floats(), st.integers(-(10**30), 10**30), st.none())
            for name in ("loss", "samplesPerSecond", "stepSeconds")
        },
    },
)


@given(st.dictionaries(st.integers(0, 2**31 - 1), REPORTS, min_size=1, max_size=5))
def test_whatever_a_rank_reports_its_sample_is_the_record_that_it_should_be(reported: dict[int, Any]) -> None:
    """An invalid line would cost all the records that are sent with it."""
    ranks = {rank: RankProgress.salvage(data) for rank, data in reported.items()}
    reports = [(rank, 3, progress) for rank, progress in ranks.items() if progress is not None]
    record = read(sample_line(7.25, KEY, 3, reports))
    assert record.ranks == tuple(sorted(reported)) and record.workers == (3,) * len(reported)
    for _, _, progress in reports:
        place = record.ranks.index(next(rank for rank, one in ranks.items() if one is progress))
        own = progress.step_seconds if progress.compute_seconds is None else progress.compute_seconds
        expected = {**progress._asdict(), "step_seconds": own}
        for name in FIGURES:
            value, column = expected[name], record.columns.get(name)
            found = None if column is None else column[place]
            assert (found is None) == (value is None)
            assert value is None or found == pytest.approx(value, rel=1e-5)


def test_a_rank_s_step_takes_what_it_computes_where_it_says_that() -> None:
    reports = [
        (0, 0, RankProgress(step_seconds=0.5, compute_seconds=0.125)),
        (1, 0, RankProgress(step_seconds=0.5, compute_seconds=0.0)),
        (2, 1, RankProgress(step_seconds=0.25)),
    ]
    assert read(sample_line(7.25, KEY, 3, reports)).columns == {"step_seconds": [0.125, 0.0, 0.25]}


def test_of_more_ranks_than_a_record_holds_an_even_choice_is_recorded() -> None:
    longest = RankProgress(2**53 - 1, 1, 1.0, -1.23456789e-77, -1.23456789e-77, -1.23456789e-77)
    reports = [(2_000_000_000 + rank, 1_000_000_000, longest) for rank in range(4 * MAX_RANKS - 2)]
    record = read(sample_line(7.25, KEY, 3, reports))
    assert record.ranks == tuple(range(2_000_000_000, 2_000_000_000 + 4 * MAX_RANKS - 2, 4))
    assert len(record.ranks) == MAX_RANKS == len(record.columns["loss"])
