"""The agent's command line runs the agent or prints its state."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster_operator.agent.settings import AgentSettings

_HELP = """usage: agent run -- <command> [args...]   train: start, watch and report the ranks of this worker
       agent state                      print this worker's state as JSON
       agent --version | --help

The environment that `run` reads is described in docs/protocol.md.
"""

_terminated = False


def _record_termination(_number: int, _frame: object) -> None:
    global _terminated
    _terminated = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    # This must be first: PID 1 has no default action for SIGTERM, so a signal before this line would be lost.
    signal.signal(signal.SIGTERM, _record_termination)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"]:
        return _run(given[1:])
    if given == ["state"]:
        return _state()
    if given == ["--version"]:
        from trainmaster_operator.agent import __version__

        print(f"trainmaster agent {__version__}, Python {sys.version.split()[0]}")
        return 0
    if given in (["--help"], ["-h"]):
        print(_HELP, end="")
        return 0
    print(_HELP, end="", file=sys.stderr)
    return 64


def _run(given: list[str]) -> int:
    from trainmaster_operator.agent.errors import LaunchError, UsageError
    from trainmaster_operator.agent.settings import read_settings
    from trainmaster_operator.wire.names import AGENTS_SECRET_VARIABLE
    from trainmaster_operator.wire.report import EXIT_USAGE

    command = given[1:] if given[:1] == ["--"] else given
    try:
        if not command:
            raise UsageError("no command to run: use `agent run -- <command>`, or set spec.command")
        settings = read_settings(os.environ)
    except UsageError as error:
        return _refuse(os.environ.get("TRAINMASTER_TERMINATION_LOG", ""), str(error), EXIT_USAGE)
    from trainmaster_operator.agent.executor import AgentExecutor

    # With the secret, ranks could impersonate any job of the namespace.
    environ = {name: value for name, value in os.environ.items() if name != AGENTS_SECRET_VARIABLE}
    try:
        return AgentExecutor(settings, command, environ).run(_terminated)
    except LaunchError as error:
        from trainmaster_operator.agent.planner.classification import failed
        from trainmaster_operator.wire.report import Report

        report = Report(
            _assigned_attempt(settings), settings.worker, settings.pod_uid, "Starting", settings.node, at=time.time()
        )
        report = failed(report, "LaunchError", str(error))
        return _refuse(settings.termination_log, str(error), report.process_exit_code(), report.termination_message())


def _assigned_attempt(settings: AgentSettings) -> int:
    from trainmaster_operator.agent.authority import AssignmentFile, Authority
    from trainmaster_operator.wire.values import ProtocolError

    try:
        data = AssignmentFile(settings.assignment_file).poll()
        return 0 if data is None else Authority(settings).read(data).attempt
    except ProtocolError:
        return 0


def _refuse(termination_log: str, sentence: str, code: int, message: str = "") -> int:
    print(f"[agent]: {sentence}", file=sys.stderr)
    if termination_log:
        try:
            with open(termination_log, "w", encoding="utf-8") as file:
                file.write(message or sentence)
        except OSError as error:
            print(f"[agent]: cannot write the termination message: {error.strerror}", file=sys.stderr)
    return code


def _state() -> int:
    """Print the state of this container's agent, or its saved report if the agent doesn't answer."""
    from http.client import HTTPConnection, HTTPException

    from trainmaster_operator.agent.errors import UsageError
    from trainmaster_operator.agent.process.state_folder import read_report
    from trainmaster_operator.agent.settings import read_settings
    from trainmaster_operator.wire.names import TOKEN_HEADER
    from trainmaster_operator.wire.report import EXIT_USAGE
    from trainmaster_operator.wire.signing import job_token

    try:
        settings = read_settings(os.environ)
    except UsageError as error:
        print(f"[agent]: {error}", file=sys.stderr)
        return EXIT_USAGE
    if settings.agents_secret and settings.port:
        try:
            connection = HTTPConnection(settings.pod_ip or "127.0.0.1", settings.port, timeout=2)
            token = job_token(settings.agents_secret, settings.job_uid)
            connection.request("GET", "/v1/state", headers={TOKEN_HEADER: token})
            answer = connection.getresponse()
            if answer.status == 200:
                print(answer.read().decode(), end="")
                return 0
        except (OSError, HTTPException) as error:
            print(f"[agent]: the agent doesn't answer: {error}", file=sys.stderr)
    saved = read_report(settings.state_dir)
    print(json.dumps({"worker": settings.worker, "report": saved.report.to_wire() if saved else None}, indent=1))
    return 0
