"""`bench.programs.parts`: the remaining ranks compute all micro-batches of a step, and send gradients once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.programs.parts import PARTS, own_parts


class Model:
    """Stands for a model of DDP, and remembers whether it may send gradients."""

    sends = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sends = False
        yield
        self.sends = True


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_share_out_all_micro_batches_and_send_gradients_with_the_last_one(size: int) -> None:
    model: Any = Model()
    made = [[(part, model.sends) for part in own_parts(model, rank, size)] for rank in range(size)]
    assert sorted(part for parts in made for part, _ in parts) == list(range(PARTS))
    assert all([sends for _, sends in parts] == [False] * (len(parts) - 1) + [True] for parts in made)
