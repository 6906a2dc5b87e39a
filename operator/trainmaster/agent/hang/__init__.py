"""Hangs: ranks that live but make no progress, what they wait for, and which of them all the others wait for.

The pure parts: `observation` says how far each rank of this worker is and whether it is over its limit (`heartbeats`
are the progress files); `stall` is what this worker does then; `diagnosis` is what the leader makes of all workers'
evidence, and `rank_states` names the rank that stopped first.

The parts that look: `watch` carries out what `stall` decides; `evidence` brings together the stacks of all threads
(`stacks`), torch's last collectives (`recorder`) and what the kernel shows of a process (`kernel_view`).
"""
