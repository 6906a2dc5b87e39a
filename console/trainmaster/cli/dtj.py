"""`kubectl dtj` is the same program as `trainmaster`: kubectl finds it as `kubectl-dtj` on the PATH."""

from __future__ import annotations

from trainmaster.cli.main import program

app = program("kubectl dtj")

if __name__ == "__main__":
    app()
