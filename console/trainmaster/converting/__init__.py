"""Converts jobs of other operators, and accounts for each of their fields.

1. `fields`: a manifest as a tree of fields, each of which gets one answer, and the draft of the new job.
2. `commands`: a container's program, without torchrun; `pods`: the whole pod with its resources; `groups`: several pods
   of one program.
3. `metadata` and `failures`: names and labels; rules about failures.
4. `pytorch_job`, `job_set`, `train_job`: one module for each type.
5. `conversion`: the entry point. It converts several manifests together and validates the result.

The package is pure: manifests in, documents and notes out. The fields are those of training-operator 1.9, Kubeflow
Trainer 2 and JobSet 0.12 (August 2026); docs/migrating.md has the same facts for users.
"""

from trainmaster.converting.conversion import Conversion, Note, can_convert, convert, is_runtime
from trainmaster.converting.fields import dotted

__all__ = ["Conversion", "Note", "can_convert", "convert", "dotted", "is_runtime"]
