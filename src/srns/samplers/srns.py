"""SRNS: simple and robust negative sampling (Ding et al., NeurIPS 2020; section 3, algorithm 1).

Each user has a memory of `memory_size` (S1) hard candidates. For a positive i the negative is (equation 4)

    argmax over k in memory of  P_pos(k | u, i) + alpha_t * std[P_pos(k | u, i)],   P_pos(k | u, i) = sigmoid(r_uk - r_ui),

with the std over the ends of the last epochs: a hard true negative is still being learnt, while a false negative scores high
and steadily. Then the memory is drawn anew from itself and `expansion_size` (S2) fresh candidates, without replacement, with
probability proportional to exp(r_uk / temperature) (equation 3): once per user and batch, or after each positive.

Cost per positive: S1 + S2 scores for the update and (1 + S1) * history_epochs for the std. The fused twin is
`srns.kernels.srns`; in main memory, `srns.kernels.rows` has twins of single methods. All random numbers and comparisons are
integers or float32 operations with one order, so that equal scores give equal draws in every array library.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy
import numpy as np
from pydantic import Field, model_validator

from srns import rng
from srns.errors import ConfigError
from srns.interactions import Interactions, Total
from srns.samplers.base import NO_EPOCH, NOT_BEGUN, Array, Negatives, Sampler, SamplerState, Score, Twins
from srns.samplers.elementary import allowed_first, chances, gumbel, largest, largest_of, logistic, square_root
from srns.samplers.history import Candidates, Snapshots
from srns.samplers.observations import BINS, RATIO_UNIT, Observations
from srns.samplers.truth import Noise
from srns.samplers.unseen import Unseen


class SRNS(Sampler):
    """A memory of hard candidates per user, refreshed by score, from which high score and high variance are taken.

    >>> from srns.scorers import GMF
    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> model = GMF.init(n_users=3, n_items=3, dim=4, std=0.1, learn_beta=False, seed=0)
    >>> state = SRNS(memory_size=2, expansion_size=2, negatives=1).start(train, seed=0)
    >>> state.begin_epoch(0, model)
    >>> state.sample(train.users, train.items, model, step=0).ids[:4, 0].tolist()
    [2, 2, 0, 0]
    """

    name: ClassVar[str] = "srns"
    cost: ClassVar[str] = "(S1 + S2) T / E + 5 (1 + S1) T"

    memory_size: int = Field(16, ge=1, le=512, description="candidates remembered per user (S1)")
    expansion_size: int = Field(48, ge=1, le=1024, description="fresh candidates per update of a memory (S2)")
    temperature: float = Field(2.0, ge=1e-6, description="of an update: lower keeps higher scores (tau)")
    strategy: Literal["variance", "difficulty", "random"] = Field(
        "variance", description="what is taken from a memory: high score and variance, high score, or any"
    )
    negatives: int = Field(
        0, ge=0, le=512, description="negatives per positive: the best so many of the memory (K); 0: all of it"
    )
    variance_weight: float = Field(5.0, ge=0, description="weight of the standard deviation beside P_pos (alpha)")
    warmup: Literal["increase", "flat", "decrease"] = Field(
        "increase", description="how the variance weight goes over the first warmup_epochs"
    )
    warmup_epochs: int = Field(10, ge=0, description="epochs until the variance weight is at its end (T0)")
    history_epochs: int = Field(5, ge=1, le=64, description="epochs whose ends the standard deviation is taken over")
    history: Literal["snapshots", "candidates"] = Field(
        "snapshots", description="exact, from past parameters; or logged for few candidates in advance, as the paper does"
    )
    candidates_size: int = Field(100, ge=1, description="with history = candidates: items logged per user (|var_set|)")
    criterion: Literal["probability", "stale_scores"] = Field(
        "probability",
        description="P_pos now, or the raw scores at the end of the last epoch, as the authors' noise experiments",
    )
    update_after: Literal["batch", "positive"] = Field(
        "batch", description="when memories are drawn anew: once per user and batch, or after each positive, as algorithm 1"
    )
    lazy_epochs: int = Field(1, ge=1, description="memories are updated in every so many-th epoch (E)")

    @model_validator(mode="after")
    def _consistent(self) -> SRNS:
        if self.negatives > self.memory_size:
            raise ValueError(f"negatives {self.negatives} exceed memory_size {self.memory_size}, from which they are taken")
        if self.history == "candidates" and self.candidates_size < self.expansion_size:
            raise ValueError(f"candidates_size {self.candidates_size} is below expansion_size {self.expansion_size}")
        if self.history == "candidates" and self.criterion == "stale_scores":
            raise ValueError("criterion 'stale_scores' needs history 'snapshots'")
        return self

    @property
    def n_negatives(self) -> int:
        return self.negatives or self.memory_size

    @property
    def uses_variance(self) -> bool:
        """Whether the standard deviation decides anything: where the whole memory is taken, there is nothing to select."""
        return self.strategy == "variance" and self.n_negatives < self.memory_size

    @property
    def needs_past(self) -> bool:
        """Whether the sampler looks at earlier epochs."""
        return self.uses_variance or self.criterion == "stale_scores"

    @property
    def ranks_by_probability(self) -> bool:
        """Whether the best of a memory are those of high P_pos, with or without its variance."""
        return self.strategy != "random" and self.criterion == "probability"

    def weight_at(self, epoch: int) -> float:
        """alpha_t, epochs counted from 0 (section 4.2)."""
        if self.strategy != "variance":
            return 0.0
        progress = min(1.0, epoch / self.warmup_epochs) if self.warmup_epochs else 1.0
        return self.variance_weight * {"increase": progress, "flat": 1.0, "decrease": 1.0 - progress}[self.warmup]

    def updates_in(self, epoch: int) -> bool:
        return epoch % self.lazy_epochs == 0

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy, noise: Noise | None = None) -> SRNSState:
        if noise is not None and self.history == "candidates":
            raise ConfigError("noise needs history 'snapshots': the hidden positives have no logged scores")
        return SRNSState(self, train, seed, xp, noise)


class SRNSState(SamplerState):
    """Memories (n_users, S1), -1 where a user has fewer unseen items, and their history."""

    def __init__(self, sampler: SRNS, train: Interactions, seed: int, xp: ModuleType, noise: Noise | None) -> None:
        self.sampler = sampler
        self._seed = seed
        barred = train if noise is None else replace(train.union(noise.excluded, noise.hidden), shard=train.shard)
        self._unseen = Unseen(barred, xp, held_out=noise is not None)
        self._xp = xp = self._unseen.xp
        self._hidden = None if noise is None else _Rows(noise.hidden, xp)
        depth = sampler.history_epochs
        if sampler.history == "candidates":
            args = (train, seed, sampler.candidates_size, sampler.memory_size)
            self._history: Snapshots = Candidates(self._unseen, depth, *args)
        else:
            self._history = Snapshots(self._unseen, depth, sampler.needs_past)
        everyone = xp.arange(train.n_users, dtype=xp.int64)
        rows = self._unseen.row_keys(rng.stream_key(seed, "srns-start"), everyone, 0)
        self.memory = self._with_hidden(everyone, rows, self._unseen.sample(everyone, rows, sampler.memory_size))
        self._epoch = NO_EPOCH
        self._before = 0  # epochs of the run whose memories these are
        self._through = 0  # the same and those of this run
        self._keys: dict[str, rng.Key] = {}
        self._observed = Observations()

    @property
    def twins(self) -> Twins | None:
        """Compiled forms of some methods, which an engine may set if its arrays lie in main memory."""
        return self._unseen.twins

    @twins.setter
    def twins(self, twins: Twins | None) -> None:
        self._unseen.twins = twins

    def needs_compiling(self) -> bool:
        used = {"expand": self._unseen.has_table, "choose": self.sampler.ranks_by_probability, "renew": True}
        return self.twins is not None and self.twins.needs_compiling(name for name in used if used[name])

    def begin_epoch(self, epoch: int, score: Score) -> None:
        epoch += self._before
        self._epoch, self._through = epoch, epoch + 1
        self._keys = {stream: rng.stream_key(self._seed, stream, epoch) for stream in ("srns", "srns-random")}
        self._observed = Observations()
        self._history.begin_epoch(epoch, score, self.memory)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp, sampler = self._xp, self.sampler
        if self._epoch == NO_EPOCH:
            raise ConfigError(NOT_BEGUN)
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        if sampler.update_after == "batch" or not sampler.updates_in(self._epoch):
            return Negatives(self._serve(users, positives, score, step))
        ids = xp.zeros((users.shape[0], sampler.n_negatives), dtype=xp.int64)
        for turn in _turns(users, xp):  # (n,): places in the batch of users who are all different
            of_turn = xp.take(positives, turn, axis=0)
            ids[turn] = self._serve(xp.take(users, turn, axis=0), of_turn, score, of_turn)
        return Negatives(ids)

    def _serve(self, users: Array, positives: Array, score: Score, counter: Any) -> Array:
        """Negatives (B, K) for positives (B,) from memories as they are, which are then drawn anew; draws are numbered by user
        and `counter`, a number or (B,)."""
        xp, sampler = self._xp, self.sampler
        memory = xp.take(self.memory, users, axis=0)  # (B, S1)
        rows = self._unseen.row_keys(self._keys["srns"], users, counter)
        updating = sampler.updates_in(self._epoch)
        fresh = self._history.expansion(users, rows, sampler.expansion_size) if updating else memory[:, :0]
        if sampler.criterion == "stale_scores":
            assert self._history.latest is not None
            score = self._history.latest
        asked = xp.concat([positives[:, None], memory, fresh], axis=1)
        scores = xp.astype(score(users, xp.maximum(asked, self._unseen.zero)), xp.float32)
        if scores.shape != asked.shape:
            raise ConfigError(
                f"for users {tuple(users.shape)} and items {tuple(asked.shape)} the scorer returned {tuple(scores.shape)}; "
                "expected a score for each item, in the shape of the items"
            )
        chosen, probability, wavering = self._choose(users, positives, memory, scores)
        if self.observing:
            self._observe(probability, chosen, wavering)
        if updating:
            self._update(users, rows, asked, scores)
        return xp.take_along_axis(memory, chosen, axis=1)

    def _choose(self, users: Array, positives: Array, memory: Array, scores: Array) -> tuple[Array, Array, Array | None]:
        """Slots of the K best candidates of each row, (B, K), their P_pos (B, S1), and its std / mean (B, S1) where known."""
        xp, sampler = self._xp, self.sampler
        weight, past = sampler.weight_at(self._epoch), self._past(users, positives, memory)
        if self.twins is not None and sampler.ranks_by_probability:
            return self.twins.choose(memory, scores, past, weight, sampler.n_negatives)
        to_memory = scores[:, 1 : 1 + sampler.memory_size]
        probability, wavering = logistic(to_memory - scores[:, :1], xp), None
        if sampler.strategy == "random":
            rows = self._unseen.row_keys(self._keys["srns-random"], users, positives)
            worth = chances(rng.words(rows, xp.arange(sampler.memory_size, dtype=xp.int64)), xp)
        else:
            # Without a variance P_pos has the order of the scores, which tell more where all are near .5: a float32 there has
            # steps of 6e-8, and rounding would decide between small rows, as all are at the start.
            by_scores = sampler.criterion == "stale_scores" or not past or not weight
            worth = to_memory if by_scores else probability
            if past:
                spread, wavering = self._spread(past)
                worth = worth + spread * weight
        filled = xp.sum(xp.astype(memory >= 0, xp.int64), axis=1, keepdims=True)  # users with few unseen items get them again
        chosen = largest_of(allowed_first(worth, memory >= 0, xp), filled, sampler.n_negatives, xp)
        return chosen, probability, wavering

    def _past(self, users: Array, positives: Array, memory: Array) -> list[Array]:
        """Scores of [positive | memory] (B, 1 + S1) at the ends of the epochs that the standard deviation is taken over."""
        sampler = self.sampler
        stale = sampler.criterion == "stale_scores"
        if not sampler.uses_variance or (stale and not sampler.weight_at(self._epoch)):
            return []
        past = self._history.past(users, positives, self._xp.maximum(memory, self._unseen.zero))
        return [] if stale and len(past) < sampler.history_epochs else past

    def _spread(self, past: list[Array]) -> tuple[Array, Array | None]:
        """Population standard deviation of each candidate over the ends of past epochs, (B, S1), and std / mean of P_pos."""
        xp = self._xp
        stale = self.sampler.criterion == "stale_scores"
        scores = xp.astype(xp.stack(past), xp.float32)  # (epochs, B, 1 + S1)
        values = scores[:, :, 1:] if stale else logistic(scores[:, :, 1:] - scores[:, :, :1], xp)
        mean = _added(values) / len(past)
        away = values - mean[None]
        spread = square_root(_added(away * away) / len(past), xp)
        return spread, None if stale else spread / mean

    def _update(self, users: Array, rows: tuple[Array, Array], asked: Array, scores: Array) -> None:
        """Draw new memories from `asked`, [positive | memory | fresh]; a user who occurs twice draws the same twice."""
        xp = self._xp
        places = self._winners(rows, asked, scores, self._reserved(users))
        new = xp.take_along_axis(asked, xp.maximum(places + 1, self._unseen.zero), axis=1)
        self._history.keep(users, places)
        if self.observing:
            self._observe_update(users, places)
        self.memory[users] = self._with_hidden(users, rows, xp.where(places >= 0, new, -1))

    def _winners(self, rows: tuple[Array, Array], asked: Array, scores: Array, reserved: Array) -> Array:
        """Places in [memory | fresh] of a new memory, (B, S1), -1 where there are not so many candidates. Where the first slot
        is `reserved` (B,) for a hidden positive, it takes no part."""
        xp, sampler, size = self._xp, self.sampler, self.sampler.memory_size
        if self.twins is not None:
            return self.twins.renew(rows, asked, scores, reserved, size, 1 / sampler.temperature)
        memory, fresh = asked[:, 1 : 1 + size], asked[:, 1 + size :]
        repeated = fresh == memory[:, :1]
        for slot in range(1, size):
            repeated |= fresh == memory[:, slot : slot + 1]
        allowed = xp.concat([memory >= 0, (fresh >= 0) & ~repeated], axis=1)
        allowed = xp.concat([allowed[:, :1] & ~reserved[:, None], allowed[:, 1:]], axis=1)
        # With Gumbel noise on score / temperature, the S1 largest are a draw by equation 3 without replacement.
        noise = gumbel(rng.words(rows, sampler.expansion_size + 1 + xp.arange(allowed.shape[1], dtype=xp.int64)), xp)
        worth = allowed_first(scores[:, 1:] * (1 / sampler.temperature) + noise, allowed, xp)
        places = largest(worth, size, xp)
        return xp.where(xp.take_along_axis(allowed, places, axis=1), places, -1)

    def _reserved(self, users: Array) -> Array:
        """Whose first slot is that of a hidden positive."""
        xp = self._xp
        return users < 0 if self._hidden is None else xp.take(self._hidden.counts, users, axis=0) > 0

    def _with_hidden(self, users: Array, rows: tuple[Array, Array], memory: Array) -> Array:
        """The memories with a random hidden positive in the first slot, where the experiment has one for the user."""
        if self._hidden is None:
            return memory
        xp = self._xp
        drawn = self._hidden.draw(users, rng.bits(rows, 2 * self.sampler.expansion_size + self.sampler.memory_size + 1))
        return xp.where(drawn[:, None] >= 0, xp.concat([drawn[:, None], memory[:, :-1]], axis=1), memory)

    def _observe(self, probability: Array, chosen: Array, wavering: Array | None) -> None:
        xp = self._xp
        drawn = xp.take_along_axis(probability, chosen, axis=1)
        self._observed.bins.append(xp.astype(drawn * float(BINS), xp.int64))
        if wavering is not None:
            ratio = xp.take_along_axis(wavering, chosen, axis=1) * float(RATIO_UNIT)
            self._observed.ratios.append(xp.astype(ratio, xp.int64))

    def _observe_update(self, users: Array, places: Array) -> None:
        """Count the slots of each user once, and those that a fresh candidate took."""
        xp, size = self._xp, self.sampler.memory_size
        order = xp.argsort(users, stable=True)
        ordered = xp.take(users, order, axis=0)
        once = xp.concat([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]])
        drawn = size - xp.astype(self._reserved(ordered), xp.int64)
        fresh = (xp.take(places, order, axis=0) >= size) & (xp.arange(size, dtype=xp.int64)[None, :] < drawn[:, None])
        replaced = xp.sum(xp.where(once, xp.sum(xp.astype(fresh, xp.int64), axis=1), 0))
        self._observed.updates.append((replaced, xp.sum(xp.where(once, drawn, 0))))

    def observations(self, total: Total = lambda sums: sums) -> dict[str, float]:
        return self._observed.summary(total)

    def state_dict(self) -> dict[str, Array]:
        epochs = self._xp.asarray([self._before, self._through], dtype=self._xp.int64)
        history = {f"history.{name}": value for name, value in self._history.state_dict().items()}
        return {"memory": self.memory, "epochs": epochs} | history

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._before, self._through = (int(epochs) for epochs in state["epochs"])
        self._load(state, "history.")

    def by_user(self, name: str, of_model: Collection[str]) -> bool:
        return name == "memory" or (name.startswith("history.") and self._history.by_user(name[len("history.") :], of_model))

    def _load(self, state: Mapping[str, Array], prefix: str) -> None:
        self.memory = self._xp.asarray(state["memory"], dtype=self._xp.int64, copy=True)
        self._history.load_state_dict({name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)})

    def memories(self) -> dict[str, Array]:
        if self.sampler.history == "candidates":  # its logs are of pairs, which other data have others of
            return {"memory": self.memory}
        past = {f"past.{name}": value for name, value in self._history.state_dict().items()}
        return {"memory": self.memory, "epochs": self._xp.asarray(self._through, dtype=self._xp.int64)} | past

    def take_over(self, memories: Mapping[str, Array]) -> None:
        self._before = self._through = int(memories.get("epochs", 0))
        if self.sampler.history == "candidates":
            self._before = self._through = 0
            self.memory = self._xp.asarray(memories["memory"], dtype=self._xp.int64, copy=True)
        else:
            self._load(memories, "past.")


def _turns(users: Array, xp: ModuleType) -> Iterator[Array]:
    """Places of users (B,) in turns: where each comes first, where each comes second, and so on. How many there are is asked of
    the device, once a batch."""
    order = xp.argsort(users, stable=True)
    ordered = xp.take(users, order, axis=0)
    turns = xp.arange(users.shape[0], dtype=xp.int64) - xp.searchsorted(ordered, ordered)
    for turn in range(int(xp.max(turns)) + 1 if users.shape[0] else 0):
        (places,) = xp.nonzero(turns == turn)
        yield xp.take(order, places, axis=0)


def _added(values: Array) -> Array:
    """The sum over the first axis from front to back: libraries have orders of their own, on which the last bit depends."""
    total = values[0, ...]
    for number in range(1, values.shape[0]):
        total = total + values[number, ...]
    return total


class _Rows:
    """Items by user, from which one can be drawn."""

    def __init__(self, data: Interactions, xp: ModuleType) -> None:
        self._xp = xp
        self._starts = xp.asarray(data.indptr[:-1].copy())
        self._items = xp.asarray(np.append(data.items, -1).astype(np.int64))
        self.counts = xp.asarray(data.user_counts.copy())

    def draw(self, users: Array, drawn: Array) -> Array:
        """One item of each user, -1 where there is none."""
        counts = self._xp.take(self.counts, users, axis=0)
        place = self._xp.take(self._starts, users, axis=0) + rng.below(drawn, counts)
        return self._xp.where(counts > 0, self._xp.take(self._items, place, axis=0), -1)
