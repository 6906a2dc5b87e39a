"""Lines are printed with whose they are: in a terminal every rank has a colour of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from trainmaster.cli.terminal import log_line, shows_colours
from trainmaster.client.merging import WorkerLine

# Select Graphic Rendition (ECMA-48): not black, white and red, which mean something by themselves.
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
DIM, BOLD = 2, 1


@dataclass(frozen=True)
class Style:
    """Style says how lines are printed."""

    several: bool = True
    """Lines of several workers are printed, so that each needs its author."""
    prefix: bool | None = None
    """True: the worker stands before every line; False: nothing does; None: whatever tells lines apart."""
    timestamps: bool = False
    separators: bool = True
    """Where an attempt begins is printed too."""


class Printer:
    """Printer prints lines and counts them. Where an attempt begins in several logs is said once."""

    def __init__(self, style: Style) -> None:
        self.printed = 0
        self._style = style
        self._coloured = shows_colours()
        self._separated = 0

    def __call__(self, line: WorkerLine) -> None:
        """Prints a line. Raises BrokenPipeError."""
        style, begins = self._style, line.separates
        if begins is not None:
            if not style.separators or (style.several and style.prefix is None and begins <= self._separated):
                return
            self._separated = max(self._separated, begins)
        self.printed += 1
        label, text = self._labelled(line, begins)
        time = _timestamp(line.time) if style.timestamps else ""
        log_line(text, time + label)

    def _labelled(self, line: WorkerLine, begins: int | None) -> tuple[str, str]:
        own = "" if begins is not None else line.label
        text = line.text[len(own) :]
        if self._style.prefix is False:
            return "", text
        worker = f"[worker {line.worker}] "
        if self._style.prefix:
            return self._colour(worker, DIM) + self._author(line, own), text
        if begins is not None and self._style.several:
            return "", self._colour(text, BOLD)
        if not own and self._style.several:
            return self._colour(worker, DIM), text
        return self._author(line, own), text

    def _author(self, line: WorkerLine, own: str) -> str:
        rank = line.rank if own else None
        return self._colour(own, DIM if rank is None else COLOURS[rank % len(COLOURS)])

    def _colour(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured and text else text


def _timestamp(time: float) -> str:
    if not time:
        return ""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")
