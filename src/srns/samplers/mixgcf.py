"""MixGCF (Huang et al., "MixGCF: An Improved Training Method for Graph Neural Network-based Recommender Systems", KDD 2021):
a negative that no item is, mixed from the positive and from hard candidates, layer by layer.

For each negative N candidates are drawn uniformly from the unseen items. With rows e^(l) of layer l, 0..L, and a_l uniform in
(0, 1) (positive mixing), then with p_u the user's pooled row (hop mixing):

    candidate c in layer l is  (1 - a_l) e_c^(l) + a_l e_i^(l),    j_l = argmax over c of p_u . (candidate c in layer l),

and the negative's row is the mean over layers of the chosen ones, as LightGCN pools. The mixture keeps the order of candidates,
so j_l is that of the highest p_u . e_c^(l). A scorer without layers has one: the hardest candidate, its score mixed with the
positive's, (1 - a) r_uj + a r_ui, which for GMF is mixing the rows.

Cost per positive: K N (L + 1) scores. On LightGCN `ids` and `blend` are (B, K, L + 1); elsewhere (B, K).

Departures: candidates are never items the user has interacted with; a scorer that is no product of rows (MLP) mixes scores; L2
pulls on the rows of the candidates that were chosen, where the original has it on the mixture of the first layer.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy
from pydantic import Field

from srns import rng
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.elementary import largest
from srns.samplers.unseen import Unseen

BLEND_BITS = 24  # of a random word that make a share of the positive, so that it is an exact float32


class MixGCF(Sampler):
    """The hardest of a few uniform candidates, mixed with the positive; by layers of propagation, where there are any.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = MixGCF(negatives=1).start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> drawn = state.sample(train.users, train.items, score=lambda users, items: items, step=0)
    >>> drawn.ids[:, 0].tolist(), bool((drawn.blend > 0).all() and (drawn.blend < 1).all())
    ([2, 2, 0, 0, 2], True)
    """

    name: ClassVar[str] = "mixgcf"
    cost: ClassVar[str] = "K N T (L + 1)"

    negatives: int = Field(1, ge=1, le=512, description="negatives per positive, each of candidates of its own (K)")
    candidates: int = Field(16, ge=1, le=1024, description="uniform candidates per negative (N)")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> MixGCFState:
        return MixGCFState(self, train, seed, xp)


class MixGCFState(SamplerState):
    def __init__(self, sampler: MixGCF, train: Interactions, seed: int, xp: ModuleType) -> None:
        self.sampler, self._seed = sampler, seed
        self._unseen = Unseen(train, xp)
        self._keys = self._keys_of(0)

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._keys = self._keys_of(epoch)

    def _keys_of(self, epoch: int) -> tuple[rng.Key, rng.Key]:
        return rng.stream_key(self._seed, MixGCF.name, epoch), rng.stream_key(self._seed, "mixgcf-blend", epoch)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp, (k, n) = self._unseen.xp, (self.sampler.negatives, self.sampler.candidates)
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        pool = self._unseen.draw(users, self._unseen.row_keys(self._keys[0], users, positives), k * n)  # (B, K N)
        by_layer = getattr(score, "by_layer", None)
        layered = by_layer is not None
        scores = by_layer(users, pool) if by_layer is not None else score(users, pool)[..., None]  # (B, K N, L + 1)
        layers = scores.shape[2]
        worth = xp.reshape(xp.astype(scores, xp.float32), (-1, n, layers))  # (B K, N, L + 1)
        worth = xp.reshape(xp.permute_dims(worth, (0, 2, 1)), (-1, n))
        chosen = xp.reshape(largest(worth, 1, xp), (-1, layers))  # (B K, L + 1)
        ids = xp.take_along_axis(xp.reshape(pool, (-1, n)), chosen, axis=1)
        rows = self._unseen.row_keys(self._keys[1], users, positives)
        words = rng.words(rows, xp.arange(k * layers, dtype=xp.int64))
        blend = (xp.astype(words >> (32 - BLEND_BITS), xp.float32) + 0.5) * 2.0**-BLEND_BITS
        shape = (users.shape[0], k, layers) if layered else (users.shape[0], k)
        return Negatives(xp.reshape(ids, shape), blend=xp.reshape(blend, shape))
