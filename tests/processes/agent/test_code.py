"""A real agent runs only the code of its archive, or reports why it can't, whatever the volume and the disk do."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.process.test_code import archive
from trainmaster_operator.wire.limits import MAX_CODE_BYTES, MAX_UNPACKED_CODE_BYTES
from trainmaster_operator.wire.names import CODE_ARCHIVE

from .agents import AGENT, Agent, Job, Stream, until
from .warm.both_ways import stand_in, starts

SOURCE = "the ConfigMap mine-code"
# No test should wait a minute for something that never comes.
IMPATIENT = [
    sys.executable,
    "-c",
    "import sys; from trainmaster_operator.agent.process import code; code.WAIT_SECONDS = 1.0; "
    "from trainmaster_operator.agent.main import main; sys.exit(main())",
]
# A rank reports which code it runs and stays, or ends where a test wants it to.
TRAIN = b"""
import os, pathlib, sys, time
from lib.version import VERSION
with open(sys.argv[1] + "/ran", "a") as file:
    file.write(f"{os.environ['TRAINMASTER_ATTEMPT']} {VERSION} {os.getcwd()}\\n")
pathlib.Path("notes").write_text("kept")
while "stay" in sys.argv:
    time.sleep(0.02)
"""


def code(version: str, **more: bytes) -> bytes:
    """Return the archive of a version of the training code."""
    files = {"train.py": TRAIN, "lib/__init__.py": b"", "lib/version.py": f"VERSION = {version!r}\n".encode(), **more}
    return archive(*files.items())


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


class Pod:
    """Holds an agent and the volume of its code."""

    def __init__(self, job: Job, **environ: str) -> None:
        self.job, self.volume = job, job.folder / "volume"
        self.volume.mkdir()
        settings = {"TRAINMASTER_CODE_DIR": str(self.volume), "TRAINMASTER_CODE_SOURCE": SOURCE}
        self.agent = job.agent(0, **settings, **environ)
        self.folder = self.agent.state_dir / "code"

    def bring(self, data: bytes, name: str = CODE_ARCHIVE) -> None:
        """Put an archive onto the volume as the kubelet does: with a new folder, and a link that is swapped."""
        version = self.volume / f"..{time.monotonic_ns()}"
        version.mkdir()
        (version / name).write_bytes(data)
        link = self.volume / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.volume / "..data")
        if not (self.volume / name).is_symlink():
            (self.volume / name).symlink_to(f"..data/{name}")

    def start(self, *words: str, agent: Sequence[str] = AGENT) -> Agent:
        return self.agent.start(sys.executable, "train.py", str(self.job.folder), *words, agent=agent)

    def order(self, data: bytes, attempt: int = 1) -> None:
        """Let the operator sign an attempt with the code of this archive."""
        self.job.annotate(self.job.assignment(attempt, code=digest(data)))

    def ran(self) -> list[str]:
        """Return the attempts that ranks ran, each with the version of its code."""
        return [" ".join(line.split()[:2]) for line in self.agent.lines("ran")]

    def until_ran(self, *attempts: str) -> None:
        until(lambda: self.ran() == list(attempts), what=f"{attempts}; it ran {self.ran()}, {self.agent.output()}")

    def until_searching(self) -> None:
        """Wait until the agent's thread looks for an archive; the agent has no other thread then."""
        assert self.agent.process is not None
        tasks = Path(f"/proc/{self.agent.process.pid}/task")
        until(
            lambda: len(list(tasks.iterdir())) == 2, what=f"a search for code; the agent printed {self.agent.output()}"
        )

    def until_finished(self) -> None:
        self.agent.until_state("Finished")

    def refusal(self) -> str:
        """Return why the attempt couldn't be launched; no rank has run."""
        report = self.agent.until_state("Failed")
        assert (report["reason"], report["exitCode"], self.ran()) == ("LaunchError", 65, [])
        return str(report["error"])


@pytest.fixture
def pod(job: Job) -> Pod:
    return Pod(job)


def test_ranks_and_the_setup_line_run_in_the_folder_of_the_code(job: Job) -> None:
    data = code("one", **{"prepare.sh": b'echo "setup in $PWD"; export PREPARED=yes\n'})
    pod = Pod(job, TRAINMASTER_SETUP=". ./prepare.sh")
    pod.bring(data)
    pod.start()
    pod.order(data)
    pod.until_finished()
    assert pod.agent.lines("ran") == [f"1 one {pod.folder}"]
    assert f"[setup]: setup in {pod.folder}" in pod.agent.output()


@pytest.mark.parametrize("before", [None, code("stale"), b"half a file"], ids=["nothing", "older-code", "garbage"])
def test_ranks_wait_for_the_archive_that_the_operator_has_signed(pod: Pod, before: bytes | None) -> None:
    """The kubelet takes up to a minute to bring a changed ConfigMap into the pod."""
    data = code("one")
    if before is not None:
        pod.bring(before)
    agent = pod.start()
    pod.order(data)
    pod.until_searching()
    assert agent.report().get("state") != "Running"
    pod.bring(data)
    pod.until_finished()
    assert pod.ran() == ["1 one"]


def test_the_archive_that_is_called_by_its_digest_is_preferred(pod: Pod) -> None:
    """A claim contains several archives, and a ConfigMap contains the previous one beside the new one."""
    data = code("one")
    pod.bring(code("two"))
    (pod.volume / f"{digest(data)}.tar.gz").write_bytes(data)
    pod.start()
    pod.order(data)
    pod.until_finished()
    assert pod.ran() == ["1 one"]


@pytest.mark.parametrize("present", [None, code("stale")], ids=["nothing", "older-code"])
def test_an_archive_that_never_comes_fails_the_attempt(pod: Pod, present: bytes | None) -> None:
    data = code("one")
    if present is not None:
        pod.bring(present)
    pod.start(agent=IMPATIENT)
    pod.order(data)
    assert pod.refusal() == (
        f"{SOURCE} doesn't have the code {digest(data)[:12]} that spec.code.digest names, after 1 s; push the code "
        "again (kubectl dtj push)"
    )


def test_the_container_of_an_attempt_without_its_code_ends_with_the_sentence(pod: Pod) -> None:
    """Without an operator, the kubelet brings the sentence to the API server."""
    pod.bring(b"no archive")
    pod.start()
    pod.order(b"no archive")
    assert pod.agent.exit_code() == 65
    assert pod.agent.termination()["error"].startswith(f"the code of {SOURCE} can't be unpacked: it is no archive")


def test_a_pod_without_a_volume_of_code_says_so(job: Job) -> None:
    agent = job.agent(0).start("true")
    job.annotate(job.assignment(1, code=digest(b"")))
    assert agent.until_state("Failed")["error"] == (
        "this pod mounts no code (TRAINMASTER_CODE_DIR is not set); delete it, so that it is recreated"
    )


def deep() -> bytes:
    """Return an archive whose first member has thousands of names, which tarfile reads recursively."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 5
    return archive_of(header.tobuf(tarfile.GNU_FORMAT) + b"name\0".ljust(512, b"\0"), times=3_000)


def archive_of(block: bytes, times: int) -> bytes:
    import gzip

    return gzip.compress(block * times)


def unfinished(size: int) -> bytes:
    """Return an archive whose only member claims a size, but has no data."""
    header = tarfile.TarInfo("weights.bin")
    header.size = size
    return archive_of(header.tobuf(), times=1)


OUT = {"type": tarfile.SYMTYPE, "linkname": "../../outside"}
REFUSED: dict[str, tuple[bytes, str]] = {
    "a text": (b"no archive", "it is no archive (tar, gzip): Not a gzipped file (b'no')"),
    "half an archive": (
        code("one", noise=os.urandom(9_000))[:5_000],
        "it is no archive (tar, gzip): Compressed file ended before the end-of-stream marker was reached",
    ),
    "an absolute path": (archive(("/tmp/x", b"x")), "'/tmp/x' is no path inside the folder"),
    "a way up": (archive(("lib/../../x", b"x")), "'lib/../../x' is no path inside the folder"),
    "a link out": (archive(("out", OUT)), "'out' is a link out of the folder, to '../../outside'"),
    "a device": (
        archive(("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})),
        "'null' is neither a file nor a folder nor a link",
    ),
    "a bomb": (unfinished(MAX_UNPACKED_CODE_BYTES + 1), "its files have more than 512 MiB"),
    "endless names": (deep(), "RecursionError: maximum recursion depth exceeded"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_archive_that_is_refused_fails_the_attempt_with_its_sentence(pod: Pod, what: str) -> None:
    data, sentence = REFUSED[what]
    pod.bring(data)
    pod.start()
    pod.order(data)
    assert pod.refusal().startswith(f"the code of {SOURCE} can't be unpacked: {sentence}")
    assert list(pod.folder.iterdir()) == [] and not pod.folder.with_name("code.new").exists()


def test_an_archive_that_is_too_large_is_named(pod: Pod) -> None:
    # A hole, which takes no space on the disk.
    with (pod.volume / CODE_ARCHIVE).open("wb") as file:
        file.truncate(MAX_CODE_BYTES + 1)
    pod.start(agent=IMPATIENT)
    pod.order(b"")
    assert f": {pod.volume}/code.tar.gz has more than 64 MiB; check the volume" in pod.refusal()


def test_an_archive_that_cannot_be_read_is_named_with_the_reason(pod: Pod) -> None:
    (pod.volume / CODE_ARCHIVE).mkdir()
    pod.start(agent=IMPATIENT)
    pod.order(b"")
    assert pod.refusal() == (
        f"the code {digest(b'')[:12]} of {SOURCE} can't be read, after 1 s: {pod.volume}/code.tar.gz: Is a "
        "directory; check the volume"
    )


def test_a_file_server_that_hangs_fails_the_attempt(pod: Pod) -> None:
    # Opening a pipe without a writer takes forever, as does opening a file whose server is gone.
    os.mkfifo(pod.volume / CODE_ARCHIVE)
    pod.start(agent=IMPATIENT)
    pod.order(b"")
    assert f": nothing comes from {pod.volume}/code.tar.gz; check the volume" in pod.refusal()


def test_an_agent_whose_file_server_hangs_answers_and_ends_when_it_is_to(pod: Pod) -> None:
    os.mkfifo(pod.volume / CODE_ARCHIVE)
    agent = pod.start()
    pod.order(b"")
    pod.until_searching()
    assert agent.request("GET", "/healthz", token=None) == (200, "ok")
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
    assert agent.exit_code(5) == 143


def test_a_disk_that_is_full_fails_the_attempt_and_has_room_for_the_next_code(pod: Pod) -> None:
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    small = f'mount -t tmpfs -o size=512k none "{pod.agent.state_dir}" && exec "$@"'
    within = ["unshare", *users, "--mount", "--propagation", "private", "sh", "-c", small, "sh", *AGENT]
    large, fits = code("large", noise=os.urandom(900_000)), code("fits")
    pod.bring(large)
    agent = pod.start("stay", agent=within)
    agent.until_healthy()
    # While an operator watches, a failed attempt doesn't end the container.
    operator = Stream(agent)
    pod.order(large)
    report = operator.until_report("Failed")["report"]
    assert (report["reason"], pod.ran()) == ("LaunchError", [])
    assert report["error"] == f"cannot unpack the code into {pod.folder}: No space left on device"
    pod.bring(fits)
    pod.order(fits, attempt=2)
    pod.until_ran("2 fits")
    operator.close()


def test_a_folder_that_cannot_be_written_fails_the_attempt(pod: Pod) -> None:
    # Root may write anywhere, but a pod's user isn't root.
    powerless = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    data = code("one")
    pod.bring(data)
    pod.folder.mkdir()
    pod.folder.chmod(0o555)
    pod.start(agent=[*powerless, *AGENT])
    pod.order(data)
    try:
        assert pod.refusal() == f"cannot unpack the code into {pod.folder}: Permission denied"
    finally:
        pod.folder.chmod(0o755)


def test_new_code_runs_in_the_same_agent_and_what_was_of_the_old_one_goes(pod: Pod) -> None:
    agent = pod.start("stay")
    ran = []
    for attempt, version in enumerate(("one", "two", "three"), 1):
        data = code(version, **{f"{version}.py": b""})
        pod.bring(data)
        pod.order(data, attempt)
        ran.append(f"{attempt} {version}")
        pod.until_ran(*ran)
    until((pod.folder / "notes").exists)
    assert agent.process is not None and agent.process.poll() is None
    assert sorted(path.name for path in pod.folder.iterdir()) == ["lib", "notes", "three.py", "train.py"]
    # There is one folder of code, and the archives aren't kept.
    assert {path.name for path in agent.state_dir.iterdir() if path.name.startswith("code")} == {"code", "code.json"}
    assert len({line.split()[2] for line in agent.lines("ran")}) == 1


def test_the_code_before_runs_again_after_new_code_was_refused(pod: Pod) -> None:
    good, broken = code("one"), b"no archive"
    pod.bring(good)
    agent = pod.start("stay")
    agent.until_healthy()
    operator = Stream(agent)
    pod.order(good)
    pod.until_ran("1 one")
    pod.bring(broken)
    pod.order(broken, attempt=2)
    operator.until_report("Failed", 2)
    # Its archive is gone, and isn't needed: the folder contains its files.
    pod.order(good, attempt=3)
    pod.until_ran("1 one", "3 one")
    operator.close()


def test_new_code_runs_in_warm_ranks(job: Job) -> None:
    settings: dict[str, Any] = {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": "true"}
    pod = Pod(job, PYTHONPATH=stand_in(job), **settings)
    pod.start("stay")
    ran = []
    # Both versions have the same size, so only their times differ.
    for attempt, version in enumerate(("one", "two"), 1):
        data = code(version)
        pod.bring(data)
        pod.order(data, attempt)
        ran.append(f"{attempt} {version}")
        pod.until_ran(*ran)
    until(lambda: len(starts(pod.agent)) == 2, what=pod.agent.output())
    assert starts(pod.agent) == ["attempt 1 starts warm", "attempt 2 starts warm"]
