"""Records that the operator sends to the history are read back unchanged; bad ones are refused, naming the field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import (
    DeletedRecord,
    EvidenceRecord,
    JobRecord,
    LogRecord,
    PodPlace,
    Record,
    SampleRecord,
    SystemRecord,
    parse_record,
    to_wire,
)
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.wire.system import GpuSample, SystemSample
from trainmaster_operator.wire.values import ProtocolError

KEY = JobIdentity("team", "bert", "7a5e")
JOB = {"metadata": {"namespace": "team", "name": "bert", "uid": "7a5e"}, "spec": {"workers": 2}, "status": {}}
SAMPLE = SampleRecord(3.25, KEY, 2, (0, 1), (0, 0), {"loss": [0.5, None], "step_seconds": [0.1, 0.2]}, {"f1": 0.5})
SYSTEM = SystemRecord.of(
    3.5,
    KEY,
    2,
    {
        1: SystemSample(cpu_cores=1.5, gpus={0: GpuSample(0.5, 1e9, 4e9), 3: GpuSample(gpu_memory_bytes=2e9)}),
        0: SystemSample(memory_bytes=123456789.0, memory_limit_bytes=2e9),
    },
)
RECORDS: list[Record] = [
    JobRecord(1.5, JOB, (PodPlace(0, "bert-0", "gpu-7"), PodPlace(1, "bert-1"))),
    DeletedRecord(2.0, KEY),
    SAMPLE,
    replace(SYSTEM, columns={**SYSTEM.columns, "memoryBytes": [123457000.0, None]}),
    EvidenceRecord(4.0, KEY, 1, '{"attempt":1}'),
    LogRecord(5.0, KEY, 1, KeptLog(("one", "two"), (1_700_000_000_000, 1_700_000_000_250), cut=True)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert parse_record(json.loads(json.dumps(to_wire(record)))) == record


def test_a_system_is_recorded_in_columns_of_workers_and_of_gpus() -> None:
    assert (SYSTEM.workers, SYSTEM.gpus) == ((0, 1), ((1, 0), (1, 3)))
    assert SYSTEM.columns == {
        "cpuCores": [None, 1.5],
        "memoryBytes": [123456789.0, None],
        "memoryLimitBytes": [2e9, None],
        "gpuUtilization": [0.5, None],
        "gpuMemoryBytes": [1e9, 2e9],
        "gpuMemoryLimitBytes": [4e9, None],
    }
    for wrong in ({"gpus": [[1]]}, {"gpus": [[1, 64]]}, {"gpus": {}}, {"cpuCores": [1.0]}):
        with pytest.raises(ProtocolError):
            parse_record({**to_wire(SYSTEM), **wrong})


def test_a_jobs_record_names_the_job() -> None:
    record = RECORDS[0]
    assert isinstance(record, JobRecord)
    assert record.key == KEY


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"record": "sampel"}, "record: 'sampel' is none of job, deleted, sample, system, evidence, log"),
        ({"uid": ""}, "uid: '' is not text"),
        ({"ranks": [0, -1]}, "ranks: a list of 2 items is not a list of whole numbers"),
        ({"workers": [0]}, "workers: 1 are not one for each of 2 ranks"),
        ({"loss": [1.0]}, "loss: a list of 1 items is not a list with one number for each of 2 ranks"),
        ({"attempt": True}, "attempt: True is not a whole number"),
    ],
)
def test_what_is_no_record_is_refused_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_record({**to_wire(SAMPLE), **change})
    assert str(caught.value).startswith(field)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(RECORDS),
    st.sampled_from(["at", "uid", "ranks", "workers", "attempt", "loss", "job", "data"]),
    _JSON,
)
def test_whatever_stands_in_a_field_is_read_or_refused(record: Record, name: str, value: Any) -> None:
    try:
        parse_record({**to_wire(record), name: value})
    except ProtocolError:
        return
