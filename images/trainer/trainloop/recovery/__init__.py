"""This package keeps the state of a run in memory that outlives its ranks, for any script; read it in this order.

1. `place`: a rank's place in its attempt, the pod's memory, and how a writing rank makes the agent wait.
2. `encoding` and `sealed`: a state becomes bytes, and a sealed file; `room`: whether there is memory for it;
   `generations`: files of the pod's memory that are overwritten again and again.
3. `device`: an accelerator works behind the host; `steps`: which steps it has made, and how to hold back others;
   `tensors`: a state's tensors, and the host's part of a state.
4. `keeper`: a rank that survives a fault writes the last finished step's state; `slots`: the state that is copied in
   every step, with `generators`.
5. `agreement`: the next attempt's ranks agree on the newest state that any rank holds, and send it to ranks that
   lack it.
6. `snapshots`: the state is already in memory if no rank may survive.
7. `script`: three lines give all of this to your own script, with `script_state`; `huggingface`: for Hugging Face's
   Trainer.
8. `continuation`: a script's ranks continue in their processes when others are lost, and share out the lost ranks'
   samples.

It imports torch, the standard library, and trainloop's progress reports, stacks and encoding of messages; the loop uses
this package as any script may.
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

        # Before the script makes its process group, but not at this package's import: a rank may be forked after that.
        install()
        return Recovery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
