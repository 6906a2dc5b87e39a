"""The interpreter of the warm process imports this file by itself, for its name, before `__main__` exists."""

import gc
import sys

if __name__ == "sitecustomize":
    collects = gc.isenabled()
    # Imports leave hardly any garbage, and collecting repeatedly takes a quarter of the import time of torch and its
    # compiler (torch 2.13: 0.6 of 2.3 s of CPU time).
    gc.disable()
    native = frozenset(sys.modules) - {"gc"}
    # The package's name differs here from its original one.
    orders = __import__("trainmaster_stage.orders", fromlist=["enter"])
    orders.enter(__file__, native, collects=collects)
