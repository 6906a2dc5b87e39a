"""These compressors send an approximate gradient: only signs, or a matrix as a product of two thin matrices.

The error of one step is added to the next step (error feedback). Each rank has its own memory of errors, which is saved
in the checkpoint. Errors are stored by parameter, because DDP rearranges its buckets after the first backward pass, and
a resumed run may use buckets of another size. After every step this equation holds:

    sum of the true mean gradients - sum of the steps' gradients = mean of ranks' `left` + sum of their `mean_left`
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import GradBucket

from trainloop.distributed.world import average
from trainloop.parallel.compression import Compressor, Memory


class OneBit(Compressor):
    """This compressor sends signs and one scale per chunk, with error feedback in both directions.

    The method is from Seide et al. 2014, and Tang et al. 2021, section 4. Each rank averages one chunk: all ranks send
    it their signs by all-to-all, and it sends the signs of the average back by all-gather. If all ranks' signs were
    all-gathered instead, W ranks would cause W/64 of fp32's traffic, so from 64 ranks on nothing would be saved.
    """

    keeps_means = True

    def reduce(
        self, bucket: GradBucket, names: list[str], memory: Memory
    ) -> tuple[torch.futures.Future[torch.Tensor], int]:
        buffer, size, rank = bucket.buffer(), dist.get_world_size(), dist.get_rank()
        numbers, chunk = buffer.numel(), -(-buffer.numel() // (8 * size)) * 8
        # The padding isn't part of the gradient. If it counted, it would shrink its chunk's scale.
        there = (torch.arange(chunk * size, device=buffer.device) < numbers).view(size, chunk)
        averaged = _padded(_kept(bucket, names, "mean_left", memory), there)
        own = averaged[rank].clone()
        averaged[rank] = 0
        # After the buckets have changed or the run was resumed, this rank may hold errors in chunks that now belong to
        # another rank. Such an error counts fully in the mean, so it is multiplied by the number of ranks, and added to
        # the gradient that this rank sends.
        bits, scales, left = _signs(_padded(buffer, there) + size * averaged, there)
        received, their_scales = torch.empty_like(bits), torch.empty_like(scales)
        dist.all_to_all_single(received, bits)
        dist.all_to_all_single(their_scales, scales)
        mean = _values(received, their_scales).mean(0) + own
        bits, scales, own = _signs(mean.unsqueeze(0), there[rank : rank + 1])
        averaged.zero_()[rank] = own[0]
        begin = 0
        for name, gradient in zip(names, bucket.gradients(), strict=True):
            end = begin + gradient.numel()
            memory[f"{name}.left"] = left.view(-1)[begin:end].view_as(gradient)
            if begin < (rank + 1) * chunk and end > rank * chunk:
                memory[f"{name}.mean_left"] = averaged.view(-1)[begin:end].view_as(gradient).clone()
            begin = end
        all_bits = [torch.empty_like(bits) for _ in range(size)]
        all_scales = [torch.empty_like(scales) for _ in range(size)]
        dist.all_gather(all_bits, bits)
        dist.all_gather(all_scales, scales)
        buffer.copy_(_values(torch.cat(all_bits), torch.cat(all_scales)).view(-1)[:numbers])
        return _done(buffer), (size - 1) * (2 * (chunk // 8) + 2 * scales.element_size())


def _padded(flat: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Returns a bucket's numbers with one row per rank, padded with zeros at the end."""
    return torch.nn.functional.pad(flat, (0, there.numel() - flat.numel())).view_as(there)


def _kept(bucket: GradBucket, names: list[str], kind: str, memory: Memory) -> torch.Tensor:
    """Removes one kind of memory of a bucket's parameters and returns it; zeros for parameters that have none."""
    kept = torch.zeros_like(bucket.buffer())
    parts = torch.split(kept, [gradient.numel() for gradient in bucket.gradients()])
    for name, part in zip(names, parts, strict=True):
        if (tensor := memory.pop(f"{name}.{kind}", None)) is not None:
            part.copy_(tensor.view(-1))
    return kept


def _signs(rows: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns each row's signs (eight in a byte), its mean magnitude without the padding, and the error of both."""
    scales = (rows.abs() * there).sum(1) / there.sum(1).clamp(min=1)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=rows.device)
    bits = ((rows >= 0).view(rows.shape[0], -1, 8) * weights).sum(2, dtype=torch.uint8)
    return bits, scales, (rows - _values(bits, scales)) * there


def _values(bits: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns the numbers that signs and scales from `_signs` stand for; a row has eight numbers per byte."""
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=bits.device)
    positive = bits.unsqueeze(2).bitwise_and(weights).ne(0).view(bits.shape[0], -1)
    return torch.where(positive, scales.unsqueeze(1), -scales.unsqueeze(1))


class PowerSGD(Compressor):
    """This compressor sends a matrix as a product of two thin matrices.

    It makes one power iteration in each step (Vogels et al. 2019).
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def reduce(
        self, bucket: GradBucket, names: list[str], memory: Memory
    ) -> tuple[torch.futures.Future[torch.Tensor], int]:
        gradients = dict(zip(names, bucket.gradients(), strict=True))
        matrices = {name: g.view(g.shape[0], -1) for name, g in gradients.items() if self._worth_it(g)}
        sent = average(gradient for name, gradient in gradients.items() if name not in matrices)
        left = {name: matrix @ self._start(f"{name}.factor", matrix, memory) for name, matrix in matrices.items()}
        sent += average(left.values())
        left = {name: torch.linalg.qr(p).Q for name, p in left.items()}
        right = {name: matrix.T @ left[name] for name, matrix in matrices.items()}
        sent += average(right.values())
        for name, matrix in matrices.items():
            product = left[name] @ right[name].T
            memory[f"{name}.left"] = (matrix - product).view_as(gradients[name])
            memory[f"{name}.factor"] = right[name]
            matrix.copy_(product)
        return _done(bucket.buffer()), sent

    def _worth_it(self, gradient: torch.Tensor) -> bool:
        """Returns whether the two thin matrices are smaller than the gradient."""
        if gradient.dim() < 2:
            return False
        rows, columns = gradient.shape[0], gradient.numel() // gradient.shape[0]
        return (rows + columns) * self._rank < gradient.numel()

    def _start(self, name: str, matrix: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Returns the last step's right factor; in the first step, random numbers that are the same on every rank."""
        start = memory.get(name)
        if start is not None and start.shape == (matrix.shape[1], self._rank):
            return start.to(matrix.device)
        generator = torch.Generator().manual_seed(matrix.shape[1])
        return torch.randn(matrix.shape[1], self._rank, generator=generator, dtype=matrix.dtype).to(matrix.device)


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    devices: list[int | str | torch.device] | None = [tensor.device] if tensor.device.type != "cpu" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(tensor)
    return future


KINDS = ("left", "mean_left", "factor")


class Feedback:
    """The feedback adds earlier errors to a step's gradients, and reverts the error of a skipped step."""

    def __init__(self, names: dict[torch.Tensor, str], memory: Memory) -> None:
        self._names, self._memory = names, memory
        self._before: Memory = {}

    def begin(self) -> None:
        """Begins a step, and remembers the errors from before it."""
        self._before = dict(self._memory)

    def add(self, bucket: GradBucket, names: list[str], keeps_means: bool) -> None:
        """Adds earlier errors to a bucket's gradients.

        If `keeps_means` is true, the compressor itself handles the errors of means. Otherwise they are multiplied by
        the number of ranks, and added to this rank's gradients.
        """
        weights = {"left": 1} if keeps_means else {"left": 1, "mean_left": dist.get_world_size()}
        for name, gradient in zip(names, bucket.gradients(), strict=True):
            for kind, weight in weights.items():
                if (kept := self._memory.pop(f"{name}.{kind}", None)) is not None:
                    gradient.add_(kept.to(gradient.device), alpha=weight)

    def end(self) -> None:
        """Ends a step's backward passes."""
        if not dist.is_initialized():
            # A single rank has no DDP hook, so errors from an earlier run with several ranks are added here.
            for parameter, name in self._names.items():
                if parameter.grad is not None and f"{name}.left" in self._memory:
                    parameter.grad += self._memory.pop(f"{name}.left").to(parameter.device)
        # DDP drops the result for a parameter that no rank has used, so its error is taken back.
        self._take_back({name for parameter, name in self._names.items() if parameter.grad is None})

    def skip(self) -> None:
        """Restores the errors from before this step."""
        self._take_back(set(self._names.values()))

    def _take_back(self, names: set[str]) -> None:
        for key in {*self._memory, *self._before}:
            if key.rpartition(".")[0] in names:
                self._memory.pop(key, None)
                if key in self._before:
                    self._memory[key] = self._before[key]

    def load(self, memories: list[Memory], rank: int) -> bool:
        """Loads the memories of a checkpoint's ranks; returns whether some fit no parameter and are dropped."""
        size = dist.get_world_size() if dist.is_initialized() else 1
        memory = memories[rank] if len(memories) == size else carried_over(memories)
        shapes = {name: parameter.shape for parameter, name in self._names.items()}
        for key, kept in memory.items():
            name, _, kind = key.rpartition(".")
            if name in shapes and kind in KINDS and (kind == "factor" or kept.shape == shapes[name]):
                self._memory[key] = kept
        return len(self._memory) < len(memory)


def carried_over(memories: list[Memory]) -> Memory:
    """Returns a rank's memory when a checkpoint of `len(memories)` ranks is loaded by another number of ranks.

    The total error of the mean gradient is the mean of the ranks' own errors, plus the errors of the means that they
    sent. Every new rank starts with this total as its own error, so nothing is lost.
    """
    carried: Memory = {}
    for memory in memories:
        for key, tensor in memory.items():
            name, _, kind = key.rpartition(".")
            new = f"{name}.left" if kind == "mean_left" else key
            carried[new] = carried.get(new, 0) + (tensor if kind == "mean_left" else tensor / len(memories))
    return carried
