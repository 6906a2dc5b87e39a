"""Reads Python's tracebacks in a program's last lines: the exception that ended it, and the user's own line of code.

The agent uses this to keep what matters of a long output, and the operator to name the cause. The text is a program's
output, so it may be anything: each line is matched once, by patterns whose time is linear in the line's length.

- The last one of chained exceptions was raised. `raise … from` names its cause too.
- The exception of a data loader's process, or of a spawned one, is quoted in another exception's message, and is the
  last one in the text. The first member of an exception group is shown.
- A launcher (torchrun, accelerate) only reports that a rank has failed, so its own exception doesn't count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

from trainmaster_operator.wire.values import last_lines

MAX_EXCEPTION_CHARACTERS, MAX_LOCATION_CHARACTERS = 700, 200
"""The limits of an exception's text, which includes torch's whole sentence about a lack of memory, and of a place."""
MAX_READ_CHARACTERS = 65_536
_MAX_LINE = 2_000
_MAX_MESSAGE_LINES = 12
"""An exception's message may have this many lines."""
_MAX_LATER_LINES = 25
"""An exception that the program has survived for this many further lines hasn't ended the program."""
_COLOURS = r"\x1b\[[0-9;]*m"
# torch (`_distributed_excepthook`) and torchrun's --tee put this before each line.
_PREFIX = r"\[(?:rank|default)\d{1,9}\]: ?"
_CARETS = r"[ \t|]+[~^][~^ \t]*"
# torch's and NCCL's own log lines, and those of tools that end after the exception.
_NOISE = re.compile(
    r"\[?[WEIF]\d{3,4} \d\d:|\S{1,200}:\d+:\d+ \[\d+\] NCCL |wandb: |terminate called |Exception raised from "
)
_HEAD = "Traceback (most recent call last):"
_GROUP_HEAD = "Exception Group Traceback"
_FRAME = re.compile(r'\s+File "([^"]{1,1000})", line (\d{1,9})(?:, in (\S.{0,200}))?$')
_FATAL_FRAME = re.compile(r'\s+File "([^"]{1,1000})", line (\d{1,9}) in (\S{1,200})$')
_NAME = r"[^\W\d][\w.<>]{0,200}"
_EXCEPTION = re.compile(rf"({_NAME})(?::(?: |$)|$)")
_SURE_EXCEPTION = re.compile(rf"(?:{_NAME})?(?:Error|Exception|Interrupt)(?:: .|$)")
_MARGIN = re.compile(r"\s{0,60}(?:\| ?|\+ (?=Exception Group ))")
_MEMBER = re.compile(r"\s{0,60}\+[-+]+ \d+ -+$")
_CAUSED = "The above exception was the direct cause of the following exception:"
_HANDLED = "During handling of the above exception, another exception occurred:"
_FATAL = "Fatal Python error: "
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^'\n]{1,200})'")
# Frames in these places aren't the user's own code.
_LIBRARIES = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/lib/python\d|^<(?!ipython|string|stdin)|(?:^|/)trainloop/"
    r"|/torch/(?:distributed|nn|utils|optim|autograd|cuda|multiprocessing|_\w+)/"
)
_PYTHONS_OWN = re.compile(r"/lib/python\d[^/]*/(?!site-packages|dist-packages)|^<")
_LAUNCHERS = re.compile(
    r"/torch/distributed/(?:run|launch|launcher/\w+)\.py$|/accelerate/commands/|/deepspeed/launcher/"
)


class Raised(NamedTuple):
    """Raised is an exception as a reader needs it."""

    exception: str
    """Its type and message in one line, such as `ValueError: lost`."""
    location: str
    """The newest line of the user's own code, such as `train.py:41 in step`; empty if it isn't known."""


class _Frame(NamedTuple):
    file: str
    line: str
    function: str
    at: int
    """The number of the frame's line in the text."""


class _Block(NamedTuple):
    """_Block is one exception with its traceback."""

    start: int
    end: int
    """The numbers of its first line, and of the first line after its message."""
    at: int
    """The number of the line with the exception's name."""
    frames: Sequence[_Frame]
    lines: Sequence[str]
    """The exception's line and its message's further lines."""
    chain: str
    """How it follows from the exception before it; empty if it doesn't."""
    group: bool
    """Whether it is a group of exceptions."""
    member: bool
    assertion: str
    """The failed assertion of a GPU's kernel, which the agent inserts before the exception."""


def read_exception(text: str) -> Optional[Raised]:
    """Returns the exception that ended a program, from its last lines; None if they contain none."""
    text = text[-MAX_READ_CHARACTERS:]
    lines = _plain(text)
    blocks = _blocks(lines)
    place = _chosen(blocks, lines)
    fatal = text.rfind(_FATAL)
    if fatal >= 0 and (place is None or text.count("\n", 0, fatal) > blocks[place].at):
        found = _fatal(text[fatal:])
        if place is None or "finalizing" not in text[fatal:]:
            return found
    if place is not None:
        return _raised(blocks, place)
    thrown = _TERMINATE.search(text)
    if thrown is not None:
        what = text[thrown.end() :].partition("what():")[2].strip().partition("\n")[0].strip()
        return Raised(_cut(f"{thrown[1]}: {what}" if what else thrown[1]), "")
    for line in reversed(lines[-_MAX_LATER_LINES:]):
        if _SURE_EXCEPTION.match(line):
            return Raised(_cut(line.strip()), "")
    return None


def cause_lines(text: str) -> Sequence[str]:
    """Returns the lines of the first of the chained exceptions that ended a program; empty if there is none."""
    first, _ = _first(_plain(text[-MAX_READ_CHARACTERS:]))
    return [] if first is None else [line for line in first.lines if line.strip()]


def before_handling(text: str) -> tuple[str, str]:
    """Returns a text up to the first of the chained exceptions, and the rest; the rest is empty without a chain."""
    text = text[-MAX_READ_CHARACTERS:]
    first, is_last = _first(_plain(text))
    if first is None or is_last:
        return text, ""
    lines = text.split("\n")
    return "\n".join(lines[: first.end]), "\n".join(lines[first.end :])


def _first(lines: Sequence[str]) -> tuple[Optional[_Block], bool]:
    """Returns the first of the chained exceptions that ended a program, and whether it is also the last one."""
    blocks = _blocks(lines)
    place = last = _chosen(blocks, lines)
    while place and blocks[place].chain:
        place -= 1
    return (None if place is None else blocks[place]), place == last


def cleaned(text: str) -> str:
    """Returns a program's output without colours, without torch's prefixes, and without Python's lines of carets."""
    if "\x1b" in text:
        text = re.sub(_COLOURS, "", text)
    text = re.sub(rf"(?m)^{_PREFIX}", "", text)
    return re.sub(rf"(?m)^{_CARETS}(?:\n|\Z)", "", text)


def condensed(text: str, limit: int) -> str:
    """Returns at most `limit` characters of a text's end, with the exception and the user's own frames.

    If the text is too long, what follows the exception is left out first, then the frames of libraries.
    """
    if len(text) <= limit:
        return text
    text = text[-MAX_READ_CHARACTERS:]
    lines, plain = text.split("\n"), _plain(text)
    blocks = _blocks(plain)
    place = _chosen(blocks, plain)
    if place is None:
        return last_lines(text, limit)
    block = blocks[place]
    size = sum(len(line) + 1 for line in lines[block.start : block.end])
    if size <= limit or not block.frames:
        return last_lines("\n".join(lines[: block.end]), limit)
    own = [frame for frame in block.frames if not _LIBRARIES.search(frame.file)] or list(block.frames[-1:])
    message, used = "\n".join(lines[block.at : block.end]), len(_HEAD) + 1
    message = message if len(message) <= limit // 2 else last_lines(lines[block.at], limit // 2)
    shown: list[str] = []
    # The first frame shows where the program is, so that the other files' names can be shortened.
    for frame in dict.fromkeys((own[-1], own[0], *reversed(own))):
        one = "\n".join(line for line in lines[frame.at : frame.at + 2] if line[:1].isspace())[:_MAX_LINE]
        if used + len(message) + len(one) + 1 > limit:
            break
        shown.append(one)
        used += len(one) + 1
    newest, *others = shown or [""]
    oldest, between = others[:1], others[1:][::-1]
    return "\n".join(filter(None, (_HEAD, *oldest, *between, newest, message)))[:limit]


def _plain(text: str) -> list[str]:
    lines = (re.sub(_COLOURS, "", line[:_MAX_LINE]).rstrip() for line in text.split("\n"))
    return [re.sub(rf"^{_PREFIX}", "", line) for line in lines]


def _blocks(lines: Sequence[str]) -> list[_Block]:
    """Returns the exceptions in a text, in order. A traceback whose beginning was cut off counts too."""
    blocks: list[_Block] = []
    frames: list[_Frame] = []
    start, chain, assertion = -1, "", ""
    headed = group = in_group = member = False
    at = 0
    while at < len(lines):
        line = lines[at]
        if _MEMBER.match(line):
            start, headed, member, group, frames = at, True, True, False, []
            at += 1
            continue
        if in_group or _GROUP_HEAD in line:
            line = _MARGIN.sub("", line, 1)
        if line.endswith(_HEAD):
            group = _GROUP_HEAD in line
            in_group = group or member
            start, headed, frames, assertion = at, True, [], ""
        elif frame := _FRAME.match(line):
            start = at if start < 0 else start
            frames.append(_Frame(frame[1], frame[2], frame[3] or "", at))
        elif line in (_CAUSED, _HANDLED):
            chain, start, headed = line, -1, False
        elif (frames or headed) and line and not line[0].isspace():
            found = _EXCEPTION.match(line)
            if found and (frames or _SURE_EXCEPTION.match(line) or member):
                end = _message_end(lines, at)
                message = [line, *lines[at + 1 : end]]
                blocks.append(_Block(start, end, at, frames, message, chain, group, member, assertion))
                start, chain, assertion, frames = -1, "", "", []
                headed = group = member = False
                at = end - 1
            elif "ssertion" in line:
                assertion = line
        at += 1
    return blocks


def _message_end(lines: Sequence[str], at: int) -> int:
    """Returns the number of the first line after the message of the exception whose name is in line `at`."""
    end = at + 1
    while end < len(lines) and end - at <= _MAX_MESSAGE_LINES:
        line = lines[end]
        if _NOISE.match(line) or line in (_CAUSED, _HANDLED) or line.endswith(_HEAD) or _MEMBER.match(line):
            break
        if _FRAME.match(line) or line.startswith(_FATAL):
            break
        end += 1
    while end > at + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def _chosen(blocks: Sequence[_Block], lines: Sequence[str]) -> Optional[int]:
    """Returns the place of the exception that ended the program; None if there is none."""
    own = [place for place, each in enumerate(blocks) if not _is_launchers(each)]
    if not own and not blocks:
        return None
    place = own[-1] if own else len(blocks) - 1
    later = lines[blocks[-1].end :]
    if sum(1 for line in later if line and not _NOISE.match(line)) > _MAX_LATER_LINES:
        return None
    first = place
    while first and blocks[first].member:
        first -= 1
    return first if blocks[first].group else place


def _is_launchers(block: _Block) -> bool:
    if block.lines[0].partition(":")[0].endswith("ChildFailedError"):
        return True
    return bool(block.frames) and any(_LAUNCHERS.search(frame.file) for frame in block.frames)


def _raised(blocks: Sequence[_Block], place: int) -> Raised:
    block = blocks[place]
    text, location = _text(block), _location(block.frames)
    if block.group and place + 1 < len(blocks) and blocks[place + 1].member:
        inner = next((each for each in blocks[place + 1 :] if not each.group), blocks[place + 1])
        return Raised(_cut(f"{_text(inner)} (in {text})"), _location(inner.frames) or location)
    if block.chain == _CAUSED and place:
        cause = _text(blocks[place - 1])
        if cause == text:
            return Raised(_cut(text), _location(blocks[place - 1].frames) or location)
        return Raised(_cut(f"{text} (caused by {cause})"), location)
    return Raised(_cut(text), location)


def _text(block: _Block) -> str:
    first, *more = (line.strip() for line in block.lines)
    first = first[len("__main__.") :] if first.startswith("__main__.") else first
    rest = [line for line in more if line]
    name = _EXCEPTION.match(first)
    if rest and (first.endswith(":") or (name is not None and name[0] == first)):
        # The first line of such a message only introduces the second one.
        first = f"{first} {rest[0]}" if first.endswith(":") else f"{first}: {rest[0]}"
    if "Last error:" in rest[:-1]:
        first += f": {rest[rest.index('Last error:') + 1]}"
    if block.assertion:
        _, mark, failed = block.assertion.partition("Assertion ")
        first += f" ({mark}{failed.rstrip('.')})" if mark else f" ({block.assertion})"
    return first


def _fatal(text: str) -> Raised:
    """Returns what faulthandler has printed about a fatal signal."""
    name = text.partition("\n")[0][len(_FATAL) :].strip()
    frames = []
    for at, line in enumerate(text.partition("Current thread")[2].split("\n")[1:200]):
        found = _FATAL_FRAME.match(line[:_MAX_LINE])
        if found is None:
            break
        frames.append(_Frame(found[1], found[2], found[3], at))
    return Raised(_cut(f"Fatal Python error: {name}"), _location(frames[::-1]))


def _location(frames: Sequence[_Frame]) -> str:
    """Returns the newest frame of the user's own code, else of a library; empty if there is neither."""
    own = [frame for frame in frames if not _LIBRARIES.search(frame.file)]
    shown = own or [frame for frame in frames if not _PYTHONS_OWN.search(frame.file)]
    if not shown:
        return ""
    newest, folder = shown[-1], os.path.dirname(shown[0].file)
    file = newest.file
    if folder and file.startswith(f"{folder}/"):
        file = file[len(folder) + 1 :]
    function = "" if newest.function in ("", "<module>") else f" in {newest.function}"
    return f"{file}:{newest.line}{function}"[:MAX_LOCATION_CHARACTERS]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_EXCEPTION_CHARACTERS else text[: MAX_EXCEPTION_CHARACTERS - 1] + "…"
