"""Translates a failed program's last lines, as Python, torch, NCCL and Hugging Face print them, into plain sentences.

Specific patterns come before general ones, because the last lines of a failed rank often match several, such as the
cause and an NCCL error below it. If no pattern matches, the exception's own line is shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """Ending explains the end of a log: `cause` is a word for programs, and `clause` follows a subject ("rank 3")."""

    cause: str
    clause: str
    remedy: str
    line: str
    """The log's line that shows the error."""
    about: str = ""
    """The file, module or amount that the line names; empty if the line names nothing."""


# Each entry is a pattern, the cause, the clause ({0} and {1} are the pattern's groups) and the remedy.
_ENDINGS: tuple[tuple[str, str, str, str], ...] = (
    (r"(?:CUDA|HIP|NPU|XPU) out of memory\. Tried to allocate ([\d.]+ \w+)", "CudaOutOfMemory",
     "has no GPU memory left for {0} more",
     "use a smaller batch, gradient accumulation, activation checkpointing, or shard the model (FSDP)"),
    (r"(?:CUDA|HIP|NPU|XPU) out of memory|CUBLAS_STATUS_ALLOC_FAILED|(?:CUDA|HIP) error: out of memory|"
     r"Cuda failure (?:\d+ )?'out of memory'", "CudaOutOfMemory", "ran out of GPU memory",
     "use a smaller batch, gradient accumulation, activation checkpointing, or shard the model (FSDP)"),
    (r"DataLoader worker \(pid[^)]*\) is killed by signal: Bus error|out of shared memory|"
     r"No space left on device[^\n]*/dev/shm|/dev/shm[^\n]*No space left on device", "SharedMemory",
     "found /dev/shm too small for the data loader or for NCCL",
     "set spec.resources.sharedMemory, such as 16Gi, or use fewer data loader workers"),
    (r"DataLoader worker \(pid[^)]*\) is killed by signal: Killed", "OutOfMemory",
     "lost a data loader's worker, which was killed for memory",
     "raise spec.resources.memory, or use fewer data loader workers"),
    (r"ModuleNotFoundError: No module named '([^'\n]+)'", "ModuleNotFound",
     "doesn't find the Python module {0} in the image", "install it in the image, or correct the import"),
    (r"(?:ImportError|OSError): (lib[\w.+-]+): cannot open shared object file", "LibraryMissing",
     "doesn't find the library {0} in its container",
     "if it is libcuda, ask for GPUs (spec.resources.gpus) and check the node's NVIDIA runtime; else "
     "install it in the image"),
    (r"ImportError: (.+)", "ImportError", "couldn't import what it needs: {0}",
     "check that the packages in the image fit each other"),
    (r"(?:NVIDIA driver on your system is too old \(found version (\d+)\))|"
     r"CUDA driver version is insufficient for CUDA runtime version", "DriverTooOld",
     "needs a newer NVIDIA driver than its node has",
     "choose an image with an older CUDA, or nodes with a newer driver"),
    (r"Found no NVIDIA driver|No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device is detected", "NoGpu",
     "sees no GPU in its container",
     "ask for GPUs in spec.resources.gpus, and check CUDA_VISIBLE_DEVICES and the node's device plugin"),
    (r"invalid device ordinal", "NoGpu", "uses a GPU number that its container doesn't have",
     "let spec.processesPerWorker be the number of GPUs, and use LOCAL_RANK for the device"),
    (r"Access to (?:model|dataset) (\S+) is restricted|"
     r"Cannot access gated repo for url https?://[^/]+/([\w.-]+/[\w.-]+)", "HubRefused",
     "has no access to the Hugging Face repository {0}, which is gated",
     "accept the licence on the hub, and give the job a token: HF_TOKEN from a Secret (docs/pods.md)"),
    (r"RepositoryNotFoundError|([\w.-]+/[\w.-]+) is not a local folder and is not a valid model identifier",
     "HubRefused", "doesn't find the Hugging Face repository {0}, or needs a token for it",
     "check its name, and give the job a token: HF_TOKEN from a Secret (docs/pods.md)"),
    (r"host='huggingface\.co'[^\n]*url: /(?:api/models/)?([\w.-]+(?:/[\w.-]+)?)/(?:resolve|tree|revision)",
     "HubUnreachable", "can't reach huggingface.co to load {0}",
     "put the files on a volume and load them from there with HF_HUB_OFFLINE=1, or let pods out "
     "(proxy, NetworkPolicy)"),
    (r"We couldn't connect to '(?:https?://)?([^']+)'|LocalEntryNotFoundError|OfflineModeIsEnabled", "HubUnreachable",
     "can't reach the Hugging Face hub, and the files aren't in its cache",
     "put the files on a volume and load them from there, or let pods out (proxy, NetworkPolicy)"),
    (r"Errno 13\] Permission denied: '([^'\n]+)'", "PermissionDenied", "may not write or read {0}",
     "let the volume belong to the pod's group: podTemplate: {{spec: {{securityContext: {{fsGroup: 1000}}}}}}"),
    (r"Errno 30\] Read-only file system: '([^'\n]+)'", "PermissionDenied",
     "can't write {0}: the file system is read-only", "write to a volume, such as spec.checkpoint.path"),
    (r"No space left on device: '([^'\n]+)'", "DiskFull", "finds no space left for {0}",
     "make the volume larger, or keep fewer checkpoints"),
    (r"No space left on device|Disk quota exceeded", "DiskFull", "finds no space left on a disk that it writes to",
     "make the volume larger, or keep fewer checkpoints"),
    (r"FileNotFoundError: (?:\[Errno 2\] No such file or directory: )?'?([^'\n]+?)'?$|can't open file '([^']+)'",
     "FileNotFound", "doesn't find {0}",
     "check the path, and that the volume with it is mounted in the workers (docs/pods.md)"),
    (r"Errno 98\] Address already in use|EADDRINUSE|address already in use", "PortInUse",
     "can't listen on its port: the address is in use already",
     "use the job's MASTER_PORT and no fixed port, or end what a former run left behind"),
    (r"Connect to ([\w.:]+(?:<\d+>)?) failed : ([^\n]+)", "NcclNetwork", "can't connect to {0} by NCCL: {1}",
     "name the interface (interconnect: {{interface: eth0}}), and open all ports between the pods "
     "(docs/operating.md)"),
    (r"no socket interface found|No route to host|Network is unreachable", "NcclNetwork",
     "doesn't reach the other workers over the network",
     "name the interface (interconnect: {{interface: eth0}}), and open all ports between the pods "
     "(docs/operating.md)"),
    (r"Call to (ibv_\w+) failed(?: with error)? ?([^\n]*)|ibv_\w+ .*failed", "NcclInfiniband",
     "lost InfiniBand (RDMA), in {0}: {1}",
     "check spec.interconnect.rdma and the locked-memory limit, or go without: NCCL_IB_DISABLE=1 in podTemplate"),
    (r"OpType=(\w+),.*?Timeout\(ms\)=(\d+)\d{3}\)", "NcclTimeout",
     "waited for more than {1} s in the collective {0}: another rank didn't take part",
     "look at the rank that is behind; a slow step or a branch that only some ranks take does that"),
    (r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation", "NcclTimeout",
     "waited too long in a collective: another rank didn't take part",
     "look at the rank that is behind; a slow step or a branch that only some ranks take does that"),
    (r"(?:thread: \[\d+,\d+,\d+\] A|Device-side a)ssertion [`']([^\n]+)[`'] failed", "ProgramError",
     "failed in a GPU kernel's assertion (device-side assert): {0}",
     "most often an index is out of range, of a label or a token for one; run it once with CUDA_LAUNCH_BLOCKING=1 "
     "to see where"),
    (r"device-side assert triggered", "ProgramError",
     "failed in a GPU kernel's assertion (device-side assert), most often an index out of range",
     "run it once with CUDA_LAUNCH_BLOCKING=1 to see where"),
    (r"(?:(?:CUDA|HIP) error|(?:CUDA|HIP)_ERROR_\w+|cudaError\w+|Cuda failure(?: \d+)?):? '?"
     r"(an illegal memory access was encountered|misaligned address|an illegal instruction was encountered)",
     "IllegalMemoryAccess", "failed in a GPU kernel: {0}",
     "a kernel reads or writes beyond its tensors, most often one of your own (CUDA, Triton, CuPy): run it once "
     "with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to see which"),
    (r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on (CUDA device \w+)", "DuplicateGpu",
     "uses the same GPU as another rank (ranks {0} and {1}), which NCCL refuses",
     "give each rank a GPU of its own: as many in spec.resources.gpus as in spec.processesPerWorker, and "
     "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"),
    (r"(nccl(?:InvalidUsage|InvalidArgument|InternalError|UnhandledCudaError|SystemError)): [^\n]*\n"
     r"(?:\[rank\d+\]: ?)?Last error: *\n(?:\[rank\d+\]: ?)?([^\n]+)", "NcclError", "failed in NCCL ({0}): {1}",
     "let NCCL say more: interconnect: {{debug: INFO}}"),
    (r"(NCCL error in: [^\n]+)", "NcclError", "failed in NCCL: {0}",
     "let NCCL say more: interconnect: {{debug: INFO}}"),
)  # fmt: skip
# A traceback's last line, which contains the exception's name (perhaps dotted) and message.
_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?(?:: .*)?)$"
)
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Diverged)\b")
# How much of a log's end is searched (characters).
MAX_LOG = 64_000


def read_ending(log: str) -> Ending | None:
    """Returns the meaning of a log's end, or None if no error is recognised."""
    log = log[-MAX_LOG:]
    for pattern, cause, clause, remedy in _ENDINGS:
        # The last match is used.
        for found in reversed(list(re.finditer(pattern, log, re.MULTILINE))):
            about, *others = [group.strip() for group in found.groups() if group] or [""]
            words = [about or "that it wants", *map(str.lower, others), "that it wants"]
            meaning = clause.format(*words).replace(": that it wants", "")
            return Ending(cause, meaning, remedy.format(), _line_of(log, found.start()), about)
    for line in reversed(log.splitlines()):
        last = _EXCEPTION.match(line.strip())
        if last and _NAMED.match(last[1]):
            return Ending("ProgramError", f"raised {last[1]}", "", last[1])
    return None


def _line_of(log: str, at: int) -> str:
    start = log.rfind("\n", 0, at) + 1
    end = log.find("\n", at)
    return log[start : end if end >= 0 else len(log)].strip()[:500]
