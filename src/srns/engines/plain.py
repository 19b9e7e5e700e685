"""The readable engine: NumPy, one mini-batch at a time, dense Adam, any array-API sampler.

It is the specification of the fused engine, which must reach the same parameters, and it trains with samplers that have no
compiled twin. The loss of a batch sums loss(r_ui, r_uj) + l2 / 2 * (|p_u|^2 + |q_i|^2 + |q_j|^2) over its positives, the last
term averaged over negatives, so that each occurrence of a row counts; beta is not regularised (as in the authors' code, see
DEVIATIONS.md).

With a `perturbation` epsilon the loss is that at the embeddings plus that at embeddings moved against the model (AdvIR, Park
and Chang, WWW 2019, which learns from both; APR, He et al., SIGIR 2018): each occurrence of a row by epsilon g / |g|, where g
is its gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

from srns import rng
from srns.adam import Adam, sum_rows
from srns.config import RunConfig
from srns.interactions import Interactions
from srns.samplers import Negatives, Truth
from srns.scorers import GMF

Floats = NDArray[np.float32]


def one_blas_thread(method: Callable[..., float]) -> Callable[..., float]:
    """Products of matrices by one thread: their sums have other last bits with others, and a result must not depend on that."""

    @functools.wraps(method)
    def limited(*args: Any) -> float:
        with threadpool_limits(1, "blas"):
            return method(*args)

    return limited


def initial_model(config: RunConfig, train: Interactions) -> GMF:
    """Where every engine starts."""
    return GMF.init(
        train.n_users, train.n_items, config.dim, std=config.init_std, learn_beta=config.learn_beta, seed=config.seed
    )


class PlainEngine:
    """Trains GMF on `train` as `config` says; `run_epoch(0)`, `run_epoch(1)`, ... in turn."""

    name = "plain"
    user_tensors: tuple[str, ...] = ("users",)
    uses_l2 = True

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
        self._adam = Adam(model.tensors())
        self._values = self._adam.values
        self._l2 = config.l2_for(train.whole.n, train.whole.n_active)
        self._rate = config.learning_rate
        self._known = self.truth.positives
        self._known_draws = np.zeros(0 if self._known is None else len(self._known))

    @staticmethod
    def needs_compiling() -> bool:
        return False

    @property
    def model(self) -> GMF:
        return GMF.from_tensors(self._values)

    @one_blas_thread
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
        self._known_draws[:] = 0
        batch_size = self.config.batch_size_for(n)
        for step, start in enumerate(range(0, n, batch_size)):
            batch = order[start : start + batch_size]
            users, positives = self.train.users[batch].astype(np.int64), self.train.items[batch].astype(np.int64)
            drawn = self.sampler.sample(users, positives, score, step)
            if self._known is not None:
                self._known_draws += _draws_of(self._known, users, drawn)
            total += self._step(users, positives, drawn)
        return total / n

    def _step(self, users: NDArray[np.int64], positives: NDArray[np.int64], drawn: Negatives) -> float:
        """Gradient and Adam step of one batch: users (B,), positives (B,) and what was drawn for them."""
        p, q = self._values["users"], self._values["items"]
        negatives = drawn.ids
        if self.config.perturbation and len(negatives) < len(users):  # each occurrence of a row is moved by itself
            negatives = np.broadcast_to(negatives, (len(users), negatives.shape[1]))
        rows = p[users], q[positives], q[negatives]  # (B, F), (B, F), (B or 1, K, F)
        loss, slopes, to_beta, lead = self._slopes(rows, drawn)
        if self.learns:
            self.sampler.feedback(users, drawn.ids, expit(lead))
        if self.config.perturbation:
            moved = tuple(row + self.config.perturbation * _unit(slope) for row, slope in zip(rows, slopes, strict=True))
            loss_there, slopes_there, to_beta_there, _ = self._slopes(moved, drawn)
            loss, to_beta = loss + loss_there, to_beta + to_beta_there
            slopes = tuple(here + there for here, there in zip(slopes, slopes_there, strict=True))
        l2, times = np.float32(self._l2), np.float32(len(users) / len(negatives) / negatives.shape[1])
        (p_u, q_i, q_j), (to_user, to_positive, to_negatives) = rows, slopes
        of_positives = to_positive + l2 * q_i
        of_negatives = (to_negatives + l2 * times * q_j).reshape(-1, q.shape[1])
        gradient = {
            "users": sum_rows(to_user + l2 * p_u, users, len(p)),
            "items": sum_rows(np.concatenate([of_positives, of_negatives]), np.append(positives, negatives), len(q)),
        }
        if self.config.learn_beta:
            gradient["beta"] = to_beta
        self._adam.step(gradient, self._rate)
        return float(loss.sum(dtype=np.float64))

    def _slopes(self, rows: tuple[Floats, ...], drawn: Negatives) -> tuple[Floats, tuple[Floats, ...], Floats, Floats]:
        """Loss (B,) at embeddings p_u (B, F), q_i (B, F), q_j (B or 1, K, F), its gradients by each of these and by beta, and
        r_uj - r_ui (B, K)."""
        p_u, q_i, q_j = rows
        beta, shared = self._values["beta"], len(q_j) < len(p_u)
        vectors = beta * p_u
        r_ui = (p_u * q_i) @ beta
        r_uj = vectors @ q_j[0].T if shared else np.einsum("bf,bkf->bk", vectors, q_j)
        loss, to_positive, to_negative = self.config.loss_of(r_ui, r_uj, drawn)
        pushed = to_negative @ q_j[0] if shared else np.einsum("bk,bkf->bf", to_negative, q_j)
        pulled = to_positive[:, None] * q_i + pushed  # (B, F): dloss/d(beta * p_u)
        to_items = (to_negative.T @ vectors)[None] if shared else to_negative[:, :, None] * vectors[:, None]  # (B or 1, K, F)
        slopes = beta * pulled, to_positive[:, None] * vectors, to_items
        return loss, slopes, np.sum(p_u * pulled, axis=0), r_uj - r_ui[:, None]

    def start_from(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Begin with the parameters of a trained model."""
        for name, value in self._values.items():
            value[:] = tensors[name]

    def memories(self) -> dict[str, NDArray[Any]]:
        """What the sampler leaves to a run that goes on with more data."""
        return self.sampler.memories()

    def take_over(self, memories: Mapping[str, NDArray[Any]]) -> None:
        self.sampler.take_over(memories)

    def observations(self) -> dict[str, float]:
        """What was drawn in the last epoch, see `srns.samplers.observations`."""
        found = {"label_error_ratio": float(self._known_draws.sum()) / len(self.train)} if len(self._known_draws) else {}
        return found | self.sampler.observations()

    def known_draws(self) -> NDArray[np.float64]:
        """How often each known positive outside train was a negative in the last epoch, in units of positives: the negatives of
        a positive are one together, each by what it counts for in the loss; those that count nothing were not drawn."""
        return np.array(self._known_draws)

    @staticmethod
    def by_user(name: str) -> bool:
        return False  # one process alone: nothing is ever cut

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        return self._adam.state_dict() | {f"sampler.{name}": value for name, value in self.sampler.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._adam.load_state_dict(state)
        self.sampler.load_state_dict(
            {name.removeprefix("sampler."): value for name, value in state.items() if name.startswith("sampler.")}
        )


def _draws_of(known: Interactions, users: NDArray[np.int64], drawn: Negatives) -> NDArray[np.float64]:
    """How much of the negatives of `users` (B,) each of the known positives is, in units of positives: what counts nothing for
    a user, as a shared negative may, was not drawn for that user."""
    share = np.broadcast_to(drawn.share(), (len(users), 1))
    if len(drawn.ids) < len(users):  # known ones are outside train, so that shared negatives have weight 1 for their users
        by_user = np.bincount(users, weights=share[:, 0], minlength=known.n_users)
        return np.asarray(by_user[known.users] * np.bincount(drawn.ids[0], minlength=known.n_items)[known.items])
    places = known.places(users[:, None], drawn.ids)
    parts = np.broadcast_to(share if drawn.weight is None else share * drawn.weight, places.shape)
    return np.asarray(np.bincount(places[places >= 0], weights=parts[places >= 0], minlength=len(known)), np.float64)


def _unit(rows: Floats) -> Floats:
    """Each row (..., F) at length 1; a row of zeros stays."""
    length = np.sqrt(np.sum(rows * rows, axis=-1, keepdims=True))
    unit: Floats = rows / np.where(length > 0, length, np.float32(1))
    return unit
