"""A multi-layer perceptron on both embeddings: the paper's second scorer (appendix B.3).

    z_0 = [p_u; q_i],  z_l = sigmoid(W_l z_{l-1} + b_l) half as wide as z_{l-1},  r_ui = W_{H+1} . z_H + b_{H+1}

with H hidden layers. W_1 z_0 is a sum of a user's part and an item's part, so that many items of one user share the former.
This is the form that scores, in NumPy; `srns.scorers.modules` has the one that is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from srns import rng
from srns.errors import ConfigError
from srns.scorers.gmf import initial_embeddings

Floats = NDArray[np.float32]
BLOCK = 1 << 22  # numbers of the first layer held at a time


@dataclass(frozen=True, eq=False)
class MLP:
    """Embeddings `users` (n_users, F) and `items` (n_items, F); weights (d_l, d_{l-1}) and biases (d_l,) of H + 1 layers.

    >>> model = MLP.init(n_users=3, n_items=4, dim=4, hidden_layers=2, std=0.1, seed=0)
    >>> [weight.shape for weight in model.weights], model.score_all(np.array([0, 1])).shape
    ([(4, 8), (2, 4), (1, 2)], (2, 4))
    """

    name: ClassVar[str] = "mlp"
    users: Floats
    items: Floats
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    @classmethod
    def init(
        cls, n_users: int, n_items: int, dim: int, *, hidden_layers: int, std: float, seed: int, first_user: int = 0
    ) -> MLP:
        """The start of training: embeddings as those of GMF, weights uniform in +-sqrt(6 / (inputs + outputs)), biases 0."""
        if (2 * dim) % 2**hidden_layers:
            multiple = 2 ** (hidden_layers - 1)
            raise ConfigError(f"dim = {dim}: with {hidden_layers} hidden layers, expected a multiple of {multiple}")
        widths = layer_widths(dim, hidden_layers)
        weights = []
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            key = rng.stream_key(seed, "init-weights", layer)
            drawn = rng.bits(rng.row_keys(key, np.arange(outputs)[:, None], np.arange(inputs)), 0)
            weights.append(((2 * rng.open_uniform(drawn) - 1) * np.sqrt(6 / (inputs + outputs))).astype(np.float32))
        biases = tuple(np.zeros(len(weight), np.float32) for weight in weights)
        return cls(*initial_embeddings(n_users, n_items, dim, std, seed, first_user), tuple(weights), biases)

    @property
    def dim(self) -> int:
        return int(self.users.shape[1])

    @property
    def item_factors(self) -> Floats:
        """(n_items, F): what the model learnt of each item."""
        return self.items

    def __call__(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of items (B, K) for users (B,): (B, K)."""
        users, items = np.asarray(users), np.asarray(items)
        of_items = self.items @ self.weights[0][:, self.dim :].T if items.size > len(self.items) else None
        asked = self.items[items] @ self.weights[0][:, self.dim :].T if of_items is None else of_items[items]
        return self._rest(self._user_part(users)[:, None] + asked)

    def score_all(self, users: ArrayLike) -> Floats:
        """Scores of every item for users (B,): (B, n_items)."""
        of_users = self._user_part(np.asarray(users))
        of_items = self.items @ self.weights[0][:, self.dim :].T  # (n_items, d_1)
        scores = np.empty((len(of_users), len(self.items)), np.float32)
        block = max(1, BLOCK // of_items.size)
        for start in range(0, len(of_users), block):
            scores[start : start + block] = self._rest(of_users[start : start + block, None] + of_items)
        return scores

    def _user_part(self, users: NDArray[Any]) -> Floats:
        part: Floats = self.users[users] @ self.weights[0][:, : self.dim].T + self.biases[0]
        return part

    def _rest(self, z: Floats) -> Floats:
        """Scores (...) from W_1 z_0 + b_1 (..., d_1)."""
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            z = expit(z) @ weight.T + bias
        return z[..., 0]

    def tensors(self) -> dict[str, Floats]:
        """The parameters by name, as they are saved."""
        return {"users": self.users, "items": self.items, **named_layers(self.weights, self.biases)}

    @staticmethod
    def shapes(n_users: int, n_items: int, dim: int, hidden_layers: int) -> dict[str, tuple[int, ...]]:
        """What `tensors` look like, for a check of what is read from disk."""
        widths = layer_widths(dim, hidden_layers)
        weights = {f"weights.{layer}": (widths[layer + 1], widths[layer]) for layer in range(hidden_layers + 1)}
        biases = {f"biases.{layer}": (widths[layer + 1],) for layer in range(hidden_layers + 1)}
        return {"users": (n_users, dim), "items": (n_items, dim), **weights, **biases}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> MLP:
        return cls(tensors["users"], tensors["items"], *(tuple(part) for part in layers_of(tensors)))


def layer_widths(dim: int, hidden_layers: int) -> list[int]:
    """d_0, d_1, ..., d_H and the single score."""
    return [2 * dim >> layer for layer in range(hidden_layers + 1)] + [1]


def named_layers(weights: Sequence[Any], biases: Sequence[Any]) -> dict[str, Any]:
    """Weights and biases, NumPy's or torch's, under the names by which they are kept."""
    parts = {"weights": weights, "biases": biases}
    return {f"{kind}.{layer}": each for kind, part in parts.items() for layer, each in enumerate(part)}


def layers_of(tensors: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The inverse of `named_layers`: weights and biases by layer."""
    layers = range(sum(name.startswith("weights.") for name in tensors))
    return [tensors[f"weights.{layer}"] for layer in layers], [tensors[f"biases.{layer}"] for layer in layers]
