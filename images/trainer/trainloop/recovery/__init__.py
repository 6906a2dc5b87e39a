"""This package keeps the state of a run in memory that outlives its ranks, for any script; read it in this order.

1. `place`: a rank's place in its attempt, the pod's memory, and how a writing rank makes the agent wait.
2. `encoding` turns a state into bytes, and `sealed` writes them to a sealed file. `room` checks whether there is memory
   for the state. `generations` are files in the pod's memory that are overwritten again and again.
3. `device`: an accelerator works later than the host queues. `steps`: which steps the accelerator has made, and how to
   hold back queued steps. `tensors`: a state's tensors, and the host's part of a state.
4. `keeper`: a rank that survives a fault writes the last finished step's state. `slots` and `generators`: the rank's
   own state, which is copied in every step.
5. `agreement`: the next attempt's ranks agree on the newest state that any rank holds, and send it to ranks that
   lack it.
6. `snapshots`: copies of the state are made during training, for faults that no rank survives.
7. `script`: three lines give all of this to your own script, with `script_state`; `huggingface`: for Hugging Face's
   Trainer.
8. `continuation`: a script's ranks continue in their processes when others are lost, and share out the lost ranks'
   samples.

This package imports torch, the standard library, and trainloop's progress reports, stacks and encoding of messages. The
loop uses this package like any other script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainloop.recovery.script import Recovery

__all__ = ["Recovery"]


def __getattr__(name: str) -> Any:
    # Imported on use: the loop doesn't need it, and import time is part of every recovery.
    if name == "Recovery":
        from trainloop.continuing.start import install
        from trainloop.recovery.script import Recovery

        # This must happen before the script makes its process group. It doesn't happen when this package is imported,
        # because a rank may be forked after the import.
        install()
        return Recovery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
