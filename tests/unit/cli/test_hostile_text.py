"""No command lets text from pods or other clients control the terminal, and no such text ends a command.

Each text of a job, its status, pods, evidence and logs contains escape sequences, C1 controls, bidirectional controls,
carriage returns and rich's markup. Each command prints them to a pipe and to a terminal (a pty).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tests.unit.client.fakes import FakeTransport, event, job, pod
from trainmaster.cli import dtj, live
from trainmaster.cli import main as trainmaster
from trainmaster.cli.arguments import complete_job
from trainmaster.cli.commands import SECTIONS
from trainmaster.cli.connection import Connection
from trainmaster.cli.console import SafeConsole
from trainmaster.cli.demo import Demo
from trainmaster.cli.listing import print_rows
from trainmaster.cli.live import draw
from trainmaster.cli.show import job_columns, job_view
from trainmaster.client import ClientError, InvalidRequest, JobClient, TrainingJob
from trainmaster_operator.api.evidence import AttemptEvidence, Stacks
from trainmaster_operator.api.printable import UNSAFE

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
EVENTS = "/api/v1/namespaces/default/events"
# The texts contain the clipboard (OSC 52), a colour, a cleared screen, C1's CSI, a title, reversed text, and tags.
SEQUENCES = (
    *("\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b[31m", "\x1b[2J", "\x1b[1A\x1b[2K", "\x9b31m", "\x9d0;title\x9c", "\x1bc"),
    *("\u202e", "\u2066", "\u2028", "\r", "\b", "\x00", "\x7f", "\U000e0041", "[/b]", "[bold]", "[link=x]"),
)
HOSTILE = "name" + "".join(f"{sequence}EVIL" for sequence in SEQUENCES)
TIME = "2026-11-21T04:00:00Z"
STATUS: dict[str, Any] = {
    "attempt": 2,
    "workers": {"desired": 2, "running": 2},
    "startTime": TIME,
    "progress": {"step": 1, "totalSteps": 9, "loss": 0.5, "section": HOSTILE, "result": {HOSTILE: 1.0, "[/b]": 2.0}},
    "timeSpent": {"until": HOSTILE, "productive": 2.0},
    "avoidedNodes": [HOSTILE],
    "nodeFailures": {HOSTILE: 3},
    "conditions": [
        {"type": kind, "status": "True", "reason": HOSTILE, "message": HOSTILE, "lastTransitionTime": HOSTILE}
        for kind in (HOSTILE, "Failed")
    ],
    "failures": [
        {
            "attempt": 1,
            "reason": HOSTILE,
            "message": f"{HOSTILE}\n{HOSTILE}",
            "rank": 1,
            "pod": HOSTILE,
            "node": HOSTILE,
            "failedAt": HOSTILE,
        }
    ],
}
SAID = {"reason": HOSTILE, "message": HOSTILE, "pod": HOSTILE, "node": HOSTILE, "failedAt": HOSTILE, "rank": HOSTILE}
EVIDENCE = AttemptEvidence(
    1,
    {**SAID, "worker": 0, "exitCode": HOSTILE},
    {0: {**SAID, "state": HOSTILE, "error": HOSTILE}},
    {
        1: {
            "step": HOSTILE,
            "section": HOSTILE,
            "silentSeconds": HOSTILE,
            "collective": HOSTILE,
            "text": HOSTILE + "\ud83d",
        }
    },
    {0: HOSTILE},
)
LOG = HOSTILE.encode("utf-8", "replace")


def hostile_job(phase: str) -> dict[str, Any]:
    found = job(**STATUS, phase=phase)
    found["metadata"] |= {"name": HOSTILE, "namespace": HOSTILE, "annotations": {HOSTILE: HOSTILE}}
    found["metadata"]["creationTimestamp"] = HOSTILE
    return found


def hostile_pod(worker: int, phase: str = "Running") -> dict[str, Any]:
    waiting = {"state": {"waiting": {"reason": HOSTILE, "message": HOSTILE}}, "restartCount": 1}
    found = pod(worker, phase=phase, reason=HOSTILE, containerStatuses=[waiting])
    found["metadata"]["name"] = found["spec"]["nodeName"] = HOSTILE
    return found


STACKS = Stacks(
    "request",
    1,
    collected_at=HOSTILE,
    ranks={rank: {"step": HOSTILE, "section": HOSTILE, "state": "T", "text": HOSTILE} for rank in range(2)},
    problem=HOSTILE,
)


def answers(phase: str = "Running") -> dict[str, Any]:
    known = hostile_job(phase)
    return {
        f"GET {JOBS}": {"items": [known, known]},
        f"GET {JOBS.replace('/namespaces/default', '')}": {"items": [known]},
        f"GET {JOBS}/reviews": known,
        f"PATCH {JOBS}/reviews": known,
        f"GET {PODS}": {"items": [hostile_pod(0), hostile_pod(1), hostile_pod(2, "Pending")]},
        f"GET {EVENTS}": {"items": [hostile_event()]},
        "GET /api/v1/events": {"items": [hostile_event()]},
        f"GET {MAPS}/reviews-evidence": {"data": {"attempt-1.json": EVIDENCE.to_json()}},
        f"GET {MAPS}/reviews-stacks": {"data": STACKS.to_data()},
        f"GET {MAPS}/reviews-logs": {"data": {"worker-0.log": HOSTILE + "\ud83d"}},
        f"GET {MAPS}/{HOSTILE}-logs": {"data": {}},
    }


def hostile_event() -> dict[str, Any]:
    return {
        "metadata": {"name": HOSTILE, "namespace": HOSTILE, "uid": "e", "creationTimestamp": TIME},
        "involvedObject": {"kind": "DistributedTrainingJob", "name": HOSTILE, "uid": "uid-reviews"},
        **{"type": HOSTILE, "reason": HOSTILE, "message": f"{HOSTILE}\n{HOSTILE}", "lastTimestamp": TIME},
    }


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", "-A"),
    ("status", "-o", "json"),
    ("status", "reviews"),
    ("status", "reviews", "-o", "json"),
    ("status", "reviews", "--watch"),
    ("status", "reviews", "-o", "yaml"),
    ("status", "-o", "name"),
    ("list", "-o", "wide"),
    ("scale", "reviews", "--workers", "3"),
    ("evidence", "reviews"),
    ("evidence", "reviews", "--rank", "1"),
    ("evidence", "reviews", "-o", "json"),
    ("stacks", "reviews"),
    ("stacks", "reviews", "--rank", "1"),
    ("stacks", "reviews", "-o", "json"),
    ("why",),
    ("why", "reviews"),
    ("why", "reviews", "-o", "json"),
    ("wait", "reviews"),
    ("suspend", "reviews"),
    ("resume", "reviews"),
    ("restart", "reviews"),
    ("logs", "reviews"),
    ("logs", "reviews", "--worker", "0"),
    ("logs", "reviews", "--follow"),
    ("logs", "reviews", "--failed"),
    ("events",),
    ("events", "-A"),
    ("events", "reviews"),
    ("events", "reviews", "-o", "json"),
    ("events", "reviews", "--watch"),
    ("top",),
    ("top", "reviews"),
)


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    fake = FakeTransport()
    monkeypatch.setattr("trainmaster.client.async_jobs.secrets.token_hex", lambda _: STACKS.request)
    monkeypatch.setattr(Connection, "client", lambda options: JobClient("default", transport=fake))
    monkeypatch.setenv("COLUMNS", "8000")
    monkeypatch.setenv("TERM", "xterm-256color")
    return fake


def in_a_pipe(app: typer.Typer, arguments: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@contextlib.contextmanager
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Replaces stdout and stderr by a pty, and yields a function that returns the output so far."""
    master, slave = os.openpty()
    written = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(master, 65_536):
                written.extend(chunk)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def ended() -> str:
        stream.close()
        reader.join(10)
        return written.decode()

    with monkeypatch.context() as patched, os.fdopen(slave, "w", encoding="utf-8") as stream:
        patched.setattr(sys, "stdout", stream)
        patched.setattr(sys, "stderr", stream)
        yield ended
    os.close(master)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, app: typer.Typer, arguments: tuple[str, ...]) -> str:
    with a_terminal(monkeypatch) as written:
        with contextlib.suppress(SystemExit):
            app(list(arguments))
        return written()


def assert_harmless(output: str, *, shown: bool = True, coloured: bool = False) -> None:
    assert ("EVIL" in output) == shown, "what was written is shown"
    text = output.replace("\r\n", "\n")
    last = "A-Zabcdefghijkln-z" if coloured else "A-Za-z"
    commanded = re.search(rf"(\x1b\[[0-9;?]*[{last}]|\r)EVIL", text)
    assert commanded is None, f"a control sequence of somebody else: {commanded}"
    # The rest are rich's own colours, and the codes with which it redraws a live display.
    text = re.sub(r"\x1b\[[0-9;]*[mAKH]|\x1b\[\?(?:25|1049)[lh]|\r(?=\x1b\[2K)", "", text)
    left = UNSAFE.search(text)
    assert left is None, f"{left} in {text[max(0, left.start() - 40) : left.start() + 40]!r}" if left else ""


@pytest.fixture(autouse=True)
def left_after_two_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presses Ctrl-C after two pictures of `top`, because a pty with 8,000 columns takes megabytes slowly."""
    newest = live._newest

    def twice(found: Iterable[Any]) -> Iterator[Any]:
        for number, view in enumerate(newest(found)):
            if number == 2:
                raise KeyboardInterrupt
            yield view

    monkeypatch.setattr(live, "_newest", twice)
    monkeypatch.setattr("trainmaster.cli.events.LAST_SECONDS", 0.2)


class _Cluster(dict[str, Any]):
    """Answers requests that only `why` makes: events with hostile texts, and empty lists."""

    def __missing__(self, key: str) -> Any:
        about = {"kind": "Pod", "name": HOSTILE}
        events = [{"involvedObject": about, "reason": "FailedMount", "message": HOSTILE}]
        return {"items": events if key.endswith("/events") else []}


def prepare(transport: FakeTransport, command: tuple[str, ...]) -> None:
    ends = command[0] == "wait" or "--watch" in command
    transport.answers = answers("Failed" if command[0] in ("wait", "why") else "Running")
    if command[0] == "why":
        transport.answers = _Cluster(transport.answers)
    log = [[LOG, b"\x1b[32mgreen\x1b[0m 10%\r20%\r", LOG]]
    transport.streams = {f"{PODS}/{HOSTILE}/log": log * 9}
    if "--follow" in command or command == ("events", "reviews", "--watch"):
        transport.answers[f"GET {JOBS}/reviews"] = [*[hostile_job("Running")] * 3, hostile_job("Failed")]
    if ends:
        transport.streams[JOBS] = [[event("MODIFIED", hostile_job("Failed"))]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_of_the_plugin_hands_a_terminal_what_others_wrote(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    prepare(transport, command)
    # Among these commands only `suspend` prints others' text: the path of the checkpoints that it loses.
    shown = command[0] not in ("resume", "restart", "scale")
    assert_harmless(on_a_terminal(monkeypatch, dtj.app, command), shown=shown, coloured=command[0] == "logs")
    if command[0] == "logs":
        return
    prepare(transport, command)
    piped = in_a_pipe(dtj.app, command)
    assert_harmless(piped, shown=shown)
    if "json" in command:
        assert any(HOSTILE in text for text in strings(json.loads(piped)))


def strings(value: Any) -> list[str]:
    """Yields every string of a JSON document."""
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("command", [command for command in COMMANDS if "reviews" in command], ids=" ".join)
def test_an_errors_message_is_harmless_too(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    transport.answers = {f"{verb} {JOBS}/reviews": InvalidRequest(f"{HOSTILE}\n{HOSTILE}") for verb in ("GET", "PATCH")}
    for output in (on_a_terminal(monkeypatch, dtj.app, command), in_a_pipe(dtj.app, command)):
        assert_harmless(output)
        assert [line[:2] for line in output.splitlines()] == ["er", "  "], "a second line isn't a message of its own"


def test_the_log_of_a_worker_goes_into_a_pipe_as_it_is(transport: FakeTransport) -> None:
    prepare(transport, ("logs",))
    lines = [LOG.decode(), "\x1b[32mgreen\x1b[0m 10%\r20%\r", LOG.decode()]
    written = CliRunner().invoke(dtj.app, ["logs", "reviews", "--worker", "0"]).stdout_bytes
    assert written == "".join(f"{line}\n" for line in lines).encode()


def test_the_log_of_a_worker_keeps_its_colours_on_a_terminal_and_writes_nothing_over(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(transport, ("logs",))
    transport.streams = {f"{PODS}/{HOSTILE}/log": [[b"\x1b[32mgreen 10%\r20%\r", b"plain\x1b[9999;1H"]] * 2}
    output = on_a_terminal(monkeypatch, dtj.app, ("logs", "reviews"))
    label = "\x1b[2m[worker 0] \x1b[0m"
    assert [line for line in output.splitlines() if line.startswith(label)][:3] == [
        f"{label}\x1b[32mgreen 10%\x1b[0m",
        f"{label}20%",
        f"{label}plain\\x1b[9999;1H",
    ]


def test_completion_offers_no_control_characters(transport: FakeTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    transport.answers = answers()
    context = typer.Context(typer.main.get_command(dtj.app))
    assert_harmless("\n".join(complete_job(context)))


HOSTILE_YAML = '"' + "".join(f"\\U{ord(character):08x}" for character in HOSTILE) + '"'
VALIDATED = f"""\
apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {{name: {HOSTILE_YAML}, ? {HOSTILE_YAML} : 1}}
spec:
  workers: {HOSTILE_YAML}
  launcher: {HOSTILE_YAML}
  ? {HOSTILE_YAML}
  : 1
  image: {HOSTILE_YAML}
  backend: {HOSTILE_YAML}
  resources: {{memory: {HOSTILE_YAML}}}
---
apiVersion: {HOSTILE_YAML}
kind: {HOSTILE_YAML}
"""
RENDERED = f"""\
apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {{name: reviews}}
spec:
  workers: 1
  command: [python, {HOSTILE_YAML}]
  training: {{? {HOSTILE_YAML} : {HOSTILE_YAML}}}
"""


@pytest.mark.parametrize("command", ["validate", "render"])
def test_what_stands_in_a_file_is_quoted_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "8000")
    path = tmp_path / "job.yaml"
    path.write_text(VALIDATED)
    for output in (
        on_a_terminal(monkeypatch, trainmaster.app, (command, str(path))),
        in_a_pipe(trainmaster.app, (command, str(path))),
    ):
        assert_harmless(output)
        assert all(line.startswith((str(path), "  ")) for line in output.splitlines())
    path.write_text(f"a: [{HOSTILE_YAML[1:-1]}\x01")
    assert UNSAFE.search(in_a_pipe(trainmaster.app, (command, str(path))).replace("\r\n", "\n")) is None


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_what_a_job_becomes_is_escaped_by_its_encoder_and_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(RENDERED)
    command = ("render", str(path), "-o", output)
    assert_harmless(on_a_terminal(monkeypatch, trainmaster.app, command))
    text = in_a_pipe(trainmaster.app, command)
    assert_harmless(text)
    if output == "yaml":
        found = strings(list(yaml.safe_load_all(text)))
    else:
        found = strings([json.loads(part) for part in re.split(r"(?<=^\})\n", text, flags=re.MULTILINE) if part])
    assert HOSTILE in found


def test_the_local_cluster_s_errors_are_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster_local import cluster

    def refuse(*_: object, **__: object) -> None:
        raise cluster.LocalClusterError(HOSTILE)

    monkeypatch.setattr(cluster, "up", refuse)
    assert_harmless(in_a_pipe(trainmaster.app, ("local", "up", "--state-dir", str(tmp_path))))
    for command in ("status", "down"):
        output = in_a_pipe(trainmaster.app, ("local", command, "--state-dir", f"{tmp_path}/\x1b[2J"))
        assert UNSAFE.search(output) is None


@pytest.mark.parametrize("terminal", [False, True])
def test_the_demo_shows_a_hostile_job_like_any_other(
    transport: FakeTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    transport.answers = answers("Failed")
    jobs = JobClient("default", transport=transport)
    found = jobs.get("reviews")
    with a_terminal(monkeypatch) as written:
        console = SafeConsole()
        shown = Demo(Path(HOSTILE), tmp_path, console)
        if terminal:
            draw(console, [partial(job_view, found, jobs.pods("reviews"))])
        else:
            print_rows([(found, False)], job_columns())
        shown._say("failure", HOSTILE)
        transport.answers[f"GET {MAPS}/{HOSTILE}-logs"] = {"data": {"worker-0.log": HOSTILE + "\ud83d"}}
        transport.answers[f"GET {PODS}"] = {"items": []}
        transport.answers[f"GET {JOBS}/{quote(HOSTILE, safe='')}"] = found.raw
        shown._keep(jobs, found)
        output = written()
    assert_harmless(output)


def test_a_status_that_nobody_understands_is_one_sentence(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase=HOSTILE)}
    output = in_a_pipe(dtj.app, ("status", "reviews"))
    assert_harmless(output, shown=False)
    assert output.count("\n") == 1
    with pytest.raises(ClientError):
        TrainingJob.of(job(phase=HOSTILE))


@pytest.mark.parametrize("index", [None, "", "x", "²"])
def test_a_foreign_s_pod_with_the_job_s_label_ends_no_command(transport: FakeTransport, index: str | None) -> None:
    foreign = pod(7)
    foreign["metadata"]["labels"].pop("apps.kubernetes.io/pod-index")
    if index is not None:
        foreign["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = index
    transport.answers = answers() | {f"GET {PODS}": {"items": [foreign, pod(0)]}}
    transport.streams = {f"{PODS}/reviews-0/log": [[b"hello"]]}
    assert "reviews-7" not in in_a_pipe(dtj.app, ("status", "reviews"))
    assert in_a_pipe(dtj.app, ("logs", "reviews")) == "[worker 0] hello\n"


def test_a_fault_s_traceback_is_harmless_too(transport: FakeTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    transport.answers = {f"GET {JOBS}/reviews": RuntimeError(HOSTILE)}
    output = on_a_terminal(monkeypatch, dtj.app, ("status", "reviews"))
    assert_harmless(output)
    assert "RuntimeError: name\\x1b]52" in output


@pytest.mark.parametrize("command", ["push", "submit"])
def test_names_of_files_that_are_left_out_are_harmless(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    transport.answers = answers("Running")
    (tmp_path / "train.py").touch()
    (tmp_path / HOSTILE.replace("/", "_").replace("\0", "")).symlink_to("/etc/passwd")
    ways = {"push": ("push", "reviews", str(tmp_path)), "submit": ("submit", "--code", str(tmp_path), "--dry-run")}
    arguments = (*ways[command], *(("--", "python", "train.py") if command == "submit" else ()))
    for output in (on_a_terminal(monkeypatch, dtj.app, arguments), in_a_pipe(dtj.app, arguments)):
        assert_harmless(output)
        assert "left out: " in output


def test_every_command_is_among_those_above() -> None:
    tested = {command[0] for command in COMMANDS} | {"validate", "render", "demo", "push", "submit"}
    # tests/unit/cli/test_convert.py tests it with hostile manifests.
    tested |= {"convert"}
    # tests/unit/cli/history/test_history.py tests it with the texts above.
    tested |= {"history"}
    # `operator run` only logs (tests/unit/serving/test_logs.py), and the others print no texts of other people.
    # The answers of `mcp` go to a program (tests/processes/cli/test_mcp.py).
    # `dashboard` and `open` show a page (tests/processes/dashboard).
    harmless = {"crd", "completion", "operator", "local", "mcp", "init", "dashboard", "open"}
    assert {name for names in SECTIONS.values() for name in names} == tested | harmless


def test_nothing_is_printed_but_through_the_ways_out() -> None:
    others = re.compile(r"(?:typer|click)\.s?echo\(|(?<!console\.)\bprint\(|(?<!Safe)Console\(|sys\.std(?:out|err)")
    folder = Path(dtj.__file__).parent
    found = {str(path.relative_to(folder)): others.findall(path.read_text()) for path in folder.rglob("*.py")}
    ways_out = {"terminal.py", "console.py"}
    assert {name for name, uses in found.items() if uses} - ways_out == {"completion.py", "program.py"}
    # Streams are flushed when a process ends.
    assert found["program.py"] == ["sys.stdout", "sys.stderr"]
    # The directive that ends a completion is a constant.
    assert found["completion.py"] == ["print("]
