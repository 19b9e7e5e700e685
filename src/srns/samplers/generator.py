"""What the adversarial samplers share: a generator that draws negatives by a softmax of its scores, rewarded for hard ones.

The generator is a second matrix factorisation, g_uj = p_u . q_j, that starts as a copy of the recommender, or at random. It
maximises the expected reward sum_j p(j | u) R_uj of p(j | u) = softmax(g_uj / temperature) by REINFORCE: the gradient of
log p(j | u) at what was drawn, times R_uj less the mean reward of the batch, which is the baseline. R_uj = P_pos =
sigmoid(r_uj - r_ui) of the recommender. The softmax of a factorisation has gradients in closed form: no autograd is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy
from array_api_compat import device
from pydantic import Field

from srns import rng
from srns.adam import Adam, sum_rows
from srns.errors import ConfigError
from srns.interactions import Interactions, Total
from srns.samplers.base import NOT_BEGUN, Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.elementary import taken
from srns.samplers.observations import BINS, Observations
from srns.samplers.unseen import Unseen
from srns.scorers.gmf import initial_embeddings

BLOCK = 64  # weights that are added up before running sums are taken, where there are many
GENERATOR_START = "the generator starts as a copy of the model, or with small random factors, all items alike"
RANDOM_STD = 0.1  # of factors that start at random
SHARE_BITS = 24  # of a random word that say where in the running sum a draw falls


class Adversarial(Sampler):
    """The fields of every sampler with a generator."""

    learns: ClassVar[bool] = True
    one_rank: ClassVar[bool] = True  # the generator learns from whole batches

    negatives: int = Field(1, ge=1, le=512, description="negatives per positive (K)")
    temperature: float = Field(1.0, gt=0, description="of the softmax of scores that candidates are drawn by (tau)")
    generator_learning_rate: float = Field(0.001, gt=0, description="step size of Adam of the generator")
    generator_start: Literal["copy", "random"] = Field("copy", description=GENERATOR_START)


class AmongCandidates(Adversarial):
    """The fields of a sampler whose generator draws from a candidate set, of different items, one from each arc of the user's
    circle of unseen items (`srns.samplers.unseen.spread_numbers`)."""

    candidates: int = Field(10, ge=1, le=4096, description="uniform unseen items that a negative is chosen from (N, N_s)")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> CandidatesState:
        return CandidatesState(self, train, seed, xp)


class Softmax(NamedTuple):
    """What a batch was drawn from: unnormalised probabilities `weights` (B, N), their sums `totals` (B,), and what the method
    needs to find their gradients."""

    weights: Array
    totals: Array
    given: Any


class AdversarialState(SamplerState):
    """A running generator. Methods say in `_softmax` what is drawn from, and in `_slopes` how it changes with the factors."""

    def __init__(self, sampler: Adversarial, train: Interactions, seed: int, xp: ModuleType) -> None:
        self.sampler = sampler
        self._seed = seed
        self._sizes = {"users": train.n_users, "items": train.n_items}
        self._unseen = Unseen(train, xp)
        self._xp = self._unseen.xp
        self._adam = Adam({})
        self._key = rng.stream_key(seed, sampler.name)
        self._drawn: Softmax | None = None
        self._observed = Observations()

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, self.sampler.name, epoch)
        self._observed = Observations()
        if not self._factors:
            self._adam = Adam(self._started(score))

    @property
    def _factors(self) -> dict[str, Array]:
        """Users (n_users, F) and items (n_items, F); nothing before the first epoch."""
        return self._adam.values

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp = self._xp
        if not self._factors:
            raise ConfigError(NOT_BEGUN)
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        rows = self._unseen.row_keys(self._key, users, positives)
        self._drawn = self._softmax(users, rows)
        words = rng.words(rows, -1 - xp.arange(self.sampler.negatives, dtype=xp.int64))
        shares = xp.astype(words >> (32 - SHARE_BITS), xp.float32) * 2.0**-SHARE_BITS
        return self._negatives(places_at(self._drawn.weights, shares, xp))

    def feedback(self, users: Array, negatives: Array, reward: Array) -> None:
        """A step of Adam towards negatives (B, K) with a `reward` (B, K) above the mean."""
        if self._drawn is None:
            raise ConfigError("feedback is about what sample just drew: call sample first")
        xp = self._xp
        users, negatives = xp.asarray(users, dtype=xp.int64), xp.asarray(negatives, dtype=xp.int64)
        if self.observing:
            self._observed.bins.append(xp.astype(reward * float(BINS), xp.int64))
        advantage = xp.astype(reward - xp.mean(reward), xp.float32) / (reward.shape[1] * self.sampler.temperature)
        slopes = self._slopes(users, negatives, advantage, self._drawn)
        self._adam.step({name: -slope for name, slope in slopes.items()}, self.sampler.generator_learning_rate)
        self._drawn = None

    def _softmax(self, users: Array, rows: tuple[Array, Array]) -> Softmax:
        """What negatives of users (B,) are drawn from, candidates by the random `rows`, of which draws from 0 on are free."""
        raise NotImplementedError

    def _negatives(self, places: Array) -> Negatives:
        """The negatives at `places` (B, K) of the softmax that was drawn from."""
        raise NotImplementedError

    def _slopes(self, users: Array, negatives: Array, advantage: Array, drawn: Softmax) -> dict[str, Array]:
        """Gradients (n_users, F), (n_items, F) of the sum over the batch of advantage (B, K) * temperature * log p(j | u)."""
        raise NotImplementedError

    def _started(self, score: Any) -> dict[str, Array]:
        """The factors of a score, weights of dimensions folded into those of the users, or random ones of the same shapes."""
        tensors = dict(score.tensors()) if hasattr(score, "tensors") else {}
        fits = all(name in tensors and len(tensors[name]) == size for name, size in self._sizes.items())
        if not fits or tensors.keys() - {"users", "items", "beta"}:
            raise ConfigError(
                f"the generator of {self.sampler.name!r} is like the model's factors of users and items, and "
                "this scorer has none; use gmf or lightgcn"
            )
        users, items = (self._xp.asarray(_detached(tensors[name]), copy=True) for name in ("users", "items"))
        if self.sampler.generator_start == "random":
            seed = rng.stream_key(self._seed, "generator").a
            drawn = initial_embeddings(len(users), len(items), int(users.shape[1]), RANDOM_STD, seed, 0)
            return dict(zip(self._sizes, (self._xp.asarray(factors, device=device(users)) for factors in drawn), strict=True))
        return {"users": users * _detached(tensors["beta"]) if "beta" in tensors else users, "items": items}

    def observations(self, total: Total = lambda sums: sums) -> dict[str, float]:
        return self._observed.summary(total)

    def state_dict(self) -> dict[str, Array]:
        return self._adam.state_dict() if self._factors else {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if state:
            self._adam = Adam({name: self._xp.asarray(state[f"value.{name}"]) for name in ("users", "items")})
            self._adam.load_state_dict(state)


class CandidatesState(AdversarialState):
    """A generator that draws from `candidates` uniform unseen items: (B, N), -1 where a user has not so many."""

    def _softmax(self, users: Array, rows: tuple[Array, Array]) -> Softmax:
        xp, size = self._xp, self.sampler.candidates  # type: ignore[attr-defined]
        ids = self._unseen.sample(users, rows, size)
        there = ids >= 0
        ids = xp.where(there, ids, xp.zeros_like(ids))
        factors = taken(self._factors["items"], ids, xp)  # (B, N, F)
        vectors = xp.take(self._factors["users"], users, axis=0)
        scores = xp.einsum("bf,bnf->bn", vectors, factors) / self.sampler.temperature
        weights = exponentials(xp.where(there, scores, xp.full_like(scores, -float("inf"))), xp)
        return Softmax(weights, xp.sum(weights, axis=1), (ids, factors, vectors))

    def _negatives(self, places: Array) -> Negatives:
        assert self._drawn is not None
        return Negatives(self._xp.take_along_axis(self._drawn.given[0], places, axis=1))

    def _slopes(self, users: Array, negatives: Array, advantage: Array, drawn: Softmax) -> dict[str, Array]:
        xp = self._xp
        ids, factors, vectors = drawn.given
        chosen = xp.astype(ids[:, None, :] == negatives[:, :, None], xp.float32) * (drawn.weights > 0)[:, None, :]  # (B, K, N)
        pull = xp.einsum("bk,bkn->bn", advantage, chosen) - drawn.weights * (xp.sum(advantage, axis=1) / drawn.totals)[:, None]
        to_items = xp.reshape(pull[:, :, None] * vectors[:, None, :], (-1, vectors.shape[1]))
        return {
            "users": sum_rows(xp.einsum("bn,bnf->bf", pull, factors), users, self._sizes["users"]),
            "items": sum_rows(to_items, xp.reshape(ids, (-1,)), self._sizes["items"]),
        }


def exponentials(scores: Array, xp: ModuleType) -> Array:
    """exp(scores - their maximum) by rows (B, N); `scores` are used up. Those of -inf become 0."""
    scores -= xp.max(scores, axis=1, keepdims=True)
    return xp.exp(scores)


def places_at(weights: Array, shares: Array, xp: ModuleType) -> Array:
    """Where the running sums of weights (B, N) pass `shares` (B, K) in [0, 1) of their totals: (B, K), never a weight of 0.

    N is a multiple of BLOCK, or small.
    """
    if weights.shape[1] % BLOCK:
        running = xp.cumulative_sum(weights, axis=1)[:, None, :]
        return _passed(running, shares * running[:, :, -1], xp)
    blocks = xp.reshape(weights, (weights.shape[0], -1, BLOCK))
    running = xp.cumulative_sum(blocks @ xp.ones(BLOCK, dtype=xp.float32), axis=1)  # (B, blocks)
    sought = shares * running[:, -1:]
    block = _passed(running[:, None, :], sought, xp)  # (B, K)
    before = xp.take_along_axis(xp.concat([xp.zeros_like(running[:, :1]), running], axis=1), block, axis=1)
    within = xp.cumulative_sum(xp.take_along_axis(blocks, block[:, :, None], axis=1), axis=2)  # (B, K, BLOCK)
    return block * BLOCK + _passed(within, sought - before, xp)


def _passed(running: Array, sought: Array, xp: ModuleType) -> Array:
    """The first places of running sums (B, K or 1, N) above `sought` (B, K); where rounding leaves none, the last that rose."""
    place = xp.sum(xp.astype(running <= sought[:, :, None], xp.int64), axis=2)
    last = xp.sum(xp.astype(running < running[:, :, -1:], xp.int64), axis=2)
    return xp.minimum(place, last)


def _detached(tensor: Array) -> Array:
    return tensor.detach() if hasattr(tensor, "detach") else tensor
