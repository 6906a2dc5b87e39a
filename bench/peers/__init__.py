"""Other tools' ways to continue without a rank, run beside ours: torchft, NVRx's in-process restart, torchrun, and
plain DDP.

`environments` installs torchft and NVRx in virtual environments of their own. `drivers` starts their ranks and kills
one of them, `kills` measures what that costs, and `healthy` what a step costs without faults; `busy` keeps the machine
busy meanwhile.
"""
