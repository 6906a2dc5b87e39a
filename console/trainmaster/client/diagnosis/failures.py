"""What ended the newest attempt: the first rank that failed, its node and its last lines, in a person's words."""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Iterator
from itertools import pairwise

from trainmaster.client.diagnosis.endings import Ending, read_ending
from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.hangs import SILENT, hang_finding
from trainmaster.client.diagnosis.objects import at, items, plural, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.wire import values

MAX_LOG_LINES = 12
# The agent's own texts about what couldn't be started.
_NO_TORCH = "has no torch"
_NO_PROGRAM = re.compile(r"command not found: '?([^'\s]+)'?")
_FIRST_LINE = re.compile(r"^.*?(?:ended with exit code \d+|was killed by \S+)(?:: )?")


def failure_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why the newest attempt ended, and what ended the job where that was something else."""
    job = situation.job
    reason = situation.failed_reason
    if reason == "DeadlineExceeded":
        raised = Step("raise runPolicy.activeDeadlineSeconds, or ask for less, and apply the job again")
        yield Finding("DeadlineExceeded", f"its time was over: {situation.shown_message.rstrip('.')}", (), (raised,))
    if job.phase not in ("Failed", "Restarting", "Starting", "Running", "Pending") or not job.status.failures:
        if job.phase == "Failed" and reason:
            yield Finding(reason, situation.shown_message.rstrip(".") or reason)
        return
    if job.phase == "Running":
        # What it has recovered from doesn't say how it is.
        return
    failure = job.status.failures[0]
    finding = _finding(situation, failure)
    budget = _budget(situation)
    evidence = (*finding.evidence, *budget)
    stopped = f", and all ranks start anew, because {failure.not_continued}" if failure.not_continued else ""
    yield Finding(finding.cause, f"{finding.clause}{stopped}", evidence, finding.steps, finding.is_certain)


def _finding(situation: Situation, failure: Failure) -> Finding:
    evidence = next((one for one in situation.evidence if one.attempt == failure.attempt), None)
    log = _log(situation, failure, evidence)
    where = situation.where
    more = (
        Step("all that was kept of it", f"kubectl dtj evidence {situation.name} {where} --attempt {failure.attempt}"),
        Step("its log", f"kubectl dtj logs {situation.name} {where}" + _worker_option(failure)),
    )
    who = _who(failure)
    lines = (_failure_line(failure), *(f"  {line}" for line in log.splitlines()[-MAX_LOG_LINES:]))
    if failure.reason == "Hung" or (failure.reason == "AgentLost" and SILENT in failure.message):
        return hang_finding(failure, evidence, situation.job.status.workers.desired, situation.name, where)
    if failure.reason == "OOMKilled":
        limit = _memory_limit(situation)
        limited = f" than its limit of {limit}" if limit else ""
        clause = f"{who} used more memory{limited} and was killed (OOMKilled)"
        raised = Step("raise spec.resources.memory (it counts all ranks of the worker, data loaders and /dev/shm)")
        return Finding("OutOfMemory", clause, lines, (raised, *more))
    if failure.reason == "PreflightMismatch":
        differ = failure.message.rpartition("environments differ: ")[2] or log
        clause = f"the workers' environments differ: {_short(differ)}"
        return Finding(
            "EnvironmentsDiffer", clause, lines, (Step("use one image, and one tag, for all workers"), *more)
        )
    if failure.reason == "LaunchError":
        return _launch(failure, who, lines, more)
    if failure.reason == "Diverged":
        return Finding("Diverged", f"{who} gave up, because training diverged: {_last(log)}", lines, more)
    ending = _ending(failure, evidence, log)
    if known_reason(failure.reason).strength == Strength.DISRUPTION:
        clause = f"{who} was taken away ({failure.reason}): {_short(failure.message)}"
        return Finding(failure.reason, clause, lines, more)
    if ending is not None:
        steps = (Step(ending.remedy), *more) if ending.remedy else more
        said = (f"its log: {ending.line}",) if ending.line and ending.line not in log[-2_000:] else ()
        program = _program(situation, ending)
        if program:
            without = "" if at(situation.job.raw, "spec", "code") else ", and the job brings no code (spec.code)"
            clause = f"{who} doesn't find its own program, {ending.about}{without}"
            return Finding(ending.cause, clause, (*lines, *said), (_bring(program, without), *steps))
        return Finding(ending.cause, f"{who} {ending.clause}", (*lines, *said), steps)
    return _without_words(failure, who, lines, more, log)


def _program(situation: Situation, ending: Ending) -> str:
    """Returns the file or package that the job's command starts, where that is what the rank didn't find."""
    spec = values.mapping(situation.job.raw.get("spec"))
    words = [str(word) for name in ("command", "args") for word in spec.get(name) or ()]
    if ending.cause == "FileNotFound" and ending.about:
        name = posixpath.basename(ending.about)
        return name if any(posixpath.basename(word) == name for word in words if word.endswith(".py")) else ""
    modules = [module.partition(".")[0] for option, module in pairwise(words) if option == "-m"]
    return ending.about if ending.cause == "ModuleNotFound" and ending.about in modules else ""


def _bring(program: str, without: str) -> Step:
    """Returns how a program comes to the workers."""
    if not without:
        return Step(
            f"correct spec.command, or bring the folder that has {program}: the ranks start in spec.code's folder"
        )
    return Step(
        "bring it along: delete the job, and create it by kubectl dtj submit FILE --code DIR, where DIR has "
        f"{program}; or use an image that has it"
    )


def _without_words(failure: Failure, who: str, lines: tuple[str, ...], more: tuple[Step, ...], log: str) -> Finding:
    code = failure.exit_code
    if failure.reason == "Signal" or (code is not None and code > 128):
        name = _signal_name((code or 0) - 128)
        native = " (a crash in native code)" if name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE") else ""
        step = Step("have Python print where: set PYTHONFAULTHANDLER=1 in spec.podTemplate")
        return Finding("Signal", f"{who} was killed by {name}{native}", lines, (step, *more))
    if failure.reason in ("MasterUnreachable", "PeerLost"):
        clause = f"the workers don't reach each other: {_short(failure.message)}"
        step = Step("look for a NetworkPolicy or a service mesh between the pods (docs/operating.md, Ports of workers)")
        return Finding("WorkersUnreachable", clause, lines, (step, *more))
    if failure.reason == "Usage":
        return Finding(
            "Usage", f"{who} can't use its configuration: {_last(log) or _short(failure.message)}", lines, more
        )
    if failure.reason == "Error" and code is not None:
        said = _last(log)
        last = f"; its last line was: {said}" if said else " and said nothing"
        return Finding("ExitCode", f"{who} ended itself with exit code {code}{last}", lines, more)
    meaning = known_reason(failure.reason).meaning.rstrip(".")
    return Finding(failure.reason, f"{_short(failure.message) or who} ({failure.reason}: {meaning})", lines, more)


def _launch(failure: Failure, who: str, lines: tuple[str, ...], more: tuple[Step, ...]) -> Finding:
    if _NO_TORCH in failure.message:
        clause = "the image has no torch, which the launcher torchrun needs"
        step = Step("use an image with torch, or set spec.launcher: exec (docs/pods.md, The launcher needs torch)")
        return Finding("TorchMissing", clause, lines, (step, *more))
    found = _NO_PROGRAM.search(failure.message)
    program = found[1] if found else ""
    clause = (
        f"the program {program} isn't in the image, or can't be run" if program else f"{who} couldn't start its program"
    )
    steps = (Step("check spec.command (a list: [python, train.py]) and the image"), *more)
    return Finding("ProgramNotFound", clause, lines, steps)


def _ending(failure: Failure, evidence: AttemptEvidence | None, log: str) -> Ending | None:
    """Returns what the culprit's log says; of workers that only lost their peers, what any other one's says."""
    own = read_ending(log)
    if own is not None or evidence is None or failure.reason not in ("PeerLost", "AgentLost", "MasterUnreachable"):
        return own
    others = (read_ending(values.text(report.get("error"), None)) for report in evidence.workers.values())
    return next((one for one in others if one is not None), None)


def _log(situation: Situation, failure: Failure, evidence: AttemptEvidence | None) -> str:
    """Returns the end of the culprit's output: from the evidence, else the pod's log, else the status."""
    if evidence is not None and failure.worker is not None:
        report = evidence.workers.get(failure.worker, {})
        said = values.text(report.get("error"), None)
        if said.strip():
            return said
        if evidence.logs.get(failure.worker, "").strip():
            return evidence.logs[failure.worker]
    kept = situation.logs.get(failure.pod or "", "")
    if kept.strip():
        return kept
    rest = _FIRST_LINE.sub("", failure.message, count=1)
    return "" if rest == failure.message else rest.replace(" | ", "\n")


def _budget(situation: Situation) -> tuple[str, ...]:
    status = situation.job.status
    limit = at(situation.job.raw, "spec", "failurePolicy", "maxRestarts")
    of = f" of {limit}" if isinstance(limit, int) else ""
    told = [f"attempt {one.attempt}: {one.reason}" for one in status.failures[1:4]]
    lines = [f"before that: {', '.join(told)}"] if told else []
    if situation.failed_reason == "MaxRestartsExceeded":
        lines.append(
            f"no restart was left: {plural(status.restarts, 'restart')}{of} counted (failurePolicy.maxRestarts)"
        )
    elif situation.job.phase != "Failed":
        lines.append(f"it tries again: {plural(status.restarts, 'restart')}{of} counted so far")
    return tuple(lines)


def _who(failure: Failure) -> str:
    name = f"rank {failure.rank}" if failure.rank is not None else f"worker {failure.worker}"
    if failure.rank is None and failure.worker is None:
        name = "a worker"
    return f"{name} on node {failure.node}" if failure.node else name


def _failure_line(failure: Failure) -> str:
    facts = [f"attempt {failure.attempt}: {failure.reason}"]
    for label, value in (
        ("rank", failure.rank), ("worker", failure.worker), ("pod", failure.pod), ("node", failure.node),
        ("exit code", failure.exit_code),
    ):  # fmt: skip
        if value is not None:
            facts.append(f"{label} {value}")
    return ", ".join(facts) + (f", at {failure.failed_at}" if failure.failed_at else "")


def _worker_option(failure: Failure) -> str:
    return "" if failure.worker is None else f" --worker {failure.worker}"


def _memory_limit(situation: Situation) -> str:
    for pod in situation.pods:
        for container in items(pod, "spec", "containers"):
            if text(container, "name") == "worker" and text(container, "resources", "limits", "memory"):
                return text(container, "resources", "limits", "memory")
    asked = at(situation.job.raw, "spec", "resources", "memory")
    limit = at(asked, "limit") if not isinstance(asked, str | int) else asked
    return str(limit) if limit is not None else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _short(message: str) -> str:
    return " ".join(message.split()).rstrip(".; ")[:300]
