"""What a container runs becomes command, args, launcher and processesPerWorker of the job."""

from __future__ import annotations

import re

from trainmaster.converting.commands import RENDEZVOUS, Command, read_command
from trainmaster.converting.draft import POD, Draft
from trainmaster.converting.fields import Field, Path, Target
from trainmaster_operator.wire.names import POD_INDEX_LABEL

_PROCESSES: Path = ("spec", "processesPerWorker")
_OWN_COUNT = re.compile(r"\$[({]?(NPROC_PER_NODE|PET_NPROC_PER_NODE)[)}]?")
# What the Job controller sets.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def convert_program(container: Field, draft: Draft, *, torch: bool) -> None:
    """Puts a container's command and args into the job, and how they are launched."""
    command, args = container.get("command"), container.get("args")
    words = _words(command), _words(args)
    if words[0] is None or words[1] is None:
        for name, field in (("command", command), ("args", args)):
            if field is not None:
                draft.keep(field, ("spec", name))
        return
    read = read_command(words[0], words[1])
    remark = "; ".join(_remarks(read))
    for name, field, made in (("command", command, read.command), ("args", args, read.args)):
        path = ("spec", name)
        if made:
            draft.set(path, list(made))
        if field is not None and (made or field.value):
            # The script of `torchrun` stands in the command, even where it stood in args.
            field.became(Target(path if made else ("spec", "command")), remark=remark)
        elif field is not None:
            field.dropped("it is empty")
    text = " ".join((*read.command, *read.args))
    _launcher(read, draft, torch=torch)
    _processes(read, command or args, draft)
    if read.in_a_script and RENDEZVOUS.search(text) and command is not None:
        command.overruled(
            "the script gives torchrun a rendezvous of its own, which a next attempt can't use; take --nnodes, "
            "--node_rank, --rdzv_* and --master_* out: PET_* variables have them"
        )
    if INDEX_VARIABLE in text:
        index = {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX_LABEL}']"}}
        place: Path = (*POD, "containers", 0, "env")
        draft.set((*place, 0), {"name": INDEX_VARIABLE, "valueFrom": index})


def keep_processes(field: Field, draft: Draft) -> None:
    """Puts a number of processes, or torchrun's words for it, into the job."""
    value, given = str(field.value), draft.at(_PROCESSES)
    if given is not None:
        field.dropped(f"spec.processesPerWorker is {given} already")
    elif value.isdecimal() and len(value) < 10:
        draft.keep(field, _PROCESSES, int(value))
    elif value in ("auto", "gpu"):
        draft.keep(field, _PROCESSES, "auto")
    else:
        field.refused("the number of a node's cores isn't known here; set spec.processesPerWorker to a number")


def _launcher(read: Command, draft: Draft, *, torch: bool) -> None:
    ranks = draft.at(("spec", "resources", "gpus")) or 1
    # One rank a worker needs no launcher; with torchrun it starts warm after a fault.
    starts_warm = torch and read.is_python and ranks == 1
    if not read.by_torchrun and not starts_warm and (read.command or read.args):
        draft.set(("spec", "launcher"), "exec")


def _processes(read: Command, field: Field | None, draft: Draft) -> None:
    asked = read.processes
    if asked is not None and asked.isdecimal() and len(asked) < 10:
        draft.set(_PROCESSES, int(asked))
    elif asked is not None and field is not None and asked not in ("auto", "gpu") and not _OWN_COUNT.fullmatch(asked):
        field.overruled(f"--nproc_per_node={asked} isn't known here; set spec.processesPerWorker to a number")
    if read.max_restarts is not None:
        draft.set(("spec", "failurePolicy", "maxRestarts"), read.max_restarts)
    if read.least is not None and read.most is not None:
        draft.set(("spec", "elastic"), {"minWorkers": read.least, "maxWorkers": read.most})


def _remarks(read: Command) -> list[str]:
    remarks = []
    if read.by_torchrun:
        remarks.append("torchrun is the launcher")
    if read.login_shell:
        remarks.append(f"without {read.login_shell}: what its profile sets is lost, and belongs in the image")
    if read.left_out:
        remarks.append(f"without {', '.join(read.left_out)}: each attempt has a rendezvous of its own")
    return remarks


def _words(field: Field | None) -> list[str] | None:
    """Returns a list of texts; None where there is something else."""
    if field is None:
        return []
    value = field.plain()
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    return None
