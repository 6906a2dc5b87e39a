"""A measurement that fails is reported at once, and costs no other row of a benchmark."""

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
        """Reports any failure of its block, and lets the benchmark continue."""
        try:
            yield
        except Exception:
            self.titles.append(title)
            print(f"{title}: not measured:\n{traceback.format_exc()}", flush=True)

    @property
    def exit_code(self) -> int:
        """Returns what the benchmark exits with: 1 where something couldn't be measured, which it says again."""
        if self.titles:
            print(f"not measured: {', '.join(self.titles)}")
        return 1 if self.titles else 0
