"""Gradients are sent with fewer bits: a compressor reduces one DDP bucket to its mean over ranks, or an approximation.

The error of one step is added to later steps (see `lossy`). The hook itself runs all collectives, one after the other.
If they ran in a chain of callbacks, as in torch's PowerSGD, their order could differ between ranks; with gloo and more
than one bucket that hangs.

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
#: A rank's memory: plain tensors, which can be saved, by the parameter's name and a kind. `left` is the error of the
#: rank's own gradient. `mean_left` is the error of the mean that the rank sent to all ranks, and is zero outside the
#: rank's part. Both have the parameter's shape. `factor` is PowerSGD's last right factor.
Memory = dict[str, torch.Tensor]


class Compressor:
    """This compressor all-reduces gradients in their own type, or in a shorter type."""

    # : Whether the compressor itself uses up `mean_left` in the memory. `left` is always added before it is called.
    keeps_means = False

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype

    def reduce(
        self, bucket: GradBucket, names: list[str], memory: Memory
    ) -> tuple[torch.futures.Future[torch.Tensor], int]:
        """Returns a future with the bucket's mean over ranks, and the number of bytes that this rank sends for it.

        The bucket already includes earlier errors. The new error is stored in `memory` under the parameters' `names`;
        with a lossless method, `names` is empty.
        """
        buffer, size = bucket.buffer(), dist.get_world_size()
        # Divide before summing, so that fp16 doesn't overflow.
        sent = buffer.div_(size) if self._dtype is None else (buffer / size).to(self._dtype)
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def received(done: torch.futures.Future[Any]) -> torch.Tensor:
            mean: torch.Tensor = done.value()[0]
            return mean if self._dtype is None else buffer.copy_(mean)

        return work.get_future().then(received), ring_bytes(sent.numel(), size, sent.element_size())
