"""This package keeps the state of a run in memory that outlives its ranks, for any script; read it in this order.

1. `place`: which rank of which attempt this is, and where the pod's memory is.
2. `encoding` and `sealed`: a state becomes bytes, and a file that says what it is and that it is whole; `room`: whether
   there is memory for it.
3. `keeper`: a rank that survives a fault writes the last finished step's state; `slots`: what is copied at every step's
   end, `generators` among it; `saving`: the agent waits for a rank that writes.
4. `agreement`: the next attempt's ranks agree on the newest state that is held anywhere, and give it to who lacks it.

It imports torch and the standard library, and nothing else of trainloop, whose loop uses it as any script may.
"""
