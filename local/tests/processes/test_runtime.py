"""Containers run as processes: they start, end, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from trainmaster_local.kubelet.containers.logs import LogOptions, last_lines, read_logs
from trainmaster_local.kubelet.containers.runtime import (
    SIGKILL,
    SIGTERM,
    ContainerConfig,
    Exit,
    ProcessRuntime,
    StartError,
)

PYTHON = sys.executable


@pytest.fixture
async def runtime() -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime()
    yield made
    await made.close()


def config(tmp_path: Path, *argv: str, memory: int = 0, log: bool = True) -> ContainerConfig:
    env = {"PATH": os.environ["PATH"]}
    return ContainerConfig(argv, env, str(tmp_path), log=str(tmp_path / "log") if log else "", memory=memory)


async def run(runtime: ProcessRuntime, made: ContainerConfig) -> Exit:
    return await asyncio.wait_for((await runtime.start(made)).exited, 20)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the open, or between the open and the read
        return False


async def until(check: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.02)


def _written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


async def pids_of(path: Path) -> list[int]:
    await until(lambda: _written(path))
    return [int(word) for word in (await asyncio.to_thread(path.read_text)).split()]


# Starts a grandchild that leaves its session, as a daemon does, and prints both ids.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    middle = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == middle:
        time.sleep(0.001)
    open(sys.argv[1] + '.tmp', 'w').write(f'{os.getpid()} {os.getppid()}\\n')
    os.rename(sys.argv[1] + '.tmp', sys.argv[1])
    time.sleep(600)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


async def test_exit_codes_are_those_of_containerd(runtime: ProcessRuntime, tmp_path: Path) -> None:
    assert (await run(runtime, config(tmp_path, "sh", "-c", "exit 7"))).code == 7
    killed = await run(runtime, config(tmp_path, "sh", "-c", "kill -9 $$"))
    assert (killed.code, killed.signal, killed.out_of_memory) == (137, 9, False)


async def test_a_program_that_is_not_there_is_refused_in_runc_s_words(runtime: ProcessRuntime, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r'exec: "/no/such": stat /no/such: no such file or directory'):
        await runtime.start(config(tmp_path, "/no/such"))
    with pytest.raises(StartError, match=r'exec: "nosuchtool": executable file not found in \$PATH'):
        await runtime.start(config(tmp_path, "nosuchtool"))
    (tmp_path / "plain").write_text("text")
    with pytest.raises(StartError, match="permission denied"):
        await runtime.start(config(tmp_path, str(tmp_path / "plain")))


async def test_what_a_container_forked_ends_with_its_first_process(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """The end of PID 1 ends its PID namespace; the runtime does the same."""
    await run(runtime, config(tmp_path, PYTHON, "-c", DAEMON, str(tmp_path / "pids"), "0"))
    daemon, _ = await pids_of(tmp_path / "pids")
    assert not alive(daemon)


async def test_sigkill_reaches_the_whole_container(runtime: ProcessRuntime, tmp_path: Path) -> None:
    container = await runtime.start(config(tmp_path, PYTHON, "-c", DAEMON, str(tmp_path / "pids"), "600"))
    daemon, _ = await pids_of(tmp_path / "pids")
    runtime.signal(container, SIGKILL)
    assert (await asyncio.wait_for(container.exited, 10)).code == 137
    assert not alive(daemon)


async def test_sigterm_spares_a_first_process_without_a_handler(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """pid_namespaces(7): PID 1 gets only the signals that it has handlers for."""
    deaf = await runtime.start(config(tmp_path, "sleep", "600"))
    program = "import signal,sys,time;signal.signal(15,lambda *a:sys.exit(5));open('up','w');time.sleep(600)"
    polite = await runtime.start(config(tmp_path, PYTHON, "-c", program))
    await until((tmp_path / "up").exists)
    runtime.signal(deaf, SIGTERM)
    runtime.signal(polite, SIGTERM)
    assert (await asyncio.wait_for(polite.exited, 10)).code == 5
    assert not deaf.exited.done()


async def test_a_container_over_its_memory_limit_is_oom_killed(runtime: ProcessRuntime, tmp_path: Path) -> None:
    program = "b = [bytearray(10**7) for _ in range(30)]; import time; time.sleep(600)"
    ended = await run(runtime, config(tmp_path, PYTHON, "-c", program, memory=60 * 2**20))
    assert (ended.code, ended.out_of_memory) == (137, True)
    fits = await run(runtime, config(tmp_path, PYTHON, "-c", "import time; time.sleep(0.3)", memory=60 * 2**20))
    assert (fits.code, fits.out_of_memory) == (0, False)


async def test_memory_that_forks_share_counts_once(runtime: ProcessRuntime, tmp_path: Path) -> None:
    program = """
import os, time
shared = b"x" * (100 << 20)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)
time.sleep(0.5)
"""
    ended = await run(runtime, config(tmp_path, PYTHON, "-c", program, memory=150 << 20))
    assert (ended.code, ended.out_of_memory) == (0, False)


async def test_a_child_that_has_its_parent_s_memory_until_it_runs_its_program_has_none(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    """posix_spawn(3) starts a program by vfork(2); here that waits for a file that it opens first."""
    program = """
import os, time
os.mkfifo("gate")
if os.fork() == 0:
    time.sleep(0.5)
    open("gate", "w")
    os._exit(0)
own = b"x" * (100 << 20)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "gate", os.O_RDONLY, 0)])
"""
    ended = await run(runtime, config(tmp_path, PYTHON, "-c", program, memory=150 << 20))
    assert (ended.code, ended.out_of_memory) == (0, False)


async def test_output_of_a_probe_is_captured_and_bounded(runtime: ProcessRuntime, tmp_path: Path) -> None:
    ended = await run(runtime, config(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 3", log=False))
    assert (ended.code, sorted(ended.output.split())) == (3, ["err", "out"])
    flood = await run(runtime, config(tmp_path, PYTHON, "-c", "print('x' * 10**6)", log=False))
    assert len(flood.output) == 10 * 1024


async def test_nothing_outlives_a_killed_kubelet(tmp_path: Path) -> None:
    """The whole tree ends when the process that runs the kubelet gets SIGKILL."""
    program = f"""
import asyncio, os, sys
from trainmaster_local.kubelet.containers.runtime import ContainerConfig, ProcessRuntime
async def main():
    runtime = ProcessRuntime()
    argv = [sys.executable, "-c", {DAEMON!r}, {str(tmp_path / "pids")!r}, "600"]
    await runtime.start(ContainerConfig(argv, dict(os.environ), {str(tmp_path)!r}, log={str(tmp_path / "log")!r}))
    await asyncio.sleep(600)
asyncio.run(main())
"""
    kubelet = await asyncio.create_subprocess_exec(PYTHON, "-c", program)
    daemon, monitor = await pids_of(tmp_path / "pids")
    kubelet.kill()
    await kubelet.wait()
    await until(lambda: not alive(daemon) and not alive(monitor))


async def test_a_runtime_waits_for_containers_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes may have a device. Here the shim is stopped, so that nothing ends them."""
    program = f"""
import asyncio, os, pathlib, sys
from trainmaster_local.kubelet.containers.runtime import ContainerConfig, ProcessRuntime
async def main():
    runtime = ProcessRuntime()
    runtime.hold(pathlib.Path({str(tmp_path / "lock")!r}))
    argv = [sys.executable, "-c", {DAEMON!r}, {str(tmp_path / "pids")!r}, "600"]
    await runtime.start(ContainerConfig(argv, dict(os.environ), {str(tmp_path)!r}, log={str(tmp_path / "log")!r}))
    pathlib.Path({str(tmp_path / "shim")!r}).write_text(str(runtime._shim.pid) + "\\n")
    await asyncio.sleep(600)
asyncio.run(main())
"""
    kubelet = await asyncio.create_subprocess_exec(PYTHON, "-c", program)
    daemon, _ = await pids_of(tmp_path / "pids")
    await until(lambda: _written(tmp_path / "shim"))
    shim = int((tmp_path / "shim").read_text())
    os.kill(shim, signal.SIGSTOP)
    kubelet.kill()
    await kubelet.wait()
    successor = ProcessRuntime()
    try:
        monkeypatch.setattr("trainmaster_local.kubelet.containers.runtime.LEFT_SECONDS", 0.2)
        with pytest.raises(OSError, match="containers of an earlier cluster still run after 0 s; end them first"):
            successor.hold(tmp_path / "lock")
        assert alive(daemon)
    finally:
        os.kill(shim, signal.SIGCONT)
    monkeypatch.undo()
    await asyncio.to_thread(successor.hold, tmp_path / "lock")
    assert not alive(daemon)
    await successor.close()


async def test_a_killed_monitor_loses_nothing(runtime: ProcessRuntime, tmp_path: Path) -> None:
    container = await runtime.start(config(tmp_path, PYTHON, "-c", DAEMON, str(tmp_path / "pids"), "600"))
    daemon, monitor = await pids_of(tmp_path / "pids")
    os.kill(monitor, signal.SIGKILL)
    assert (await asyncio.wait_for(container.exited, 10)).code == 137
    await until(lambda: not alive(daemon))


async def test_a_killed_shim_is_replaced(runtime: ProcessRuntime, tmp_path: Path) -> None:
    container = await runtime.start(config(tmp_path, "sleep", "600"))
    assert runtime._shim is not None
    runtime._shim.kill()
    assert (await asyncio.wait_for(container.exited, 10)).code == 137
    assert (await run(runtime, config(tmp_path, "true"))).code == 0


async def text_of(path: Path, options: LogOptions) -> str:
    return b"".join([chunk async for chunk in read_logs(path, options, lambda: False)]).decode()


async def test_logs_are_read_back_as_kubectl_asks(runtime: ProcessRuntime, tmp_path: Path) -> None:
    script = (
        "import sys\nfor i in range(1000): print('line', i)\nprint('to stderr', file=sys.stderr)\nprint('end', end='')"
    )
    await run(runtime, config(tmp_path, PYTHON, "-u", "-c", script))
    log = tmp_path / "log"
    lines = (await text_of(log, LogOptions())).splitlines()
    assert len(lines) == 1002
    assert (await text_of(log, LogOptions(stream="stderr"))) == "to stderr\n"
    assert (await text_of(log, LogOptions(tail=2))).split() == ["to", "stderr", "end"]
    assert await text_of(log, LogOptions(tail=0)) == ""
    assert await text_of(log, LogOptions(limit_bytes=6)) == "line 0"
    assert await text_of(log, LogOptions(since=time.time() + 5)) == ""
    stamped = await text_of(log, LogOptions(timestamps=True, tail=1))
    assert stamped[:2] == "20" and stamped.endswith("Z end")
    assert last_lines(log).startswith("line ") and last_lines(log).endswith("end")
    assert len(last_lines(log).splitlines()) == 80


async def test_long_lines_are_split_and_joined_again(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await run(runtime, config(tmp_path, PYTHON, "-c", "print('x' * 50000)"))
    assert (tmp_path / "log").read_text().count(" P ") == 3
    assert await text_of(tmp_path / "log", LogOptions()) == "x" * 50000 + "\n"
    stamped = await text_of(tmp_path / "log", LogOptions(timestamps=True))
    assert stamped.partition(" ")[2] == "x" * 50000 + "\n", "only a line's first part has a timestamp"


async def test_a_followed_log_ends_with_its_container(runtime: ProcessRuntime, tmp_path: Path) -> None:
    container = await runtime.start(
        config(tmp_path, PYTHON, "-u", "-c", "import time\nfor i in range(3): print(i); time.sleep(0.1)")
    )
    chunks = [
        chunk
        async for chunk in read_logs(tmp_path / "log", LogOptions(follow=True), lambda: not container.exited.done())
    ]
    assert b"".join(chunks) == b"0\n1\n2\n"


def test_a_query_s_numbers_are_checked() -> None:
    assert LogOptions.from_query({"tailLines": "5", "follow": "true"}, 0.0) == LogOptions(follow=True, tail=5)
    with pytest.raises(ValueError, match="tailLines: Invalid value: -1"):
        LogOptions.from_query({"tailLines": "-1"}, 0.0)
    assert json.dumps(LogOptions.from_query({"sinceSeconds": "10"}, 100.0).since) == "90.0"
