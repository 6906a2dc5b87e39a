"""`recording.lines`: a record is one line of JSON that a history reads, as large as may be and no larger."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller import builders as b
from trainmaster_operator.api.records import FIGURES, JobRecord, PodPlace, SampleRecord, parse_record
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.kept import MAX_RECORDED_BYTES
from trainmaster_operator.controller.recording.lines import MAX_LINE, MAX_RANKS, facts_of, job_line, sample_line
from trainmaster_operator.wire.progress import RankProgress

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
    """A line that is none would cost all the records that are sent with it."""
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
