"""The warm process's interpreter imports this file because of its name, before `__main__` exists."""

import gc
import sys

if __name__ == "sitecustomize":
    collects = gc.isenabled()
    # Imports leave hardly any garbage. Collecting it again and again would take a quarter of the time for importing
    # torch and its compiler (torch 2.13: 0.6 of 2.3 s of CPU time).
    gc.disable()
    native = frozenset(sys.modules) - {"gc"}
    # In the warm process the stage's package has this name.
    orders = __import__("trainmaster_stage.orders", fromlist=["enter"])
    orders.enter(__file__, native, collects=collects)
