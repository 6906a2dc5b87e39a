"""This package keeps the state of a run in memory that outlives its ranks, for any script; read it in this order.

1. `place`: which rank of which attempt this is, where the pod's memory is, and how the agent waits for a rank that
   writes.
2. `encoding` and `sealed`: a state becomes bytes, and a sealed file; `room`: whether there is memory for it;
   `generations`: files of the pod's memory that are written again and again.
3. `device`: an accelerator works behind the host; `steps`: which steps it has made, and how to keep it from others;
   `tensors`: a state's tensors, and the host's part of a state.
4. `keeper`: a rank that survives a fault writes the last finished step's state; `slots`: what is copied in every step,
   with `generators`.
5. `agreement`: the next attempt's ranks agree on the newest state that any of them holds, and give it to ranks that
   lack it.
6. `snapshots`: what is in memory already where no rank may survive.
7. `script`: all of it for a script of one's own, by three lines, with `script_state`; `huggingface`: for Hugging Face's
   Trainer.
8. `continuation`: a script's ranks continue in their processes when others are lost, and share out the lost ranks'
   samples.

It imports torch and the standard library, and of trainloop what reports progress and stacks; the loop uses this package
as any script may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainloop.recovery.script import Recovery

__all__ = ["Recovery"]


def __getattr__(name: str) -> Any:
    # Imported when used: the loop has no use for it, and its start is part of every recovery.
    if name == "Recovery":
        from trainloop.continuing.start import install
        from trainloop.recovery.script import Recovery

        # Before the script makes its process group, and not at this package's import: a rank may be forked after that.
        install()
        return Recovery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
