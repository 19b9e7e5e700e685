"""IRGAN (Wang et al., SIGIR 2017): negatives drawn by an adversarial generator from all items a user has not interacted with.

p(j | u) = softmax(g_uj / temperature) over every unseen item (its equation 10); `srns.samplers.generator` says how g is learnt.
Cost per positive: 3 |I| F multiplications (scores, and the gradients by users and by items) and |I| exponentials.

Departures: the generator learns after every batch, in turn with the recommender, and not for epochs each; training positives
have probability 0, where IRGAN may draw and then reward them; the reward is P_pos less its mean over the batch, where its
authors' code for recommendation has 2 sigmoid(r_uj) - 1; the generator has no biases, is not regularised, and starts at random.
A copy of a trained recommender is the other choice, but knows too well what the user likes: against its negatives at
temperature 1, the recommender unlearns what it shares with the generator (ML-1m: validation NDCG@3 from .31 to .24).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, Literal

import array_api_compat
import numpy
from pydantic import Field

from srns.adam import sum_rows
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives
from srns.samplers.elementary import taken
from srns.samplers.generator import BLOCK, GENERATOR_START, Adversarial, AdversarialState, Softmax, exponentials
from srns.samplers.seen import Seen


class IRGAN(Adversarial):
    """Hard negatives from a generator over all items, which plays against the recommender."""

    name: ClassVar[str] = "irgan"
    cost: ClassVar[str] = "3 |I| T + (|U| + |I|) F / B"
    knows_log_q: ClassVar[bool] = True

    generator_start: Literal["copy", "random"] = Field("random", description=GENERATOR_START)

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> IRGANState:
        return IRGANState(self, train, seed, xp)


class IRGANState(AdversarialState):
    def __init__(self, sampler: IRGAN, train: Interactions, seed: int, xp: ModuleType) -> None:
        super().__init__(sampler, train, seed, xp)
        self._width = -(-train.n_items // BLOCK) * BLOCK  # items, and nobodies that make the last block whole
        self._seen = Seen(train, xp)

    def _softmax(self, users: Array, rows: tuple[Array, Array]) -> Softmax:
        xp, n_items = self._xp, self._sizes["items"]
        vectors = xp.take(self._factors["users"], users, axis=0)  # (B, F)
        shape = self._width - n_items, vectors.shape[1]
        nobodies = xp.zeros(shape, dtype=vectors.dtype, device=array_api_compat.device(vectors))
        items = xp.concat([self._factors["items"], nobodies], axis=0)  # (width, F)
        scores = (vectors / self.sampler.temperature) @ items.T
        scores[:, n_items:] = -float("inf")
        places, seen = self._seen.of(users)
        xp.reshape(scores, (-1,))[places * self._width + seen] = -float("inf")
        weights = exponentials(scores, xp)
        return Softmax(weights, xp.sum(weights, axis=1), (vectors, items))

    def _negatives(self, places: Array) -> Negatives:
        assert self._drawn is not None
        xp = self._xp
        probability = xp.take_along_axis(self._drawn.weights, places, axis=1) / self._drawn.totals[:, None]
        return Negatives(places, xp.log(probability))

    def _slopes(self, users: Array, negatives: Array, advantage: Array, drawn: Softmax) -> dict[str, Any]:
        xp, n_items = self._xp, self._sizes["items"]
        vectors, items = drawn.given
        share = (xp.sum(advantage, axis=1) / drawn.totals)[:, None]  # (B, 1): what a weight of 1 takes away
        flat = xp.reshape(negatives, (-1,))
        chosen = taken(items, negatives, xp)
        to_users = xp.einsum("bk,bkf->bf", advantage, chosen) - share * (drawn.weights @ items)
        to_chosen = xp.reshape(advantage[:, :, None] * vectors[:, None, :], (flat.shape[0], items.shape[1]))
        to_all = (drawn.weights.T @ (share * vectors))[:n_items, :]
        return {
            "users": sum_rows(to_users, users, self._sizes["users"]),
            "items": sum_rows(to_chosen, flat, n_items) - to_all,
        }
