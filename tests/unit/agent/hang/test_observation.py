"""The agent reads the ranks' progress files, decides when the ranks count as up, and publishes their progress."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import environment
from trainmaster_operator.agent.hang import observation
from trainmaster_operator.agent.hang.hung_rank import is_over
from trainmaster_operator.agent.hang.observation import FIRST_POLLS_SECONDS, POLL_SECONDS, Observation
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.progress.sources import Heartbeats, parse_progress
from trainmaster_operator.agent.settings import AgentSettings, read_settings
from trainmaster_operator.wire.ranks import RankProgress, RankState
from trainmaster_operator.wire.stream import ProgressLine


@given(st.binary(max_size=5_000))
def test_any_progress_file_is_read_or_passed_over(text: bytes) -> None:
    parse_progress(text)


def test_progress_keeps_known_fields_only() -> None:
    text = (
        b'{"step":7,"totalSteps":-1,"loss":NaN,"epoch":1.5,"section":"lunch","message":"m","x":1,'
        b'"result":{"a":1,"b":"c"}}'
    )
    kept = parse_progress(text)
    assert kept is not None and kept.to_wire() == {"step": 7, "epoch": 1.5, "message": "m", "result": {"a": 1}}
    assert parse_progress(b'{"step":1}' + b" " * 9_000) is None


def test_only_a_new_step_or_section_is_progress(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    beats = Heartbeats(str(path), range(4, 6))
    assert not beats.poll(1.0)
    path.write_text('{"step": 1, "loss": 2}')
    (tmp_path / "progress.5").write_text('{"step": 1}')
    assert beats.poll(2.0) and beats.progressed_at == {4: 2.0, 5: 2.0}
    (tmp_path / "progress.5").write_text('{"step": 1, "loss": 1.5}')
    assert beats.poll(3.0) and beats.ranks[5].loss == 1.5
    assert beats.progressed_at == {4: 2.0, 5: 2.0}
    (tmp_path / "progress.5").write_text('{"step": 1, "section": "checkpoint"}')
    assert beats.poll(4.0) and beats.progressed_at == {4: 2.0, 5: 4.0}


def counter(path: Path, step: int) -> None:
    """Writes a step as trainloop's `Progress` does in every step."""
    path.write_bytes(step.to_bytes(8, "little", signed=True))


def test_a_step_that_a_rank_keeps_beside_its_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    beats = Heartbeats(str(path), range(4, 6))
    counter(tmp_path / "progress.step", 40)
    assert not beats.poll(1.0), "it says nothing alone"
    path.write_text('{"step": 41, "startStep": 40, "loss": 2, "firstStepAt": 7.5}')
    counter(tmp_path / "progress.step", 44)
    assert beats.poll(2.0) and beats.counted == {4}
    assert (beats.ranks[4].step, beats.ranks[4].loss, beats.first_step_at) == (44, 2, {4: 7.5})
    assert not beats.poll(3.0)
    counter(tmp_path / "progress.step", 43)  # a run that rolls back
    assert beats.poll(4.0) and beats.ranks[4].step == 43 and beats.progressed_at == {4: 4.0}


@pytest.mark.parametrize("data", [b"", b"1234567", b"123456789", b"\xff" * 8, b"\x7f" * 8])
def test_a_counter_that_is_none_is_passed_over(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "progress").write_text('{"step": 41}')
    (tmp_path / "progress.step").write_bytes(data)
    beats = Heartbeats(str(tmp_path / "progress"), range(1))
    assert beats.poll(1.0) and beats.ranks[0].step == 41 and not beats.counted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "attempt-3").mkdir()
    return tmp_path / "attempt-3"


def a_run(
    settings: AgentSettings,
    folder: Path,
    attempt: int,
    first: int,
    present: int,
    at: float = 100.0,
    regrouped_at: float = 0.0,
) -> Any:
    """Returns the parts of a run that an observation reads; its ranks only write files."""
    return SimpleNamespace(
        attempt=attempt,
        folder=str(folder),
        ranks=range(first, first + settings.processes),
        present=range(present),
        started_at=100.0,
        regrouped_at=regrouped_at,
        output=SimpleNamespace(printed=Printed(settings, print)),
        questionable=list,
    )


def observe(folder: Path, processes: int = 2) -> Observation:
    """Returns an observation of worker 2, whose ranks 4 and up started at 100 s."""
    environ = {"TRAINMASTER_WORKER": "2", "NPROC_PER_NODE": str(processes), "TRAINMASTER_PROGRESS_TIMEOUT": "10"}
    settings = read_settings({**environment(), **environ, "TRAINMASTER_STATE_DIR": str(folder.parent)})
    return Observation(settings, a_run(settings, folder, 3, 4, settings.processes))


def at(seconds: float) -> Now:
    return Now(seconds, 1_700.0 + seconds)


def test_ranks_are_up_when_they_write_or_have_lived_for_a_second(folder: Path) -> None:
    silent, writing = observe(folder), observe(folder)
    assert silent.poll(True, at(100.9)) is None and not silent.up
    assert silent.deadline == pytest.approx(100.9 + FIRST_POLLS_SECONDS)
    assert silent.poll(True, at(101.1)) is None and silent.up
    assert silent.deadline == pytest.approx(101.1 + POLL_SECONDS)
    (folder / "progress.5").write_text('{"section": "setup"}')
    writing.poll(False, at(100.1))
    assert not writing.up, "one rank has no process yet"
    writing.poll(True, at(100.2))
    assert writing.up


def test_lines_come_once_a_second_and_the_last_one_at_the_end(folder: Path) -> None:
    observation = observe(folder)
    (folder / "progress.4").write_text('{"step": 1}')
    line = observation.poll(True, at(100.1))
    assert line == ProgressLine(3, 2, {4: RankProgress(step=1)}, 1_800.1)
    (folder / "progress.4").write_text('{"step": 22}')
    assert observation.poll(True, at(100.6)) is None
    line = observation.poll(True, at(101.2))
    assert line is not None and line.ranks[4].step == 22
    assert observation.poll(True, at(103.0)) is None is observation.finish(at(103.1)), "nothing is new"
    (folder / "progress.4").write_text('{"step": 333}')
    line = observation.finish(at(103.2))
    assert line is not None and line.ranks[4].step == 333


def test_ranks_that_never_wrote_are_not_watched(folder: Path) -> None:
    observation = observe(folder)
    (folder / "progress.4").write_text('{"step": 1}')
    observation.poll(True, at(100.5))
    state = RankState(1, "", 20.0, 10.0, "failurePolicy.hang.progressSeconds", quiet_seconds=20.0, notice_seconds=120.0)
    assert observation.states(120.5) == {4: state, 5: RankState()}


def test_a_rank_without_a_counter_may_have_done_what_it_does_in_a_fifth_of_a_second(folder: Path) -> None:
    observation = observe(folder)
    for at_seconds, step in ((100.25, 1), (100.5, 13), (100.75, 26)):
        for rank in (4, 5):
            (folder / f"progress.{rank}").write_text(f'{{"step": {step}}}')
        counter(folder / "progress.5.step", step)
        observation.poll(True, at(at_seconds))
    states = observation.states(120.5)
    assert (states[4].step, states[4].unreported) == (26, 10)
    assert (states[5].step, states[5].unreported) == (26, 0)


def test_a_rank_is_looked_at_when_it_reaches_its_limit(folder: Path) -> None:
    observation = observe(folder)
    for rank in (4, 5):
        (folder / f"progress.{rank}").write_text('{"step": 1}')
    observation.poll(True, at(100.5))
    counter(folder / "progress.5.step", 2)
    observation.poll(True, at(103.0))
    assert observation.deadline == pytest.approx(103.0 + POLL_SECONDS)
    while observation.deadline < 110.4:
        observation.poll(True, at(observation.deadline))
    observation.poll(True, at(110.4))
    assert observation.deadline == pytest.approx(110.505)
    observation.poll(True, at(110.505))
    assert is_over(observation.states(110.505)[4]) and observation.deadline == pytest.approx(110.505 + POLL_SECONDS)


def test_a_rank_that_is_idle_in_the_attempt_has_no_part_in_a_hang(folder: Path) -> None:
    observation = observe(folder)
    (folder / "progress.4").write_text('{"step": 1, "continuing": "idle", "group": 3}')
    (folder / "progress.5").write_text('{"step": 7, "continuing": "able", "group": 3}')
    observation.poll(True, at(100.5))
    assert observation.states(120.5).keys() == {5}
    # It was idle in another attempt, and doesn't join this one's group.
    (folder / "progress.4").write_text('{"step": 1, "continuing": "idle", "group": 2}')
    observation.refresh(121.0)
    assert observation.states(121.5).keys() == {4, 5}


def test_a_decision_reads_the_step_anew(folder: Path) -> None:
    observation = observe(folder, 1)
    (folder / "progress.4").write_text('{"step": 1}')
    observation.poll(True, at(100.5))
    counter(folder / "progress.4.step", 9)
    observation.refresh(100.6)
    assert observation.states(100.6)[4].step == 9
    line = observation.finish(at(100.7))
    assert line is not None and line.ranks[4].step == 9


def test_a_rank_that_joins_is_read_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may load for minutes. At first it is read often, because others form their group in a fraction of a second."""
    settings = read_settings({**environment(), "TRAINMASTER_WORKER": "0"})
    monkeypatch.setattr(observation, "time", SimpleNamespace(monotonic=lambda: 100.0))
    ranks = Observation(settings, a_run(settings, tmp_path / "progress", 2, 0, 0, regrouped_at=1.0))
    waits = []
    for seconds in (0.5, 2.0, 4.0, 60.0):
        ranks.poll(False, Now(100.0 + seconds, 0.0))
        waits.append(round(ranks.deadline - 100.0 - seconds, 3))
    assert waits == [FIRST_POLLS_SECONDS, FIRST_POLLS_SECONDS, 0.1, POLL_SECONDS]
