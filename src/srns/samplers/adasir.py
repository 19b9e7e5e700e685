"""AdaSIR: adaptive sampling by importance resampling (Chen et al., "Learning Recommenders for Implicit Feedback with Importance
Resampling", WWW 2022).

Each user has a pool of M items, from which negatives are drawn uniformly. Before every epoch N candidates are drawn from a
proposal q and resampled, with replacement, into M items with probability

    w_c = softmax over candidates of (r_uc - log q_c),

so that the pool is close to a draw from softmax(r_u) over all items, whatever q. Each slot of the pool then keeps what it held
before or takes a resampled item, from either half of [old | new] uniformly: hard negatives of the past are used again, with the
weights they had. If `weighted`, a negative's weight is N w_c, 1 where all candidates score the same, by which a loss weighs it
beside the others of its row. The authors' code weighs the BPR loss of negative j by w_j exp(r_uj); here loss bpr weighs by w_j
alone, and the slopes of loss softmax are proportional to w_j exp(r_uj). Off by default: drawing by w and weighing by it again
counts it twice, and was worse on validation data (ML-1m, five epochs, M = 400: NDCG@3 .241 against .269).

Cost per positive: K look-ups; per user and epoch, N scores and M draws.

Departures: the proposal is uniform over the user's unseen items (the paper also tries popularity, and draws positives too), so
that log q is a constant of the user; weights below 2^-22 of the largest are 0; positives are not weighed by their rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import ModuleType
from typing import ClassVar

import numpy
from pydantic import Field

from srns import rng
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers.base import NO_EPOCH, NOT_BEGUN, Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.elementary import exp_nonpositive
from srns.samplers.unseen import Unseen

WEIGHT_UNIT = 2**22  # weights are whole numbers of at most so much, whose sums are the same in every array library
MOST_CANDIDATES = 512  # so that 32 random bits times the sum of weights are within 63 bits
STRIDE = 2**32  # above every sum of weights
BLOCK = 4096  # users whose pools are renewed at a time


class AdaSIR(Sampler):
    """Negatives from a pool per user that is resampled by score once per epoch and partly kept.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = AdaSIR(negatives=2).start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> state.sample(train.users, train.items, score=lambda users, items: items, step=0).ids.shape
    (5, 2)
    """

    name: ClassVar[str] = "adasir"
    cost: ClassVar[str] = "K, and N T per user and epoch"

    negatives: int = Field(16, ge=1, le=512, description="negatives per positive, from the user's pool (K)")
    candidates: int = Field(512, ge=1, le=MOST_CANDIDATES, description="uniform candidates per user and epoch (N)")
    memory_size: int = Field(400, ge=1, le=512, description="items in a user's pool (M)")
    weighted: bool = Field(
        False, description="weigh negatives by the probability they were resampled with, as the authors' code"
    )

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> AdaSIRState:
        return AdaSIRState(self, train, seed, xp)


class AdaSIRState(SamplerState):
    """Pools (n_users, M) and the weights of their items."""

    def __init__(self, sampler: AdaSIR, train: Interactions, seed: int, xp: ModuleType) -> None:
        self.sampler, self._seed, self._n_users = sampler, seed, train.n_users
        self._unseen = Unseen(train, xp)
        xp = self._unseen.xp
        self.memory = xp.zeros((train.n_users, sampler.memory_size), dtype=xp.int64)
        self.weight = xp.zeros((train.n_users, sampler.memory_size), dtype=xp.float32)
        self._renewed = NO_EPOCH  # the epoch that the pools are of
        self._key = rng.stream_key(seed, AdaSIR.name)

    def begin_epoch(self, epoch: int, score: Score) -> None:
        xp = self._unseen.xp
        self._key = rng.stream_key(self._seed, AdaSIR.name, epoch)
        if self._renewed == epoch:
            return  # loaded from a state of this very epoch
        for start in range(0, self._n_users, BLOCK):
            users = xp.arange(start, min(start + BLOCK, self._n_users), dtype=xp.int64)
            self._renew(users, self._unseen.row_keys(rng.stream_key(self._seed, "adasir-pool", epoch), users, 0), score)
        self._renewed = epoch

    def _renew(self, users: Array, rows: tuple[Array, Array], score: Score) -> None:
        """Resample the pools of users (B,)."""
        xp, n, m = self._unseen.xp, self.sampler.candidates, self.sampler.memory_size
        pool = self._unseen.draw(users, rows, n)  # (B, N)
        places, weight = resampled(xp.astype(score(users, pool), xp.float32), _words(rows, n, m, xp), xp)
        items, weight = xp.take_along_axis(pool, places, axis=1), weight * float(n)
        if self._renewed != NO_EPOCH:
            kept = rng.below(_words(rows, n + m, m, xp), 2 * m)  # places in [old | new]
            items = xp.take_along_axis(xp.concat([self.memory[users], items], axis=1), kept, axis=1)
            weight = xp.take_along_axis(xp.concat([self.weight[users], weight], axis=1), kept, axis=1)
        self.memory[users], self.weight[users] = items, weight

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp = self._unseen.xp
        if self._renewed == NO_EPOCH:
            raise ConfigError(NOT_BEGUN)
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        rows = self._unseen.row_keys(self._key, users, positives)
        places = rng.below(_words(rows, 0, self.sampler.negatives, xp), self.sampler.memory_size)
        ids, weight = (xp.take_along_axis(xp.take(pool, users, axis=0), places, axis=1) for pool in (self.memory, self.weight))
        return Negatives(ids, weight=weight if self.sampler.weighted else None)

    def state_dict(self) -> dict[str, Array]:
        return {"memory": self.memory, "memory.weight": self.weight, "renewed": self._unseen.xp.asarray(self._renewed)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        xp = self._unseen.xp
        self.memory, self.weight = (xp.asarray(state[name], copy=True) for name in ("memory", "memory.weight"))
        self._renewed = int(state["renewed"])

    def by_user(self, name: str, of_model: Collection[str]) -> bool:
        return name in ("memory", "memory.weight")


def resampled(scores: Array, words: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Places drawn with replacement by softmax of float32 scores (B, N), one for each of words (B, M), and their share: (B, M),
    (B, M)."""
    size, n = scores.shape
    highest = xp.max(scores, axis=1, keepdims=True)
    parts = xp.astype(exp_nonpositive(scores - highest, xp) * float(WEIGHT_UNIT), xp.int64)
    sums = xp.cumulative_sum(parts, axis=1)
    total = sums[:, -1:]
    row = xp.arange(size, dtype=xp.int64)[:, None]  # rows are laid end to end, far enough apart, for one search in all
    asked = rng.below(words, total) + row * STRIDE
    found = xp.searchsorted(xp.reshape(sums + row * STRIDE, (-1,)), xp.reshape(asked, (-1,)), side="right")
    places = xp.reshape(found, words.shape) - row * n
    return places, xp.astype(xp.take_along_axis(parts, places, axis=1), xp.float32) / xp.astype(total, xp.float32)


def _words(rows: tuple[Array, Array], first_draw: int, size: int, xp: ModuleType) -> Array:
    return rng.words(rows, first_draw + xp.arange(size, dtype=xp.int64))
