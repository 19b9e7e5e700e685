"""The simulated world: its truth is consistent, its observations look like real data, and a model can learn from them."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import srns.simulation
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.simulation import World, simulate
from srns.splits import split_leave_one_out


@pytest.fixture(scope="module")
def world() -> World:
    return simulate()


def gini(counts: NDArray[np.int64]) -> float:
    """0 where all are equally popular, near 1 where one item has everything."""
    ordered, n = np.sort(counts), len(counts)
    return float(((2 * np.arange(1, n + 1) - n - 1) * ordered).sum() / (n * ordered.sum()))


def all_pairs(world: World) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Affinity and observed, (n_users, n_items) both: small worlds only."""
    data = world.interactions
    users, items = np.arange(data.n_users)[:, None], np.arange(data.n_items)
    return world.affinity(users, items), data.contains(users, items)


def same(one: World, other: World) -> bool:
    assert one.interactions.time is not None
    assert other.interactions.time is not None
    same_times = np.array_equal(one.interactions.time, other.interactions.time)
    return one.interactions.fingerprint() == other.interactions.fingerprint() and same_times


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.floats(0, 1), st.integers(1, 4), st.integers(0, 2**70))
def test_any_feasible_size_is_met_exactly(n_users: int, n_items: int, fill: float, dim: int, seed: int) -> None:
    most = n_users * max(1, n_items // 2)
    n_interactions = max(1, round(fill * most))
    data = simulate(n_users, n_items, n_interactions, dim=dim, seed=seed).interactions
    assert (data.n_users, data.n_items, len(data)) == (n_users, n_items, n_interactions)
    assert data.user_counts.max() <= max(1, n_items // 2)
    assert data.user_counts.min() >= min(10, n_interactions // n_users // 2)
    rebuilt = Interactions.from_pairs(data.users, data.items, user_ids=data.user_ids, item_ids=data.item_ids)
    assert rebuilt.fingerprint() == data.fingerprint()  # ascending, no pair twice


@settings(deadline=None, max_examples=30)
@given(
    st.floats(0.01, 0.75),
    st.floats(0, 5),
    st.sampled_from([0.0, 2.0, 100.0]),
    st.sampled_from([0.0, 0.02, 1.0]),
    st.floats(0, 0.7),
)
def test_any_character_works(liked: float, skew: float, tilt: float, noise: float, whim: float) -> None:
    world = simulate(30, 50, 300, liked=liked, skew=skew, tilt=tilt, noise=noise, whim=whim)
    assert len(world.interactions) == 300


def test_labels_sort_as_dense_ids(world: World) -> None:
    data = world.interactions
    assert data.user_ids.labels.to_list() == [f"u{number:03}" for number in range(1, 944)]
    assert data.item_ids.labels.to_list() == [f"i{number:04}" for number in range(1, 1683)]
    assert data.item_ids.labels.is_sorted()


def test_affinity_is_the_sum_that_the_module_states(world: World) -> None:
    taste, rng = world.taste, np.random.default_rng(0)
    users, items = rng.integers(943, size=(7, 1)), rng.integers(1682, size=(1, 5))
    found = world.affinity(users, items)
    assert found.shape == (7, 5)
    for row, user in enumerate(users[:, 0].tolist()):
        for column, item in enumerate(items[0].tolist()):
            mixed = int(taste.user_keys[user]) * int(taste.item_keys[item]) % 2**64
            whim = float(taste.whim) * (((mixed >> 48) + (mixed >> 32) % 2**16) / 65535 - 1)
            inner = float(taste.users[:, user].astype(float) @ taste.items[:, item].astype(float))
            assert found[row, column] == pytest.approx(inner + whim + float(taste.appeal[item] - taste.bar[user]), abs=1e-5)
            assert world.affinity(user, item) == found[row, column]  # the same bits whatever the shape
            assert bool(world.would_like(user, item)) == (found[row, column] > 0)


def test_false_negatives_are_the_liked_pairs_not_observed(world: World) -> None:
    affinity, observed = all_pairs(world)
    for user in range(0, 943, 50):
        expected = [item for item in range(1682) if affinity[user, item] > 0 and not observed[user, item]]
        assert world.false_negatives(user).tolist() == expected


def test_whim_has_no_structure_to_learn(world: World) -> None:
    mixed = world.taste.user_keys[:400, None] * world.taste.item_keys[:600]
    whim = (mixed >> np.uint64(32)).astype(np.float64) / 2**32 - 0.5
    assert abs(whim.mean()) < 4 * np.sqrt(1 / 12 / whim.size)
    assert whim.var() == pytest.approx(1 / 12, rel=0.01)
    largest = np.linalg.svd(whim, compute_uv=False)[0]
    assert largest < 1.05 * (np.sqrt(400) + np.sqrt(600)) / np.sqrt(12)  # where the spectrum of a random matrix ends


@pytest.mark.parametrize("seed", [0, 1])
def test_default_resembles_ml_100k(seed: int) -> None:
    world = simulate(seed=seed)
    data = world.interactions
    assert repr(data) == "Interactions(943 users x 1,682 items, 55,000 interactions, with time)"
    assert 0.67 < gini(data.item_counts) < 0.75  # ML-100k with ratings >= 4, over all 1,682 items: 0.71
    assert 0.38 < gini(data.user_counts) < 0.50  # 0.47
    assert data.user_counts.min() >= 10
    assert 30 < np.median(data.user_counts) < 50  # 39.5
    assert data.time is not None
    assert len(np.unique(data.time)) > 50_000
    affinity, observed = all_pairs(world)
    liked = affinity > 0
    assert liked[observed].mean() > 0.94
    assert 0.06 < liked[~observed].mean() < 0.11  # false negatives among what a sampler may draw
    # and they are what a good model scores high: those of a user's top decile by learnable taste are mostly liked
    learnable = world.taste.users.T @ world.taste.items + world.taste.appeal
    top = learnable >= np.quantile(learnable, 0.9, axis=1, keepdims=True)
    assert liked[~observed & top].mean() > 3 * liked[~observed].mean()


def ndcg_at_10(scores: NDArray[Any], data: Interactions) -> float:
    """Mean over users with one test item each; train and valid items are ranked last."""
    split = split_leave_one_out(data)
    assert split.valid is not None
    assert split.test is not None
    scores = scores.copy()
    for part in (split.train, split.valid):
        scores[part.users, part.items] = -np.inf
    ranks = (scores > scores[split.test.users, split.test.items][:, None]).sum(1)
    return float(np.where(ranks < 10, 1 / np.log2(ranks + 2), 0).mean())


def test_a_model_beats_popularity_by_as_much_as_on_real_data(world: World) -> None:
    train = split_leave_one_out(world.interactions).train
    seen = train.to_csr().toarray().astype(np.float64)
    inverse = np.linalg.inv(seen.T @ seen + 200 * np.eye(train.n_items))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    ease = ndcg_at_10(seen @ weights, world.interactions)
    popularity = ndcg_at_10(np.tile(train.item_counts.astype(float), (train.n_users, 1)), world.interactions)
    assert 0.02 < popularity < 0.05  # ML-100k: 0.029, EASE 0.054
    assert 1.4 < ease / popularity < 2.5


def test_proposals_and_race_draw_from_one_distribution(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srns.simulation, "ROUNDS", 0)  # every user by the race, which is exact
    raced = simulate()
    assert not same(world, raced)
    data, other = world.interactions, raced.interactions
    assert np.corrcoef(data.item_counts, other.item_counts)[0, 1] > 0.99
    means = [float(w.affinity(w.interactions.users, w.interactions.items).mean()) for w in (world, raced)]
    assert means[0] == pytest.approx(means[1], rel=0.02)


def test_users_turn_to_rarer_items_later(world: World) -> None:
    data = world.interactions
    split = split_leave_one_out(data)
    assert split.test is not None
    popularity = np.log(data.item_counts + 1)
    assert popularity[split.test.items].mean() < popularity[data.items].mean()


def test_same_seed_same_world_and_other_seed_another() -> None:
    assert same(simulate(200, 300, 4000, seed=5), simulate(200, 300, 4000, seed=5))
    assert not same(simulate(200, 300, 4000, seed=5), simulate(200, 300, 4000, seed=6))


def test_the_number_of_threads_changes_nothing(world: World) -> None:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    code = "from srns.simulation import simulate; d = simulate().interactions; print(d.fingerprint(), int(d.time.sum()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **threads}, capture_output=True, text=True, check=True
    )
    assert world.interactions.time is not None
    assert done.stdout.split() == [world.interactions.fingerprint(), str(int(world.interactions.time.sum()))]


def test_a_larger_world_in_bounded_memory() -> None:
    tracemalloc.start()
    try:
        world = simulate(50_000, 20_000, 1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    data = world.interactions
    assert len(data) == 1_000_000
    assert peak < 250e6  # one byte for each of users x items would be 1,000 MB
    assert world.would_like(data.users, data.items).mean() > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_users": 0}, "n_users must be an integer of at least 1, found 0"),
        ({"n_items": 2.5}, "n_items must be an integer of at least 1, found 2.5"),
        ({"n_items": 2**31}, "n_items must be at most 2,147,483,647"),
        ({"dim": True}, "dim must be an integer of at least 1, found True"),
        ({"n_users": 10, "n_items": 10, "n_interactions": 51}, "n_interactions must be at most 50, .* found 51"),
        ({"liked": 0.0}, "liked must be a number from 0.01 to 0.75, found 0.0"),
        ({"noise": float("nan")}, "noise must be a number from 0 to 1, found nan"),
        ({"whim": 0.9}, "whim must be a number from 0 to 0.7, found 0.9"),
        ({"seed": -1}, "seed must be an integer of at least 0, found -1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(**arguments)
