"""Explains why the newest attempt ended.

The explanation names the rank that failed first, its node, and its last lines or the place where it hung.
"""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from trainmaster.client.code.archive import left_out_of
from trainmaster.client.diagnosis.endings import OF_NODES, Ending, read_ending
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import at, items, short, text
from trainmaster.client.view import plural
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.wire import values

MAX_LOG_LINES = 12
# The warning of Hugging Face's tokenizers before they can deadlock in a forked process.
_FORKED = "huggingface/tokenizers: The current process just got forked"
# Where the agent unpacks the code.
_CODE_FOLDERS = ("/run/trainmaster/",)
# Patterns of the agent's messages about a failed start and about a hang.
_NO_TORCH, _NO_PROGRAM = "has no torch", re.compile(r"command not found: '?([^'\s]+)'?")
_SILENT, _EARLY = "no progress", " finished while rank "
_FIRST_LINE = re.compile(r"^.*?(?:ended with exit code \d+|was killed by \S+)(?:: )?")
# The beginning of the operator's message about an exception, its place, and then the rank that raised it.
_RAISED = re.compile(r"(?P<exception>[^\n]+?)(?:, at (?P<location>[^\n;]+))?; (?:rank|worker) \d+ \(")
# The beginning of the operator's message about a pod that the cluster took away.
_OF_POD = re.compile(r"^pod \S+ of worker \d+(?: on node \S+)? (?=was |is |lost )")
# The place of the rank that the others wait for, in the agent's message about a hang.
_PLACE = re.compile(r"\brank \d+ (?:is at|waits in|is stopped by)[^;\n]*")
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
        raised = Step("raise spec.runPolicy.activeDeadlineSeconds, or ask for less, and apply the job again")
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
    more = [Step("its log", f"kubectl dtj logs {job}{worker}")]
    if evidence is not None:
        kept = f"kubectl dtj evidence {job} --attempt {failure.attempt}"
        more = [Step("the evidence of this attempt", kept), *more]
    lines = (_failure_line(failure), *(f"  {line}" for line in log.splitlines()[-MAX_LOG_LINES:]))

    def found(cause: str, clause: str, *remedies: str, is_certain: bool = True) -> Finding:
        return Finding(cause, clause, lines, (*(Step(remedy) for remedy in remedies if remedy), *more), is_certain)

    if _EARLY in failure.message:
        early, use, *_ = failure.message.split("; ")
        return found("UnevenRanks", early, use)
    if reason == "Hung" or (reason == "AgentLost" and _SILENT in failure.message):
        return _hang(situation, failure, evidence)
    if reason == "OOMKilled":
        limit = _memory_limit(situation)
        limited = f" than its limit of {limit}" if limit else ""
        raised = "raise spec.resources.memory (it counts all ranks of the worker, data loaders and /dev/shm)"
        who = _who(failure, names_node=False)
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
        who = _who(failure, names_node=False)
        return found("Diverged", f"{who} gave up, because training diverged: {_last(log)}")
    if reason == "LimitExceeded" or known_reason(reason).strength == Strength.DISRUPTION:
        how = _OF_POD.sub("", message, count=1)
        clause = f"{who} {how}" if how != message else f"{who} was taken away ({reason}): {message}"
        own = "raise its limit of ephemeral-storage in spec.podTemplate.spec.containers, or write to a volume"
        higher = "give it a higher priority (spec.scheduling.priorityClassName)"
        return found(reason, clause, {"LimitExceeded": own, "Preempted": higher}.get(reason, ""))
    if ending := _ending(failure, evidence, log):
        who = _who(failure, names_node=ending.cause in OF_NODES)
        location = _raised(failure)[1]
        clause = f"{who} {ending.clause}" + (f", at {location}" if location else "")
        is_certain = ending.cause != "PeerLost"
        return _ended(situation, ending, who, log, found(ending.cause, clause, ending.remedy, is_certain=is_certain))
    code = failure.exit_code
    if reason == "Signal" or (code is not None and code > 128):
        number = (code or 0) - 128
        name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
        return _killed(found, name, _who(failure, names_node=name in _NATIVE), top_frame(log))
    if reason in ("MasterUnreachable", "PeerLost"):
        check = "look for a NetworkPolicy or a service mesh between the pods (docs/operating.md, Ports of workers)"
        return found("WorkersUnreachable", f"the workers don't reach each other: {message}", check)
    if reason == "Usage":
        who = _who(failure, names_node=False)
        return found("Usage", f"{who} can't use its configuration: {_last(log) or message}")
    if reason == "Error" and code is not None:
        last = f"; its last line was: {_last(log)}" if _last(log) else " and printed nothing that was kept"
        return found("ExitCode", f"{_who(failure, names_node=False)} exited with code {code}{last}")
    return found(reason, f"{message or who} ({reason}: {known_reason(reason).meaning.rstrip('.')})")


def _killed(found: Callable[..., Finding], name: str, who: str, frame: str) -> Finding:
    """Returns the finding on a rank that a signal ended."""
    at_line = f", in {frame}" if frame else ""
    if name == "SIGBUS":
        clause = f"{who} was killed by SIGBUS (a crash in native code{at_line}): most often /dev/shm is full"
        return found("SharedMemory", clause, "raise spec.resources.sharedMemory, such as to 16Gi", is_certain=False)
    means = {
        "SIGKILL": ": most often the kernel or the node's administrator ended it for memory",
        "SIGILL": ": most often a library was built for a newer processor than its node has",
        "SIGTERM": ": somebody stopped it",
    }
    remedies = {
        "SIGKILL": "compare its memory with spec.resources.memory, and look at the node's kernel messages",
        "SIGILL": "build the library for the node's processor, or choose other nodes",
    }
    native = f" (a crash in native code{at_line})" if name in _NATIVE else ""
    usual = "its stack is at the end of its log: the first line of your own code shows the call" if native else ""
    return found("Signal", f"{who} was killed by {name}{native}{means.get(name, '')}", remedies.get(name, usual))


def _raised(failure: Failure) -> tuple[str, str]:
    """Returns the exception that ended the rank and the line of the user's code, as far as they are known."""
    if failure.exception:
        return failure.exception, failure.location or ""
    found = _RAISED.match(failure.message)
    return (found["exception"], found["location"] or "") if found else ("", "")


def _ended(situation: Situation, ending: Ending, who: str, log: str, found: Finding) -> Finding:
    """Returns the finding with the log's line as evidence. If the job's own program is missing, adds a remedy."""
    evidence = found.evidence
    if ending.line and ending.line not in log[-2_000:]:
        evidence += (f"its log: {ending.line}",)
    found = replace(found, evidence=evidence)
    if absent := _left_out(situation, ending):
        path, why = absent
        clause = f"{who} doesn't find {ending.about}: submit left {path} out" + (f", because of {why}" if why else "")
        bring = (
            f"put it on a volume that the workers mount (docs/pods.md), or name it in .trainmasterignore as !{path} "
            "and submit the code again"
        )
        return replace(found, clause=clause, steps=(Step(bring), *found.steps[-2:]))
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


def _left_out(situation: Situation, ending: Ending) -> tuple[str, str] | None:
    """Returns the path that `submit` left out of the code and the reason, if the rank couldn't find it."""
    if ending.cause not in ("FileNotFound", "ModuleNotFound") or not ending.about:
        return None
    about = posixpath.normpath(ending.about)
    if about.startswith("/") and not about.startswith(_CODE_FOLDERS):
        # The image, or a volume, should have this path.
        return None
    module = f"/{about.replace('.', '/')}"
    wanted = [f"/{about.lstrip('/')}"] if ending.cause == "FileNotFound" else [f"{module}.py", f"{module}/__init__.py"]
    for absent in left_out_of(situation.job.raw):
        path, why = short(absent.path, 200), short(absent.reason, 100)
        ends = [f"/{path}"] if not path.endswith("/") else []
        if any(one.endswith(tuple(ends)) or (path.endswith("/") and f"/{path}" in f"{one}/") for one in wanted):
            return path, why
    return None


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
    exception = _raised(failure)[0]
    rest = _FIRST_LINE.sub("", failure.message, count=1)
    found.append("" if rest == failure.message or exception else rest.replace(" | ", "\n"))
    log = next((one for one in found if one.strip()), "")
    return log if not exception or exception in log else f"{log}\n{exception}".lstrip("\n")


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


def _who(failure: Failure, *, names_node: bool = True) -> str:
    name = f"rank {failure.rank}" if failure.rank is not None else f"worker {failure.worker}"
    if failure.rank is None and failure.worker is None:
        name = "a worker"
    return f"{name} on node {failure.node}" if failure.node and names_node else name


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
    place = _PLACE.search(failure.message)
    where += f": {place[0].replace(f'rank {rank} ', 'it ', 1)}" if place and not frame else ""
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
    steps = [Step("all stacks of that rank", command)]
    if evidence is not None and any(_FORKED in log for log in evidence.logs.values()):
        steps.append(Step("if a data loader hangs after a fork: set TOKENIZERS_PARALLELISM=false"))
    raised = "if steps really take that long, raise spec.failurePolicy.hang.progressSeconds"
    return Finding("Hang", clause, tuple(lines), (*steps, Step(raised)))


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
