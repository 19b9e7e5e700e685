"""The readable engine: NumPy, one mini-batch at a time, dense Adam, any array-API sampler that needs no feedback.

It is the specification of the fused engine, which must reach the same parameters, and it trains with samplers that have no
compiled twin. The loss of a batch sums loss(r_ui, r_uj) + l2 / 2 * (|p_u|^2 + |q_i|^2 + |q_j|^2) over its positives, the last
term averaged over negatives, so that each occurrence of a row counts; beta is not regularised (as in the authors' code, see
DEVIATIONS.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from srns import rng
from srns.config import BETA_1, BETA_2, EPSILON, RunConfig
from srns.interactions import Interactions
from srns.samplers import Negatives, Truth
from srns.scorers import GMF

Floats = NDArray[np.float32]


def initial_model(config: RunConfig, train: Interactions) -> GMF:
    """Where every engine starts."""
    return GMF.init(
        train.n_users, train.n_items, config.dim, std=config.init_std, learn_beta=config.learn_beta, seed=config.seed
    )


class PlainEngine:
    """Trains GMF on `train` as `config` says; `run_epoch(0)`, `run_epoch(1)`, ... in turn."""

    name = "plain"
    user_tensors: tuple[str, ...] = ("users",)

    def __init__(self, config: RunConfig, train: Interactions, truth: Truth | None = None) -> None:
        self.config = config
        self.train = train
        self.truth = truth or Truth()
        sampler = config.make_sampler()
        extra: dict[str, Any] = {} if self.truth.noise is None else {"noise": self.truth.noise}
        self.sampler = sampler.start(train, seed=config.seed, **extra)
        self.sampler.observing = True
        self.learns = sampler.learns
        model = initial_model(config, train)
        self._values = model.tensors()
        self._first = {name: np.zeros_like(value) for name, value in self._values.items()}
        self._second = {name: np.zeros_like(value) for name, value in self._values.items()}
        self._l2 = config.l2_for(train.whole.n, train.whole.n_active)
        self._rate = config.learning_rate
        self._steps = 0
        self._label_errors = 0.0

    @staticmethod
    def needs_compiling() -> bool:
        return False

    @property
    def model(self) -> GMF:
        return GMF.from_tensors(self._values)

    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled positives; returns the mean loss per positive."""
        score = self.model
        self.sampler.begin_epoch(epoch, score)
        self._rate = self.config.learning_rate_at(epoch)
        n = len(self.train)
        order = self.sampler.order(epoch)
        if order is None:
            order = rng.permutation(rng.stream_key(self.config.seed, "shuffle", epoch), n, np.arange(n))
        total = 0.0
        self._label_errors = 0.0
        batch_size = self.config.batch_size_for(n)
        for step, start in enumerate(range(0, n, batch_size)):
            batch = order[start : start + batch_size]
            users, positives = self.train.users[batch].astype(np.int64), self.train.items[batch].astype(np.int64)
            drawn = self.sampler.sample(users, positives, score, step)
            if self.truth.positives is not None:
                self._label_errors += self._errors(self.truth.positives, users, drawn)
            total += self._step(users, positives, drawn)
        return total / n

    @staticmethod
    def _errors(known: Interactions, users: NDArray[np.int64], drawn: Negatives) -> float:
        """How many negatives are known to be positives, in units of positives. Known ones are outside train, so that shared
        negatives count for their users."""
        if len(drawn.ids) == len(users):
            errors = known.contains(users[:, None], drawn.ids)
            counted = errors if drawn.weight is None else errors & (drawn.weight > 0)
            return float(counted.mean(axis=1).sum())
        times, drawn_times = np.bincount(users, minlength=known.n_users), np.bincount(drawn.ids[0], minlength=known.n_items)
        return float(np.sum(times[known.users] * drawn_times[known.items]) / drawn.ids.shape[1])

    def _step(self, users: NDArray[np.int64], positives: NDArray[np.int64], drawn: Negatives) -> float:
        """Gradient and Adam step of one batch: users (B,), positives (B,) and what was drawn for them."""
        p, q, beta = self._values["users"], self._values["items"], self._values["beta"]
        negatives, shared = drawn.ids, len(drawn.ids) < len(users)
        p_u, q_i, q_j = p[users], q[positives], q[negatives]  # (B, F), (B, F), (B or 1, K, F)
        vectors = beta * p_u
        r_ui = (p_u * q_i) @ beta
        r_uj = vectors @ q_j[0].T if shared else np.einsum("bf,bkf,f->bk", p_u, q_j, beta)
        loss, to_positive, to_negative = self.config.loss_of(r_ui, r_uj, drawn)
        if self.learns:
            self.sampler.feedback(users, negatives, expit(r_uj - r_ui[:, None]))
        to_user = to_negative @ q_j[0] if shared else np.einsum("bk,bkf->bf", to_negative, q_j)
        to_items = (to_negative.T @ vectors)[None] if shared else to_negative[:, :, None] * vectors[:, None]  # (B or 1, K, F)
        pulled = to_positive[:, None] * q_i + to_user  # (B, F): dloss/d(beta * p_u)
        l2, times = np.float32(self._l2), np.float32(len(users) / len(negatives) / negatives.shape[1])
        gradient = {name: np.zeros_like(value) for name, value in self._values.items()}
        np.add.at(gradient["users"], users, beta * pulled + l2 * p_u)
        np.add.at(gradient["items"], positives, to_positive[:, None] * vectors + l2 * q_i)
        np.add.at(gradient["items"], negatives, to_items + l2 * times * q_j)
        if self.config.learn_beta:
            gradient["beta"] = np.sum(p_u * pulled, axis=0)
        self._adam(gradient)
        return float(loss.sum(dtype=np.float64))

    def _adam(self, gradient: Mapping[str, Floats]) -> None:
        self._steps += 1
        rate = self._rate * np.sqrt(1 - BETA_2**self._steps) / (1 - BETA_1**self._steps)
        for name, g in gradient.items():
            m, v = self._first[name], self._second[name]
            m += np.float32(1 - BETA_1) * (g - m)
            v += np.float32(1 - BETA_2) * (g * g - v)
            self._values[name] -= np.float32(rate) * m / (np.sqrt(v) + np.float32(EPSILON))

    def observations(self) -> dict[str, float]:
        """What was drawn in the last epoch, see `srns.samplers.observations`."""
        known = self.truth.positives is not None and len(self.truth.positives) > 0
        found = {"label_error_ratio": self._label_errors / len(self.train)} if known else {}
        return found | self.sampler.observations()

    @staticmethod
    def by_user(name: str) -> bool:
        return False  # one process alone: nothing is ever cut

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        state: dict[str, NDArray[Any]] = {"steps": np.asarray(self._steps)}
        for kind, tensors in (("value", self._values), ("first", self._first), ("second", self._second)):
            state |= {f"{kind}.{name}": tensor for name, tensor in tensors.items()}
        return state | {f"sampler.{name}": value for name, value in self.sampler.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        for kind, tensors in (("value", self._values), ("first", self._first), ("second", self._second)):
            for name in tensors:
                tensors[name] = np.array(state[f"{kind}.{name}"])
        self.sampler.load_state_dict(
            {name.removeprefix("sampler."): value for name, value in state.items() if name.startswith("sampler.")}
        )
