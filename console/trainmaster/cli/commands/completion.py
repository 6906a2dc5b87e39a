"""`trainmaster completion` prints what a shell needs to complete this program's words."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trainmaster.cli.program import Part
from trainmaster.cli.terminal import write

app = Part()


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script by which a shell completes `trainmaster`.

    Of this shell: source <(trainmaster completion bash). Of every shell: put that line into ~/.bashrc, for zsh into
    ~/.zshrc; for fish: trainmaster completion fish > ~/.config/fish/completions/trainmaster.fish. `kubectl dtj` is
    completed by kubectl's own completion (kubectl completion --help), the jobs' names included.
    """
    from typer.completion import get_completion_script

    script = get_completion_script(prog_name="trainmaster", complete_var="_TRAINMASTER_COMPLETE", shell=shell)
    write(script.strip() + "\n")
