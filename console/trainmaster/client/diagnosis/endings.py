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
    (r"DataLoader worker \(pid[^)]*\) is killed by signal: Bus error|out of shared memory|failed to extend /dev/shm|"
     r"creating shared memory segment /dev/shm|"
     r"No space left on device[^\n]*/dev/shm|/dev/shm[^\n]*No space left on device|"
     r"unable to (?:mmap|write to file|allocate shared memory)[^\n]*/torch_", "SharedMemory",
     "found /dev/shm too small for the data loader or for NCCL",
     "raise spec.resources.sharedMemory, such as to 16Gi, or use fewer data loader workers"),
    (r"DataLoader worker \(pid[^)]*\) is killed by signal: Killed", "OutOfMemory",
     "lost a data loader's worker, which was killed for memory",
     "raise spec.resources.memory, or use fewer data loader workers"),
    (r"DataLoader worker \(pid[^)]*\) is killed by signal: ([^\n.]+)|"
     r"DataLoader worker \(pid(?:\(s\))?[^)]*\) (exited unexpectedly)", "DataLoaderWorker",
     "lost a data loader's worker: {0}",
     "use num_workers=0 once to see its error; if it was killed for memory, raise spec.resources.memory"),
    (r"Unable to allocate ([\d.]+ \w+) for an array|"
     r"DefaultCPUAllocator: (?:can't allocate memory: you tried to allocate|not enough memory: you tried to allocate) "
     r"(\d+ bytes)", "OutOfMemory", "found no memory for {0} more",
     "raise spec.resources.memory, or load less at once"),
    (r"^(?:\[rank\d+\]: ?)?MemoryError$|\[Errno 12\] Cannot allocate memory", "OutOfMemory", "found no memory left",
     "raise spec.resources.memory, or load less at once"),
    (r"ModuleNotFoundError: No module named '([^'\n]+)'", "ModuleNotFound",
     "doesn't find the Python module {0} in the image", "install it in the image, or correct the import"),
    (r"(?:ImportError|OSError): (lib[\w.+-]+): cannot open shared object file", "LibraryMissing",
     "doesn't find the library {0} in its container",
     "if it is libcuda, ask for GPUs (spec.resources.gpus) and check the node's NVIDIA runtime; else "
     "install it in the image"),
    (r"(?:ImportError|OSError): \S*?([\w.-]+?)(?:\.cpython\S*|\.abi3)?\.so\S*: undefined symbol: \S*", "PackagesDiffer",
     "can't load {0}, which was built for another version of torch (undefined symbol)",
     "install the package for the image's torch, or build it in the image"),
    (r"Could not load library (lib[\w.+-]+?)\. Error: (/\S+?): (?:undefined symbol|symbol )|"
     r"symbol lookup error: (\S+?): undefined symbol", "PackagesDiffer",
     "can't load {0}, which doesn't fit the libraries beside it: {1}",
     "let LD_LIBRARY_PATH have no other CUDA libraries than those that torch brings"),
    (r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found"
     r"(?: \(required by (?:\S*/)?([\w-]+)\S*\))?", "PackagesDiffer",
     "can't load a package, because the image's C library is too old for it ({0}): {1}",
     "use an image with a newer base, or build the package in the image"),
    (r"compiled using NumPy (1\.x) cannot be run in|numpy\.dtype size changed|Numpy is not available", "PackagesDiffer",
     "can't load a package that was built for another numpy",
     "install a numpy that fits it (numpy<2), or a newer version of the package"),
    (r"ImportError: (.+)", "ImportError", "couldn't import what it needs: {0}",
     "check that the packages in the image fit each other"),
    (r"(?:NVIDIA driver on your system is too old \(found version (\d+)\))|"
     r"CUDA driver version is insufficient for CUDA runtime version|compiled with an unsupported toolchain",
     "DriverTooOld",
     "needs a newer NVIDIA driver than its node has",
     "choose an image with an older CUDA, or nodes with a newer driver"),
    (r"Driver/library version mismatch|Error 803: system has unsupported display driver|"
     r"forward compatibility was attempted on non supported HW", "DriverMismatch",
     "can't use its GPU: the node's NVIDIA driver and its library have different versions",
     "restart the node, because its driver was updated while it ran"),
    (r"You requested (?i:gpus?): (\[[^\]\n]*\])\s+But your machine only has: (\[[^\]\n]*\])", "NoGpu",
     "asks for the GPUs {0}, and its container has {1}",
     "let the Trainer use what there is (devices='auto'), and ask for as many GPUs in spec.resources.gpus"),
    (r"(uncorrectable (?:ECC|NVLink) error[^\n]{0,40}|GPU has fallen off the bus|hardware (?:error|failure)|"
     r"unspecified launch failure|NVLink error)", "GpuFault", "found its GPU broken: {0}",
     "check the node's GPU (dmesg, nvidia-smi -q), and keep the job away from it meanwhile: kubectl cordon"),
    (r"(system not yet initialized)", "GpuFault", "can't use its GPU: {0}; the node's fabric manager isn't running",
     "start nvidia-fabricmanager on the node, in the version of its driver"),
    (r"(?:all CUDA-capable devices are busy or unavailable|all CUDA-capable devices are busy)", "GpuBusy",
     "found its GPU busy: another process uses it exclusively, or it was taken away",
     "look at the node's GPU processes (nvidia-smi), and at its compute mode"),
    (r"no kernel image is available for execution|CUDA error: invalid device function|"
     r"is not compatible with the current PyTorch installation",
     "GpuUnsupported", "can't use its GPU, because the image's torch (or an extension) has no kernel for its type",
     "use an image whose torch was built for this GPU, or nodes with another one"),
    (r"Torch not compiled with CUDA enabled", "TorchWithoutCuda", "can't use GPUs: the image's torch is without CUDA",
     "use an image with a CUDA build of torch, or train on CPUs (spec.backend: gloo)"),
    (r"Cannot re-initialize CUDA in forked subprocess", "ForkedCuda",
     "uses CUDA in a forked subprocess, which CUDA doesn't allow",
     "use no GPU in data loader workers and at import, or multiprocessing_context='spawn'"),
    (r"Found no NVIDIA driver|ProcessGroupNCCL is only supported with GPUs|No supported gpu backend found|"
     r"No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device is detected", "NoGpu",
     "sees no GPU in its container",
     "ask for GPUs in spec.resources.gpus, and check CUDA_VISIBLE_DEVICES and the node's device plugin"),
    (r"invalid device ordinal", "NoGpu", "uses a GPU number that its container doesn't have",
     "let spec.processesPerWorker be the number of GPUs, and use LOCAL_RANK for the device"),
    (r"Access to (?:model|dataset) (\S+) is restricted|"
     r"Cannot access gated repo for url https?://[^/]+/([\w.-]+/[\w.-]+)", "HubRefused",
     "has no access to the Hugging Face repository {0}, which is gated",
     "accept the licence on the hub, and give the job a token: HF_TOKEN from a Secret (docs/pods.md)"),
    (r"429 Client Error: Too Many Requests for url: https://huggingface\.co/(?:api/(?:models|datasets)/)?"
     r"([\w.-]+/[\w.-]+)|429 Client Error[^\n]*huggingface\.co", "HubRateLimited",
     "was refused by Hugging Face for too many requests ({0})",
     "let one rank load it onto a volume first, and give the job a token: HF_TOKEN from a Secret (docs/pods.md)"),
    (r"(?:40[13] Client Error[^\n]*huggingface\.co|Invalid user token|LocalTokenNotFoundError)", "HubRefused",
     "was refused by Hugging Face: its token is missing or isn't valid",
     "give the job a valid token: HF_TOKEN from a Secret (docs/pods.md)"),
    (r"Repository Not Found for url: https?://[^/]+/(?:api/(?:models|datasets)/)?([\w.-]+/[\w.-]+)|"
     r"RepositoryNotFoundError|([\w.-]+/[\w.-]+) is not a local folder and is not a valid model identifier",
     "HubRefused", "doesn't find the Hugging Face repository {0}, or needs a token for it",
     "check its name, and give the job a token: HF_TOKEN from a Secret (docs/pods.md)"),
    (r"host='huggingface\.co'[^\n]*url: /(?:api/(?:models|datasets)/)?([\w.-]+?(?:/[\w.-]+)?)"
     r"(?:/(?:resolve|tree|revision)| )", "HubUnreachable", "can't reach huggingface.co to load {0}",
     "put the files on a volume and load them from there with HF_HUB_OFFLINE=1, or let pods out "
     "(proxy, NetworkPolicy)"),
    (r"We couldn't connect to '(?:https?://)?([^']+)'|Couldn't reach '([^']+)' on the Hub|"
     r"LocalEntryNotFoundError|OfflineModeIsEnabled", "HubUnreachable",
     "can't reach the Hugging Face hub, and the files aren't in its cache",
     "put the files on a volume and load them from there, or let pods out (proxy, NetworkPolicy)"),
    (r"RequestTimeTooSkewed|certificate is not yet valid", "ClockSkew",
     "was refused because of the time: its node's clock is wrong",
     "check the time service (chrony) of the node"),
    (r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: ([^\n(]+)", "Certificate",
     "doesn't trust a server's certificate: {0}",
     "add the certificate authority (of a proxy) to the image, or name it in REQUESTS_CA_BUNDLE and SSL_CERT_FILE"),
    (r"wandb[^\n]*(?:api_key not configured|No API key configured)|api_key not configured \(no-tty\)", "WandbLogin",
     "has no API key for wandb", "give the job WANDB_API_KEY from a Secret (docs/pods.md), or WANDB_MODE=offline"),
    (r"NoCredentialsError|Unable to locate credentials|DefaultCredentialsError|"
     r"An error occurred \((?:403|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken)\)[^\n]*?: "
     r"([^\n]+)",
     "CloudCredentials", "has no credentials for its object store, or these don't suffice: {0}",
     "give the pods credentials: a service account with access, or keys from a Secret (docs/pods.md)"),
    (r"(?:Failed to resolve '([^']+)'|addresses of \(([^,)\s]+), \d+\) cannot be retrieved|"
     r"Could not resolve host: (\S+))|Name or service not known|Temporary failure in name resolution", "NameResolution",
     "can't resolve the name {0}",
     "check the name and the cluster's DNS; a worker's name exists only while its pod does"),
    (r"Stale file handle(?:: '([^'\n]+)')?", "VolumeBroken", "lost a file of a network volume (stale file handle): {0}",
     "the file was replaced on the server, or the server was restarted: new pods mount it again"),
    (r"Input/output error(?:: '([^'\n]+)')?", "VolumeBroken", "can't read or write a volume (Input/output error): {0}",
     "check the volume and the node's disk (dmesg)"),
    (r"Too many open files|received \d+ items of ancdata", "TooManyFiles", "reached the limit of open files",
     "use fewer data loader workers, torch.multiprocessing.set_sharing_strategy('file_system'), or a higher limit "
     "(ulimit -n, set by the node's container runtime)"),
    (r"can't start new thread|pthread_create failed|\[Errno 11\] Resource temporarily unavailable", "TooManyProcesses",
     "can't start a new thread: the pod's limit of processes is reached",
     "use fewer data loader workers and threads (OMP_NUM_THREADS), or ask for a higher pid limit of the nodes"),
    (r"Errno 13\] Permission denied: '([^'\n]+)'", "PermissionDenied", "may not write or read {0}",
     "let the volume belong to the pod's group: set spec.podTemplate.spec.securityContext.fsGroup: 1000"),
    (r"Errno 30\] Read-only file system: '([^'\n]+)'", "PermissionDenied",
     "can't write {0}: the file system is read-only", "write to a volume, such as spec.checkpoint.path"),
    (r"No space left on device: '([^'\n]+)'", "DiskFull", "finds no space left for {0}",
     "make the volume larger, or keep fewer checkpoints"),
    (r"Disk quota exceeded: '([^'\n]+)'", "DiskFull", "has used up its disk quota, at {0}",
     "free space in that folder, or ask for a larger quota of the volume"),
    (r"No space left on device|Disk quota exceeded", "DiskFull", "finds no space left on a disk that it writes to",
     "make the volume larger, or keep fewer checkpoints"),
    (r"FileNotFoundError: \[Errno 2\] No such file or directory: '(git|gcc|g\+\+|cc|nvcc|ninja|ffmpeg|aws|make)'|"
     r"(?:sh|bash): (?:line )?\d+: ([\w./+-]+): (?:command )?not found|exec: ([\w./+-]+): not found", "ProgramNotFound",
     "doesn't find {0} in the image", "install it in the image, or correct its name"),
    (r"No matching distribution found for (\S+)|Could not find a version that satisfies the requirement (\S+)",
     "PackageMissing", "can't install the Python package {0}",
     "check its name and version, and that the pods reach the package index (proxy, PIP_INDEX_URL)"),
    (r"CUDA_HOME (?:does not exist|environment variable is not set)[^\n]*", "ProgramNotFound",
     "compiles a CUDA extension, and the image has no CUDA toolkit (nvcc, CUDA_HOME)",
     "use a devel image of CUDA or PyTorch, or install the extension as a wheel"),
    (r"(?:Failed to find C compiler|No working C\+\+ compiler found|InvalidCxxCompiler)", "ProgramNotFound",
     "needs a C compiler for torch.compile or Triton, and the image has none",
     "install gcc (build-essential) in the image, or train without torch.compile"),
    (r"FileNotFoundError: (?:[^'\n]+: )?(?:'([^'\n]+)'|(\S+))$|can't open file '([^']+)'",
     "FileNotFound", "doesn't find {0}",
     "check the path, and that the volume with it is mounted in the workers (docs/pods.md)"),
    (r"(port: \d+),[^\n]*EADDRINUSE|Errno 98\] Address already in use|EADDRINUSE|address already in use", "PortInUse",
     "can't listen on its port: the address is in use already ({0})",
     "use the job's MASTER_PORT and no fixed port, or end what a former run left behind"),
    (r"Connect to ([\w.:]+(?:<\d+>)?) failed : ([^\n]+)", "NcclNetwork", "can't connect to {0} by NCCL: {1}",
     "name the interface (spec.interconnect.interface: eth0), and open all ports between the pods "
     "(docs/operating.md)"),
    (r"Unable to find (?:interface|address) for: (\S+)|(no socket interface found)", "NcclNetwork",
     "can't use the network interface that it was given: {0}",
     "correct the interface (spec.interconnect.interface: eth0), or leave it out"),
    (r"client socket has timed out after \d+ms while trying to connect to \(([^,)\s]+)|"
     r"Timed out after \d+ seconds waiting for clients|Rendezvous(?:Timeout|Connection)Error|"
     r"client socket has failed to connect to any network address of \(([^,)\s]+)", "WorkersUnreachable",
     "couldn't connect to rank 0 in time ({0})",
     "look at the worker that isn't there, and for a NetworkPolicy between the pods (docs/operating.md)"),
    (r"HTTPS?ConnectionPool\(host='([^'\n]+)', port=(\d+)\): Max retries exceeded", "HostUnreachable",
     "can't reach {0} (port {1})",
     "let pods out (proxy, NetworkPolicy), or have the script do without it, such as with files on a volume"),
    (r"No route to host|Network is unreachable", "NcclNetwork",
     "doesn't reach the other workers over the network",
     "name the interface (spec.interconnect.interface: eth0), and open all ports between the pods "
     "(docs/operating.md)"),
    (r"Call to (ibv_reg_mr\w*) failed(?: with error)? ?([^\n]*)", "NcclInfiniband",
     "can't register memory for RDMA, in {0}: {1}",
     "set spec.interconnect.rdma, which adds the capability IPC_LOCK; else raise the node's locked-memory limit"),
    (r"Call to (ibv_\w+) failed(?: with error)? ?([^\n]*)|ibv_\w+ .*failed", "NcclInfiniband",
     "lost InfiniBand (RDMA), in {0}: {1}",
     "check spec.interconnect.rdma and the locked-memory limit, or go without (NCCL_IB_DISABLE=1)"),
    (r"NET/IB ?: Got completion from peer ([\w.:-]+?)(?:<\d+>)? with (error \d+|status=\S+)", "NcclInfiniband",
     "lost its InfiniBand connection to {0} ({1}): the link failed, or the rank there ended first",
     "check the InfiniBand ports of both nodes (ibstat, dmesg), unless another rank ended first"),
    (r"OpType=(\w+),.*?Timeout\(ms\)=(\d+)\d{3}\)", "NcclTimeout",
     "waited for more than {1} s in the collective {0}: another rank didn't take part",
     "look at the rank that is behind; a slow step or a branch that only some ranks take does that"),
    (r"Watchdog caught collective operation timeout|ProcessGroupNCCL watchdog hang|"
     r"Timed out waiting \d+ms for (?:recv|send) operation", "NcclTimeout",
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
    (r"Last error: *\n(?:\[rank\d+\]: ?)?Failed to (CUDA (?:malloc|calloc|host alloc)[^\n]*)", "CudaOutOfMemory",
     "found no GPU memory for the buffers of NCCL ({0})",
     "use a smaller batch, or fewer channels (NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS)"),
    (r"(nccl(?:InvalidUsage|InvalidArgument|InternalError|UnhandledCudaError|SystemError)): [^\n]*\n"
     r"(?:\[rank\d+\]: ?)?Last error: *\n(?:\[rank\d+\]: ?)?(?![^\n]*by remote peer)([^\n]+)", "NcclError",
     "failed in NCCL ({0}): {1}",
     "let NCCL print more: set spec.interconnect.debug: INFO"),
    (r"Detected mismatch between collectives on ranks\. ([^\n]{0,200})", "RanksDiffer",
     "found that the ranks called different collectives: {0}",
     "look for a branch that only some ranks take"),
    (r"(DDP expects same model across all ranks, but [^\n]+?)\.?$|(inconsistent \d+ params)", "RanksDiffer",
     "found that the ranks' models differ: {0}", "build the same model on all ranks (same configuration and seed)"),
    (r"(Expected to have finished reduction in the prior iteration)", "UnusedParameters",
     "found parameters that got no gradient, which DDP waits for in vain (find_unused_parameters)",
     "pass find_unused_parameters=True to DistributedDataParallel, or use all of them in the loss"),
    (r"Expected to mark a variable ready only once(?:[\s\S]*?Parameter (at index \d+(?: with name \S+)?))?",
     "ReadyTwice", "marks a parameter ready twice in one backward pass, which DDP doesn't allow ({0})",
     "with activation checkpointing pass use_reentrant=False; else static_graph=True to DistributedDataParallel"),
    (r"((?:Missing key|Unexpected key|size mismatch)[^\n]{0,160})|Error\(s\) in loading state_dict",
     "CheckpointMismatch", "loads a checkpoint that doesn't fit the model: {0}",
     "load the checkpoint of this model, or train it anew in another spec.checkpoint.path"),
    (r"PytorchStreamReader failed[^\n]*|unexpected EOF, expected \d+ more bytes|invalid header or archive is corrupted|"
     r"SafetensorError: Error while deserializing header: ([^\n]+)", "CheckpointBroken",
     "loads a checkpoint or a file that is damaged or incomplete: {0}",
     "remove it, so that an older one is used; save to a temporary name and rename it"),
    (r"Weights only load failed", "CheckpointRefused",
     "loads a checkpoint that torch.load refuses, because weights_only is true by default since torch 2.6",
     "pass weights_only=False if you trust the file, or allow its classes (torch.serialization.add_safe_globals)"),
    (r"(\S+): error: ((?:unrecognized arguments|the following arguments are required|argument|ambiguous option)[^\n]*)",
     "Usage", "refused its arguments, by {0}: {1}",
     "correct spec.command and spec.args; the script's --help lists them"),
    (r"(Invalid parallel dims: [^\n]+|world_size \(\d+\) is not (?:equal|divisible)[^\n]+)", "WorldSize",
     "expects another number of ranks: {0}",
     "let spec.workers times spec.processesPerWorker be what the script's parallel dimensions multiply to"),
    (r"(?i)^(?:\[rank\d+\]: ?)?[\w.]+: ([^\n]{0,80}(?:loss|gradient)s?\b[^\n]{0,60}?\b"
     r"(?:nan|inf|infinite|non-?finite)\b[^\n]{0,60})", "NotFinite",
     "gave up, because the loss or a gradient became NaN or infinite: {0}",
     "use a smaller learning rate, a warm-up, gradient clipping or bfloat16; look at the batch of that step"),
    (r"(Current loss scale already at minimum|Minimum loss scale reached(?: \([^)\n]*\))?)", "NotFinite",
     "gave up, because the fp16 gradients overflow at every step: {0}",
     "use bfloat16, a smaller learning rate or gradient clipping; look at the batch of that step"),
    (r"(?:BackendCompilerFailed|InductorError|torch\._dynamo\.exc\.\w+): [^\n]*\n?((?:\w+Error|\w+Exception): [^\n]+)?",
     "CompileFailed", "failed in torch.compile: {0}",
     "train without torch.compile once (TORCHDYNAMO_DISABLE=1) to see whether the model is right"),
    (r'File "(?:[^"\n]*/)?([^"/\n]+)", (line \d+)\n[^\n]*\n(?:[^\n]*\^[^\n]*\n)?\s*(?:SyntaxError|IndentationError): ',
     "SyntaxError", "can't read {0}, {1}: a syntax error, or syntax that the image's Python is too old for",
     "check the line, and the Python of the image (python --version)"),
    (r"(?:Call to \w+ from|by remote peer) ([\w.:-]+)|Connection (?:closed|reset) by peer(?: \[([\w.:]+)\])?|"
     r"remote process exited or there was a network error",
     "PeerLost", "lost its connection to another rank ({0}), which ended first or was killed, or the network failed",
     "look at the other ranks' output: the cause is there, unless the network failed"),
    (r"(NCCL error in: [^\n]+)", "NcclError", "failed in NCCL: {0}",
     "let NCCL print more: set spec.interconnect.debug: INFO"),
)  # fmt: skip
# A traceback's last line, which contains the exception's name (perhaps dotted) and message.
_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?(?::(?: .*)?)?)$"
)
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Diverged)\b|(?:[a-z_]\w*\.)+_?[A-Z]\w*: ")
# Causes that can lie in the node. For all others, a sentence that names the node would blame it.
OF_NODES = frozenset(
    {"DriverTooOld", "DriverMismatch", "NoGpu", "GpuFault", "GpuBusy", "GpuUnsupported", "LibraryMissing", "ClockSkew"}
    | {"NcclNetwork", "NcclInfiniband", "NcclError", "NameResolution", "HubUnreachable", "DiskFull", "VolumeBroken"}
    | {"WorkersUnreachable", "HostUnreachable", "TooManyProcesses", "PortInUse"}
)
# These words replace a name that the message doesn't contain.
_UNNAMED = "that it wants"
# How much of a log's end is searched (characters).
MAX_LOG = 64_000


def read_ending(log: str) -> Ending | None:
    """Returns the meaning of a log's end, or None if no error is recognised."""
    log = log[-MAX_LOG:]
    for pattern, cause, clause, remedy in _ENDINGS:
        # The last match is used, or rather the last one that names something.
        for found in sorted(re.finditer(pattern, log, re.MULTILINE), key=_names_something, reverse=True):
            about, *others = [group.strip() for group in found.groups() if group] or [""]
            words = [about or _UNNAMED, *map(_inside, others), _UNNAMED]
            meaning = clause.format(*words)
            for beside in (f": {_UNNAMED}", f" ({_UNNAMED})"):
                meaning = meaning.replace(beside, "")
            return Ending(cause, meaning, remedy.format(), _line_of(log, found.start()), about)
    below = ""
    for line in map(str.strip, reversed(log.splitlines())):
        last = _EXCEPTION.match(line)
        if last and _NAMED.match(last[1]) and "ChildFailedError" not in last[1]:
            # Some messages begin in the next line.
            whole = f"{last[1]} {below}".strip() if last[1].endswith(":") else last[1]
            return Ending("ProgramError", f"raised {whole}", "", last[1])
        below = line or below
    return None


def _names_something(found: re.Match[str]) -> tuple[bool, int]:
    return any(found.groups()), found.start()


def _inside(words: str) -> str:
    """Returns a phrase for use inside a sentence: No route to host becomes no route to host, NCCL stays."""
    return words[:1].lower() + words[1:] if words[1:2].islower() else words


def _line_of(log: str, at: int) -> str:
    start = log.rfind("\n", 0, at) + 1
    end = log.find("\n", at)
    return log[start : end if end >= 0 else len(log)].strip()[:500]
