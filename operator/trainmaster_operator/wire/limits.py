"""The protocol's limits are here; tests/unit/wire compares them with the table "Limits" of docs/protocol.md."""

from __future__ import annotations

MAX_LINE_BYTES = 65_536
"""The longest line of a stream, in both directions."""
MAX_ASSIGNMENT_BYTES = 262_144
"""Kubernetes allows 256 KiB for all annotations of an object (apimachinery pkg/api/validation/objectmeta.go,
TotalAnnotationSizeLimitB). A line with an assignment may be this long too."""
MAX_ATTEMPT = 1_000_000
"""The highest number of an attempt. A job would need a new attempt every second for eleven days to exceed it."""
MAX_WORKERS = 1_024
"""The most workers of a job. An assignment contains every worker's uid and host, up to 234 bytes for each worker."""
MAX_INDEX = 2**31
"""All worker indexes and ranks are below this."""
MAX_PROCESSES = 1_024
"""The most ranks of one worker. `processesPerWorker` has the same limit, so that no rank is left out."""
MAX_RANKS_IN_LINE = 128
"""The most ranks in one line of progress or evidence, so that it stays below MAX_LINE_BYTES. More ranks need several
lines."""
MAX_UID, MAX_HOST, MAX_NODE, MAX_REASON = 64, 253, 253, 64
"""The most characters of these texts. Kubernetes limits names to 253 characters."""
MAX_FINISHED_RANKS = 16
"""The most ranks in a report that had finished before another rank of the worker failed."""
MAX_ERROR_CHARACTERS = 2_000
MAX_TERMINATION_BYTES = 4_000
"""The kubelet keeps 4,096 bytes of a termination message."""
MAX_PROGRESS_FILE_BYTES = 8_192
MAX_MESSAGE_CHARACTERS = 200
MAX_RESULTS, MAX_RESULT_NAME = 16, 64
"""The most results that a script may report, and the most characters of a result's name."""
MAX_METRICS, MAX_METRIC_NAME = 32, 64
"""The most metrics that a rank may report besides the fields of its progress, and the most characters of a name."""
MAX_GPUS = 64
"""The most GPUs of a worker."""
MAX_EVIDENCE_BYTES = 40_000
"""The limit of the texts in one worker's evidence. Even with every line break escaped, the line must stay below
MAX_LINE_BYTES."""
MAX_PLACE_CHARACTERS, MAX_OPERATION_CHARACTERS = 200, 60
"""The most characters of a rank's place in its code, and of the collective in which it waits."""
MAX_STALL_CHARACTERS = 600
"""The most characters of a stall's message, which is kept in the job's status."""
MAX_OUTPUT_BYTES, MAX_KEPT_OUTPUT_BYTES = 56_000, 131_072
"""The limits of the line with a worker's last output, and of all workers' output that a leader keeps. An operator that
begins to watch reads all kept output at once (controller/leaders/targets.py)."""
MAX_REQUEST = 64
"""The most characters in the name of a request for stacks."""
UNSEEN_SECONDS = 30
"""A connection is closed if the other side doesn't confirm the receipt of data for this long."""
ALONE_SECONDS = 120
"""If ranks of one worker train without any other worker, they are ended once no operator has been watching for this
long."""
MAX_SECONDS = 1e9
"""The limit of any duration: thirty years."""
MAX_RANK_GRACE_SECONDS = 3_600
"""The longest grace that a leader may order when a rank has failed."""
MAX_ENVIRONMENT = 300
"""The most characters of the line that describes the devices and libraries of a worker's ranks."""
MAX_VARIABLES, MAX_VARIABLE_NAME, MAX_VARIABLE_CHARACTERS = 64, 64, 256
"""The limits of a worker's environment at the start of an attempt: variables, characters of a name and of a value."""
MAX_MODULES, MAX_MODULE_NAME, MAX_MODULES_CHARACTERS = 1_000, 200, 50_000
"""The limits of the list of modules that a rank has imported at its first step, except those that other listed modules
import. The list fits into one line."""
MAX_CODE_BYTES = 67_108_864
"""The largest archive of a job's code, compressed (spec.code)."""
MAX_UNPACKED_CODE_BYTES, MAX_CODE_FILES = 536_870_912, 20_000
"""The limits of such an archive's content."""
MAX_DIFFERENCES, MAX_DIFFERENCE_CHARACTERS = 32, 500
"""The most lines about differences between the workers' environments, and the most characters of such a line."""
