"""Epochs of a compiled engine whose model stands still, batch by batch beside the array form of its sampler: what is
compared is the sampler alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from srns import rng
from srns.engines import FusedEngine, FusedSrnsEngine
from srns.kernels.batches import make_batches
from srns.scorers import GMF


def coarse_model(n_users: int, n_items: int, dim: int, seed: int, scale: float = 1.0) -> GMF:
    """Parameters that are odd multiples of 1/16 and few, users by a power of 2 besides: every score is exact in
    float32, whatever the order of its sum, and no parameter is 0, which a step of 1e-30 would move."""
    draw = np.random.default_rng(seed)

    def some(*shape: int) -> Any:
        return ((2 * draw.integers(-12, 12, shape) + 1) / 16).astype(np.float32)

    return GMF(some(n_users, dim) * np.float32(scale), some(n_items, dim), some(dim))


def set_parameters(engine: FusedEngine, model: GMF) -> None:
    state = engine.state_dict()
    state["value.rows"] = np.concatenate([model.users, model.items])
    state["value.beta"] = model.beta[None]
    for name in ("direction.rows", "direction.beta", "root.rows", "root.beta"):
        state[name] = np.zeros_like(state[name])
    engine.load_state_dict(state)


def negatives_of(engine: FusedEngine, epoch: int) -> list[Any]:
    """Run an epoch with room for all of its batches, and return the negatives of each, (B, K)."""
    size, steps = engine._batch_size, -(-len(engine.train) // engine._batch_size)
    engine._batches = make_batches(max(steps, 2), size, engine._negatives)
    if isinstance(engine, FusedSrnsEngine):
        shape = engine._batches.users.shape
        engine._memories = engine._memories._replace(first=np.zeros(shape, np.bool_), following=np.zeros(shape, np.int32))
    engine.run_epoch(epoch)
    return [engine._batches.negatives[step, : engine._batches.size[step]].copy() for step in range(steps)]


def compare_draws(fused: FusedEngine, state: Any, model: GMF, epoch: int) -> None:
    """The same negatives in each batch of an epoch with the parameters of `model`; the engine's learning rate is next to 0."""
    train, size = fused.train, fused._batch_size
    set_parameters(fused, model)
    negatives = negatives_of(fused, epoch)
    state.begin_epoch(epoch, model)
    order = rng.permutation(rng.stream_key(fused.config.seed, "shuffle", epoch), len(train), np.arange(len(train)))
    for step, start in enumerate(range(0, len(order), size)):
        batch = order[start : start + size]
        drawn = state.sample(train.users[batch], train.items[batch], model, step).ids
        np.testing.assert_array_equal(drawn, negatives[step], err_msg=f"epoch {epoch}, step {step}")
