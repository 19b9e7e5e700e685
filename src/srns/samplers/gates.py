"""The gates of DENS (`srns.samplers.dens`) and how they learn. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from srns import rng
from srns.adam import Adam

WEIGHTS, BIASES = ("item", "user", "candidate", "positive"), ("positive_bias", "candidate_bias")


class Gates:
    """Weights (F, F) and biases (F,), at first uniform in +-1 / sqrt(F), with the state of their Adam."""

    def __init__(self, dim: int, seed: int, learning_rate: float) -> None:
        self._rate = learning_rate
        shapes = dict.fromkeys(WEIGHTS, (dim, dim)) | dict.fromkeys(BIASES, (1, dim))
        self._adam = Adam({name: _initial(rng.stream_key(seed, f"dens-{name}"), shape) for name, shape in shapes.items()})

    @property
    def _values(self) -> dict[str, Tensor]:
        return self._adam.values

    def relevant_positive(self, p_u: Tensor, q_i: Tensor) -> Tensor:
        """What of positives (B, F) is relevant for users (B, F)."""
        g = self._values
        return q_i * torch.sigmoid(q_i @ g["item"] + p_u @ g["user"] + g["positive_bias"])

    def relevant(self, of_positive: Tensor, q_c: Tensor) -> Tensor:
        """What of candidates (B, N, F) is relevant, by what is so of the positive (B, F)."""
        g = self._values
        return q_c * torch.sigmoid(q_c @ g["candidate"] + (of_positive @ g["positive"] + g["candidate_bias"])[:, None])

    def worth(self, p_u: Tensor, q_i: Tensor, q_c: Tensor, share: float) -> Tensor:
        """p_u . (share q_c - q_c^r): (B, N)."""
        rest = share * q_c - self.relevant(self.relevant_positive(p_u, q_i), q_c)
        return torch.einsum("bf,bnf->bn", p_u, rest)

    def loss(self, p_u: Tensor, q_i: Tensor, q_j: Tensor) -> Tensor:
        """The four contrastive losses, of positives (B, F) and negatives (B, K, F): what is relevant scores above what is not
        in the positive and below it in the negative; the positive is ahead in what is relevant, the negative in the rest."""
        of_positive = self.relevant_positive(p_u, q_i)
        of_negative = self.relevant(of_positive, q_j)
        r_i, rest_i = ((p_u * rows).sum(-1, keepdim=True) for rows in (of_positive, q_i - of_positive))  # (B, 1)
        r_j, rest_j = ((p_u[:, None] * rows).sum(-1) for rows in (of_negative, q_j - of_negative))  # (B, K)
        leads = (rest_i - r_i, r_j - rest_j, r_j - r_i, rest_i - rest_j)
        return torch.stack([softplus(lead).mean() for lead in leads]).mean()

    def learn(self, p_u: Tensor, q_i: Tensor, q_j: Tensor) -> None:
        """One step of Adam on `loss`; the rows are given, not learnt."""
        with torch.enable_grad():
            for value in self._values.values():
                value.requires_grad_(True)
            gradients = torch.autograd.grad(self.loss(p_u, q_i, q_j), list(self._values.values()))
        for value in self._values.values():
            value.requires_grad_(False)
        with torch.no_grad():
            self._adam.step(dict(zip(self._values, gradients, strict=True)), self._rate)

    def state_dict(self) -> dict[str, Tensor]:
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._adam.load_state_dict(state)


def _initial(key: rng.Key, shape: tuple[int, int]) -> Tensor:
    rows, columns = np.arange(shape[0], dtype=np.int64)[:, None], np.arange(shape[1], dtype=np.int64)[None]
    drawn = rng.open_uniform(rng.bits(rng.row_keys(key, rows, columns), 0))
    return torch.tensor((2 * drawn - 1) / np.sqrt(shape[1]), dtype=torch.float32)
