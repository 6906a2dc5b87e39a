"""Converts other operators' jobs, and gives an answer for each of their fields.

1. `fields` defines a manifest's tree of fields, each of which gets one answer, and the draft of the new job.
2. `commands` converts a container's program, `pods` converts a pod, and `groups` combines pods that run one program.
3. `metadata` converts names and labels, and `failures` converts rules about failures.
4. `pytorch_job`, `job_set` and `train_job` convert one type each.
5. `conversion`, the entry point, converts several manifests together and validates the result.

The package is pure: its input is manifests, and its output is documents and notes. The fields are those of
training-operator 1.9, Kubeflow Trainer 2 and JobSet 0.12 (August 2026). docs/migrating.md explains them for users.
"""

from trainmaster.converting.conversion import Conversion, Note, can_convert, convert, is_runtime
from trainmaster.converting.fields import dotted

__all__ = ["Conversion", "Note", "can_convert", "convert", "dotted", "is_runtime"]
