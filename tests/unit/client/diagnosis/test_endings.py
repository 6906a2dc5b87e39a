"""The end of a log is explained in plain words; an unknown ending is shown unchanged."""

from __future__ import annotations

import pytest

from trainmaster.client.diagnosis.endings import read_ending


@pytest.mark.parametrize(
    ("log", "cause", "says"),
    [
        ("ModuleNotFoundError: No module named 'flash_attn'", "ModuleNotFound", "flash_attn"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'", "FileNotFound", "/data/a.bin"),
        ("python3: can't open file '/work/trian.py': [Errno 2] No such file or directory", "FileNotFound", "trian.py"),
        ("OSError: [Errno 98] Address already in use", "PortInUse", "in use"),
        ("RuntimeError: CUDA error: out of memory", "CudaOutOfMemory", "GPU memory"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "NoGpu", "no GPU"),
        ("RuntimeError: CUDA error: invalid device ordinal", "NoGpu", "number"),
        ("RuntimeError: CUDA error: device-side assert triggered", "ProgramError", "device-side assert"),
        ("torch.AcceleratorError: HIP error: out of memory", "CudaOutOfMemory", "GPU memory"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "IllegalMemoryAccess", "illegal"),
        ("x.hip:7: Device-side assertion `i < n' failed.\nHIP error: device-side assert …", "ProgramError", "i < n"),
        ("RuntimeError: No HIP GPUs are available", "NoGpu", "no GPU"),
        ("OSError: [Errno 30] Read-only file system: '/checkpoints'", "PermissionDenied", "read-only"),
        ("ImportError: cannot import name 'AdamW' from 'transformers'", "ImportError", "AdamW"),
        ("FileNotFoundError: Checkpoint file not found: /ckpt/last.ckpt", "FileNotFound", "find /ckpt/last.ckpt"),
        ("FileNotFoundError: Directory /a is no dataset", "ProgramError", "Directory /a is no dataset"),
        ("RuntimeError: \n    Some tensors share memory.\n    Use save_model.", "ProgramError", ": Some tensors"),
        ("Error while creating shared memory segment /dev/shm/nccl-b (size 9)", "SharedMemory", "/dev/shm"),
        ("[F] Terminating, due to ProcessGroupNCCL watchdog hang.", "NcclTimeout", "another rank"),
        ("KeyError: 'labels'", "ProgramError", "KeyError: 'labels'"),
        ("[rank3]: ValueError: batch size 3 is no multiple of 2", "ProgramError", "batch size 3"),
        ("mymodule.errors.DataError: no samples\n", "ProgramError", "no samples"),
        ("symbol lookup error: /a/libnccl.so.2: undefined symbol: x", "PackagesDiffer", "/a/libnccl.so.2"),
        ("ncclInternalError: x.\nLast error:\nNet : Connection closed by remote peer a-1<5026>", "PeerLost", "(a-1)"),
        ("NET/IB: Got completion from peer 10.0.0.1<3> with status=12 opcode=0", "NcclInfiniband", "(status=12)"),
        ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss explodes.", "NotFinite", "(0.0001)"),
        ("Exception: You requested GPUs: [6, 7]\n But your machine only has: [0]", "NoGpu", "[6, 7], and"),
        ("HTTPConnectionPool(host='a', port=5000): Max retries exceeded", "HostUnreachable", "a (port 5000)"),
    ],
)  # fmt: skip
def test_an_ending_is_named(log: str, cause: str, says: str) -> None:
    ending = read_ending(f"Traceback (most recent call last):\n{log}")
    assert ending is not None
    assert (ending.cause, says in ending.clause) == (cause, True), ending.clause


def test_the_specific_comes_before_the_general() -> None:
    both = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nNCCL error in: x.cpp, unhandled error"
    ending = read_ending(both)
    assert ending is not None and ending.cause == "CudaOutOfMemory"


@pytest.mark.parametrize("log", ["", "step 3 loss 1.2\n", "Done: all is saved", "{" * 1000])
def test_a_log_without_an_error_has_no_ending(log: str) -> None:
    assert read_ending(log) is None
