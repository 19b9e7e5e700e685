"""The processes that train together. Each holds the interactions of consecutive users, and with them the users' rows, memories
and history; what this module offers is all they say to each other besides gradients. Here is the one process that is alone;
`srns.distributed` has the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.errors import ConfigError
from srns.interactions import Interactions, Shard
from srns.splits import Split


class Ranks:
    """A world of one process."""

    rank = 0
    size = 1

    def leave(self) -> None:
        """Part in peace, once all is done."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        return [value]

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum over ranks."""
        return values

    def any(self, flag: bool) -> bool:
        return any(self.gather(flag))

    def share_of(self, data: Interactions) -> Interactions:
        """This rank's part of data that every rank holds: users one after the other, about as many interactions each."""
        bounds = np.searchsorted(data.indptr, np.arange(self.size + 1) * len(data) / self.size)
        bounds[0], bounds[-1] = 0, data.n_users  # users without interactions, at either end, too
        return shard_of(data, int(bounds[self.rank]), int(bounds[self.rank + 1]))

    def share_of_split(self, split: Split) -> Split:
        """This rank's part of a split that every rank holds, by the users of its train part."""
        if self.size == 1:
            return split
        train = self.share_of(split.train)
        low, high = train.whole.first_user, train.whole.first_user + train.n_users
        valid, test = (None if part is None else shard_of(part, low, high) for part in (split.valid, split.test))
        return replace(
            split,
            train=train,
            valid=valid,
            test=test,
            negatives=None if split.negatives is None else split.negatives[low:high],
            hidden={sigma: shard_of(part, low, high) for sigma, part in split.hidden.items()},
        )

    def placed(self, data: Interactions) -> Interactions:
        """`data`, which hold this rank's users only, with their place among those of all ranks."""
        if self.size == 1:
            return data
        sizes = self.gather((data.n_users, len(data), int(np.count_nonzero(data.user_counts))))
        before = sizes[: self.rank]
        n_users, n, active = (sum(size[place] for size in sizes) for place in range(3))
        first_user, first = (sum(size[place] for size in before) for place in range(2))
        counts = self.sum(np.bincount(data.items, minlength=data.n_items).astype(np.int64))
        return replace(data, shard=Shard(first_user, first, n_users, n, active, counts))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Turns the loss of another rank within the block into an error that says so."""
        yield


ALONE = Ranks()


def shard_of(data: Interactions, low: int, high: int) -> Interactions:
    """The interactions of users low..high-1 of data that are whole."""
    begin, end = int(data.indptr[low]), int(data.indptr[high])
    whole = data.whole
    return replace(
        data,
        indptr=data.indptr[low : high + 1] - begin,
        items=data.items[begin:end],
        user_ids=data.user_ids.part(low, high),
        weight=None if data.weight is None else data.weight[begin:end],
        time=None if data.time is None else data.time[begin:end],
        shard=Shard(low, begin, whole.n_users, whole.n, whole.n_active, whole.item_counts),
    )


def world_size() -> int:
    """How many processes torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launch() -> str | None:
    """The torchrun that started this process, if one did."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def restarted() -> bool:
    """Whether torchrun has started these processes again, after one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def restarts() -> bool:
    """Whether torchrun would."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def join() -> Ranks:
    """The world this process is in: alone, or what torchrun started."""
    if world_size() == 1:
        return ALONE
    try:
        from srns.distributed import TorchRanks
    except ImportError as error:
        raise ConfigError(f"several ranks need torch: pip install 'srns[torch]' ({error})") from None
    return TorchRanks.join()
