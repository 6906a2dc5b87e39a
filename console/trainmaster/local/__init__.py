"""Whatever needs a cluster and an operator for a while has them on this machine (`trainmaster-local`).

1. `running` starts both and stops them whatever happens; `trainmaster demo` and `run_locally` use it.
2. `runs` has `run_locally`, which trains a function or a manifest there and returns what became of it.
3. `images` has what the embedded cluster knows of Trainmaster.
"""

from trainmaster.local.runs import FinishedJob, run_locally

__all__ = ["FinishedJob", "run_locally"]
