"""The protocol's limits are here; tests/unit/wire compares them with the table "Limits" of docs/protocol.md."""

from __future__ import annotations

MAX_LINE_BYTES = 65_536
"""One line of a stream, in both directions."""
MAX_ASSIGNMENT_BYTES = 262_144
"""Kubernetes allows 256 KiB for all annotations of an object (apimachinery pkg/api/validation/objectmeta.go,
TotalAnnotationSizeLimitB). A line that brings an assignment may be as long."""
MAX_ATTEMPT = 1_000_000
"""An attempt every second for eleven days. One that is higher wasn't counted by anybody."""
MAX_WORKERS = 1_024
"""Workers of a job. An assignment names every worker's uid and host, up to 234 bytes each."""
MAX_INDEX = 2**31
"""Beyond any worker's index and any rank."""
MAX_PROCESSES = 1_024
"""Ranks of one worker, as many as `processesPerWorker` may ask for: none of them is ever left out."""
MAX_RANKS_IN_LINE = 128
"""Ranks in one line of progress or evidence, so that it is below MAX_LINE_BYTES; a worker with more sends several."""
MAX_UID, MAX_HOST, MAX_NODE, MAX_REASON = 64, 253, 253, 64
"""Characters. Kubernetes' own limits of names are 253."""
MAX_ERROR_CHARACTERS = 2_000
MAX_TERMINATION_BYTES = 4_000
"""The kubelet keeps 4,096 bytes of a termination message."""
MAX_PROGRESS_FILE_BYTES = 4_096
MAX_MESSAGE_CHARACTERS = 200
MAX_RESULTS, MAX_RESULT_NAME = 16, 64
"""Figures that a script may report, and the characters of one's name."""
MAX_EVIDENCE_BYTES = 40_000
"""The texts of one worker's evidence; its line must stay below MAX_LINE_BYTES with every line break in it escaped."""
MAX_OUTPUT_BYTES, MAX_KEPT_OUTPUT_BYTES = 56_000, 131_072
"""The line that has the end of what a worker printed, and what a leader keeps of all workers: an operator that begins
to watch reads that much at once (controller/leaders/targets.py)."""
MAX_REQUEST = 64
"""Characters of what names a request for stacks."""
UNSEEN_SECONDS = 30
"""After so long a connection is closed whose other side has confirmed nothing of what was sent to it."""
ALONE_SECONDS = 120
"""Ranks of one worker that train without all others are ended once nobody has watched them for so long."""
MAX_SECONDS = 1e9
"""Any duration: thirty years."""
MAX_RANK_GRACE_SECONDS = 3_600
"""The longest grace that a leader may order when a rank has failed."""
MAX_ENVIRONMENT = 300
"""The line that says what a worker's ranks run on."""
MAX_VARIABLES, MAX_VARIABLE_NAME, MAX_VARIABLE_CHARACTERS = 64, 64, 256
"""The description of the environment that a worker starts an attempt in."""
MAX_MODULES, MAX_MODULE_NAME, MAX_MODULES_CHARACTERS = 1_000, 200, 50_000
"""Modules that ranks import before their first step, beside those that these import themselves: a line has them all."""
MAX_CODE_BYTES = 67_108_864
"""An archive of a job's code, compressed (spec.code)."""
MAX_UNPACKED_CODE_BYTES, MAX_CODE_FILES = 536_870_912, 20_000
"""Its content."""
MAX_DIFFERENCES, MAX_DIFFERENCE_CHARACTERS = 32, 500
"""Lines about what differs in the workers' environments."""
