"""A rank's end is classified by its exit code and last lines (those of torch's C++ code are from torch 2.13)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster_operator.agent.planner import classification
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.process.state_folder import read_error_file
from trainmaster_operator.wire.report import Report

STARTING = Report(3, 1, "uid", "Starting")


# A communication hook of DDP lost its peer, and pybind11 adds the Python frames.
LOST = (
    "RuntimeError: Got the following error when running the callback: RuntimeError: [/third_party/gloo/gloo/transport/"
    "tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26023. This is typically caused by a remote worker."
)
HOOK = (
    LOST
    + "\n\nAt:\n"
    + "  /site-packages/trainloop/compression.py(53): received\n"
    + "  /site-packages/torch/autograd/graph.py(979): _engine_run_backward\n" * 40
    + "  <frozen runpy>(88): _run_code\n  <frozen runpy>(198): _run_module_as_main\n"
)
STORE = (
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer"
)
CXX = (
    STORE
    + "\nException raised from recvBytes at /torch/csrc/distributed/c10d/Utils.hpp:697 (most recent call first):\n"
    + "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x98 (0x7f11 in /torch/lib/libc10.so)\n" * 30
    + "frame #31: clone + 0x44 (0x7f12 in /lib/x86_64-linux-gnu/libc.so.6)\n"
)


@pytest.mark.parametrize(("text", "said"), [(HOOK, LOST), (CXX, STORE)])
def test_a_broken_connection_is_seen_above_the_frames_of_torchs_own_parts(text: str, said: str, tmp_path: Path) -> None:
    printed = "".join(f"[rank1]: {line}\n" for line in text.splitlines())
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": text, "extraInfo": {"py_callstack": f"Traceback\n{text}"}}}))
    for error in (classification.conclusion(text), classification.conclusion(printed), read_error_file(str(file))):
        assert error.splitlines()[-1].endswith(said)
        assert not classification.classify(Report(1, 1, "uid", "Starting"), Ending(1), 1, error, 0).culprit


def test_an_error_that_only_looks_like_such_frames_stays_whole() -> None:
    for text in ("At:\nnoon", "ValueError: At:\n  train.py(3): x", "Exception raised from main", "  f.py(1): x"):
        assert classification.conclusion(text) == text


def test_what_follows_the_frames_is_kept() -> None:
    assert classification.conclusion(CXX + "ValueError: another") == STORE + "\nValueError: another"


# torch prints these sentences after an error of the device, in this order (c10/cuda/CUDAException.cpp; torch 2.11 to
# 2.15 together, and a build for ROCm).
ADVICE = """
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
For more detailed error information, run with CUDA_LOG_FILE=stderr
Device-side assertion tracking was not enabled by user.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing AMD_SERIALIZE_KERNEL=3
Compile with `TORCH_USE_HIP_DSA` to enable device-side assertions.

"""
ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered"
ORDINAL = (
    "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs?"
)
NCCL = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
SYSTEM = f"{NCCL}unhandled system error\nncclSystemError: System call … failed or device error. \nLast error:\n"
KERNEL = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [0,0,0], thread: [{},0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed."
)


@pytest.mark.parametrize("said", [ASSERTED, ORDINAL])
def test_torchs_advice_does_not_push_out_what_happened(said: str, tmp_path: Path) -> None:
    text = f"Traceback (most recent call last):\n  File train.py\n{said}{ADVICE}"
    printed = "".join(f"[rank1]: {line}\n" for line in text.splitlines())
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": said + ADVICE, "extraInfo": {"py_callstack": text}}}))
    for error in (classification.conclusion(text), classification.conclusion(printed), read_error_file(str(file))):
        assert error.endswith(said.splitlines()[-1])
        assert not any(word in error for word in ("asynchronously", "Search for", "Compile", "consider", "tracking"))
        assert said.splitlines()[0] in error


def test_the_line_of_the_kernel_whose_assertion_failed_stands_before_the_exception() -> None:
    printed = "step 30\n" + "".join(KERNEL.format(number) + "\n" for number in range(90)) + "Traceback\n"
    error = f"Traceback\n  File train.py\n{ASSERTED}"
    found = classification.with_assertion(error, lambda: printed)
    assert found.splitlines() == ["Traceback", "  File train.py", KERNEL.format(89), ASSERTED]
    assert classification.with_assertion(found, lambda: "") == found
    assert classification.with_assertion(error, lambda: "step 30") == error
    assert classification.with_assertion("ValueError: x", lambda: printed) == "ValueError: x"


def test_an_error_that_is_followed_by_a_lost_connection_is_the_cause() -> None:
    head = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in step\n    x\n'
    joint = "\nDuring handling of the above exception, another exception occurred:\n\n"
    own, lost = f"{head}ValueError: bad", f"{head}RuntimeError: Connection closed by peer"
    found = classification.classify(STARTING, Ending(1), 5, f"{own}\n{joint}{lost}", 0)
    assert (found.culprit, found.error) == (True, own)
    assert not classification.classify(STARTING, Ending(1), 5, f"{lost}\n{joint}{own}", 0).culprit
    caused = f"{own}\n{joint}{head}KeyError: 1"
    assert classification.classify(STARTING, Ending(1), 5, caused, 0).error == caused


def test_what_cxx_said_before_it_aborted_is_the_end_of_the_error() -> None:
    """NCCL's watchdog is the first to see a kernel's error, and ends the process."""
    what = "  what():  [Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side assert"
    stack = "Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n  File x.py, line 3 in y\n"
    report = classification.classify(STARTING, Ending(134, 6), 5, f"terminate called\n{what}\n\n{stack}", 0)
    assert (report.reason, report.culprit) == ("Signal", True)
    assert report.error.splitlines()[-3:] == ["terminate called", what, "killed by SIGABRT"]
    assert "line 3 in y" in report.error


@pytest.mark.parametrize(
    ("error", "culprit"),
    [
        (f"{NCCL}invalid usage\nncclInvalidUsage: This …\nLast error:\nDuplicate GPU detected : rank 1 and", True),
        (f"{NCCL}invalid argument\nncclInvalidArgument: Invalid …\nLast error:\nBroadcast : root 7", True),
        (f"{NCCL}unhandled cuda error\nncclUnhandledCudaError: …\nLast error:\nCuda failure 'out of memory'", True),
        (f"{SYSTEM}Error while creating shared memory segment /dev/shm/nccl-NAqyGP (size 33030528)", True),
        (f"{SYSTEM}socketPollConnect: Connect to 10.1.2.3<43027> returned …", False),
        (f"{SYSTEM}socketProgress: Connection closed by remote peer", False),
        (f"{NCCL}remote process exited or there was a network error\nncclRemoteError: A call failed …", False),
        ("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.", False),
        (f"what(): Process group watchdog thread terminated with exception: {ASSERTED}", True),
        (ASSERTED, True),
        (STORE, False),
    ],
)  # fmt: skip
def test_an_error_of_nccl_is_the_ranks_own_unless_it_speaks_of_a_peer(error: str, culprit: bool) -> None:
    assert classification.classify(STARTING, Ending(1), 5, error, 0).culprit is culprit
    assert classification.classify(STARTING, Ending(134, 6), 5, error, 0).culprit is culprit


@pytest.mark.parametrize(
    ("ending", "error", "oom_kills", "reason", "culprit"),
    [
        (Ending(1), "ValueError: x", 0, "Error", True),
        (Ending(1), "RuntimeError: Connection closed by peer [10.0.0.1]:4321", 0, "Error", False),
        (Ending(1), "torch.distributed.DistBackendError: NCCL error ... remote process exited", 0, "Error", False),
        (Ending(1), "warning: Connection refused, trying again\n" + "step\n" * 20 + "ValueError", 0, "Error", True),
        (Ending(137, 9), "", 0, "Signal", True),
        (Ending(137, 9), "", 1, "OOMKilled", True),
        (Ending(139, 11), "Connection reset by peer", 0, "Signal", True),
        (Ending(134, 6), "Watchdog caught collective operation timeout", 0, "Signal", False),
        (Ending(134, 6), "free(): invalid pointer", 0, "Signal", True),
        (
            Ending(134, 6),
            "Watchdog caught collective operation timeout\nFatal Python error: Aborted\n" + "  File x\n" * 9,
            0,
            "Signal",
            False,
        ),
        (
            Ending(1),
            "The client socket has timed out after 60s while trying to connect to (job-0, 29500).",
            0,
            "MasterUnreachable",
            False,
        ),
        (Ending(70), "  File x\ntrainloop.errors.Diverged: loss\nDiverged: loss is nan", 0, "Diverged", True),
        (Ending(2), "trainloop.errors.ConfigError: batch is missing: it is required", 0, "Usage", True),
        (Ending(2), "usage: train.py [-h]", 0, "Error", True),
        (Ending(70), "KeyError: 'Diverged'", 0, "Error", True),
        (Ending(1), "Diverged: loss is nan", 0, "Error", True),
        (Ending(67), "PreflightMismatch: torch differs", 0, "PreflightMismatch", True),
    ],
)
def test_a_failure_is_judged_by_its_end(ending: Ending, error: str, oom_kills: int, reason: str, culprit: bool) -> None:
    report = classification.classify(STARTING, ending, 5, error, oom_kills)
    assert (report.state, report.reason, report.culprit, report.rank) == ("Failed", reason, culprit, 5)
    assert report.error


def test_of_two_ranks_the_end_that_says_more_is_kept() -> None:
    broken = classification.classify(STARTING, Ending(1), 0, "Broken pipe", 0)
    error = classification.classify(STARTING, Ending(1), 1, "ValueError", 0)
    killed = classification.classify(STARTING, Ending(137, 9), 2, "", 0)
    assert classification.is_superseded(broken, error)
    assert classification.is_superseded(error, killed)
    assert not classification.is_superseded(killed, error)
    assert not classification.is_superseded(broken, broken), "the first one stays"
