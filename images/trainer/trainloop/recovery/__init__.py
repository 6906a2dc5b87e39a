"""This package keeps the state of a run in memory that outlives its ranks, for any script; read it in this order.

1. `place`: which rank of which attempt this is, and where the pod's memory is.
2. `encoding` and `sealed`: a state becomes bytes, and a file that says what it is and that it is whole; `room`: whether
   there is memory for it; `generations`: files of the pod's memory that are written again and again.
3. `device`: what is queued for an accelerator is done later; `steps`: which steps it has made, and how the others are
   kept from being made; `tensors`: what of a state is tensors, and what the host has.
4. `keeper`: a rank that survives a fault writes the last finished step's state; `slots`: what is copied in every step,
   `generators` among it; `saving`: the agent waits for a rank that writes.
5. `agreement`: the next attempt's ranks agree on the newest state that is held anywhere, and give it to who lacks it.
6. `snapshots`: what is in memory already where no rank may survive.
7. `script`: all of it for a script of one's own, by three lines; `huggingface`: for Hugging Face's Trainer.
8. `continuation`: a script's ranks go on in their processes when others are lost; `parts`: whose samples are whose.

It imports torch and the standard library, and of trainloop what reports progress and stacks; the loop uses this package
as any script may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainloop.continuing.start import install

if TYPE_CHECKING:
    from trainloop.recovery.script import Recovery

__all__ = ["Recovery"]

# Before the script makes its process group.
install()


def __getattr__(name: str) -> Any:
    # Imported when used: the loop has no use for it, and its start is part of every recovery.
    if name == "Recovery":
        from trainloop.recovery.script import Recovery

        return Recovery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
