"""Kept logs share one limit, also where those of several attempts come together (`keeping/logs.py`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.controller.keeping.logs import joined

LOGS = st.dictionaries(st.sampled_from("abc"), st.text(alphabet="xé\n", max_size=30), max_size=3)


@given(before=LOGS, data=LOGS, share=st.integers(0, 40), rest=st.integers(0, 60))
def test_what_is_kept_fits_the_limit_and_is_the_end_of_each_log(
    before: dict[str, str], data: dict[str, str], share: int, rest: int
) -> None:
    limit = share * len(data) + rest
    changes = joined(before, data, dict.fromkeys(data, share), limit)
    assert changes.keys() == before.keys() | data.keys()
    assert sum(len((text or "").encode()) for text in changes.values()) <= limit
    for name, log in data.items():
        kept = changes[name] or ""
        assert kept.endswith(log) or log.endswith(kept)


def test_an_older_log_comes_first_and_loses_its_beginning() -> None:
    assert joined({"a": "one\ntwo"}, {"a": "three\n"}, {"a": 10}, 10) == {"a": "two\nthree\n"}
    assert joined({"a": "one\n", "b": "gone\n"}, {"a": "two\n"}, {"a": 8}, 8) == {"a": "one\ntwo\n", "b": None}
