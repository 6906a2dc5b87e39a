"""`python -m trainloop --config training.yaml` runs one rank of a training run.

torchrun or the operator starts all ranks. `trainloop checkpoints` manages the checkpoints of runs (`versions`).

Exit code 0 means that the run is finished, 143 that SIGTERM stopped it and a checkpoint is saved, and 1 an error.
`trainloop.errors` lists the other exit codes.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from trainloop.errors import TrainingError

EXIT_STOPPED = 143


def main(arguments: list[str] | None = None) -> int:
    """Runs one rank and returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["checkpoints"] or "_ARGCOMPLETE" in os.environ:
        from trainloop.versions.command import main as versions

        return versions(_parser(), arguments)
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except TrainingError as error:
        for line in str(error).splitlines():
            print(f"trainloop: {line}", file=sys.stderr)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return TrainingError.exit_code


def leave(code: int) -> NoReturn:
    """Ends the process without the interpreter's clean-up, because everything needed is already saved.

    After an error, the clean-up could wait for lost peers, while the launcher waits for the first rank to end.
    After a success, the clean-up would stop running threads of gloo and autograd, which sometimes aborts the process
    (torch 2.13).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def console() -> NoReturn:
    """Runs the command `trainloop`, which is the same as `python -m trainloop`."""
    leave(main())


def _parser() -> argparse.ArgumentParser:
    more = "trainloop checkpoints -h: list, compare, tag, verify, export and delete what runs have saved"
    parser = argparse.ArgumentParser(prog="trainloop", description="A complete DDP training loop.", epilog=more)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="Read this YAML (docs/training.md describes every field)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="Override a field: optimizer.lr=3e-4"
    )
    parser.add_argument("--print-config", action="store_true", help="Print the configuration, defaults included")
    parser.add_argument("--dry-run", action="store_true", help="Make two steps, evaluate; print memory and step time")
    return parser


def _run(options: argparse.Namespace) -> int:
    # Imported late, so that --help and a wrong option don't wait for torch.
    from torch.distributed.elastic.multiprocessing.errors import record

    from trainloop.config import dump_config, load_config
    from trainloop.run import train

    if options.print_config:
        print(dump_config(load_config(options.config, options.set)), end="")
        return 0
    if options.dry_run:
        from trainloop.run import dry_run

        dry_run(load_config(options.config, options.set))
        return 0
        # `record` writes an uncaught exception to TORCHELASTIC_ERROR_FILE, in which the launcher looks for failures.
    stopped = record(lambda: train(load_config(options.config, options.set)))()
    return EXIT_STOPPED if stopped else 0


if __name__ == "__main__":
    console()
