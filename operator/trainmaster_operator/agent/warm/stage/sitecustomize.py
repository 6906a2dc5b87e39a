"""The interpreter of the warm process imports this file by itself, for its name, before `__main__` exists."""

import gc
import sys

if __name__ == "sitecustomize":
    collects = gc.isenabled()
    # Imports leave hardly any garbage, and searching for it again and again is a quarter of what torch and its compiler
    # cost to import (torch 2.13: 0.6 of 2.3 s on a processor).
    gc.disable()
    native = frozenset(sys.modules) - {"gc"}
    # The package has another name here than where it comes from.
    orders = __import__("trainmaster_stage.orders", fromlist=["enter"])
    orders.enter(__file__, native, collects=collects)
