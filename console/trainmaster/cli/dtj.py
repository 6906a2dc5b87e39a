"""`kubectl dtj` is what `trainmaster` is: kubectl finds the program `kubectl-dtj` on the PATH."""

from __future__ import annotations

from trainmaster.cli.main import program

app = program("kubectl dtj")

if __name__ == "__main__":
    app()
