"""The engine of ENMF: the loss of `srns.samplers.enmf` over all pairs of a batch of users and all items, by dense Adam.

With v_u = beta * p_u, W_ui = (1 - c) r_ui - 1 where u, i was observed and 0 elsewhere, and V the rows of the batch, the
gradients are 2 (W Q + c V Q'Q) for V and 2 (W'V + c Q V'V) for Q. As everywhere in this package, each observed pair adds
l2 / 2 * (|p_u|^2 + |q_i|^2).

Departures from the paper: Adam instead of Adagrad, as SRNS used it; beta drawn as for GMF instead of constant at the start; L2
by occurrences instead of over whole tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from srns import rng
from srns.adam import Adam
from srns.config import RunConfig
from srns.engines.classical import Alone
from srns.engines.plain import initial_model, one_blas_thread
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.ranks import Ranks
from srns.samplers import ENMF
from srns.scorers import GMF

Floats = NDArray[np.float32]


class EnmfEngine(Alone):
    """Trains GMF on `train` as `config` says; an epoch takes all users in batches of `batch_size`."""

    name = "enmf"
    user_tensors: tuple[str, ...] = ("users",)
    uses_l2 = True

    def __init__(self, config: RunConfig, train: Interactions, ranks: Ranks) -> None:
        sampler = config.make_sampler()
        assert isinstance(sampler, ENMF)
        able = {"scorer": ("gmf",), "engine": ("auto", "plain"), "device": ("auto", "cpu")}
        for field, values in able.items():
            if (found := getattr(config, field)) not in values:
                raise ConfigError(f"{field} {found!r} cannot be trained with sampler 'enmf'; use {' or '.join(values)}")
        if ranks.size > 1:
            raise ConfigError(f"sampler 'enmf' is for one process, not for {ranks.size} ranks; leave out torchrun")
        self.config, self.train, self._sampler = config, train, sampler
        self._matrix = sp.csr_array(
            (np.ones(len(train), np.float32), train.items, train.indptr), shape=(train.n_users, train.n_items)
        )
        self._active = np.flatnonzero(train.user_counts)  # the others have nothing to learn from
        self._adam = Adam(initial_model(config, train).tensors())
        self._l2 = config.l2_for(train.whole.n, train.whole.n_active)

    @property
    def model(self) -> GMF:
        return GMF.from_tensors(self._adam.values)

    @one_blas_thread
    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled users; returns the loss per positive."""
        n, rate = len(self._active), self.config.learning_rate_at(epoch)
        order = self._active[rng.permutation(rng.stream_key(self.config.seed, "shuffle", epoch), n, np.arange(n))]
        key = rng.stream_key(self.config.seed, "dropout", epoch)
        size = self.config.batch_size_for(n)
        total = 0.0
        for start in range(0, n, size):
            users = order[start : start + size]
            loss, gradient = self.loss_and_gradient(users, self._kept(key, users))
            self._adam.step(gradient, rate)
            total += loss
        return total / len(self.train)

    def _kept(self, key: rng.Key, users: NDArray[np.int64]) -> Floats | None:
        """(B, F) what the embeddings of users are multiplied by: 0, or as much more than 1 as keeps their mean."""
        share = self._sampler.dropout
        if not share:
            return None
        drawn = rng.open_uniform(rng.bits(rng.row_keys(key, users[:, None], np.arange(self.config.dim)), 0))
        kept: Floats = np.where(drawn < share, 0, 1 / (1 - share)).astype(np.float32)
        return kept

    def loss_and_gradient(self, users: NDArray[np.int64], kept: Floats | None = None) -> tuple[float, dict[str, Floats]]:
        """The loss of users (B,), all their pairs, and its gradient by parameter, L2 included in the latter alone."""
        p, q, beta = (self._adam.values[name] for name in ("users", "items", "beta"))
        c, l2 = np.float32(self._sampler.negative_weight), np.float32(self._l2)
        p_u = p[users] if kept is None else p[users] * kept
        v = p_u * beta  # (B, F)
        seen = self._matrix[users]  # (B, n_items)
        rows = np.repeat(np.arange(len(users)), np.diff(seen.indptr))
        r = np.einsum("nf,nf->n", v[rows], q[seen.indices])
        gram, gram_v = q.T @ q, v.T @ v  # (F, F) each
        loss = float(np.sum((1 - c) * r * r - 2 * r + 1, dtype=np.float64) + c * np.sum(gram * gram_v, dtype=np.float64))
        weights = sp.csr_array((2 * ((1 - c) * r - 1), seen.indices, seen.indptr), shape=seen.shape)
        to_v = weights @ q + 2 * c * (v @ gram)
        to_p = to_v * beta if kept is None else to_v * beta * kept
        gradient = {name: np.zeros_like(value) for name, value in self._adam.values.items()}
        gradient["users"][users] = to_p + l2 * np.diff(seen.indptr)[:, None].astype(np.float32) * p[users]
        times = np.bincount(seen.indices, minlength=len(q)).astype(np.float32)
        gradient["items"] = weights.T @ v + 2 * c * (q @ gram_v) + l2 * times[:, None] * q
        if self.config.learn_beta:
            gradient["beta"] = np.sum(p_u * to_v, axis=0)
        return loss, gradient

    def start_from(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Begin with the parameters of a trained model."""
        for name, value in self._adam.values.items():
            value[:] = tensors[name]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._adam.load_state_dict(state)
