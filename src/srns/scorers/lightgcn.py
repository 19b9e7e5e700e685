"""LightGCN (He et al., SIGIR 2020): embeddings propagated over the graph of interactions, then scored as by GMF.

With A the interactions over sqrt(d_u d_i), the degrees of both ends, layer k + 1 is users A q^(k) and items A' p^(k); a row is
the mean over layers 0..K. A' p sums over all users, so over ranks: that is all that travels. Propagation is linear, so that
averages of propagated rows are propagated averages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from srns.interactions import Interactions


class Graph:
    """The normalised interactions of one rank's users, and their transpose."""

    def __init__(self, train: Interactions) -> None:
        degrees = np.maximum(train.user_counts, 1)[train.users] * np.maximum(train.whole.item_counts, 1)[train.items]
        shape = train.n_users, train.n_items
        matrix = sp.csr_array((1 / np.sqrt(degrees).astype(np.float32), train.items, train.indptr), shape=shape)
        self.items_to_users, self.users_to_items = _tensor(matrix), _tensor(sp.csr_array(matrix.T))

    def propagate(
        self, users: Tensor, items: Tensor, layers: int, total: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Means over layers 0..`layers` of the propagated rows of users and items, and the items' rows in each layer."""
        sums, here, of_items = (users, items), (users, items), [items]
        for _ in range(layers):
            to_users = _product(here[1], self.items_to_users, self.users_to_items)
            to_items = total(_product(here[0], self.users_to_items, self.items_to_users))
            here = to_users, to_items
            sums = sums[0] + to_users, sums[1] + to_items
            of_items.append(to_items)
        return sums[0] / (layers + 1), sums[1] / (layers + 1), of_items


class _Product(torch.autograd.Function):
    """matrix @ rows, with the transpose at hand for the way back: torch would make it anew in every step."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
        ctx.transpose = transpose
        return matrix @ rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transpose @ gradient, None, None


def _product(rows: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
    result: Tensor = _Product.apply(rows, matrix, transpose)  # type: ignore[no-untyped-call]
    return result


def _tensor(matrix: sp.csr_array) -> Tensor:
    starts, columns = (torch.tensor(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():  # CSR is "in beta state", and asks whether to check what SciPy has made
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, torch.tensor(matrix.data), size=matrix.shape)
