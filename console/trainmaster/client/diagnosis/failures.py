"""Explains why the newest attempt ended.

The explanation names the rank that failed first, its node, and its last lines or the place where it hung.
"""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from trainmaster.client.diagnosis.endings import Ending, read_ending
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import at, items, short, text
from trainmaster.client.view import plural
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.wire import values

MAX_LOG_LINES = 12
# Patterns of the agent's messages about a failed start and about a hang.
_NO_TORCH, _NO_PROGRAM = "has no torch", re.compile(r"command not found: '?([^'\s]+)'?")
_SILENT, _EARLY = "no progress", " finished while rank "
_HOW = re.compile(r"(?:ended with exit code \d+|was killed by signal \d+(?: \(\w+\))?): ")
_NATIVE = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
OTHERS, DEVICE = "waits in a collective", "waits for its device"
# A stack frame as faulthandler and py-spy print it.
_FAULTHANDLER = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_PY_SPY = re.compile(r"^\s+(?P<function>\S+) \((?P<file>[^():]+):(?P<line>\d+)\)", re.MULTILINE)
# Frames in libraries show where a thread waits, but not which of the user's lines waits.
_LIBRARIES = ("/site-packages/", "/lib/python", "/dist-packages/", "<frozen ")


def failure_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why the newest attempt ended, and also what ended the job if that was something else."""
    job, reason = situation.job, situation.view.end_reason
    message = situation.shown_message.rstrip(".")
    if reason == "DeadlineExceeded":
        raised = Step("raise runPolicy.activeDeadlineSeconds, or ask for less, and apply the job again")
        yield Finding("DeadlineExceeded", f"its time was over: {message}", (), (raised,))
    if job.phase == "Failed" and reason and not job.status.failures:
        yield Finding(reason, message or reason)
    # If a running job has recovered from its failures, they don't explain its state.
    if not job.status.failures or job.phase not in ("Failed", "Restarting", "Starting", "Pending"):
        return
    failure = job.status.failures[0]
    finding = _finding(situation, failure)
    stopped = f", and all ranks start again, because {failure.not_continued}" if failure.not_continued else ""
    yield replace(finding, clause=f"{finding.clause}{stopped}", evidence=(*finding.evidence, *_budget(situation)))


def _finding(situation: Situation, failure: Failure) -> Finding:
    """Returns the finding on a failure, derived from the failure's reason, or else from its log or exit code."""
    evidence = next((one for one in situation.evidence if one.attempt == failure.attempt), None)
    log = _log(situation, failure, evidence)
    reason, message, who = failure.reason, short(failure.message), _who(failure)
    job = f"{situation.job.name} {situation.where}"
    worker = "" if failure.worker is None else f" --worker {failure.worker}"
    more = (
        Step("the evidence of this attempt", f"kubectl dtj evidence {job} --attempt {failure.attempt}"),
        Step("its log", f"kubectl dtj logs {job}{worker}"),
    )
    lines = (_failure_line(failure), *(f"  {line}" for line in log.splitlines()[-MAX_LOG_LINES:]))

    def found(cause: str, clause: str, *remedies: str) -> Finding:
        return Finding(cause, clause, lines, (*(Step(remedy) for remedy in remedies if remedy), *more))

    if _EARLY in failure.message:
        early, use, *_ = failure.message.split("; ")
        return found("RanksUneven", early, use)
    if reason == "Hung" or (reason == "AgentLost" and _SILENT in failure.message):
        return _hang(situation, failure, evidence)
    if reason == "OOMKilled":
        limit = _memory_limit(situation)
        limited = f" than its limit of {limit}" if limit else ""
        raised = "raise spec.resources.memory (it counts all ranks of the worker, data loaders and /dev/shm)"
        return found("OutOfMemory", f"{who} used more memory{limited} and was killed (OOMKilled)", raised)
    if reason == "PreflightMismatch":
        differ = failure.message.rpartition("environments differ: ")[2] or log
        clause = f"the workers' environments differ: {short(differ)}"
        return found("EnvironmentsDiffer", clause, "use one image, and one tag, for all workers")
    if reason == "LaunchError" and _NO_TORCH in failure.message:
        use = "use an image with torch, or set spec.launcher: exec (docs/pods.md, The launcher needs torch)"
        return found("TorchMissing", "the image has no torch, which the launcher torchrun needs", use)
    if reason == "LaunchError":
        program = _NO_PROGRAM.search(failure.message)
        clause = f"{who} couldn't start its program"
        if program:
            clause = f"the program {program[1]} isn't in the image, or can't be run"
        return found("ProgramNotFound", clause, "check spec.command (a list: [python, train.py]) and the image")
    if reason == "Diverged":
        return found("Diverged", f"{who} gave up, because training diverged: {_last(log)}")
    if known_reason(reason).strength == Strength.DISRUPTION:
        return found(reason, f"{who} was taken away ({reason}): {message}")
    if ending := _ending(failure, evidence, log):
        return _ended(situation, ending, who, log, found(ending.cause, f"{who} {ending.clause}", ending.remedy))
    code = failure.exit_code
    if reason == "Signal" or (code is not None and code > 128):
        number = (code or 0) - 128
        name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
        native = " (a crash in native code)" if name in _NATIVE else ""
        show = "have Python print where: set PYTHONFAULTHANDLER=1 in spec.podTemplate"
        return found("Signal", f"{who} was killed by {name}{native}", show)
    if reason in ("MasterUnreachable", "PeerLost"):
        check = "look for a NetworkPolicy or a service mesh between the pods (docs/operating.md, Ports of workers)"
        return found("WorkersUnreachable", f"the workers don't reach each other: {message}", check)
    if reason == "Usage":
        return found("Usage", f"{who} can't use its configuration: {_last(log) or message}")
    if reason == "Error" and code is not None:
        last = f"; its last line was: {_last(log)}" if _last(log) else " and printed nothing"
        return found("ExitCode", f"{who} exited with code {code}{last}")
    return found(reason, f"{message or who} ({reason}: {known_reason(reason).meaning.rstrip('.')})")


def _ended(situation: Situation, ending: Ending, who: str, log: str, found: Finding) -> Finding:
    """Returns the finding with the log's line as evidence. If the job's own program is missing, adds a remedy."""
    evidence = found.evidence
    if ending.line and ending.line not in log[-2_000:]:
        evidence += (f"its log: {ending.line}",)
    found = replace(found, evidence=evidence)
    program = _program(situation, ending)
    if not program:
        return found
    clause = f"{who} doesn't find its own program, {ending.about}"
    if at(situation.job.raw, "spec", "code"):
        bring = f"correct spec.command, or bring the folder that has {program}: the ranks start in spec.code's folder"
    else:
        clause += ", and the job brings no code (spec.code)"
        bring = (
            "bring it along: delete the job, and create it by kubectl dtj submit FILE --code DIR, where DIR has "
            f"{program}; or use an image that has it"
        )
    return replace(found, clause=clause, steps=(Step(bring), *found.steps))


def _program(situation: Situation, ending: Ending) -> str:
    """Returns the file or package that the job's command starts if the rank couldn't find it, or an empty text."""
    spec = values.mapping(situation.job.raw.get("spec"))
    words = [str(word) for name in ("command", "args") for word in spec.get(name) or ()]
    if ending.cause == "FileNotFound" and ending.about:
        name = posixpath.basename(ending.about)
        return name if any(posixpath.basename(word) == name for word in words if word.endswith(".py")) else ""
    modules = [module.partition(".")[0] for option, module in pairwise(words) if option == "-m"]
    return ending.about if ending.cause == "ModuleNotFound" and ending.about in modules else ""


def _ending(failure: Failure, evidence: AttemptEvidence | None, log: str) -> Ending | None:
    """Returns the error that ends the culprit's log, or None.

    If the log shows no error and the culprit only lost contact with others, the other workers' reports are searched.
    """
    own = read_ending(log)
    if own is not None or evidence is None or failure.reason not in ("PeerLost", "AgentLost", "MasterUnreachable"):
        return own
    others = (read_ending(values.text(report.get("error"), None)) for report in evidence.workers.values())
    return next((one for one in others if one is not None), None)


def _log(situation: Situation, failure: Failure, evidence: AttemptEvidence | None) -> str:
    """Returns the end of the culprit's output, from the evidence, the pod's log or the status."""
    found = [situation.logs.get(failure.pod or "", "")]
    if evidence is not None and failure.worker is not None:
        report = evidence.workers.get(failure.worker, {})
        found = [values.text(report.get("error"), None), evidence.logs.get(failure.worker, ""), *found]
    how = _HOW.search(failure.message)
    found.append(failure.exception or (failure.message[how.end() :] if how else ""))
    return next((one for one in found if one.strip()), "")


def _budget(situation: Situation) -> tuple[str, ...]:
    status = situation.job.status
    limit = at(situation.job.raw, "spec", "failurePolicy", "maxRestarts")
    counted = plural(status.restarts, "restart") + (f" of {limit}" if isinstance(limit, int) else "")
    before = [f"attempt {one.attempt}: {one.reason}" for one in status.failures[1:4]]
    lines = [f"earlier failures: {', '.join(before)}"] if before else []
    if situation.view.end_reason == "MaxRestartsExceeded":
        lines.append(f"no restart was left: {counted} counted (failurePolicy.maxRestarts)")
    elif situation.job.phase != "Failed":
        lines.append(f"it tries again: {counted} counted so far")
    return tuple(lines)


def _who(failure: Failure) -> str:
    name = f"rank {failure.rank}" if failure.rank is not None else f"worker {failure.worker}"
    if failure.rank is None and failure.worker is None:
        name = "a worker"
    return f"{name} on node {failure.node}" if failure.node else name


def _failure_line(failure: Failure) -> str:
    facts = {"rank": failure.rank, "worker": failure.worker, "pod": failure.pod, "node": failure.node}
    known = {**facts, "exit code": failure.exit_code}
    where = "".join(f", {label} {value}" for label, value in known.items() if value is not None)
    time = f", at {failure.failed_at}" if failure.failed_at else ""
    return f"attempt {failure.attempt}: {failure.reason}{where}{time}"


def _memory_limit(situation: Situation) -> str:
    containers = (each for pod in situation.pods for each in items(pod, "spec", "containers"))
    limits = (text(each, "resources", "limits", "memory") for each in containers if text(each, "name") == "worker")
    if limit := next(filter(None, limits), ""):
        return limit
    asked = at(situation.job.raw, "spec", "resources", "memory")
    asked = asked if isinstance(asked, str | int) else at(asked, "limit")
    return "" if asked is None else str(asked)


def _last(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _hang(situation: Situation, failure: Failure, evidence: AttemptEvidence | None) -> Finding:
    ranks: Mapping[int, Mapping[str, Any]] = {} if evidence is None else evidence.ranks
    rank = failure.rank if failure.rank is not None else _behind(ranks)
    state = {} if rank is None else ranks.get(rank, {})
    stacks = values.text(state.get("text"), None)
    frame = top_frame(stacks)
    node = f" on node {failure.node}" if failure.node else ""
    where = f" at step {state['step']}" if values.whole(state.get("step")) is not None else ""
    where += f", in {frame}" if frame else ""
    waits = waits_for(state)
    if waits == DEVICE and situation.job.status.workers.desired == len(ranks) == 1:
        clause = f"its only rank{node} is waiting for the GPU{where}"
    else:
        who = "its ranks" if rank is None else f"rank {rank}"
        reason = {OTHERS: f" (it {OTHERS} for another rank)", DEVICE: f" (it {DEVICE})"}.get(waits, "")
        clause = f"{who}{node} made no progress{where}{reason}"
    lines = [f"attempt {failure.attempt}: {failure.message}"]
    lines += [f"  {line}" for line in stacks.splitlines()[:8]]
    lines += [_rank_line(number, other) for number, other in sorted(ranks.items()) if number != rank][:6]
    option = f" --attempt {failure.attempt}" + ("" if rank is None else f" --rank {rank}")
    command = f"kubectl dtj evidence {situation.job.name} {situation.where}{option}"
    raised = "if steps really take that long, raise failurePolicy.hang.progressSeconds"
    return Finding("Hang", clause, tuple(lines), (Step("all stacks of that rank", command), Step(raised)))


def waits_for(state: Mapping[str, Any]) -> str:
    """Returns what a rank waits for according to its evidence, or an empty text if nothing is known."""
    if state.get("waits") == "collective" or state.get("pending") is True:
        return OTHERS
    return DEVICE if state.get("waits") == "device" else ""


def top_frame(stacks: str) -> str:
    """Returns the function, file and line of the first thread's innermost frame outside libraries."""
    found = list(_FAULTHANDLER.finditer(stacks)) or list(_PY_SPY.finditer(stacks))
    own = [frame for frame in found if not any(library in frame["file"] for library in _LIBRARIES)]
    frame = next(iter(own or found), None)
    return "" if frame is None else f"{frame['function']} ({frame['file']}:{frame['line']})"


def _behind(ranks: Mapping[int, Mapping[str, Any]]) -> int | None:
    """Returns the rank that is furthest behind. Ranks that aren't in a collective are preferred."""

    def order(rank: int) -> tuple[bool, int, int]:
        return waits_for(ranks[rank]) == OTHERS, values.whole(ranks[rank].get("step")) or 0, rank

    return min(ranks, key=order, default=None)


def _rank_line(rank: int, state: Mapping[str, Any]) -> str:
    step = values.whole(state.get("step"))
    facts = ["" if step is None else f"step {step}", waits_for(state), top_frame(values.text(state.get("text"), None))]
    return f"rank {rank}: {', '.join(filter(None, facts)) or 'nothing is known'}"
