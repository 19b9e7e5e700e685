"""SRNS: its parts against brute force, its kernel against its array form, draw for draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from srns import rng
from srns.config import RunConfig
from srns.engines import FusedSrnsEngine, PlainEngine, make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.kernels import gmf
from srns.kernels.unseen import make_pool
from srns.samplers import SRNS, Noise, Truth
from srns.samplers.elementary import exp_nonpositive, logistic
from srns.samplers.unseen import spread_numbers
from srns.scorers import GMF


def world(n_users: int, n_items: int, n: int, seed: int) -> Interactions:
    """Interactions over fixed sets of users and items; some users have none, and nobody has seen everything."""
    draw = np.random.default_rng(seed)
    users, items = draw.integers(0, n_users, n), (n_items * draw.random(n) ** 2).astype(int)
    ids = {"user_ids": IdMap.dense(n_users, "user"), "item_ids": IdMap.dense(n_items, "item")}
    data = Interactions.from_pairs(users, items, **ids)
    spared = draw.integers(0, n_items, n_users)
    return data.select(data.items != spared[data.users])


def coarse_model(n_users: int, n_items: int, dim: int, seed: int) -> GMF:
    """Parameters that are multiples of 1/8 and few: every score is exact in float32, whatever the order of its sum."""
    draw = np.random.default_rng(seed)

    def some(*shape: int) -> Any:
        return (draw.integers(-12, 13, shape) / 8).astype(np.float32)

    return GMF(some(n_users, dim), some(n_items, dim), some(dim))


@st.composite
def settings_of_srns(draw: st.DrawFn) -> dict[str, Any]:
    memory_size = draw(st.integers(1, 20))
    return {
        "memory_size": memory_size,
        "expansion_size": draw(st.integers(1, 70)),
        "temperature": draw(st.sampled_from([0.1, 0.7, 2.0, 10.0])),
        "strategy": draw(st.sampled_from(["variance", "difficulty", "random"])),
        "criterion": draw(st.sampled_from(["probability", "stale_scores"])),
        "warmup": draw(st.sampled_from(["increase", "flat", "decrease"])),
        "warmup_epochs": draw(st.integers(0, 5)),
        "variance_weight": draw(st.sampled_from([0.0, 1.0, 20.0])),
        "history_epochs": draw(st.integers(1, 5)),
        "lazy_epochs": draw(st.integers(1, 3)),
        "negatives": draw(st.integers(1, min(memory_size, 4))),
    }


@given(
    values=settings_of_srns(),
    seed=st.integers(0, 2**40),
    n_items=st.integers(2, 90),
    n=st.integers(1, 700),
    dim=st.integers(1, 19),
    batch_size=st.sampled_from([1, 7, 64, 500]),
    threads=st.integers(1, 2),
    noise=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_kernel_draws_what_the_array_form_draws(
    values: dict[str, Any], seed: int, n_items: int, n: int, dim: int, batch_size: int, threads: int, noise: bool
) -> None:
    """Over whole epochs: the same negatives, memories and observations. The model is set anew before each epoch and does not
    move within it (learning rate 0), to values whose scores are exact: what is compared is the sampler alone."""
    n_users, small = 13, seed % 1000
    train = world(n_users, n_items, n if batch_size > 1 else min(n, 40), small)
    truth = Truth(noise=_noise(train, small)) if noise else None
    config = RunConfig(
        sampler="srns", seed=seed, dim=dim, batch_size=batch_size, threads=threads, learning_rate=1e-30, **values
    )
    fused = FusedSrnsEngine(config, train, truth)
    state = config.make_sampler().start(train, seed=seed, **({"noise": truth.noise} if truth else {}))
    np.testing.assert_array_equal(fused.state_dict()["memory"], state.memory)
    for epoch in range(7 if len(train) else 0):
        model = coarse_model(n_users, n_items, dim, small + epoch)
        set_parameters(fused, model)
        negatives = negatives_of(fused, epoch)
        state.begin_epoch(epoch, model)
        order = rng.permutation(rng.stream_key(seed, "shuffle", epoch), len(train), np.arange(len(train)))
        size = config.batch_size_for(len(train))
        for step, start in enumerate(range(0, len(order), size)):
            batch = order[start : start + size]
            drawn = state.sample(train.users[batch], train.items[batch], model, step).ids
            np.testing.assert_array_equal(drawn, negatives[step], err_msg=f"epoch {epoch}, step {step}")
        np.testing.assert_array_equal(fused.state_dict()["memory"], state.memory)
        assert fused.observations() == state.observations()


def _noise(train: Interactions, seed: int) -> Noise:
    """Hidden positives for about half of the users, and others that are held out without being injected."""
    other = world(train.n_users, train.n_items, 60, seed + 1)
    free = other.select(~train.contains(other.users, other.items))
    room = (train.user_counts + free.user_counts)[free.users] < train.n_items  # somebody must be left to draw
    free = free.select(room & (free.users % 2 == 0))
    hidden = free.select(np.arange(len(free)) % 2 == 0)
    return Noise(hidden, free)


def set_parameters(engine: FusedSrnsEngine, model: GMF) -> None:
    state = engine.state_dict()
    state["value.rows"] = np.concatenate([model.users, model.items])
    state["value.beta"] = model.beta[None]
    for name in ("direction.rows", "direction.beta", "root.rows", "root.beta"):
        state[name] = np.zeros_like(state[name])
    engine.load_state_dict(state)


def negatives_of(engine: FusedSrnsEngine, epoch: int) -> list[Any]:
    """Run an epoch with room for all of its batches, and return the negatives of each, (B, K)."""
    size, steps = engine._batch_size, -(-len(engine.train) // engine._batch_size)
    engine._batches = gmf.make_batches(size, engine.sampler.negatives, engine.train.n_items, window=steps)
    engine.run_epoch(epoch)
    return [engine._batches.negatives[step, : engine._batches.size[step]].copy() for step in range(steps)]
