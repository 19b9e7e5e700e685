"""Scorers by name. What is trained scores in NumPy, without torch; training MLP and LightGCN takes `srns.scorers.modules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srns.scorers.ease import EASE
from srns.scorers.gmf import GMF
from srns.scorers.mlp import MLP
from srns.scorers.popularity import Popularity


class Model(Protocol):
    """A trained scorer: a Score on NumPy arrays whose parameters can be saved and put back.

    One that also has `score_all`, users (B,) -> (B, n_items), is asked for whole rows that way.
    """

    def __call__(self, users: ArrayLike, items: ArrayLike) -> NDArray[Any]: ...
    def tensors(self) -> dict[str, NDArray[Any]]: ...
    def from_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> Model: ...
    @property
    def item_factors(self) -> NDArray[Any]: ...


def score_rows(score: Any, users: NDArray[Any], n_items: int) -> NDArray[Any]:
    """Scores of every item for users (B,): (B, n_items), by `score_all` where the scorer has it."""
    if hasattr(score, "score_all"):
        rows: NDArray[Any] = score.score_all(users)
    else:
        rows = score(users, np.broadcast_to(np.arange(n_items), (len(users), n_items)))
    return rows


# The form in which a trained scorer is saved and used: rows that LightGCN has propagated are factors like those of GMF, and so
# are the factors of ALS.
SCORERS: dict[str, type[GMF] | type[MLP] | type[EASE] | type[Popularity]] = {
    **{GMF.name: GMF, MLP.name: MLP, "lightgcn": GMF},
    **{Popularity.name: Popularity, EASE.name: EASE, "als": GMF},
}
# Scorers that are not learnt from negatives, with the fields of a run that matter to them beside `seed` and `epochs`.
WITHOUT_NEGATIVES: dict[str, tuple[str, ...]] = {
    Popularity.name: (),
    EASE.name: ("l2",),
    "als": ("dim", "init_std", "l2", "confidence", "patience", "moving_average"),
}
CLOSED_FORM = (Popularity.name, EASE.name)  # those of them that are solved in one epoch

__all__ = ["CLOSED_FORM", "EASE", "GMF", "MLP", "SCORERS", "WITHOUT_NEGATIVES", "Model", "Popularity", "score_rows"]
