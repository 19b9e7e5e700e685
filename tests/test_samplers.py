"""What every sampler promises, and that each draws from the distribution it names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from srns.errors import DataError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.samplers import SAMPLERS, Uniform
from srns.samplers.unseen import Unseen
from srns.scorers import GMF


def dense(users: Any, items: Any, n_users: int, n_items: int) -> Interactions:
    return Interactions.from_pairs(users, items, user_ids=IdMap.dense(n_users, "user"), item_ids=IdMap.dense(n_items, "item"))


@st.composite
def worlds(draw: st.DrawFn) -> Interactions:
    """Interactions in which no user has seen everything, though one may have seen all items but one."""
    n_users, n_items = draw(st.integers(1, 8)), draw(st.integers(2, 12))
    seen = draw(arrays(bool, (n_users, n_items)))
    seen[np.arange(n_users), draw(arrays(int, n_users, elements=st.integers(0, n_items - 1)))] = False
    seen[0] = np.arange(n_items) != draw(st.integers(0, n_items - 1))
    return dense(*np.nonzero(seen), n_users, n_items)


def no_score(users: Any, items: Any) -> Any:
    return np.zeros(np.shape(items), np.float32)


def library_of(name: str) -> Any:
    """NumPy, or torch for a sampler that is for it alone."""
    needed = SAMPLERS[name].needs_torch
    return pytest.importorskip("torch", reason="torch is not installed") if needed else np


def scorer_for(name: str, train: Interactions, seed: int) -> Any:
    """A GMF in the arrays of the library."""
    model = GMF.init(train.n_users, train.n_items, dim=3, std=0.1, learn_beta=True, seed=seed)
    if library_of(name) is np:
        return model
    from srns.scorers.modules import GMFModule

    return GMFModule(model, learn_beta=True).view(0)


@given(train=worlds())
@settings(max_examples=100, deadline=None)
def test_numbers_of_unseen_items_are_a_bijection_onto_the_complement(train: Interactions) -> None:
    unseen = Unseen(train, np)
    for user in range(train.n_users):
        expected = np.setdiff1d(np.arange(train.n_items), train.items_of(user))
        assert unseen.counts[user] == len(expected)
        found = unseen.at(np.full(len(expected), user), np.arange(len(expected)))
        np.testing.assert_array_equal(np.sort(found), expected)


@pytest.mark.parametrize("name", [name for name, sampler in SAMPLERS.items() if sampler.draws])
@given(train=worlds(), seed=st.integers(0, 2**40), epoch=st.integers(0, 500))
@settings(max_examples=50, deadline=None)
def test_contract(name: str, train: Interactions, seed: int, epoch: int) -> None:
    """Never a training positive, the right shape, and the same again from the same seed or from a saved state."""

    xp, model = library_of(name), scorer_for(name, train, seed)
    users, positives = xp.asarray(train.users.astype(np.int64)), xp.asarray(train.items.astype(np.int64))

    def started() -> Any:
        state = SAMPLERS[name]().start(train, seed=seed, xp=xp)
        state.begin_epoch(epoch, model)
        return state

    def sample(state: Any, step: int) -> Any:
        return np.asarray(state.sample(users, positives, model, step).ids)

    state = started()
    saved = {key: xp.asarray(np.array(value)) for key, value in state.state_dict().items()}
    drawn = state.sample(users, positives, model, 0)
    ids = np.asarray(drawn.ids)
    assert ids.ndim == 2
    assert len(ids) == len(train) or (len(ids) == 1 and drawn.weight is not None)
    assert ids.min() >= 0
    assert ids.max() < train.n_items
    counts = True if drawn.weight is None else np.asarray(drawn.weight) > 0
    assert not (train.contains(train.users[:, None], ids) & counts).any()
    np.testing.assert_array_equal(sample(started(), 0), ids)
    resumed = SAMPLERS[name]().start(train, seed=seed, xp=xp)
    resumed.load_state_dict(saved)
    resumed.begin_epoch(epoch, model)
    np.testing.assert_array_equal(sample(resumed, 0), ids)
    later = sample(resumed, 1)
    np.testing.assert_array_equal(sample(state, 1), later)


def test_uniform_draws_do_not_depend_on_the_batch(train: Interactions) -> None:
    state = Uniform(negatives=1).start(train, seed=4)
    state.begin_epoch(2, no_score)
    whole = state.sample(train.users, train.items, no_score, 0).ids
    order = np.random.default_rng(0).permutation(len(train))
    batches = np.array_split(order, 7)
    parts = [state.sample(train.users[b], train.items[b], no_score, step).ids for step, b in enumerate(batches)]
    np.testing.assert_array_equal(np.concatenate(parts), whole[order])


def test_uniform_is_uniform_over_unseen_items() -> None:
    train = dense([0, 0, 0, 1], [1, 4, 5, 0], 2, 9)
    state = Uniform(negatives=1).start(train, seed=0)
    counts = np.zeros(9)
    for epoch in range(6000):
        state.begin_epoch(epoch, no_score)
        ids = state.sample(train.users[:3], train.items[:3], no_score, 0).ids
        np.add.at(counts, ids.ravel(), 1)
    unseen = np.array([0, 2, 3, 6, 7, 8])
    assert counts.sum() == counts[unseen].sum() == 18_000
    assert stats.chisquare(counts[unseen]).pvalue > 1e-4


def test_epochs_seeds_and_pairs_draw_independently(train: Interactions) -> None:
    def draws(seed: int, epoch: int) -> Any:
        state = Uniform(negatives=1).start(train, seed=seed)
        state.begin_epoch(epoch, no_score)
        return state.sample(train.users, train.items, no_score, 0).ids

    base = draws(0, 0)
    for other in (draws(0, 1), draws(1, 0)):
        same = np.mean(base == other)
        expected = np.mean(1 / (train.n_items - train.user_counts[train.users]))
        assert abs(same - expected) < 4 * np.sqrt(expected / len(train))


def test_a_user_who_has_seen_everything_is_named() -> None:
    train = Interactions.from_pairs(["ann", "ann", "bob"], ["x", "y", "x"])
    with pytest.raises(DataError, match="user 'ann' has interacted with all 2 items"):
        Uniform(negatives=1).start(train, seed=0)


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
def test_other_array_libraries_draw_the_same_negatives(library: str, train: Interactions) -> None:
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    expected = Uniform(negatives=1).start(train, seed=9)
    state = Uniform(negatives=1).start(train, seed=9, xp=xp)
    for epoch in (0, 3):
        expected.begin_epoch(epoch, no_score)
        state.begin_epoch(epoch, no_score)
        users, positives = xp.asarray(train.users.copy()), xp.asarray(train.items.copy())
        ids = state.sample(users, positives, no_score, 0).ids
        assert isinstance(ids, type(users))
        np.testing.assert_array_equal(np.asarray(ids), expected.sample(train.users, train.items, no_score, 0).ids)
