"""Reports measurements that fail at once, and lets a benchmark's other measurements continue."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class Failures:
    """Failures are the titles of measurements that failed."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    @contextmanager
    def of(self, title: str) -> Iterator[None]:
        """Reports any failure of the block, and lets the benchmark continue."""
        try:
            yield
        except Exception:
            self.titles.append(title)
            print(f"{title}: not measured:\n{traceback.format_exc()}", flush=True)

    @property
    def exit_code(self) -> int:
        """Returns the benchmark's exit code. If measurements failed, it is 1, and their titles are printed again."""
        if self.titles:
            print(f"not measured: {', '.join(self.titles)}")
        return 1 if self.titles else 0
