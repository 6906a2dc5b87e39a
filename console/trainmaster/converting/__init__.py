"""Jobs of other operators become ours, and every field of theirs is answered; read it in this order.

1. `fields`: a manifest as a tree of fields, each leaf of which gets one answer.
2. `draft`: the job that is being made, by paths.
3. `commands`: a command line that starts torchrun, taken apart; `program`: what a container runs; `resources`: what it
   gets; `pods`: the whole pod; `groups`: several pods of one program.
4. `metadata`, `failures`, `beside`: names and labels; rules about failures; Jobs and claims beside the training.
5. `pytorch_job`, `job_set`, `train_job` (by `merging` it with one of the `runtimes`): one module for each type.
6. `conversion`: the way in. It converts several manifests together and checks what was made.

It is pure: manifests in, documents and notes out. Which fields there are was read in the types of training-operator
1.9, Kubeflow Trainer 2 and JobSet 0.12 (August 2026); docs/migrating.md has the same facts for people.
"""

from trainmaster.converting.conversion import Conversion, Note, can_convert, convert, is_runtime
from trainmaster.converting.fields import dotted

__all__ = ["Conversion", "Note", "can_convert", "convert", "dotted", "is_runtime"]
