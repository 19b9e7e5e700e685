"""DENS: disentangled negative sampling (Lai et al., "Disentangled Negative Sampling for Collaborative Filtering", WSDM 2023).

What a user likes about an item are some factors of its row, the relevant ones; a good negative is like the positive in the
others. Gates, learnt beside the recommender (`srns.samplers.gates`), cut the relevant part out of the positive's row by the
user's, and out of a candidate's row by what is relevant in the positive:

    q_i^r = q_i * sigmoid(W_p q_i + W_u p_u + b_p),    q_c^r = q_c * sigmoid(W_n q_c + W_r q_i^r + b_n).

For each negative N candidates are drawn uniformly, and the one with the highest p_u . ((1 - min(1, t / T)) q_c - q_c^r) in
epoch t is taken: first the irrelevant part alone decides (the row without q_c^r), after T epochs how little is relevant.

Cost per positive: (3 + K N) F^2 for the gates of choosing, K N F for the scores, and about 3 (3 + K) F^2 for learning.

Departures: the contrastive losses teach the gates, by an Adam of their own, and not the recommender; with them the loss weight
gamma of the paper goes, as Adam's steps do not depend on a factor of the loss. On LightGCN the pooled rows are gated, not those
of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy
from pydantic import Field

from srns import rng
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.unseen import Unseen

if TYPE_CHECKING:
    from srns.samplers.gates import Gates


class DENS(Sampler):
    """The candidate that is most like what the user likes in what is irrelevant about it, by gates that are learnt."""

    name: ClassVar[str] = "dens"
    cost: ClassVar[str] = "(3 + K N) F^2 + K N T"
    needs_torch: ClassVar[bool] = True
    one_rank: ClassVar[bool] = True

    negatives: int = Field(1, ge=1, le=512, description="negatives per positive, each of candidates of its own (K)")
    candidates: int = Field(8, ge=1, le=1024, description="uniform candidates per negative (N)")
    warmup_epochs: int = Field(100, ge=1, description="epochs until the whole row of a candidate counts no more (T)")
    gate_learning_rate: float = Field(0.001, gt=0, description="step size of the Adam that teaches the gates")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> DENSState:
        return DENSState(self, train, seed, xp)


class DENSState(SamplerState):
    """The gates, made when the width of the rows is known. Arrays are tensors of torch."""

    def __init__(self, sampler: DENS, train: Interactions, seed: int, xp: ModuleType) -> None:
        if not xp.__name__.endswith("torch"):  # or its form in array-api-compat
            raise ConfigError(f"sampler {DENS.name!r} learns by autograd: start it with xp=torch, not {xp.__name__!r}")
        self.sampler, self._seed = sampler, seed
        self._unseen = Unseen(train, xp)
        self._epoch = 0
        self._key = rng.stream_key(seed, DENS.name)
        self._gates: Gates | None = None
        self._loaded: Mapping[str, Array] = {}

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._epoch = epoch
        self._key = rng.stream_key(self._seed, DENS.name, epoch)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp, (k, n) = self._unseen.xp, (self.sampler.negatives, self.sampler.candidates)
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        of_users, of_items = rows_of(score)
        gates = self._gates_for(of_items.shape[1])
        pool = self._unseen.draw(users, self._unseen.row_keys(self._key, users, positives), k * n)  # (B, K N)
        p_u, q_i = of_users[users], of_items[positives]
        share = 1 - min(1.0, self._epoch / self.sampler.warmup_epochs)
        worth = gates.worth(p_u, q_i, of_items[pool], share)
        chosen = xp.argmax(xp.reshape(worth, (-1, n)), axis=1)[:, None]
        ids = xp.reshape(xp.take_along_axis(xp.reshape(pool, (-1, n)), chosen, axis=1), (users.shape[0], k))
        gates.learn(p_u, q_i, of_items[ids])
        return Negatives(ids)

    def _gates_for(self, dim: int) -> Gates:
        if self._gates is None:
            from srns.samplers.gates import Gates

            self._gates = Gates(dim, self._seed, self.sampler.gate_learning_rate)
            if self._loaded:
                self._gates.load_state_dict(self._loaded)
        return self._gates

    def state_dict(self) -> dict[str, Array]:
        return dict(self._loaded) if self._gates is None else self._gates.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._gates, self._loaded = None, dict(state)


def rows_of(score: Any) -> tuple[Array, Array]:
    """The rows of users and items whose product `score` is."""
    tensors = score.tensors() if hasattr(score, "tensors") else {}
    if tensors.keys() != {"users", "items"}:
        raise ConfigError(
            f"sampler {DENS.name!r} gates factors of users and items, whose product is the score: use scorer gmf or lightgcn"
        )
    return tensors["users"].detach(), tensors["items"].detach()
