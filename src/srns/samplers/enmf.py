"""ENMF (Chen et al., Efficient Neural Matrix Factorization without Sampling for Recommendation, TOIS 2020): no draws at all.

Every pair that was not observed counts as a negative of weight c = `negative_weight`, beside 1 of an observed one:

    L = sum over observed u, i of (1 - r_ui)^2 + c * sum over the other u, j of r_uj^2
      = sum over observed u, i of [(1 - c) r_ui^2 - 2 r_ui + 1] + c * sum over f, g of beta_f beta_g (P'P)_fg (Q'Q)_fg

where the second line (its equation 8) needs no pair that was not observed. `srns.engines.enmf` minimises it.

In each step a share of the numbers of p_u is left out (`dropout`), and the others are as much larger.

Cost per positive: F; per step of B users, (B + n_items) F^2, where all pairs would cost B n_items F, and dense Adam over all
(n_users + n_items) F parameters. The engine's docstring names the departures.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy
from pydantic import Field

from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers.base import Sampler, SamplerState


class ENMF(Sampler):
    """All items a user has not interacted with are negatives, each of a small weight."""

    name: ClassVar[str] = "enmf"
    cost: ClassVar[str] = "F, and (B + |I|) F^2 per B users"
    draws: ClassVar[bool] = False

    negative_weight: float = Field(0.1, gt=0, le=1, description="weight of a pair that was not observed (c)")
    dropout: float = Field(0.2, ge=0, lt=1, description="share of the numbers of a user's embedding left out in each step")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> SamplerState:
        raise ConfigError("sampler 'enmf' draws no negatives: it is trained as a whole, by `srns train` or a Recommender")
