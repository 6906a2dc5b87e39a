"""Runs other tools for comparison: torchft, NVRx's in-process restart, torchrun, and plain DDP.

`environments` installs torchft and NVRx in separate virtual environments. `drivers` starts their ranks and kills one.
`kills` measures the cost of kills, and `healthy` the cost of a step without faults. `busy` keeps the machine busy.
"""
