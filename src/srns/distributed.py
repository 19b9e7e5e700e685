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

# Arguments of its functions default to the group there is when it is imported, which torch's optimizers do: if that came after
# `join`, the group would outlive `leave`, and a thread of gloo that lets go of a tensor while Python ends aborts the process.
import torch.distributed.nn.functional
from numpy.typing import NDArray
from torch import Tensor

from srns.errors import ConfigError, TrainingError
from srns.ranks import Ranks


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
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group(backend, timeout=_timeout(), store=_store(size), rank=rank, world_size=size)
        return cls()

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        tensor = torch.tensor(np.asarray(values), device="cpu")
        dist.all_reduce(tensor)
        return tensor.numpy()

    @contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises when a peer is gone
            if re.search(r"(?i)connection|peer|gloo|nccl|timed out|socket", str(error)):
                plain = re.sub(r"\[[^\]]*\]:?\d* ?", "", str(error).splitlines()[0])  # without lines of gloo's code
                reason = plain.partition(". ")[0]
                raise TrainingError(
                    f"rank {self.rank} lost another rank of {self.size}: {reason}; --resume goes "
                    "on from the last checkpoint, if there is one, as torchrun does by itself with --max-restarts"
                ) from None
            raise


def _timeout() -> timedelta:
    """How long to wait for a rank that says nothing; it may be compiling or reading."""
    text = os.environ.get("SRNS_TIMEOUT_MINUTES", "30")
    try:
        return timedelta(minutes=float(text))
    except ValueError:
        raise ConfigError(f"SRNS_TIMEOUT_MINUTES is {text!r}, expected a number") from None


def _store(size: int) -> Any:
    """Where ranks find each other. torchrun keeps it over restarts, when torch 2.13 would find the addresses of the dead."""
    held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun; otherwise by the first rank
    first = not held and os.environ["RANK"] == "0"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rendezvous: Any = dist  # which does not list what it offers
    store = rendezvous.TCPStore(address, port, size, first, _timeout(), multi_tenant=True)
    return rendezvous.PrefixStore(f"srns-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


class _Sum(torch.autograd.Function):
    """The sum over ranks; every rank's loss depends on it, so gradients are summed on the way back too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def differentiable_sum(ranks: Ranks) -> Any:
    """The sum of a tensor over ranks, for autograd."""
    return _Sum.apply if ranks.size > 1 else lambda tensor: tensor


class GradientSum:
    """Sums the gradients of what every rank holds a copy of, in one message per step, and counts the bytes this rank receives.

    Tables of items travel as the rows that each rank touched, with the rest behind them (an all-gather), where those are fewer
    bytes than the whole (an all-reduce in a ring, which takes 2 (N - 1) / N of it through each rank).
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.bytes = 0

    def __call__(self, whole: Sequence[Tensor], tables: Sequence[Tensor], touched: Tensor, most: int) -> None:
        """Sum the gradients `whole` and `tables` in place; rows of tables other than `touched` are zero on this rank.

        No rank touches more than `most` rows, which all ranks know.
        """
        if self.ranks.size == 1:
            return
        others, rest = self.ranks.size - 1, sum(gradient.numel() for gradient in whole)
        width = 1 + sum(table.shape[1] for table in tables)  # an id and a row
        gathered = others * (most * width + rest)
        reduced = 2 * others / self.ranks.size * (rest + sum(table.numel() for table in tables))
        self.bytes += int(4 * min(gathered, reduced))
        if tables and gathered < reduced and all(table.dtype == torch.float32 for table in tables):
            self._gather(whole, tables, torch.unique(touched), most, width)
        else:
            self._reduce([*whole, *tables])

    def _reduce(self, gradients: Sequence[Tensor]) -> None:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        _unpack(flat, gradients)

    def _gather(self, whole: Sequence[Tensor], tables: Sequence[Tensor], rows: Tensor, most: int, width: int) -> None:
        message = torch.zeros(most * width + sum(gradient.numel() for gradient in whole), device=rows.device)
        body = message[: most * width].view(most, width)
        body[:, 0] = torch.full((most,), -1, dtype=torch.int32).view(torch.float32)  # numbers of items, as they are in memory
        body[: len(rows), 0] = rows.to(torch.int32).view(torch.float32)
        body[: len(rows), 1:] = torch.cat([table[rows] for table in tables], dim=1)
        if whole:
            message[most * width :] = torch.cat([gradient.reshape(-1) for gradient in whole])
        every = [torch.empty_like(message) for _ in range(self.ranks.size)]
        dist.all_gather(every, message)
        for table in tables:
            table.zero_()
        for theirs in every:  # in the same order on every rank
            body = theirs[: most * width].view(most, width)
            items = body[:, 0].contiguous().view(torch.int32).to(torch.int64)
            there = items >= 0
            parts = torch.split(body[there, 1:], [table.shape[1] for table in tables], dim=1)
            for table, part in zip(tables, parts, strict=True):
                table.index_add_(0, items[there], part)
        if whole:
            _unpack(torch.stack([theirs[most * width :] for theirs in every]).sum(dim=0), whole)


def _unpack(flat: Tensor, gradients: Sequence[Tensor]) -> None:
    for gradient, part in zip(gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def copy_from_first(ranks: Ranks, tensors: Sequence[Tensor]) -> None:
    """Make what every rank holds a copy of the same again: rounding on GPUs may have drifted apart."""
    if ranks.size > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
