"""Gradients are sent with fewer bits: a compressor reduces one DDP bucket to the mean over ranks, or close to the mean.

The error of one step is added to the next steps (see `lossy`). The hook itself runs all collectives one after the
other. A chain of callbacks, as in torch's PowerSGD, could run in a different order on other ranks, and hangs with gloo
and more than one bucket.

Bytes that a rank sends (n numbers, W ranks), with all-reduce as a ring:

    none        8 n (W-1)/W            fp16, bf16   4 n (W-1)/W
    onebit      n/4 (W-1)/W + scales   powersgd     8 r (rows + columns) (W-1)/W for each matrix
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import GradBucket

from trainloop.distributed.world import ring_bytes

Method = Literal["none", "fp16", "bf16", "powersgd", "onebit"]
#: A rank's memory, by parameter's name and kind: plain tensors of the parameter's shape, so that they can be saved.
#: Kinds: `left` is the error of the rank's own gradient, `mean_left` that of the mean that it sent to all (zero outside
#: its part); `factor` is PowerSGD's last right factor.
Memory = dict[str, torch.Tensor]


class Compressor:
    """This compressor all-reduces in the gradient's own type, or in a shorter one."""

    # : Whether the compressor itself removes `mean_left` from the memory; the bucket already includes `left`.
    keeps_means = False

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype

    def reduce(
        self, bucket: GradBucket, names: list[str], memory: Memory
    ) -> tuple[torch.futures.Future[torch.Tensor], int]:
        """Returns the bucket's mean over ranks, in a future, and the bytes that this rank sends for it.

        The bucket already includes earlier errors. The new error is stored in `memory` under the parameters' `names`,
        which are empty for a lossless method.
        """
        buffer, size = bucket.buffer(), dist.get_world_size()
        # Divided before the sum, so that fp16 doesn't overflow.
        sent = buffer.div_(size) if self._dtype is None else (buffer / size).to(self._dtype)
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def received(done: torch.futures.Future[Any]) -> torch.Tensor:
            mean: torch.Tensor = done.value()[0]
            return mean if self._dtype is None else buffer.copy_(mean)

        return work.get_future().then(received), ring_bytes(sent.numel(), size, sent.element_size())
