"""`JobView` contains a job's figures and sentences as every command, notebook, diagnosis and page shows them.

`JobView` reads the raw object. Users may have edited it, so values of the wrong type become None or empty, and texts in
lists are cut. Figures that only make sense while a job runs (speed, ETA) are None at other times.

A view is rendered by `job_text` and `job_html` for notebooks, by `cli/show` and `cli/top` for terminals, and by
`row_of` in `dashboard/board` as JSON. The history's records contain no object, so code that shows them uses the
functions for single figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from trainmaster_operator.api import times as api_times
from trainmaster_operator.api.printable import printable
from trainmaster_operator.api.v1alpha1.names import TERMINAL_PHASES
from trainmaster_operator.wire.values import mapping, mappings, number, text, whole

UNSEEN = (
    "No operator has accepted this job yet. If this lasts, `{program} why {name} -n {namespace}` names the cause, and "
    "`kubectl get deployments -A -l app.kubernetes.io/name=trainmaster` lists the operators; on a laptop, `trainmaster "
    "operator run --all-namespaces --no-leader-elect` starts one."
)
MAX_SENTENCE = 300
_MAX_MESSAGE = 4_000
# The rank or worker in a failure's message, with its pod and node (reconciling/policies/attribution.py).
_WHO = re.compile(r"((?:rank|worker) \d{1,10}) \((?:worker \d{1,10}, )?pod [^()]{1,600}\) ")
# For these reasons, a job can wait without pods in any phase.
_HELD = ("Queued", "SchedulingBackoff")
# A recovery's phases in order, by the fields of RecoveryTimes (api/v1alpha1/status.py).
_RECOVERY = {
    **{name: name for name in ("detected", "assigned", "stopped", "launched", "joined", "restored")},
    "firstStep": "first step",
}
_COLOURS = {"Succeeded": "#2e7d32", "Failed": "#c62828", "Running": "#1565c0"}
# Sections of a step's time in which a job can stall, with the noun for one of them.
_SECTIONS = {
    "setup": "the setup",
    "data": "a wait for data",
    "evaluate": "an evaluation",
    "checkpoint": "a checkpoint",
    "compile": "a compilation",
    "finish": "the end",
}
# A job is in a crash loop if LOOP_FAILURES counted failures are at most LOOP_WINDOW seconds old, and the newest one at
# most LOOP_SECONDS, and if the present attempt hasn't yet lasted twice the mean time between them.
LOOP_FAILURES, LOOP_WINDOW, LOOP_SECONDS = 2, 1_800.0, 600.0
# Maximum number of failures that a notebook shows. `kubectl dtj status` shows all that the status contains.
_NOTEBOOK_FAILURES = 3


class FailureView:
    """FailureView describes the failure that ended an attempt, from a status or a history's record."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.attempt = whole(raw.get("attempt")) or 0
        self.reason = text(raw.get("reason"), 100)
        self.message = text(raw.get("message"), None)
        self.worker = whole(raw.get("worker"))
        self.rank = whole(raw.get("rank"))
        self.pod = text(raw.get("pod"), 253)
        self.node = text(raw.get("node"), 253)
        self.exit_code = whole(raw.get("exitCode"))
        self.exception = text(raw.get("exception"))
        self.location = text(raw.get("location"))
        self.counted = raw.get("counted") is not False
        self.failed_at = _time(raw.get("failedAt"))
        # How many identical failures in a row this one stands for, and the first of them.
        self.count = whole(raw.get("count")) or 1
        self.first_attempt = whole(raw.get("firstAttempt"))
        self.first_failed_at = _time(raw.get("firstFailedAt"))
        self.not_continued = text(raw.get("notContinued"))
        self.recovery_times = mapping(raw.get("recovery"))

    @property
    def recovery(self) -> str:
        """Returns a sentence about the recovery's duration, or an empty text if it is unknown."""
        return recovery_sentence(self.recovery_times)

    def times(self, since: float) -> tuple[int, float, float] | None:
        """Returns how many of these failures happened after `since`, and the times of the first and newest of them.

        The failures between the first and the newest one are assumed evenly spaced. None if it doesn't count.
        """
        newest = api_times.to_seconds(self.failed_at)
        if newest is None or newest < since or not self.counted:
            return None
        first = api_times.to_seconds(self.first_failed_at)
        if self.count == 1 or first is None or first >= newest:
            return self.count, newest, newest
        interval = (newest - first) / (self.count - 1)
        recent = min(int((newest - max(first, since)) / interval) + 1, self.count)
        return recent, newest - (recent - 1) * interval, newest

    @property
    def place(self) -> str:
        """Describes the place of the failure, such as "attempt 1, rank 5, pod reviews-1, node gpu-7, exit code 137"."""
        often = f" ({self.count} times since attempt {self.first_attempt})" if self.count > 1 else ""
        facts = {"attempt": f"{self.attempt}{often}", "rank": self.rank, "pod": self.pod, "node": self.node}
        known = {**facts, "exit code": self.exit_code}
        return ", ".join(f"{name} {value}" for name, value in known.items() if value not in (None, ""))

    @property
    def summary(self) -> str:
        """Describes the failure in a few words, such as "Error of rank 1, exit code 1"."""
        rank = "" if self.rank is None else f" of rank {self.rank}"
        return f"{self.reason}{rank}" + ("" if self.exit_code is None else f", exit code {self.exit_code}")

    @property
    def last_line(self) -> str:
        """Returns the cause, such as "ValueError: lost, at train.py:41 in step; rank 1 ended with exit code 1"."""
        first = self.message[:_MAX_MESSAGE].strip().partition("\n")[0]
        return _WHO.sub(r"\1 ", first)[:MAX_SENTENCE] or self.reason


class JobView:
    """JobView contains a job's figures and sentences at one moment."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        metadata, status = mapping(raw.get("metadata")), mapping(raw.get("status"))
        progress, workers = mapping(status.get("progress")), mapping(status.get("workers"))
        conditions = mappings(status.get("conditions"))
        by_type = {text(one.get("type")): one for one in reversed(conditions)}
        running, failed, news = by_type.get("Running", {}), by_type.get("Failed", {}), _news(conditions)
        self.namespace = text(metadata.get("namespace"), 253)
        self.name = text(metadata.get("name"), 253)
        self.uid = text(metadata.get("uid"), 64)
        self.is_accepted = bool(text(status.get("phase"), 20))
        self.phase = text(status.get("phase"), 20) or "Pending"
        is_running = self.phase == "Running"
        self.attempt = whole(status.get("attempt")) or 0
        self.restarts = whole(status.get("restarts")) or 0
        self.disruptions = whole(status.get("disruptions")) or 0
        self.running = whole(workers.get("running")) or 0
        self.desired = whole(workers.get("desired")) or 0
        self.created = whole(workers.get("created")) or 0
        self.ended_workers = whole(workers.get("finished")) or 0
        self.spares = whole(workers.get("spares"))
        self.step, self.total_steps = whole(progress.get("step")), whole(progress.get("totalSteps"))
        self.loss = number(progress.get("loss"))
        self.samples_per_second = number(progress.get("samplesPerSecond")) if is_running else None
        stall = mapping(progress.get("stall")) if is_running else {}
        self.stalled_since = _time(stall.get("since"))
        self.stalled_rank = whole(stall.get("rank"))
        self.stalled_section = text(stall.get("section"), 40)
        self.stall_message = text(stall.get("message"), None)
        self.usual_seconds = number(stall.get("usualSeconds"))
        self.restart_at = _time(stall.get("restartAt"))
        if self.stalled_since is not None:
            # A speed and an ETA would say that all is well.
            self.samples_per_second = None
        # Why the progress isn't known or is doubtful, and what mends it.
        self.notice = text(progress.get("notice"), None)
        has_rest = is_running and self.stalled_since is None and (self.step is None or self.step != self.total_steps)
        self.eta_seconds = number(progress.get("etaSeconds")) if has_rest else None
        self.section = text(progress.get("section"), 40)
        self.goodput = number(progress.get("goodput"))
        self.result = _numbers(progress.get("result"))
        self.created_at = _time(metadata.get("creationTimestamp"))
        self.started_at = _time(status.get("startTime"))
        self.attempt_started_at = _time(status.get("attemptStartTime"))
        self.completed_at = _time(status.get("completionTime"))
        # The workers that train while others are missing ("3 of 4 workers"); empty if all ranks train.
        self.training_with = text(status.get("trainingWith")) if is_running else ""
        # The operator's message about what the missing ranks wait for, or how they rejoined.
        came = is_running and running.get("reason") in ("Continued", "Joined")
        self.rest = text(running.get("message"), None).partition("; ")[2] if came else ""
        self.end_reason = text(failed.get("reason"), 100)
        self.end_message = text(failed.get("message"), None)
        # Reason and message of the condition that changed last, except for the acceptance of the spec.
        self.news_reason = text(news.get("reason"), 100)
        self.news_message = text(news.get("message"), None)
        avoided = status.get("avoidedNodes")
        self.avoided_nodes = [text(one, 253) for one in avoided if text(one)] if isinstance(avoided, list) else []
        blamed = mapping(status.get("nodeFailures")).items()
        self.node_failures = {text(node, 253): whole(count) or 0 for node, count in blamed}
        self.failures = [FailureView(one) for one in mappings(status.get("failures"))]

    @property
    def is_finished(self) -> bool:
        """Returns whether the phase is terminal."""
        return self.phase in TERMINAL_PHASES

    @property
    def reason(self) -> str:
        """Returns in one word why the job isn't running, or an empty text if it is running or has succeeded."""
        return "" if self.phase in ("Running", "Succeeded") else self.news_reason

    @property
    def waits(self) -> str:
        """Returns what a job waits for, such as its place in the queue, or an empty text if it isn't waiting."""
        is_waiting = self.phase in ("Pending", "Starting") or self.news_reason in _HELD
        return first_line(self.news_message) if is_waiting else ""

    def obstacle(self, program: str = "kubectl dtj") -> str:
        """Returns what keeps the job from running, or what ended it. Suggested commands begin with `program`."""
        if not self.is_accepted:
            return UNSEEN.format(program=program, name=self.name, namespace=self.namespace)
        if self.phase == "Suspending" and self.news_reason == "Suspended":
            return f"the ranks save a checkpoint and stop; {plural(self.created, 'pod')} left"
        if self.phase == "Suspended" and self.news_reason == "Suspended":
            return f"runPolicy.suspend is true; to resume: {program} resume {self.name} -n {self.namespace}"
        return "" if self.phase == "Running" else self.news_message

    @property
    def failure(self) -> str:
        """Returns the cause of the job's failure in a few words, or an empty text if it hasn't failed."""
        if self.phase != "Failed":
            return ""
        if self.ended_otherwise:
            return f"{self.end_reason}: {self.end_message}" if self.end_message else self.end_reason
        return self.failures[0].summary

    @property
    def ended_otherwise(self) -> bool:
        """Returns whether something other than the newest failure ended the job, such as a deadline."""
        if self.phase != "Failed":
            return False
        of_failures = ("", "MaxRestartsExceeded", "FailsAtStart")
        return not self.failures or self.end_reason not in (*of_failures, self.failures[0].reason)

    @property
    def last_failure(self) -> str:
        """Returns in one line why the job, or else its last attempt, failed. Empty without a failure."""
        if self.ended_otherwise:
            return first_line(self.end_message) or self.end_reason
        return self.failures[0].last_line if self.failures else ""

    @property
    def outcome(self) -> str:
        """Returns the line that a command prints after its wait, such as "my-job: Failed (Error of rank 1)"."""
        return f"{self.name}: {self.phase}" + (f" ({self.failure})" if self.failure else "")

    @property
    def end(self) -> str:
        """Returns a sentence about the job's end, with the operator's message."""
        if self.phase != "Failed":
            return f"Job {self.name} has ended: {self.phase}."
        return f"Job {self.name} has failed: " + (
            f"{self.end_reason}: {self.end_message}" if self.end_message else self.failure
        )

    @property
    def workers(self) -> str:
        """Returns how many of the workers run, or after the job's end, how many have finished, such as "3/4"."""
        return f"{self.ended_workers if self.is_finished else self.running}/{self.desired}"

    @property
    def steps(self) -> str:
        """Returns the number of completed steps, and the total if it is known, such as "120/1000"."""
        return steps_text(self.step, self.total_steps)

    @property
    def share(self) -> float | None:
        """Returns the completed share of the steps (0 to 1), or None if it is unknown."""
        return min(1.0, self.step / self.total_steps) if self.step is not None and self.total_steps else None

    @property
    def figures(self) -> dict[str, str]:
        """Returns the training's known figures by name, the most important first."""
        known = {
            "step": self.steps,
            "loss": figure(self.loss),
            "samples/s": rate(self.samples_per_second),
            "ETA": "" if self.eta_seconds is None else duration(self.eta_seconds),
            "section": self.section if self.section != "train" else "",
            "goodput": percent(self.goodput),
            **{name: figure(value) for name, value in self.result.items()},
        }
        return {name: shown for name, shown in known.items() if shown}

    @property
    def progress(self) -> str:
        """Returns the progress, such as "step 120 of 1000, 62 samples/s". Empty before the first step."""
        if self.step is None:
            return ""
        speed = "" if self.samples_per_second is None else f", {rate(self.samples_per_second)} samples/s"
        return f"step {self.step}{f' of {self.total_steps}' if self.total_steps else ''}{speed}"

    def stall(self, now: datetime) -> str:
        """Describes a stall, such as "no step for 88 s (a step takes 0.05 s)". Empty while the ranks make progress."""
        if self.stalled_since is None:
            return ""
        seconds = max(api_times.since(now.timestamp(), self.stalled_since), 0.0)
        section = self.stalled_section
        what = _SECTIONS.get(section, "a step")
        usual = "" if self.usual_seconds is None else f" ({what} takes {self.usual_seconds:.2g} s)"
        where = f"progress ({section})" if section in _SECTIONS else "step"
        return f"no {where} for {api_times.duration(seconds)}{usual}"

    def crash_loop(self, now: datetime) -> str:
        """Describes failures that recur: "failed twice in the last 4m, most recently 12 s ago: ValueError: lost, …"."""
        since = now.timestamp() - LOOP_WINDOW
        recent = [found for failure in self.failures if (found := failure.times(since)) is not None]
        times = sum(found[0] for found in recent)
        if self.phase not in ("Running", "Starting", "Restarting") or times < LOOP_FAILURES:
            return ""
        first, newest = min(found[1] for found in recent), max(found[2] for found in recent)
        age = now.timestamp() - newest
        if age > LOOP_SECONDS or (newest > first and age > max(2 * (newest - first) / (times - 1), 60.0)):
            return ""
        often = "twice" if times == 2 else f"{times} times"
        within = f" in the last {duration(now.timestamp() - first)}" if newest > first else ""
        return f"failed {often}{within}, most recently {api_times.duration(age)} ago: {self.failures[0].last_line}"

    def trouble(self, now: datetime) -> str:
        """Returns in one sentence why a running job isn't well, or an empty text. Every view shows this sentence."""
        if stalled := self.stall(now):
            return stalled + (f": {first_line(self.stall_message)}" if self.stall_message else "")
        return self.crash_loop(now) or first_line(self.notice)

    def members(self, now: datetime) -> str:
        """Describes which workers train while ranks are missing, such as "with 3 of 4 workers for 14 s"."""
        if not self.training_with:
            return ""
        seconds = api_times.since(now.timestamp(), self.attempt_started_at)
        return f"with {self.training_with} for {api_times.duration(seconds)}"

    def age(self, now: datetime) -> str:
        """Returns the time since the job was created."""
        created = api_times.to_datetime(self.created_at)
        return "" if created is None else duration((now - created).total_seconds())

    def elapsed(self, now: datetime) -> str:
        """Returns how long the job has run so far or in total. Empty before its start."""
        start = api_times.to_datetime(self.started_at)
        end = api_times.to_datetime(self.completed_at) or now
        return "" if start is None else duration((end - start).total_seconds())


def view_of(raw: Mapping[str, Any]) -> JobView:
    """Returns the view of a job object from the API server."""
    return JobView(raw)


def _news(conditions: Any) -> Mapping[str, Any]:
    """Returns the condition that changed last among those with a message, except for the acceptance of the spec."""
    found = [
        one for one in conditions if one.get("message") and (one.get("type"), one.get("status")) != ("Accepted", "True")
    ]
    return max(found, key=lambda one: text(one.get("lastTransitionTime"), 40), default={})


def _numbers(value: object) -> dict[str, float]:
    return {text(name, 100): found for name, each in mapping(value).items() if (found := number(each)) is not None}


def _time(value: object) -> str | None:
    return text(value, 40) or None


def recovery_sentence(times: Mapping[str, Any]) -> str:
    """Returns how long the recovery took, up to the first step of the next attempt, and how long each phase took."""
    seconds, steps = number(times.get("seconds")), whole(times.get("repeatedSteps"))
    if seconds is None:
        return ""
    repeated = "" if steps is None else f", {plural(steps, 'step')} repeated"
    known = {phase: value for name, phase in _RECOVERY.items() if (value := number(times.get(name))) is not None}
    phases = ", ".join(f"{phase} {value:.2f}" for phase, value in known.items())
    return f"recovered in {seconds:.2f} s{repeated}" + (f": {phases}" if phases else "")


def first_line(message: str) -> str:
    """Returns the first line of a text, ignoring blank lines before it."""
    return message[:MAX_SENTENCE].strip().partition("\n")[0]


def steps_text(step: int | None, total: int | None) -> str:
    """Returns the number of completed steps, and the total if it is known. Empty before the first report."""
    return "" if step is None else f"{step}/{total}" if total else str(step)


def figure(value: float | None) -> str:
    """Formats a loss or another figure with four significant digits."""
    return "" if value is None else f"{value:.4g}"


def rate(value: float | None) -> str:
    """Formats a speed: 5,123 or 0.42. Large models process less than one sample per second."""
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """Formats a share in percent."""
    return "" if share is None else f"{share:.0%}"


def duration(seconds: float) -> str:
    """Formats a time as kubectl formats ages: 119s, 5m20s, 3h, 47h, 5d3h, 200d."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{_rest(whole % 60, 's')}"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{_rest(minutes % 60, 'm')}"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{_rest(hours % 24, 'h')}"
    return f"{days}d" if days < 730 else f"{days // 365}y{_rest(days % 365, 'd')}"


def _rest(number: int, unit: str) -> str:
    return f"{number}{unit}" if number else ""


def plural(count: int, noun: str) -> str:
    """Returns a count with its noun: 1 node, 3 nodes."""
    return f"{count} {noun if count == 1 else noun + 's'}"


def job_text(view: JobView) -> str:
    """Formats the job in a few lines, for a notebook in a terminal."""
    return "\n".join([f"{view.name}: {view.phase}", *(f"  {name}: {value}" for name, value in _facts(view))])


def job_html(view: JobView) -> str:
    """Formats the job as a table in the notebook's own style, without scripts, style sheets or network requests."""
    colour = _COLOURS.get(view.phase, "inherit")
    head = f'<b>{_safe(view.name)}</b> <span style="color:{colour}">{_safe(view.phase)}</span>'
    if view.share is not None:
        head += f' <progress value="{min(view.step or 0, view.total_steps or 0)}" max="{view.total_steps}"></progress>'
    cell = 'style="text-align:left;vertical-align:top"'
    rows = (f"<tr><th {cell}>{_safe(name)}</th><td {cell}>{_safe(value)}</td></tr>" for name, value in _facts(view))
    return f"<div>{head}<table>{''.join(rows)}</table></div>"


def _facts(view: JobView) -> Iterator[tuple[str, str]]:
    counts = f"{plural(view.restarts, 'restart')}, {plural(view.disruptions, 'disruption')}"
    yield "attempt", f"{view.attempt} ({counts})"
    yield "workers", f"{view.workers} {'finished' if view.is_finished else 'running'}"
    yield from view.figures.items()
    if trouble := view.trouble(datetime.now(UTC)):
        yield "trouble", trouble
    if not view.is_finished and (obstacle := view.obstacle()):
        yield "waits", obstacle
    if view.phase == "Failed" and view.end_message:
        yield "failed", view.end_message
    for failure in view.failures[:_NOTEBOOK_FAILURES]:
        yield "failure", f"{failure.reason} in attempt {failure.attempt}: {failure.message}"


def _safe(text: str) -> str:
    return escape(printable(text))
