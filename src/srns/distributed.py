"""Ranks on torch.distributed: gloo between CPUs, NCCL between GPUs. What travels in a training step is in `GradientSum`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from srns.errors import TrainingError
from srns.ranks import Ranks

TIMEOUT = timedelta(minutes=float(os.environ.get("SRNS_TIMEOUT_MINUTES", "30")))  # a rank may compile or read for a while


class TorchRanks(Ranks):
    """The processes of one torchrun."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @classmethod
    def join(cls) -> TorchRanks:
        if not dist.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=TIMEOUT)
        return cls()

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        tensor = torch.tensor(np.asarray(values))
        dist.all_reduce(tensor)
        return tensor.numpy()

    @contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises when a peer is gone
            if re.search(r"(?i)connection|peer|gloo|nccl|timed out|socket", str(error)):
                raise TrainingError(
                    f"rank {self.rank} lost another rank of {self.size}: {str(error).splitlines()[0][:200]}; the run goes on "
                    "from its last checkpoint with --resume, or by itself under torchrun --max-restarts"
                ) from None
            raise


class _Sum(torch.autograd.Function):
    """The sum over ranks; every rank's loss depends on it, so gradients are summed on the way back too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def differentiable_sum(ranks: Ranks) -> Any:
    """The sum of a tensor over ranks, for autograd."""
    return _Sum.apply if ranks.size > 1 else lambda tensor: tensor


class GradientSum:
    """Sums the gradients of what every rank holds a copy of, and counts the bytes that this rank receives.

    Tables of items travel as the touched rows of each rank (an all-gather) where those are fewer bytes than the whole table
    (an all-reduce in a ring, which passes 2 (N - 1) / N tables through each rank); everything else travels whole, in one piece.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.bytes = 0

    def __call__(self, whole: Sequence[Tensor], tables: Sequence[Tensor], touched: Tensor) -> None:
        """Sum the gradients `whole` and `tables` in place; rows of tables other than `touched` are zero on this rank."""
        if self.ranks.size == 1:
            return
        others = self.ranks.size - 1
        if tables:
            rows = torch.unique(touched)
            counts = torch.zeros(self.ranks.size, dtype=torch.int64, device=rows.device)
            counts[self.ranks.rank] = len(rows)
            dist.all_reduce(counts)
            most = int(counts.max())
            width = sum(table.shape[1] for table in tables)
            ring = 2 * others / self.ranks.size * sum(table.nbytes for table in tables)
            if others * most * (4 * width + 8) < ring:
                self._exchange_rows(tables, rows, counts.tolist(), most)
            else:
                whole = [*whole, *tables]
        if whole:
            flat = torch.cat([gradient.reshape(-1) for gradient in whole])
            dist.all_reduce(flat)
            self.bytes += int(2 * others / self.ranks.size * flat.nbytes)
            for gradient, part in zip(whole, flat.split([gradient.numel() for gradient in whole]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _exchange_rows(self, tables: Sequence[Tensor], rows: Tensor, counts: list[int], most: int) -> None:
        ids = torch.zeros(most, dtype=torch.int64, device=rows.device)
        ids[: len(rows)] = rows
        values = torch.zeros(most, sum(table.shape[1] for table in tables), device=rows.device)
        values[: len(rows)] = torch.cat([table[rows] for table in tables], dim=1)
        all_ids, all_values = ([torch.empty_like(mine) for _ in counts] for mine in (ids, values))
        dist.all_gather(all_ids, ids)
        dist.all_gather(all_values, values)
        self.bytes += (len(counts) - 1) * (ids.nbytes + values.nbytes)
        for table in tables:
            table.zero_()
        for count, theirs, sums in zip(counts, all_ids, all_values, strict=True):  # in the same order on every rank
            for table, part in zip(tables, sums[:count].split([table.shape[1] for table in tables], dim=1), strict=True):
                table.index_add_(0, theirs[:count], part)


def copy_from_first(ranks: Ranks, tensors: Sequence[Tensor]) -> None:
    """Make what every rank holds a copy of the same again: rounding on GPUs may have drifted apart."""
    if ranks.size > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
