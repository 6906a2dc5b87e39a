"""Forks a program's ranks from a warm process: `python -m bench.programs.forked PROGRAM [MODULE ...]`.

The process imports the program and the modules first, so that a peer's rank starts as fast as one of ours, which is
forked from a warm process too. Each line of the input starts a rank, and contains the rank's number and the file for
its output. When the input ends, all ranks are killed.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback


def main(program: str, modules: list[str]) -> None:
    """Forks ranks until the end of the input."""
    for name in modules:
        importlib.import_module(name)
    run = importlib.import_module(program).main
    gc.freeze()
    # Ended ranks stay zombies, so that no other process gets their process id.
    ranks = list[int]()
    for line in sys.stdin:
        number, log = line.split()
        ranks.append(os.fork())
        if ranks[-1] == 0:
            # Each rank has its own session (see `bench.peers.busy`).
            os.setsid()
            for descriptor in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ["RANK"] = number
            try:
                run()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(1)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
