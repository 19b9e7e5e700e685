"""What candidates scored at the ends of earlier epochs: the history behind std[P_pos] of SRNS (paper, appendix B.6).

`Snapshots` keeps the parameters of the last epochs and scores candidates anew with each, which is exact for every item.
`Candidates` is the paper's way: scores are logged in advance for a random part of the items, and only those may be drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any, cast

import array_api_compat
import numpy as np

from srns import rng
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers.base import Array, Score
from srns.samplers.unseen import Unseen, spread_numbers


def freeze(score: Score) -> dict[str, Array]:
    """A copy of the parameters behind a score: a scorer of this package, or anything with a `state_dict`, such as a torch
    module."""
    if hasattr(score, "tensors"):
        return {name: _copied(tensor) for name, tensor in score.tensors().items()}
    if hasattr(score, "state_dict"):
        return {name: _copied(tensor) for name, tensor in score.state_dict().items()}
    raise ConfigError(
        f"SRNS remembers the parameters of past epochs, and {score!r} has none to copy: pass begin_epoch an object with "
        "tensors() or state_dict(), such as a torch.nn.Module, or use strategy='difficulty' or history='candidates'"
    )


def _copied(tensor: Array) -> Array:
    """A copy that shares nothing; of a torch tensor, also without its gradient."""
    return (
        tensor.detach().clone()
        if hasattr(tensor, "detach")
        else array_api_compat.array_namespace(tensor).asarray(tensor, copy=True)
    )


def thaw(score: Score, tensors: Mapping[str, Array]) -> Score:
    """A score like `score` with other parameters."""
    if hasattr(score, "from_tensors"):
        return cast(Score, score.from_tensors(tensors))
    frozen: Any = copy.deepcopy(score)
    frozen.load_state_dict(dict(tensors))
    return cast(Score, frozen)


class Snapshots:
    """The parameters at the ends of the last `depth` epochs; slot e % depth holds those of epoch e."""

    def __init__(self, unseen: Unseen, depth: int, wanted: bool) -> None:
        self._unseen = unseen
        self._wanted = wanted  # whether anybody will ask for the past
        self._depth = depth
        self._tensors: dict[int, dict[str, Array]] = {}
        self._scores: dict[int, Score] = {}
        self.latest: Score | None = None
        self._filled = 0  # slots 0..filled-1 hold ends of epochs, if the sampler was there

    def begin_epoch(self, epoch: int, score: Score, memory: Array) -> None:
        """Remember `score`, which is as the last epoch left it; before the first, it fills no slot that counts."""
        self._filled = min(epoch, self._depth)
        if self._wanted:
            slot = (epoch - 1) % self._depth
            self._tensors[slot] = freeze(score)
            self._scores = {at: thaw(score, tensors) for at, tensors in self._tensors.items()}
            self.latest = self._scores[slot]

    def past(self, users: Array, positives: Array, memory: Array) -> list[Array]:
        """Scores of [positive | memory] (B, 1 + S1) at the end of each epoch that is remembered."""
        asked = self._unseen.xp.concat([positives[:, None], memory], axis=1)
        return [self._scores[slot](users, asked) for slot in range(self._filled) if slot in self._scores]

    def expansion(self, users: Array, rows: tuple[Array, Array], size: int) -> Array:
        """Fresh candidates (B, size), -1 where there are not so many: here from all unseen items."""
        return self._unseen.sample(users, rows, size)

    def keep(self, users: Array, places: Array) -> None:
        """Told which of [memory | expansion] (B, S1) became the new memories of `users`."""

    def state_dict(self) -> dict[str, Array]:
        return {f"{slot}.{name}": tensor for slot, tensors in self._tensors.items() for name, tensor in tensors.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._tensors = {}
        for key, tensor in state.items():
            slot, name = key.split(".", 1)
            self._tensors.setdefault(int(slot), {})[name] = tensor

    def by_user(self, name: str, of_model: Collection[str]) -> bool:
        """Whether the tensor `name` of the state has a row per user; `of_model`: the tensors of the model that have."""
        return name.partition(".")[2] in of_model


class Candidates(Snapshots):
    """Logged scores of a random set of items per user, drawn `depth` epochs before they may enter a memory (the paper's
    var_set).

    Shapes: sets (depth + 1, U, V) by the epoch in which they were drawn, logs of their scores (depth, depth + 1, U, V), of
    memories (depth, U, S1) and of training pairs (depth, n). A user's whole history is read, none is recomputed.
    """

    def __init__(self, unseen: Unseen, depth: int, train: Interactions, seed: int, size: int, memory_size: int) -> None:
        super().__init__(unseen, depth, wanted=False)
        xp = unseen.xp
        self._seed, self._size = seed, size
        self._everyone = xp.arange(train.n_users, dtype=xp.int64)
        self._pair_users = xp.asarray(train.users.astype(np.int64))
        self._pair_items = xp.asarray(train.items.astype(np.int64))
        self._pairs = self._pair_users * train.n_items + self._pair_items
        self._n_items = train.n_items
        self._current = 0
        self._offered: Array = None  # the places in the current set that the last expansion offered
        self._state = {
            "sets": xp.zeros((depth + 1, train.n_users, size), dtype=xp.int64),
            "set_logs": xp.zeros((depth, depth + 1, train.n_users, size), dtype=xp.float32),
            "memory_logs": xp.zeros((depth, train.n_users, memory_size), dtype=xp.float32),
            "pair_logs": xp.zeros((depth, len(train)), dtype=xp.float32),
        }

    def begin_epoch(self, epoch: int, score: Score, memory: Array) -> None:
        self._filled = min(epoch, self._depth)
        xp, state = self._unseen.xp, self._state
        if epoch > 0:
            slot = (epoch - 1) % self._depth
            state["pair_logs"][slot, :] = score(self._pair_users, self._pair_items[:, None])[:, 0]
            state["memory_logs"][slot, :, :] = score(self._everyone, xp.maximum(memory, self._unseen.zero))
            for s in range(min(epoch, self._depth + 1)):
                state["set_logs"][slot, s, :, :] = score(self._everyone, xp.maximum(state["sets"][s, :, :], self._unseen.zero))
        rows = self._unseen.row_keys(rng.stream_key(self._seed, "srns-candidates", epoch), self._everyone, 0)
        state["sets"][epoch % (self._depth + 1), :, :] = super().expansion(self._everyone, rows, self._size)
        self._current = max(epoch - self._depth, 0) % (self._depth + 1)

    def past(self, users: Array, positives: Array, memory: Array) -> list[Array]:
        xp = self._unseen.xp
        pairs = xp.searchsorted(self._pairs, users * self._n_items + positives)
        of_pairs, of_memory = self._state["pair_logs"], self._state["memory_logs"]
        return [
            xp.concat([xp.take(of_pairs[s, :], pairs, axis=0)[:, None], xp.take(of_memory[s, :, :], users, axis=0)], axis=1)
            for s in range(self._filled)
        ]

    def expansion(self, users: Array, rows: tuple[Array, Array], size: int) -> Array:
        xp = self._unseen.xp
        ids = xp.take(self._state["sets"][self._current, :, :], users, axis=0)
        places = spread_numbers(rows, xp.full(users.shape, self._size, dtype=xp.int64), size, xp)
        self._offered = xp.maximum(places, self._unseen.zero)
        return xp.where(places >= 0, xp.take_along_axis(ids, self._offered, axis=1), -1)

    def keep(self, users: Array, places: Array) -> None:
        xp = self._unseen.xp
        for slot in range(self._depth):
            of_set = xp.take(self._state["set_logs"][slot, self._current, :, :], users, axis=0)
            offered = xp.take_along_axis(of_set, self._offered, axis=1)
            known = xp.concat([xp.take(self._state["memory_logs"][slot, :, :], users, axis=0), offered], axis=1)
            self._state["memory_logs"][slot, users, :] = xp.take_along_axis(
                known, xp.maximum(places, self._unseen.zero), axis=1
            )

    def state_dict(self) -> dict[str, Array]:
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._state = {name: self._unseen.xp.asarray(value, copy=True) for name, value in state.items()}
