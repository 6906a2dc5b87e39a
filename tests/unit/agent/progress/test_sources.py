"""The agent chooses among a rank's sources of progress, and decides which of them to watch for hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import environment
from trainmaster_operator.agent.hang.hung_rank import is_over
from trainmaster_operator.agent.progress import printed as printed_module
from trainmaster_operator.agent.progress import recorder as counters_module
from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.progress.recorder import Counters, Recorded
from trainmaster_operator.agent.progress.sources import INTERVAL_SECONDS, Heartbeats, Sources, StepTimes
from trainmaster_operator.agent.progress.usual import Usual
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.ranks import RankProgress

START = 100.0
BAR = "{}%|███| {}/60 [00:01<00:10,  2.00it/s]"


def settings(**spec: str) -> AgentSettings:
    variables = {
        "TRAINMASTER_WORKER": "0",
        "NPROC_PER_NODE": "2",
        "TRAINMASTER_PROGRESS_TIMEOUT": "10",
        "TRAINMASTER_FIRST_STEP_TIMEOUT": "100",
    }
    names = {f"TRAINMASTER_PROGRESS_{name.upper()}": value for name, value in spec.items()}
    return read_settings({**environment(), **variables, **names})


class Ranks:
    """Holds ranks 0 and 1 of a worker, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: str) -> None:
        self.said: list[str] = []
        self.now = START
        monkeypatch.setattr(printed_module.time, "monotonic", lambda: self.now)
        made = settings(**spec)
        self.printed = Printed(made, self.said.append)
        self.counters = Counters(list, 10.0)
        self._file = folder / "progress"
        heartbeats = Heartbeats(str(self._file), range(2))
        self.sources = Sources(made, range(2), START, heartbeats, self.printed, self.counters, Usual())

    def print(self, line: str, rank: int = 0) -> None:
        self.printed.read(rank, [line.encode()], b"")

    def report(self, step: int | None, total: int = 60) -> None:
        values = {"total_steps": total, **({} if step is None else {"current_step": step})}
        metrics = [{"name": name, "value": str(value)} for name, value in values.items()]
        self.sources.receive({"trainerStatus": {"metrics": metrics, "progressPercentage": step or 0}}, self.now)

    def write(self, **progress: Any) -> None:
        self._file.write_text(json.dumps(progress))

    def step(self, rank: int = 0) -> int | None:
        self.sources.poll(self.now)
        found = self.sources.ranks.get(rank)
        return None if found is None else found.step

    def is_over_after(self, seconds: float, rank: int = 0) -> bool:
        self.sources.poll(self.now)
        return is_over(self.sources.state(rank, self.now + seconds))


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path, monkeypatch)


def test_the_scripts_own_file_goes_before_reports_and_those_before_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(tmp_path, monkeypatch, pattern=r"step (?P<step>\d+) loss (?P<loss>\S+)")
    ranks.print("step 1 loss 0.5")
    assert ranks.step() == 1
    ranks.report(None)
    assert ranks.step() == 1, "what a report leaves out is filled in"
    ranks.report(2)
    assert ranks.step() == 2 and ranks.sources.ranks[0].loss == 0.5
    ranks.write(step=3)
    assert ranks.step() == 3 and ranks.sources.ranks[0].loss is None
    ranks.report(4)
    assert ranks.step() == 3


def test_the_trainers_bar_is_the_one_that_is_as_long_as_it_reports(ranks: Ranks) -> None:
    ranks.print(BAR.format(5, 3))
    assert ranks.step() is None, "anybody may draw a bar"
    ranks.report(None)
    assert ranks.step() == 3 and ranks.sources.ranks[0].eta_seconds == 28.5
    ranks.report(10)
    assert ranks.step() == 10, "a bar that is behind says nothing"
    ranks.print(BAR.format(20, 12))
    ranks.print(BAR.format(20, 12).replace("/60", "/40"))
    assert ranks.step() == 12
    assert ranks.sources.first_step_at.keys() == {0}


@pytest.mark.parametrize("source", ["file", "lines", "trainer"])
def test_a_speed_is_derived_whatever_says_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    ranks = Ranks(tmp_path, monkeypatch, pattern=r"step (?P<step>\d+)/(?P<totalSteps>\d+)")
    for step in range(1, 9):
        ranks.now += 2
        if source == "file":
            ranks.write(step=step, totalSteps=60)
        elif source == "lines":
            ranks.print(f"step {step}/60")
        else:
            ranks.report(step)
        assert ranks.step() == step
    assert ranks.sources.ranks[0].step_seconds == 2.0


def test_a_trainer_that_says_nothing_any_more_hangs_unless_it_prints(ranks: Ranks) -> None:
    ranks.report(None)
    assert not ranks.is_over_after(99) and ranks.is_over_after(101), "the first step's limit"
    ranks.report(1)
    assert not ranks.is_over_after(9) and ranks.is_over_after(11)
    assert not ranks.is_over_after(1e6, rank=1), "who says nothing isn't watched by itself"
    ranks.now += 9
    ranks.print("evaluating")
    assert not ranks.is_over_after(9), "it may be at an evaluation, of which it reports nothing"


def test_what_follows_a_training_is_not_watched(ranks: Ranks) -> None:
    """The Trainer reports nothing while it uploads a model or evaluates for the last time."""
    ranks.report(60)
    ranks.sources.receive({"trainerStatus": {"progressPercentage": 100}}, ranks.now)
    assert ranks.step() == 60 and not ranks.is_over_after(1e6)


def test_a_hang_of_a_rank_that_is_not_watched_has_lasted_for_the_limit(ranks: Ranks) -> None:
    ranks.report(1)
    assert ranks.sources.silent_seconds(1, ranks.now + 1000) == 10.0


def test_what_was_not_asked_for_is_shown_and_never_watched(ranks: Ranks) -> None:
    ranks.print("steps: 30 loss: 2.3456 iter time (s): 0.250 samples/sec: 128.000")
    assert ranks.step() == 30
    assert not ranks.is_over_after(1e6)


def test_a_pattern_is_watched_by_its_lines_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch, pattern=r"step (?P<step>\d+)")
    assert not ranks.is_over_after(1e6), "not before one has matched"
    ranks.print("step 1")
    ranks.now += 9
    ranks.print("still here")
    ranks.print("step 1")
    assert ranks.is_over_after(2) and not ranks.is_over_after(0.5)


def test_a_preset_is_watched_while_the_rank_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch, preset="tqdm")
    ranks.print(BAR.format(5, 3))
    assert ranks.is_over_after(11)
    ranks.now += 9
    ranks.print("validating")
    assert not ranks.is_over_after(9)


def test_with_none_only_the_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch, preset="none")
    ranks.print("steps: 30 loss: 2.3456 iter time (s): 0.250 samples/sec: 128.000")
    assert ranks.step() is None
    ranks.write(step=1)
    assert ranks.step() == 1


EVIL = r"(?P<step>\d*)\d*\d*\d*\d*\d*\d*\d*x"


def test_a_pattern_that_takes_too_long_is_given_up_and_nothing_of_it_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(tmp_path, monkeypatch, pattern=EVIL)
    ranks.print("7x")
    assert ranks.step() == 7 and ranks.is_over_after(11)
    import time

    begun = time.process_time()
    ranks.print("1" * 1000)
    assert time.process_time() - begun < 2.0
    assert len(ranks.said) == 1 and ranks.said[0].startswith("spec.progress took longer than 0.1 s to match")
    ranks.print("8x")
    assert ranks.step() == 7 and not ranks.is_over_after(1e6)


class Recorders:
    """Stands for `progress/recorder.FlightRecorder`, with an answer for each rank."""

    answers: ClassVar[dict[int, Recorded | None]] = {}

    def __init__(self, _environ: Any, rank: int) -> None:
        self._rank = rank

    def ask(self) -> bool:
        return self.answers.get(self._rank) is not None

    def answer(self) -> Recorded | None:
        return self.answers[self._rank]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[int, Recorded | None]:
    answers: ClassVar[dict[int, Recorded | None]] = {}
    monkeypatch.setattr(counters_module, "FlightRecorder", Recorders)
    monkeypatch.setattr(Recorders, "answers", answers)
    return answers


def wait(ranks: Ranks, seconds: float) -> None:
    """Polls as an agent does."""
    for _ in range(round(seconds / 0.25)):
        ranks.now += 0.25
        ranks.sources.poll(ranks.now)


def with_processes(ranks: Ranks) -> Ranks:
    from trainmaster_operator.agent.process.rank_processes import RankProcess

    ranks.counters._ranks = lambda: [RankProcess(rank, 1, (), {}) for rank in range(2)]
    return ranks


def test_a_rank_that_says_nothing_and_stays_in_one_collective_hangs(
    ranks: Ranks, asked: dict[int, Recorded | None]
) -> None:
    with_processes(ranks)
    asked[0] = Recorded(9, "", 9, 9)
    asked[1] = Recorded(8, "", 8, None)
    wait(ranks, 9)
    assert not ranks.is_over_after(0)
    wait(ranks, 4)
    assert ranks.is_over_after(0)
    assert not ranks.is_over_after(0, rank=1), "who is in none may be at anything"
    asked[0] = Recorded(10, "", 10, 10)
    wait(ranks, 3)
    assert not ranks.is_over_after(0)


def test_a_collective_may_take_as_long_as_the_script_gives_it(ranks: Ranks, asked: dict[int, Recorded | None]) -> None:
    with_processes(ranks)
    asked[0] = Recorded(9, "", 9, 9, 60.0)
    wait(ranks, 30)
    assert not ranks.is_over_after(0)
    wait(ranks, 35)
    assert ranks.is_over_after(0)


def test_the_first_collective_has_the_first_steps_limit(ranks: Ranks, asked: dict[int, Recorded | None]) -> None:
    with_processes(ranks)
    asked[0] = Recorded(1, "", 0, 0)
    wait(ranks, 50)
    assert not ranks.is_over_after(0)


def test_a_trainer_whose_collectives_go_on_lives(ranks: Ranks, asked: dict[int, Recorded | None]) -> None:
    with_processes(ranks)
    ranks.report(1)
    for count in range(1, 60):
        asked[0] = Recorded(count, "", count, None)
        wait(ranks, 0.5)
        assert not ranks.is_over_after(0)
    wait(ranks, 12)
    assert ranks.is_over_after(0)


POLL_SECONDS = 0.25


def polled(ends: list[float]) -> Iterator[tuple[int, float]]:
    """Yields (steps done, when an agent saw that) for steps that ended at these times."""
    now, seen = 0.0, 0
    while seen < len(ends):
        now += POLL_SECONDS
        done = sum(end <= now for end in ends[seen : seen + 1000])
        if done:
            seen += done
            yield seen, now


def derived(times: StepTimes, steps: Iterator[tuple[int, float]] | list[tuple[int, float]]) -> list[float | None]:
    return [times.complete(RankProgress(step=step), now).step_seconds for step, now in steps]


def ends_of(durations: list[float]) -> list[float]:
    return [sum(durations[: number + 1]) for number in range(len(durations))]


@given(seconds=st.floats(0.02, 90.0), start=st.floats(0.0, 100.0))
def test_a_steady_speed_is_found_a_few_seconds_after_the_first_step(seconds: float, start: float) -> None:
    steps = max(3, int(20 / seconds))
    ends = [start + seconds * number for number in range(1, steps + 1)]
    found = list(zip(polled(ends), derived(StepTimes(), polled(ends)), strict=True))
    assert found[0][1] is None, "one report says no speed"
    limit = found[0][0][1] + max(INTERVAL_SECONDS, seconds) + seconds + 2 * POLL_SECONDS
    for (_, now), each in found:
        assert each is None or each == pytest.approx(seconds, rel=0.12)
        assert each is not None or now < limit


@given(pauses=st.lists(st.integers(0, 119), max_size=3, unique=True), pause=st.floats(5.0, 1000.0))
def test_an_evaluation_between_steps_does_not_change_it(pauses: list[int], pause: float) -> None:
    durations = [0.5 + (pause if number in pauses else 0.0) for number in range(120)]
    assert derived(StepTimes(), polled(ends_of(durations)))[-1] == pytest.approx(0.5, rel=0.12)


def test_a_new_speed_is_seen_within_half_a_minute() -> None:
    durations = [0.1] * 600 + [0.4] * 75
    assert derived(StepTimes(), polled(ends_of(durations)))[-1] == pytest.approx(0.4, rel=0.1)


def test_what_precedes_the_first_step_says_nothing_of_its_speed() -> None:
    """It reports 0, restores its checkpoint of step 5,000, and compiles for a minute."""
    reports = [(0, 1.0), (5_001, 61.0), (5_006, 66.0)]
    assert derived(StepTimes(), reports) == [None, None, 1.0]
    times = StepTimes()
    begun = [RankProgress(step=step, start_step=40) for step in (40, 41, 46)]
    seen = [times.complete(each, now).step_seconds for each, now in zip(begun, (1.0, 61.0, 66.0), strict=True)]
    assert seen == [None, None, 1.0]


def test_a_report_without_a_new_step_keeps_what_was_known() -> None:
    assert derived(StepTimes(), [(1, 0.0), (6, 5.0), (6, 300.0), (6, 301.0)])[1:] == [1.0, 1.0, 1.0]


def test_a_step_that_goes_back_begins_anew() -> None:
    assert derived(StepTimes(), [(1, 0.0), (6, 5.0), (2, 6.0), (4, 12.0)]) == [None, 1.0, None, 3.0]


def test_what_a_rank_has_said_itself_is_never_derived() -> None:
    times = StepTimes()
    derived(times, [(1, 0.0), (6, 5.0)])
    assert times.complete(RankProgress(step=11, step_seconds=0.3), 10.0).step_seconds == 0.3
    assert times.complete(RankProgress(step=16), 15.0).step_seconds is None


def test_a_rank_that_says_no_step_has_no_speed() -> None:
    assert StepTimes().complete(RankProgress(loss=1.0), 0.0) == RankProgress(loss=1.0)
