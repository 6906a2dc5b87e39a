"""The protocol's limits are here; tests/unit/wire compares them with the table "Limits" of docs/protocol.md."""

from __future__ import annotations

MAX_LINE_BYTES = 65_536
"""One line of a stream, in both directions."""
MAX_ASSIGNMENT_BYTES = 262_144
"""Kubernetes allows 256 KiB for all annotations of an object (apimachinery pkg/api/validation/objectmeta.go,
TotalAnnotationSizeLimitB). A line with an assignment may be this long too."""
MAX_ATTEMPT = 1_000_000
"""An attempt every second for eleven days. No real attempt has a higher number."""
MAX_WORKERS = 1_024
"""Workers of a job. An assignment names every worker's uid and host, up to 234 bytes each."""
MAX_INDEX = 2**31
"""All worker indexes and ranks are below this."""
MAX_PROCESSES = 1_024
"""Ranks of one worker, the same as the limit of `processesPerWorker`, so that no rank is left out."""
MAX_RANKS_IN_LINE = 128
"""Ranks in one line of progress or evidence, to keep it below MAX_LINE_BYTES. More ranks need several lines."""
MAX_UID, MAX_HOST, MAX_NODE, MAX_REASON = 64, 253, 253, 64
"""Characters. Kubernetes' own limits of names are 253."""
MAX_ERROR_CHARACTERS = 2_000
MAX_TERMINATION_BYTES = 4_000
"""The kubelet keeps 4,096 bytes of a termination message."""
MAX_PROGRESS_FILE_BYTES = 4_096
MAX_MESSAGE_CHARACTERS = 200
MAX_RESULTS, MAX_RESULT_NAME = 16, 64
"""Results that a script may report, and the characters of a result's name."""
MAX_EVIDENCE_BYTES = 40_000
"""The texts of one worker's evidence. With every line break escaped, the line must stay below MAX_LINE_BYTES."""
MAX_OUTPUT_BYTES, MAX_KEPT_OUTPUT_BYTES = 56_000, 131_072
"""The line with a worker's last output, and the output of all workers that a leader keeps. An operator that begins to
watch reads all of it at once (controller/leaders/targets.py)."""
MAX_REQUEST = 64
"""Characters in the name of a request for stacks."""
UNSEEN_SECONDS = 30
"""A connection is closed if the other side doesn't confirm sent data for this long."""
ALONE_SECONDS = 120
"""Ranks of one worker that train without all other workers are ended if no operator has watched for this long."""
MAX_SECONDS = 1e9
"""The limit of any duration: thirty years."""
MAX_RANK_GRACE_SECONDS = 3_600
"""The longest grace that a leader may order when a rank has failed."""
MAX_ENVIRONMENT = 300
"""The line that describes the devices and libraries of a worker's ranks."""
MAX_VARIABLES, MAX_VARIABLE_NAME, MAX_VARIABLE_CHARACTERS = 64, 64, 256
"""The description of a worker's environment at the start of an attempt."""
MAX_MODULES, MAX_MODULE_NAME, MAX_MODULES_CHARACTERS = 1_000, 200, 50_000
"""Modules that ranks import before their first step, without those that other listed ones import. One line fits all."""
MAX_CODE_BYTES = 67_108_864
"""An archive of a job's code, compressed (spec.code)."""
MAX_UNPACKED_CODE_BYTES, MAX_CODE_FILES = 536_870_912, 20_000
"""The content of such an archive."""
MAX_DIFFERENCES, MAX_DIFFERENCE_CHARACTERS = 32, 500
"""Lines about differences between the workers' environments."""
