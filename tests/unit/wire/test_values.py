"""A long error keeps its last lines, and a line that is too long keeps its beginning."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.values import last_lines

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB. " + "x" * 5_000


@given(st.text(alphabet="ab \n", max_size=80), st.integers(0, 60))
def test_what_is_kept_fits_and_a_text_that_fits_is_kept(error: str, limit: int) -> None:
    kept = last_lines(error, limit)
    assert len(kept) <= limit
    if len(error) <= limit:
        assert kept == error


def test_the_last_line_keeps_its_beginning_and_the_lines_before_it_their_ends() -> None:
    assert last_lines("Traceback\n" + OOM, 100) == f"Traceback\n{OOM[:47]}..."
    assert last_lines(OOM, 100) == OOM[:97] + "..."
    assert last_lines("one\ntwo\nthree", 10) == "two\nthree"
    assert last_lines(f"{OOM}\nkilled by SIGABRT", 200).splitlines() == [OOM[:97] + "...", "killed by SIGABRT"]


def test_a_report_keeps_the_exception_s_name_on_every_way() -> None:
    report = Report(attempt=1, worker=0, uid="u", state="Failed", error="Traceback\n" + OOM)
    for sent in (report.to_wire(), json.loads(report.termination_message())):
        assert Report.parse(sent).error.splitlines()[-1].startswith("torch.OutOfMemoryError: CUDA out of memory. Tried")
