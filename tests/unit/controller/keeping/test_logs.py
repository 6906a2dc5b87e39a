"""Kept logs share one limit, even if logs of several attempts meet (`keeping/logs.py`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.api.kept_logs import LONGEST_LOG, KeptLog
from trainmaster_operator.controller.keeping.logs import joined, share_out

# No log gets a smaller share, because the operator then keeps none.
LEAST = 100
TIMES = st.integers(1_700_000_000_000, 1_900_000_000_000)
LINES = st.lists(st.tuples(st.text(alphabet="xé", max_size=30), TIMES), max_size=6)
LOG = st.builds(
    lambda lines, timed: KeptLog(tuple(text for text, _ in lines), tuple(time for _, time in lines) if timed else None),
    LINES,
    st.booleans(),
)
LOGS = st.dictionaries(st.integers(0, 2), LOG, max_size=3)


@given(before=LOGS, logs=LOGS, failed=st.sets(st.integers(0, 2)), limit=st.integers(3 * LEAST, 900))
def test_what_is_kept_fits_the_limit_and_is_the_end_of_each_log(
    before: dict[int, KeptLog], logs: dict[int, KeptLog], failed: set[int], limit: int
) -> None:
    old = {name: text for worker, log in before.items() for name, text in log.to_data(worker).items()}
    changes = joined(old, logs, share_out({*before, *logs}, limit, {0, *failed}))
    after: dict[str, str] = {name: text for name, text in {**old, **changes}.items() if text is not None}
    assert sum(len(text.encode()) for text in after.values()) <= limit
    assert all(old.get(name) != text for name, text in changes.items())
    for worker, log in logs.items():
        kept = KeptLog.parse(after, worker)
        assert kept is not None
        whole = before.get(worker, KeptLog()).continued(log).lines
        assert not kept.lines or kept.lines == whole[-len(kept.lines) :] or whole[-1].endswith(kept.lines[0])
        assert kept.times is None or len(kept.times) == len(kept.lines)
        assert kept.cut or kept.lines == whole


def test_an_older_log_comes_first_and_loses_its_beginning() -> None:
    old = KeptLog(("x" * 60, "two")).to_data(0)
    changes = joined(old, {0: KeptLog(("three",))}, {0: 100})
    assert (changes["worker-0.log"], changes["worker-0.times"]) == ("two\nthree\n", '{"cut":true}')
    both = {**KeptLog(("one",)).to_data(0), **KeptLog(("gone",)).to_data(1)}
    changes = joined(both, {0: KeptLog(("two",))}, {0: 60, 1: 0})
    assert (changes["worker-0.log"], changes["worker-1.log"]) == ("one\ntwo\n", None)


def test_one_pods_log_leaves_the_others_theirs() -> None:
    """The 1,000 workers are drained one after the other."""
    shares = share_out(range(1_000), 512 * 1024, {0})
    assert shares[0] == LONGEST_LOG and shares[999] > 400 and sum(shares.values()) <= 512 * 1024
    data: dict[str, str | None] = {}
    for worker in range(3):
        changes = joined(
            {k: v for k, v in data.items() if v},
            {worker: KeptLog(("line",) * 3_000)},
            share_out(range(worker + 1), 512 * 1024, {0}),
        )
        data |= changes
    assert {name: len(str(text)) for name, text in data.items() if name.endswith("log")} == dict.fromkeys(
        ("worker-0.log", "worker-1.log", "worker-2.log"), 15_000
    )
