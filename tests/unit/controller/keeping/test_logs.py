"""Kept logs share one limit, also where those of several attempts come together (`keeping/logs.py`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.api.kept_logs import KeptLog
from trainmaster.controller.keeping.logs import joined

# Less is no log's share: the operator keeps none then.
LEAST = 100
TIMES = st.integers(1_700_000_000_000, 1_900_000_000_000)
LINES = st.lists(st.tuples(st.text(alphabet="xé", max_size=30), TIMES), max_size=6)
LOG = st.builds(
    lambda lines, timed: KeptLog(tuple(text for text, _ in lines), tuple(time for _, time in lines) if timed else None),
    LINES,
    st.booleans(),
)
LOGS = st.dictionaries(st.integers(0, 2), LOG, max_size=3)


@given(before=LOGS, logs=LOGS, share=st.integers(LEAST, 300), rest=st.integers(0, 300))
def test_what_is_kept_fits_the_limit_and_is_the_end_of_each_log(
    before: dict[int, KeptLog], logs: dict[int, KeptLog], share: int, rest: int
) -> None:
    limit = share * len(logs) + rest
    old = {name: text for worker, log in before.items() for name, text in log.to_data(worker).items()}
    changes = joined(old, logs, dict.fromkeys(logs, share), limit)
    after: dict[str, str] = {name: text for name, text in {**old, **changes}.items() if text is not None}
    if logs:
        assert sum(len(text.encode()) for text in after.values()) <= limit
    for worker, log in logs.items():
        kept = KeptLog.parse(after, worker)
        assert kept is not None
        whole = (before[worker].followed_by(log) if worker in before else log).lines
        assert not kept.lines or kept.lines == whole[-len(kept.lines) :] or whole[-1].endswith(kept.lines[0])
        assert kept.times is None or len(kept.times) == len(kept.lines)
        assert kept.cut or kept.lines == whole


def test_an_older_log_comes_first_and_loses_its_beginning() -> None:
    def text(changes: dict[str, str | None], worker: int) -> str | None:
        return changes[f"worker-{worker}.log"]

    old = KeptLog(("x" * 60, "two")).to_data(0)
    changes = joined(old, {0: KeptLog(("three",))}, {0: 100}, 100)
    assert (text(changes, 0), changes["worker-0.times"]) == ("two\nthree\n", '{"cut":true}')
    both = {**KeptLog(("one",)).to_data(0), **KeptLog(("gone",)).to_data(1)}
    changes = joined(both, {0: KeptLog(("two",))}, {0: 50}, 50)
    assert (text(changes, 0), text(changes, 1)) == ("one\ntwo\n", None)
