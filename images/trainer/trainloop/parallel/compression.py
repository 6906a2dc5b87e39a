"""Gradients are sent on fewer bits. Each compressor reduces one DDP bucket to the mean over ranks, or to something near
it.

What a compressor leaves out of one step it keeps and adds to the next (error feedback); that memory is each rank's
own and is in the checkpoint. All collectives are made in the hook itself, one after the other: a chain of callbacks,
as torch's own PowerSGD has it, runs in another order on other ranks and hangs on gloo with more than one bucket.

Bytes are those that a rank sends (n numbers, W ranks), with all-reduce as a ring:

    none        8 n (W-1)/W            fp16, bf16   4 n (W-1)/W
    onebit      n/4 (W-1)/W + scales   powersgd     8 r (rows + columns) (W-1)/W for each matrix
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import GradBucket

from trainloop.distributed.world import average, ring_bytes

Method = Literal["none", "fp16", "bf16", "powersgd", "onebit"]
#: What a compressor remembers, by bucket: plain tensors, so that they can be saved.
Memory = dict[str, torch.Tensor]


class Compressor:
    """All-reduces in the gradient's own type, or in a shorter one."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.memory: Memory = {}
        self._dtype = dtype

    def reduce(self, bucket: GradBucket) -> tuple[torch.futures.Future[torch.Tensor], int]:
        """Returns the bucket's mean over ranks, in a future, and the bytes that this rank sends for it."""
        buffer, size = bucket.buffer(), dist.get_world_size()
        # Divided before it is summed, so that fp16 doesn't overflow.
        sent = buffer.div_(size) if self._dtype is None else (buffer / size).to(self._dtype)
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def received(done: torch.futures.Future[Any]) -> torch.Tensor:
            mean: torch.Tensor = done.value()[0]
            return mean if self._dtype is None else buffer.copy_(mean)

        return work.get_future().then(received), ring_bytes(sent.numel(), size, sent.element_size())


class OneBit(Compressor):
    """Sends signs with one scale a chunk, and has error feedback on both ways (Seide et al. 2014; Tang et al. 2021,
    section 4).

    Each rank averages one chunk: signs go there by all-to-all, and the average comes back as signs by all-gather.
    All-gathering all ranks' signs instead would cost W/64 of fp32's traffic, more than fp32 from 64 ranks on.
    """

    def reduce(self, bucket: GradBucket) -> tuple[torch.futures.Future[torch.Tensor], int]:
        buffer, size, rank = bucket.buffer(), dist.get_world_size(), dist.get_rank()
        chunk = -(-buffer.numel() // (8 * size)) * 8
        gradient = torch.nn.functional.pad(buffer, (0, chunk * size - buffer.numel())).view(size, chunk)
        # The padding isn't part of the gradient: counted in, it would shrink its chunk's scale.
        there = (torch.arange(chunk * size, device=buffer.device) < buffer.numel()).view(size, chunk)
        bits, scales = self._signs(f"{bucket.index()}.sent", gradient, there)
        received, their_scales = torch.empty_like(bits), torch.empty_like(scales)
        dist.all_to_all_single(received, bits)
        dist.all_to_all_single(their_scales, scales)
        mean = _values(received, their_scales).mean(0, keepdim=True)
        bits, scales = self._signs(f"{bucket.index()}.averaged", mean, there[rank : rank + 1])
        all_bits = [torch.empty_like(bits) for _ in range(size)]
        all_scales = [torch.empty_like(scales) for _ in range(size)]
        dist.all_gather(all_bits, bits)
        dist.all_gather(all_scales, scales)
        buffer.copy_(_values(torch.cat(all_bits), torch.cat(all_scales)).view(-1)[: buffer.numel()])
        sent = (size - 1) * (2 * (chunk // 8) + 2 * scales.element_size())
        return _done(buffer), sent

    def _signs(self, name: str, rows: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each row's signs, eight in a byte, and its mean magnitude over the numbers that are `there`.

        What the same `name` left out before is added first, and what is left out now is kept.
        """
        rows = rows + _left(self.memory, name, rows.view(-1)).view_as(rows)
        scales = (rows.abs() * there).sum(1) / there.sum(1).clamp(min=1)
        weights = 2 ** torch.arange(8, dtype=torch.uint8, device=rows.device)
        bits = ((rows >= 0).view(rows.shape[0], -1, 8) * weights).sum(2, dtype=torch.uint8)
        self.memory[name] = ((rows - _values(bits, scales)) * there).view(-1)
        return bits, scales


def _values(bits: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns what `_signs` wrote, as numbers: rows x 8 x bytes."""
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=bits.device)
    positive = bits.unsqueeze(2).bitwise_and(weights).ne(0).view(bits.shape[0], -1)
    return torch.where(positive, scales.unsqueeze(1), -scales.unsqueeze(1))


class PowerSGD(Compressor):
    """Sends a matrix as a product of two thin ones, by a power iteration a step (Vogels et al. 2019)."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def reduce(self, bucket: GradBucket) -> tuple[torch.futures.Future[torch.Tensor], int]:
        gradients = {f"{bucket.index()}.{index}": gradient for index, gradient in enumerate(bucket.gradients())}
        matrices = {name: g.view(g.shape[0], -1) for name, g in gradients.items() if self._worth_it(g)}
        sent = average(gradient for name, gradient in gradients.items() if name not in matrices)
        full = {name: matrix + _left(self.memory, f"{name}.error", matrix) for name, matrix in matrices.items()}
        left = {name: matrix @ self._start(name, matrix) for name, matrix in full.items()}
        sent += average(left.values())
        left = {name: torch.linalg.qr(p).Q for name, p in left.items()}
        right = {name: matrix.T @ left[name] for name, matrix in full.items()}
        sent += average(right.values())
        for name, matrix in matrices.items():
            matrix.copy_(left[name] @ right[name].T)
            self.memory[f"{name}.error"] = full[name] - matrix
            self.memory[f"{name}.start"] = right[name]
        return _done(bucket.buffer()), sent

    def _worth_it(self, gradient: torch.Tensor) -> bool:
        """Returns whether the two thin matrices are smaller than the gradient."""
        if gradient.dim() < 2:
            return False
        rows, columns = gradient.shape[0], gradient.numel() // gradient.shape[0]
        return (rows + columns) * self._rank < gradient.numel()

    def _start(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        """Returns the last step's right factor; at first random numbers, the same on every rank."""
        start = self.memory.get(f"{name}.start")
        if start is not None and start.shape == (matrix.shape[1], self._rank):
            return start
        generator = torch.Generator().manual_seed(matrix.shape[1])
        return torch.randn(matrix.shape[1], self._rank, generator=generator, dtype=matrix.dtype).to(matrix.device)


def _left(memory: Memory, name: str, like: torch.Tensor) -> torch.Tensor:
    """Returns what was left out of the step before, if anything was."""
    left = memory.get(name)
    return left.to(like.device) if left is not None and left.shape == like.shape else torch.zeros_like(like)


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    devices: list[int | str | torch.device] | None = [tensor.device] if tensor.device.type != "cpu" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(tensor)
    return future


def compressor_for(method: Method, powersgd_rank: int) -> Compressor:
    """Returns a compressor by name."""
    if method == "onebit":
        return OneBit()
    if method == "powersgd":
        return PowerSGD(powersgd_rank)
    return Compressor({"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}[method])


def carried_over(memories: list[Memory]) -> Memory:
    """Returns a rank's memory when a checkpoint of `len(memories)` ranks is loaded by another number of ranks.

    What was left out is the mean of what each left out, so every new rank starts with that mean and nothing is lost.
    What one rank averaged for all (`averaged`) belongs to chunks that no longer exist.
    """
    names = [name for name in memories[0] if not name.endswith(".averaged")]
    return {name: torch.stack([memory[name] for memory in memories]).mean(0) for name in names}
