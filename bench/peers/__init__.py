"""Others' ways to go on without a rank, run beside ours: torchft, NVRx's in-process restart, torchrun, and plain DDP.

`environments` installs torchft and NVRx in virtual environments of their own. `drivers` starts their ranks and kills
one of them, and `busy` keeps the machine busy meanwhile.
"""
