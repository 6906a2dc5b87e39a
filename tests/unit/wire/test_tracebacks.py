"""The exception and the user's line of code are found in what Python 3.9 to 3.14, torch and launchers print."""

from __future__ import annotations

import textwrap
import traceback

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainmaster_operator.wire import tracebacks
from trainmaster_operator.wire.tracebacks import MAX_EXCEPTION_CHARACTERS, MAX_LOCATION_CHARACTERS, read_exception

SPACE = " "
HEAD = "Traceback (most recent call last):\n"
PLAIN = f"""step 19 loss 0.3
{HEAD}  File "/app/train.py", line 60, in <module>
    main()
    ~~~~^^
  File "/app/train.py", line 41, in step
    raise ValueError("lost")
ValueError: lost
"""
WRAPPED = PLAIN.replace('41, in step\n    raise ValueError("lost")\nValueError: lost', "50, in main\n    step()")
LIBRARY = f"""{HEAD}  File "/app/train.py", line 60, in <module>
    main()
  File "/app/models/gpt.py", line 7, in forward
    return self.head(x)
           ^^^^^^^^^^^^
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""
LOADER = f"""{HEAD}  File "/app/train.py", line 9, in <module>
    for batch in loader:
  File "/opt/venv/lib/python3.11/site-packages/torch/_utils.py", line 733, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 0.
Original {HEAD}  File "/opt/lib/python3.11/site-packages/torch/utils/data/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/app/data.py", line 5, in __getitem__
    return self.rows[key]
KeyError: 'label'

"""
CHAINED = f"""{HEAD}  File "/app/train.py", line 3, in load
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/x'

The above exception was the direct cause of the following exception:

{HEAD}  File "/app/train.py", line 9, in <module>
    load()
  File "/app/train.py", line 5, in load
    raise RuntimeError("no data") from error
RuntimeError: no data
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/train.py", line 3, in <module>
  |     raise ExceptionGroup("many", found)
  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/train.py", line 2, in work
    |     raise ValueError("a")
    | ValueError: a
    +---------------- 2 ----------------
    | KeyError: 'b'
    +------------------------------------
"""
LAUNCHED = f"""{PLAIN}W1127 22:10:11.123000 8 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 12
{HEAD}  File "/usr/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 283, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:{SPACE}
============================================================
train.py FAILED
------------------------------------------------------------
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 12.00 MiB is free. Process 1 has 79.09 GiB memory in use. Of the allocated memory 78.00 GiB is allocated "
    "by PyTorch, and 90.00 MiB is reserved by PyTorch but unallocated."
)
FATAL = """step 3
Fatal Python error: Segmentation fault

Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 134 in forward
  File "/app/train.py", line 41 in step
  File "/app/train.py", line 60 in <module>

Extension modules: numpy (total: 1)
"""
ABORTED = """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: unspecified
CUDA kernel errors might be asynchronously reported
"""
LOST_PEER = "RuntimeError: [/third_party/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:26023"


def test_the_exception_and_the_users_line() -> None:
    found = ("ValueError: lost", "train.py:41 in step")
    prefixed = "".join(f"[rank1]: {line}\n" for line in PLAIN.splitlines())
    coloured = PLAIN.replace("ValueError", "\x1b[1;35mValueError\x1b[0m").replace(
        '"/app/train.py"', '\x1b[35m"/app/train.py"\x1b[0m'
    )
    noise = "[rank0]:[W1127 22:10:11.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called\n"
    for text in (PLAIN, prefixed, coloured, PLAIN + noise * 90, LAUNCHED, f"{PLAIN}terminate called without an active"):
        assert read_exception(text) == found
    assert read_exception(PLAIN.partition("main()\n")[2]) == found


@pytest.mark.parametrize(
    ("text", "exception", "location"),
    [
        (LIBRARY, "RuntimeError: mat1 and mat2 shapes cannot be multiplied", "models/gpt.py:7 in forward"),
        (LOADER, "KeyError: 'label'", "data.py:5 in __getitem__"),
        (
            CHAINED,
            "RuntimeError: no data (caused by FileNotFoundError: [Errno 2] No such file or directory: '/data/x')",
            "train.py:5 in load",
        ),
        (GROUP, "ValueError: a (in ExceptionGroup: many (2 sub-exceptions))", "train.py:2 in work"),
        (f"{WRAPPED}{OOM}\n", OOM, "train.py:50 in main"),
        (f"{WRAPPED}KeyboardInterrupt\n", "KeyboardInterrupt", "train.py:50 in main"),
        (
            f"{WRAPPED}RuntimeError: Error(s) in loading GPT:\n\tsize mismatch for head: copying\n\tsize\n",
            "RuntimeError: Error(s) in loading GPT: size mismatch for head: copying",
            "train.py:50 in main",
        ),
        (
            f"{WRAPPED}torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error\n"
            "ncclSystemError: System call failed.\nLast error:\nError while creating shared memory segment\n",
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error: "
            "Error while creating shared memory segment",
            "train.py:50 in main",
        ),
        (
            f"{WRAPPED}/pytorch/aten/Indexing.cu:1553: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed.\n"
            "torch.AcceleratorError: CUDA error: device-side assert triggered\n",
            "torch.AcceleratorError: CUDA error: device-side assert triggered (Assertion `i < n` failed)",
            "train.py:50 in main",
        ),
        (f"{WRAPPED}__main__.Lost: x\n", "Lost: x", "train.py:50 in main"),
        ('  File "/app/x.py", line 3\n    def f(\n         ^\nSyntaxError: \'(\' was never closed\n',
         "SyntaxError: '(' was never closed", "x.py:3"),
        (FATAL, "Fatal Python error: Segmentation fault", "train.py:41 in step"),
        (PLAIN + FATAL, "Fatal Python error: Segmentation fault", "train.py:41 in step"),
        (PLAIN + FATAL.replace("fault\n", "fault\nPython runtime state: finalizing (tstate=0x1)\n"),
         "ValueError: lost", "train.py:41 in step"),
        (ABORTED, "c10::DistBackendError: [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: "
         "CUDA error: unspecified", ""),
        ("KeyError: 'x'", "KeyError: 'x'", ""),
        (f'{HEAD}  File "/opt/lib/python3.11/site-packages/trainloop/run.py", line 3, in train\n    x\nKeyError: 1\n',
         "KeyError: 1", "run.py:3 in train"),
    ],
)  # fmt: skip
def test_other_forms(text: str, exception: str, location: str) -> None:
    assert read_exception(text) == (exception, location)


@pytest.mark.parametrize("text", ["", "step 3\nloss: 4", "killed by SIGKILL", PLAIN + "step 21 loss 0.2\n" * 40])
def test_no_exception(text: str) -> None:
    assert read_exception(text) is None


def test_the_cause_of_a_chain_is_its_first_exception() -> None:
    joint = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert tracebacks.cause_lines(f"{PLAIN}{joint}{WRAPPED}{LOST_PEER}\n") == ["ValueError: lost"]
    assert tracebacks.cause_lines(f"{WRAPPED}{LOST_PEER}\n{joint}{PLAIN}") == [LOST_PEER]
    assert list(tracebacks.cause_lines("no exception")) == []
    assert tracebacks.before_handling(f"{PLAIN}{joint}{WRAPPED}{LOST_PEER}") == (
        PLAIN.rstrip("\n"),
        f"{joint}{WRAPPED}{LOST_PEER}",
    )
    assert tracebacks.before_handling(PLAIN) == (PLAIN, "")


def test_carets_prefixes_and_colours_are_left_out() -> None:
    printed = "".join(f"[rank1]: {line}\n" for line in PLAIN.splitlines())
    assert tracebacks.cleaned(f"\x1b[31m{printed}\x1b[0m") == PLAIN.replace("    ~~~~^^\n", "")


@pytest.mark.parametrize("limit", [400, 700, 2_000])
def test_a_long_text_keeps_the_exception_and_the_users_frames(limit: int) -> None:
    inner = '  File "/x/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl\n    return forward(x)\n'
    text = LIBRARY.replace("RuntimeError:", inner * 60 + "RuntimeError:") + "warning: not destroyed\n" * 9
    kept = tracebacks.condensed(text, limit)
    assert len(kept) <= limit
    assert read_exception(kept) == read_exception(LIBRARY)
    assert tracebacks.condensed(PLAIN, limit) == PLAIN
    noisy = PLAIN + "[rank0]:[W1127 22:10:11.1 ProcessGroupNCCL.cpp:1496] Warning: not destroyed\n" * 90
    assert tracebacks.condensed(noisy, limit).endswith("ValueError: lost")


PROGRAM = """
    import traceback
    class Lost(RuntimeError): pass
    def inner(): {body}
    def step(): inner()
    step()
"""


@pytest.mark.parametrize(
    ("body", "exception"),
    [
        ("raise Lost('a\\nb')", "Lost: a"),
        ("[][3]", "IndexError: list index out of range"),
        ("assert False", "AssertionError"),
        ("raise ValueError", "ValueError"),
        ("raise ValueError('\\n\\nsecond')", "ValueError: second"),
        ("inner()", "RecursionError: maximum recursion depth exceeded"),
        ("exec('x = (')", "SyntaxError: '(' was never closed"),
    ],
)
def test_this_python_prints_what_is_read(body: str, exception: str) -> None:
    program = compile(textwrap.dedent(PROGRAM.format(body=body)), "/app/train.py", "exec")
    with pytest.raises(Exception) as raised:
        exec(program, {"__name__": "__main__"})
    error = raised.value
    assert error.__traceback__ is not None
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next))
    found = read_exception(text)
    assert found is not None
    assert found.exception == exception
    assert found.location == ("<string>:1" if "exec" in body else "train.py:4 in inner")


PIECES = (PLAIN, LIBRARY, LOADER, CHAINED, GROUP, LAUNCHED, FATAL, ABORTED, OOM, "[rank1]: ", "\n", "  | ", "\x1b[31m")


@given(
    st.lists(
        st.one_of(
            st.sampled_from(PIECES),
            st.text(max_size=40),
            st.sampled_from(PIECES).flatmap(lambda piece: st.integers(0, len(piece)).map(lambda at: piece[at:])),
        ),
        max_size=8,
    ).map("".join)
)
@example('  File "' + "a" * 70_000)
@example("[rank" * 20_000)
@example(HEAD + "  File train.py\n" * 100 + "ValueError: x")
@example("a." * 40_000 + "\n" + HEAD * 3_000)
@example("  " + "~" * 30_000 + "^ " * 20_000)
@example("  |" * 30_000)
@example('  File "x", line 1, in f\n' * 3_000 + "a: b\n" * 3_000)
def test_hostile_texts(text: str) -> None:
    found = read_exception(text)
    assert found is None or (
        0 < len(found.exception) <= MAX_EXCEPTION_CHARACTERS
        and len(found.location) <= MAX_LOCATION_CHARACTERS
        and "\n" not in "".join(found)
    )
    assert len(tracebacks.condensed(text, 500)) <= 500
    assert all("\n" not in line for line in tracebacks.cause_lines(text))
    assert len("".join(tracebacks.before_handling(text))) <= len(text)
    assert len(tracebacks.cleaned(text)) <= len(text)
