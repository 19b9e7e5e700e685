"""Engines of the methods that draw no negatives: popularity and EASE, solved at once, and ALS, an iteration per epoch.

ALS (Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008) minimises

    sum over all u, i of c_ui (x_ui - p_u . q_i)^2 + l2 (|P|^2 + |Q|^2),   c_ui = confidence where x_ui = 1, else 1

by turns over users and items, here by `implicit`, whose conjugate gradients (three steps) start from the factors there are. An
epoch costs about (interactions + users + items) F^2 operations. The loss that it reports is the mean of `implicit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from srns.config import RunConfig
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.ranks import Ranks
from srns.scorers import EASE, GMF, Model, Popularity
from srns.scorers.ease import check_memory


class Alone:
    """What engines without sampler, kernels and ranks answer."""

    @staticmethod
    def needs_compiling() -> bool:
        return False

    def start_from(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        raise ConfigError("a method that is solved starts from nothing")

    @staticmethod
    def memories() -> dict[str, NDArray[Any]]:
        return {}

    def take_over(self, memories: Mapping[str, NDArray[Any]]) -> None: ...

    @staticmethod
    def observations() -> dict[str, float]:
        return {}

    @staticmethod
    def known_draws() -> NDArray[Any]:
        return np.zeros(0)  # nothing is drawn

    @staticmethod
    def by_user(name: str) -> bool:
        return False  # one process: nothing is ever cut


class SolvedEngine(Alone):
    """Popularity and EASE: `run_epoch(0)` is all there is. A closed form has no state; a resumed run solves it again."""

    name = "solved"
    user_tensors: tuple[str, ...] = ()

    def __init__(self, config: RunConfig, train: Interactions) -> None:
        self._train = train
        self._l2 = config.l2_for(train.whole.n, train.whole.n_active)
        self._linear = self.uses_l2 = config.scorer == EASE.name
        if self._linear:
            check_memory(train.n_items)
        self._model: Model = EASE.unsolved(train) if self._linear else Popularity.count(train)

    @property
    def model(self) -> Model:
        return self._model

    def run_epoch(self, epoch: int) -> float:
        """Solve; returns what is minimised, per positive: EASE's squares, or the surprise -log(share of the item)."""
        if self._linear:
            self._model, loss = EASE.solve(self._train, self._l2)
            return loss / len(self._train)
        shares = self._train.item_counts[self._train.items] / len(self._train)
        return float(-np.log(shares).mean())

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.run_epoch(0)


class ALSEngine(Alone):
    """GMF with beta 1 by alternating least squares; the factors are all of its state."""

    name = "als"
    user_tensors: tuple[str, ...] = ("users",)
    uses_l2 = True

    def __init__(self, config: RunConfig, train: Interactions) -> None:
        try:
            from implicit.als import AlternatingLeastSquares
            from threadpoolctl import threadpool_limits
        except ImportError:
            raise ConfigError("scorer 'als' needs implicit, which is not installed: pip install 'srns[als]'") from None
        self._config = config
        # Threads of the linear algebra within those of implicit slow it down, and it warns of them; the sums of one thread are
        # also the same whatever the number of cores.
        self._one_thread: Any = partial(threadpool_limits, 1, "blas")
        self._matrix = sp.csr_matrix(
            (np.ones(len(train), np.float32), train.items, train.indptr), shape=(train.n_users, train.n_items)
        )
        with self._one_thread():
            self._als = AlternatingLeastSquares(
                factors=config.dim,
                regularization=config.l2_for(train.whole.n, train.whole.n_active),
                alpha=config.confidence,
                iterations=1,
                calculate_training_loss=True,
                num_threads=config.threads,
                use_gpu=False,
            )
        start = GMF.init(
            train.n_users, train.n_items, config.dim, std=config.init_std, learn_beta=False, seed=config.seed
        ).tensors()
        self.load_state_dict(start)

    @property
    def model(self) -> GMF:
        return GMF(self._als.user_factors, self._als.item_factors, np.ones(self._config.dim, np.float32))

    def run_epoch(self, epoch: int) -> float:
        """Users by items, then items by users; returns the mean loss over all pairs."""
        losses: list[float] = []
        with self._one_thread():
            self._als.fit(self._matrix, show_progress=False, callback=lambda _, seconds, loss: losses.append(loss))
        return losses[0]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"users": self._als.user_factors, "items": self._als.item_factors}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._als.user_factors, self._als.item_factors = np.array(state["users"]), np.array(state["items"])


def make_classical(config: RunConfig, train: Interactions, ranks: Ranks) -> SolvedEngine | ALSEngine:
    """The engine of a scorer in `srns.scorers.WITHOUT_NEGATIVES`."""
    if ranks.size > 1:
        raise ConfigError(f"scorer {config.scorer!r} is trained by one process, not by {ranks.size} ranks; leave out torchrun")
    for field, value, able in (("engine", config.engine, ("auto",)), ("device", config.device, ("auto", "cpu"))):
        if value not in able:
            raise ConfigError(f"{field} {value!r} cannot train scorer {config.scorer!r}, which needs none; use {field} 'auto'")
    return ALSEngine(config, train) if config.scorer == "als" else SolvedEngine(config, train)
