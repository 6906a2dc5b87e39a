"""kubectl runs `kubectl_complete-dtj` for tab completion of `kubectl dtj`.

It receives the arguments after `kubectl dtj` and completes the last one. The output has the format of Cobra's
`__complete`: each line contains a choice, a tab and the choice's help; the last line contains a directive.
https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/#using-the-command-line-runtime-package
"""

from __future__ import annotations

import os
import shlex
import sys

# Cobra's ShellCompDirectiveDefault and ShellCompDirectiveNoFileComp. With the first, the shell completes paths if
# there are no choices.
PATHS, NO_PATHS = 0, 4


def main() -> None:
    """Prints the completions. Typer's completion for fish prints lines in Cobra's format."""
    from trainmaster.cli.connection import completed_paths
    from trainmaster.cli.dtj import app

    os.environ["_KUBECTL_DTJ_COMPLETE"] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    # An empty argument isn't quoted. If it is the last one, the text ends with a blank, which begins a new word.
    arguments = [shlex.quote(argument) if argument else "" for argument in sys.argv[1:]]
    os.environ["_TYPER_COMPLETE_ARGS"] = " ".join(["kubectl-dtj", *arguments])
    try:
        app(prog_name="kubectl dtj")
    finally:
        print(f":{PATHS if completed_paths else NO_PATHS}")


if __name__ == "__main__":
    main()
