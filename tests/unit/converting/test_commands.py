"""Command lines that start torchrun are split into its options and the script; others stay as they are."""

from __future__ import annotations

import shlex

import pytest

from trainmaster.converting.commands import Command, by_shell, read_command
from trainmaster_operator.api.pod_template import REFERENCE


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["torchrun", "train.py", "--lr", "1"], ["python", "train.py", "--lr", "1"]),
        (["/opt/conda/bin/torchrun", "train.py"], ["python", "train.py"]),
        (["python3", "-m", "torch.distributed.run", "train.py"], ["python3", "train.py"]),
        (["python", "-u", "-m", "torch.distributed.launch", "--use-env", "train.py"], ["python", "train.py"]),
        (["torchrun", "-m", "pkg.train", "-x"], ["python", "-m", "pkg.train", "-x"]),
        (["torchrun", "--no-python", "bash", "run.sh"], ["bash", "run.sh"]),
        (["torchrun", "--nnodes", "2", "--rdzv-backend=c10d", "train.py"], ["python", "train.py"]),
        (["torchrun", "-t", "3", "--log-dir=/tmp", "train.py"], ["python", "train.py"]),
        (["bash", "-c", "torchrun --nnodes=$N train.py --out ${HOME}"], ["python", "train.py", "--out", "$(HOME)"]),
        (["sh", "-ec", "exec torchrun \\\n train.py\n"], ["python", "train.py"]),
    ],
)
def test_torchrun_is_taken_off(words: list[str], command: list[str]) -> None:
    read = read_command(words, [])
    assert (list(read.command), read.by_torchrun) == (command, True)


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["bash", "-c", "pip install x && python train.py"],
        ["./torchrun.sh"],
    ],
)
def test_another_command_stays(words: list[str]) -> None:
    assert read_command(words, ["-x"]) == Command(tuple(words), ("-x",))


@pytest.mark.parametrize(
    "text",
    [
        "pip install x && torchrun train.py",
        "A=1 torchrun train.py",
        "torchrun train.py '$HOME'",
        "torchrun train.py | tee log",
        "torchrun train.py $(hostname)",
        "torchrun 'train.py",
    ],
)
def test_a_script_that_starts_torchrun_is_left_to_its_shell(text: str) -> None:
    read = read_command(["bash", "-c", text], [])
    assert (read.command, read.by_torchrun, read.in_a_script) == (("bash", "-c", text), False, True)


@pytest.mark.parametrize(
    "option", ["--numa-binding=node", "--virtual-local-rank", "--run-path", "--option-of-tomorrow"]
)
def test_torchrun_stays_where_an_option_changes_how_ranks_start(option: str) -> None:
    read = read_command(["torchrun", option, "train.py"], [])
    assert (read.command, read.by_torchrun) == (("torchrun", option, "train.py"), True)


def test_what_its_options_ask_for_is_known() -> None:
    read = read_command(["torchrun", "--nnodes=2:4", "--nproc-per-node=8", "--max-restarts", "3"], ["train.py", "-x"])
    assert read == Command(
        ("python", "train.py"), ("-x",), by_torchrun=True, processes="8", nodes=(2, 4), max_restarts=3
    )
    assert read_command(["torchrun", "--rdzv_id=1", "--master_port", "2", "a.py"], []).left_out == (
        "--rdzv_id",
        "--master_port",
    )


def test_what_can_start_warm_is_known() -> None:
    assert read_command(["python", "train.py"], []).is_python
    assert read_command(["python3.11", "-m", "pkg"], []).is_python
    assert not read_command(["python", "-c", "print()"], []).is_python
    assert not read_command(["python"], []).is_python


def test_a_shell_gives_a_program_the_variables_of_each_attempt() -> None:
    words = ["--rank=$(RANK)", "it's", 'a "b"', "$$(RANK)", "$HOME `x` $1", "$(HOME)/*", "", "$$$(RANK)$", "(a;b)\n"]
    command = by_shell(["printf", "[%s]", *words])
    assert command[:2] == ["sh", "-c"]
    # Kubernetes replaces $$ in the text.
    text = REFERENCE.sub(lambda found: "$" if found[0] == "$$" else "wrong", command[2])
    expected = ["--rank=${RANK}", "it's", 'a "b"', "$(RANK)", "$HOME `x` $1", "${HOME}/*", "", "$${RANK}$", "(a;b)\n"]
    assert shlex.split(text) == ["exec", "printf", "[%s]", *expected]


def test_a_shell_text_gets_the_variables_of_each_attempt() -> None:
    assert by_shell(["bash", "-ec", "a $(RANK)0 $(HOME) $$(RANK)", "x"]) == [
        *("bash", "-ec", "a ${RANK}0 $(HOME) $$(RANK)", "x")
    ]
