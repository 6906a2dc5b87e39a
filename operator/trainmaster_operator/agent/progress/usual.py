"""This module learns how long a job's steps and sections usually take, and derives limits from that. Pure.

**Durations.** A rank is silent between two signs of progress (`progress/sources`): new steps, changed sections, printed
lines, reports of a Trainer. A silence belongs to the section in which the rank was; a script that names no sections has
only one, so its evaluations and saves are silences of a step. A worker's ranks share their durations, because ranks
that train together take equally long. The time before an attempt's first step is separate. `Durations` is a histogram
of bounded size, whose 99th percentile is of about the last KEPT silences.

**Two limits.** After the notice limit people are informed; after the restart limit the attempt ends as `Hung`.

| known of the section | notice limit | restart limit |
|---|---|---|
| LEARNT silences or more | 5 times their 99th percentile, at least 5 s | 30 times, at least 60 s, at most 600 s |
| some | 10 times the longest, at least 30 s | 600 s |
| none (the first evaluation, the first save) | 20 times a step's 99th percentile, at least 120 s | 600 s |
| before the first step, attempt 1 | 120 s | `firstStepSeconds` (1,800 s) |
| before the first step, later attempts | 2.5 times the longest earlier one, at least 10 s | 5 times, at least 60 s |

The restart limit is never below twice the notice limit, so a job whose steps take minutes needs no setting. If the spec
or the script sets a limit, that limit replaces the restart limit. A restart loses work and a notice doesn't, so the
restart limit is far above, and its maximum is the former fixed limit.

**Signs of life.** A silence alone proves nothing: an unnamed evaluation, a save or a recompilation takes much longer
than a step. So the limits above only apply to a rank whose process does nothing (`hang/vitals`). A rank that computes,
reads or writes has ACTIVE_SECONDS, and so have the ranks that wait for it (`hang/hung_rank`). Therefore a loop that
computes without end is only noticed then.

**Long silences.** A silence beyond the notice limit isn't learnt, or the evaluations of a script without sections would
raise the limit of its steps. CHANGED of them in a row, without a shorter one between, are the job's new speed and
replace the durations. If a job resumes after a notice, the leader waits twice as long as that silence next time
(`network/leader`), so a false alarm isn't repeated.

**A paused node.** An agent that finds a gap in its own clock was stopped together with its ranks. Silences begin again
then and aren't learnt (`hang/observation`). Workers on other nodes do wait for a paused one, so they name it as a
worker that doesn't answer.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from trainmaster_operator.agent.settings import LONGEST_FIRST_SECONDS, LONGEST_SECONDS

KEPT = 1_000
LEARNT = 10
CHANGED = 5
SHARE = 0.99
NOTICE_FACTOR, NOTICE_SECONDS = 5.0, 5.0
SOME_FACTOR, SOME_SECONDS = 10.0, 30.0
UNKNOWN_FACTOR, UNKNOWN_SECONDS = 20.0, 120.0
FIRST_NOTICE_FACTOR, FIRST_NOTICE_SECONDS = 2.5, 10.0
FIRST_FACTOR = 5.0
RESTART_FACTOR, RESTART_SECONDS = 30.0, 60.0
ACTIVE_SECONDS = LONGEST_SECONDS
LEARNT_LIMIT = "learnt from this job:"
"""The name of a learnt restart limit, in place of a setting's."""
STEPS = ("train", "")
"""The sections that contain steps."""
_LEAST, _RATIO = 0.001, 1.05


class Limits(NamedTuple):
    """Limits contains a section's learnt limits and its usual duration [s]."""

    notice: float
    restart: float
    usual: Optional[float] = None


class Durations:
    """Durations is a histogram whose bins grow by 5 %. Older durations lose weight, so that a new speed shows."""

    def __init__(self) -> None:
        self._bins: dict[int, float] = {}
        self.count = 0.0

    def add(self, seconds: float) -> None:
        place = math.ceil(math.log(max(seconds, _LEAST) / _LEAST) / math.log(_RATIO))
        self._bins[place] = self._bins.get(place, 0.0) + 1.0
        self.count += 1.0
        if self.count >= KEPT:
            self._bins = {place: weight / 2 for place, weight in self._bins.items() if weight >= 0.5}
            self.count = sum(self._bins.values())

    def quantile(self, share: float) -> float:
        """Returns the upper edge of the bin in which this share of the durations is reached; 0 without any."""
        left = share * self.count - 1e-9
        for place, weight in sorted(self._bins.items()):
            left -= weight
            if left <= 0:
                return _LEAST * _RATIO**place
        return 0.0


class Usual:
    """Usual contains a worker's durations. It outlives attempts, and is forgotten with the agent."""

    def __init__(self) -> None:
        self._sections: dict[str, Durations] = {}
        self._beyond: dict[str, list[float]] = {}
        """The newest silences in a row that exceeded the section's notice limit."""
        self._limits: dict[str, Limits] = {}
        self.first_step: Optional[float] = None
        """The longest time from an attempt's start to its first step."""
        self.reporting: set[int] = set()
        """The ranks that reported steps in some attempt, and so should in the present one."""

    def add(self, section: str, seconds: float) -> None:
        """Learn from a silence of a rank in a section, after the rank's first step."""
        durations = self._sections.setdefault(section, Durations())
        # The cheap comparison comes first, because this is called four times a second.
        if durations.count >= LEARNT and seconds > NOTICE_SECONDS and seconds > self.limits(section).notice:
            beyond = self._beyond.setdefault(section, [])
            beyond.append(seconds)
            if len(beyond) < CHANGED:
                return
            self._sections[section] = durations = Durations()
            for each in beyond[:-1]:
                durations.add(each)
        self._beyond.pop(section, None)
        durations.add(seconds)
        self._limits.clear()

    def add_first_step(self, seconds: float) -> None:
        """Learn how long an attempt took until a rank's first step."""
        self.first_step = max(self.first_step or 0.0, seconds)

    def limits(self, section: str) -> Limits:
        """Returns the limits of a silence after the first step."""
        if section not in self._limits:
            self._limits[section] = self._derive(section)
        return self._limits[section]

    def first_limits(self) -> Limits:
        """Returns the limits until the first step."""
        if self.first_step is None:
            return Limits(UNKNOWN_SECONDS, LONGEST_FIRST_SECONDS)
        notice = max(FIRST_NOTICE_FACTOR * self.first_step, FIRST_NOTICE_SECONDS)
        restart = min(max(FIRST_FACTOR * self.first_step, RESTART_SECONDS), LONGEST_FIRST_SECONDS)
        return Limits(notice, max(restart, 2 * notice), self.first_step)

    def _derive(self, section: str) -> Limits:
        durations = self._sections.get(section)
        if durations is None:
            steps = max(self._sections[each].quantile(SHARE) if each in self._sections else 0.0 for each in STEPS)
            notice, restart, usual = max(UNKNOWN_FACTOR * steps, UNKNOWN_SECONDS), LONGEST_SECONDS, None
        else:
            highest, usual = durations.quantile(SHARE), durations.quantile(0.5)
            if durations.count < LEARNT:
                notice, restart = max(SOME_FACTOR * durations.quantile(1.0), SOME_SECONDS), LONGEST_SECONDS
            else:
                notice = max(NOTICE_FACTOR * highest, NOTICE_SECONDS)
                restart = min(max(RESTART_FACTOR * highest, RESTART_SECONDS), LONGEST_SECONDS)
        return Limits(notice, max(restart, 2 * notice), usual)
