"""AOBPR: adaptive oversampling (Rendle and Freudenthaler, "Improving Pairwise Learning for Item Recommendation from Implicit
Feedback", WSDM 2014; adaptive sampling by factors, its algorithm 2).

Ideally a negative is drawn with probability proportional to exp(-rank / lambda), its rank by score among all items. Instead of
ranking all items for each positive, items are sorted by each factor now and then; a rank is drawn, and a factor f of the user
with probability proportional to |p_uf| * sd_f, sd_f the standard deviation of factor f over items; the negative is the item of
that rank by factor f, from the top where p_uf is positive, else from the bottom. (With GMF, beta * p_u stands for p_u.)

Cost per negative: F multiplications and additions, and F * |I| log |I| comparisons in every |I| log |I| draws, as the authors
do, and at the start of an epoch. A draw that the user has interacted with is made anew. Departures: that is done `TRIES` times,
then the item is a uniform unseen one, which matters to users who have seen most of what ranks high. The fused twin is in
`srns.kernels.candidates`.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, ClassVar

import numpy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srns import rng
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.elementary import taken
from srns.samplers.unseen import Unseen

TRIES = 16
FACTOR_BITS = 24  # of a word that decides on the factor


def rank_thresholds(n_items: int, rank_scale: float) -> NDArray[np.int64]:
    """A random word of 32 bits draws the rank that is the number of thresholds (n_items - 1,) that are at most the word."""
    share = np.exp(-np.arange(n_items) / rank_scale)
    thresholds: NDArray[np.int64] = np.round(np.cumsum(share)[:-1] / share.sum() * 2.0**32).astype(np.int64)
    return thresholds


def steps_between_sorts(n_items: int, batch_size: int, negatives: int) -> int:
    """Batches until |I| log |I| negatives have been drawn."""
    return max(1, round(n_items * math.log(max(2, n_items)) / (batch_size * negatives)))


class AOBPR(Sampler):
    """Items that rank high by one of the user's important factors."""

    name: ClassVar[str] = "aobpr"
    cost: ClassVar[str] = "K F"
    one_rank: ClassVar[bool] = True  # how often it sorts goes by the size of batches

    negatives: int = Field(16, ge=1, le=512, description="negatives per positive (K)")
    rank_scale: float = Field(
        500.0, gt=0, description="ranks are drawn with probability proportional to exp(-rank / this) (lambda)"
    )

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> AOBPRState:
        return AOBPRState(self, train, seed, xp)


class AOBPRState(SamplerState):
    def __init__(self, sampler: AOBPR, train: Interactions, seed: int, xp: ModuleType) -> None:
        self.sampler = sampler
        self._seed = seed
        self._n_items = train.n_items
        self._unseen = Unseen(train, xp)
        self._xp = self._unseen.xp
        self._thresholds = xp.asarray(rank_thresholds(train.n_items, sampler.rank_scale))
        self._key = rng.stream_key(seed, sampler.name)
        self._orders: Array = None  # (F, I): items in ascending order of each factor
        self._spread: Array = None  # (F,): standard deviations of factors over items
        self._steps = 1  # between two sorts

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, self.sampler.name, epoch)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp, n_negatives = self._xp, self.sampler.negatives
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        factors, items = factors_of(score, users, xp)
        if step == 0:  # later batches may be shorter
            self._steps = steps_between_sorts(self._n_items, users.shape[0], n_negatives)
        if self._orders is None or step % self._steps == 0:
            self._sort(items)
        first, second = self._unseen.row_keys(self._key, users, positives)
        numbers = xp.reshape(xp.arange(n_negatives * (2 * TRIES + 1), dtype=xp.int64), (1, n_negatives, 2 * TRIES + 1))
        words = rng.bits((first[:, None, None], second[:, None, None]), numbers)  # (B, K, 2 T + 1)
        ranks, chances, last = words[:, :, :TRIES], words[:, :, TRIES : 2 * TRIES], words[:, :, 2 * TRIES]
        candidates = self._items(factors, ranks, chances)
        seen = self._unseen.has_seen(users[:, None, None], candidates)
        tries = xp.argmax(xp.astype(~seen, xp.int64), axis=2)[:, :, None]  # the first that is unseen, if there is one
        found = xp.take_along_axis(candidates, tries, axis=2)[:, :, 0]
        counts = xp.take(self._unseen.counts, users, axis=0)[:, None]
        other = self._unseen.at(users[:, None], rng.below(last, counts))
        return Negatives(xp.where(xp.all(seen, axis=2), other, found))

    def _sort(self, items: Array) -> None:
        xp = self._xp
        columns = xp.permute_dims(items, (1, 0))
        self._orders = xp.argsort(columns, axis=1, stable=True)
        self._spread = xp.std(xp.astype(columns, xp.float64), axis=1)

    def _items(self, factors: Array, ranks: Array, chances: Array) -> Array:
        """The items that random words draw for users with `factors` (B, F): (B, K, T)."""
        xp = self._xp
        ranks = xp.reshape(xp.searchsorted(self._thresholds, xp.reshape(ranks, (-1,)), side="right"), ranks.shape)
        weight = xp.abs(xp.astype(factors, xp.float64)) * self._spread[None, :]
        together = xp.cumulative_sum(weight, axis=1)  # (B, F)
        share = xp.astype(chances >> (32 - FACTOR_BITS), xp.float64) * 2.0**-FACTOR_BITS
        below = together[:, None, None, :-1] <= (share * together[:, -1][:, None, None])[..., None]
        chosen = xp.sum(xp.astype(below, xp.int64), axis=3)  # (B, K, T)
        batch, n_factors = factors.shape
        rows = xp.reshape(xp.arange(batch, dtype=xp.int64), (batch, 1, 1)) * n_factors + chosen
        upward = taken(xp.reshape(factors, (-1,)), rows, xp) > 0
        places = chosen * self._n_items + xp.where(upward, self._n_items - 1 - ranks, ranks)
        return xp.astype(taken(xp.reshape(self._orders, (-1,)), places, xp), xp.int64)


def factors_of(score: Any, users: Array, xp: Any) -> tuple[Array, Array]:
    """beta * p_u (B, F) of `users` and the items' factors (I, F) behind a score."""
    tensors = score.tensors() if hasattr(score, "tensors") else {}
    if not {"users", "items"} <= tensors.keys() or "weights.0" in tensors:
        raise ConfigError(
            "sampler 'aobpr' sorts items by factors, and this scorer has none: it is for scorers gmf and lightgcn"
        )
    rows = xp.take(xp.asarray(tensors["users"]), users, axis=0)
    beta = tensors.get("beta")
    return rows if beta is None else rows * xp.asarray(beta), xp.asarray(tensors["items"])
