"""rich's console is made safe for texts of others: no markup, no emoji names, no control character but its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trainmaster_operator.api.printable import printable

# Columns of a line that goes to no terminal.
UNLIMITED = 1_000_000


class SafeConsole(Console):
    """The console prints tables, texts and live pictures; see the module. Only rich marks segments as controls."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            # Who reads a pipe or a file wants names whole, and one row in one line.
            self.width = UNLIMITED

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints anything; into a pipe or a file without the blanks that fill tables up to their width."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        lines = captured.get().split("\n")
        super().print("\n".join(line.rstrip(" ") for line in lines), end="", soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a plain string as it will be shown, so that columns are as wide."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields the safe segments of anything that is printed, also of what it contains."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
