"""What a trained model hands on to one with more users and items: parameters and memories, row by row under new numbers.

Dense ids follow the order of labels, so a new label moves those behind it; every row here goes where its label goes. Items keep
their rows, and new ones start as all do in training. A linear map, fitted to the users there were, takes the mean of a user's
items to the user's row (it explains 90% of these rows on ml-100k and 96% on beauty): new users start where it takes the mean of
theirs, and users with more items than before move by what it makes of the change of their mean. That is as good as folding in
(`srns.foldin`), for all users at once, and leaves less to the few epochs of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from srns.config import RunConfig
from srns.engines.plain import initial_model
from srns.interactions import Interactions
from srns.merging import Merged
from srns.scorers import GMF, MLP, Model

Tensors = Mapping[str, NDArray[Any]]
RIDGE = 1e-3  # of the linear map, as a share of the mean square of its inputs


def carry_model(model: Model, before: Interactions, merged: Merged, config: RunConfig) -> Model:
    """`model`, which learnt from `before`, with rows for all users and items of `merged`."""
    train, old = merged.split.train, model.tensors()
    fresh = _initial(config, train)
    rows = {"users": np.array(fresh["users"]), "items": np.array(fresh["items"])}
    for kind, places in (("users", merged.users), ("items", merged.items)):
        rows[kind][places] = old[kind]
    known = np.zeros(train.n_items, bool)
    known[merged.items] = True  # the rows of others say nothing yet
    means, counts = _means(train.users, train.items, rows["items"], known, train.n_users)
    old_means, old_counts = _means(merged.users[before.users], merged.items[before.items], rows["items"], known, train.n_users)
    fitted, moved = old_counts > 0, counts > old_counts
    if fitted.any() and moved.any():
        linear = _linear_map(old_means[fitted], rows["users"][fitted])
        shift = ((means - old_means)[moved] @ linear).astype(np.float32)
        rows["users"][moved] = np.where(fitted[moved, None], rows["users"][moved], 0) + shift
    return model.from_tensors({**old, **rows})


def _initial(config: RunConfig, train: Interactions) -> Tensors:
    """Parameters at the start of training."""
    if config.scorer != MLP.name:
        return initial_model(config, train).tensors()
    sizes: dict[str, Any] = {"n_users": train.n_users, "n_items": train.n_items, "dim": config.dim}
    return MLP.init(**sizes, hidden_layers=config.hidden_layers, std=config.init_std, seed=config.seed).tensors()


def _means(
    users: NDArray[Any], items: NDArray[Any], vectors: NDArray[Any], known: NDArray[np.bool_], n_users: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The mean vector (n_users, F) of the known items in each user's pairs, zero without any, and how many these are."""
    seen = known[items]
    shape = (n_users, len(vectors))
    touched = sp.csr_array((np.ones(int(seen.sum()), np.float32), (users[seen], items[seen])), shape=shape)
    counts = np.bincount(users[seen], minlength=n_users)
    return (touched @ vectors) / np.maximum(counts, 1).astype(np.float32)[:, None], counts


def _linear_map(inputs: NDArray[Any], outputs: NDArray[Any]) -> NDArray[np.float64]:
    """(F, F) ridge regression of outputs (n, F) on inputs (n, F)."""
    with threadpool_limits(1, "blas"):  # sums of several threads have other last bits
        x = inputs.astype(np.float64)
        square = x.T @ x
        ridge = RIDGE * np.trace(square) / len(square) + np.finfo(np.float64).tiny
        solved: NDArray[np.float64] = np.linalg.solve(square + ridge * np.eye(len(square)), x.T @ outputs.astype(np.float64))
    return solved


def carry_memories(memories: Tensors, start: Model, fresh: NDArray[Any], merged: Merged) -> dict[str, NDArray[Any]]:
    """The memories of a sampler (`SamplerState.memories`) under new numbers.

    `fresh` (n_users, S1) are memories as a new run draws them: all of a new user's, and for others what takes the place of an
    item that has become a positive. Past rows of new users and items are those of `start`.
    """
    slots = np.full(fresh.shape, -1, np.int64)
    old = np.asarray(memories["memory"], np.int64)
    slots[merged.users] = np.where(old >= 0, merged.items[np.maximum(old, 0)], -1)
    found: dict[str, NDArray[Any]] = {"memory": _completed(slots, fresh.astype(np.int64), merged.split.train)}
    if "epochs" in memories:
        found["epochs"] = np.asarray(memories["epochs"])
    tensors = start.tensors()
    now = {"users": start.user_factors if isinstance(start, GMF) else tensors["users"], "items": tensors["items"]}
    for name, tensor in memories.items():
        if not name.startswith("past."):
            continue
        _, slot, kind = name.split(".", 2)
        beta = memories.get(f"past.{slot}.beta")
        if kind in now:
            found[name] = np.array(now[kind])
            folded = tensor * beta if kind == "users" and beta is not None else tensor
            found[name][merged.users if kind == "users" else merged.items] = folded
        else:
            found[name] = np.ones_like(tensor) if kind == "beta" else tensor  # beta is folded into the users
    return found


def _completed(slots: NDArray[np.int64], fresh: NDArray[np.int64], train: Interactions) -> NDArray[np.int64]:
    """(n_users, S1) what of `slots` is no positive of its user, filled up from `fresh`; -1, last, where that is not enough."""
    repeated = np.zeros(fresh.shape, bool)
    for slot in range(slots.shape[1]):
        repeated |= fresh == slots[:, slot : slot + 1]
    everyone = np.arange(len(slots))[:, None]
    allowed = np.concatenate([(slots >= 0) & ~train.contains(everyone, slots), (fresh >= 0) & ~repeated], axis=1)
    order = np.argsort(~allowed, axis=1, kind="stable")[:, : slots.shape[1]]
    chosen = np.take_along_axis(np.concatenate([slots, fresh], axis=1), order, axis=1)
    return np.where(np.take_along_axis(allowed, order, axis=1), chosen, -1)
