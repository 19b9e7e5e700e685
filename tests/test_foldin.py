"""Users who were not there in training: their vectors, their recommendations, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize
from scipy.special import logsumexp

import srns
from srns.errors import ConfigError, UnknownIdError
from srns.foldin import CATALOGUE, FoldIn, Squares


def loss(p: Any, factors: Any, liked: Any, l2: float) -> float:
    """The function of the module's docstring, over all items, in float64."""
    scores = factors @ p
    return float(len(liked) * (logsumexp(scores) + l2 / 2 * p @ p) - scores[liked].sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 60), st.integers(1, 6), st.sampled_from([0.01, 0.1, 1.0]))
def test_the_vector_is_the_minimum_and_shares_add_up(seed: int, n_items: int, dim: int, l2: float) -> None:
    rng = np.random.default_rng(seed)
    factors = rng.normal(0, 0.7, (n_items, dim)).astype(np.float32)
    liked = np.sort(rng.choice(n_items, rng.integers(1, n_items), replace=False))
    fold = FoldIn.of(factors, l2)
    vector = fold.vector(liked)
    best = minimize(loss, np.zeros(dim), (factors.astype(np.float64), liked, l2), method="BFGS", tol=1e-10)
    assert loss(vector, factors.astype(np.float64), liked, l2) <= best.fun + 1e-3 * max(1, abs(best.fun))
    slope = approx_fprime(vector.astype(np.float64), loss, 1e-5, factors.astype(np.float64), liked, l2)
    assert np.abs(slope).max() / len(liked) < 5e-3
    shares, again = fold.shares(liked, 0)
    assert np.array_equal(again, vector)
    assert shares.sum() == pytest.approx(float(vector @ factors[0]), abs=0.02 * (1 + float(np.abs(shares).sum())))


def test_a_large_catalogue_is_stood_for_by_part_of_it() -> None:
    rng = np.random.default_rng(0)
    factors = rng.normal(0, 0.3, (2 * CATALOGUE, 8)).astype(np.float32)
    fold = FoldIn.of(factors, 0.1)
    assert len(fold.others) == CATALOGUE
    whole = FoldIn(factors, factors, 0.1)
    liked = np.array([3, 9, 4000])
    some, every = fold.vector(liked), whole.vector(liked)
    assert some @ every / np.linalg.norm(some) / np.linalg.norm(every) > 0.98
    assert not fold.vector(np.array([], np.int64)).any()


@pytest.mark.filterwarnings("ignore:OpenBLAS:RuntimeWarning")
def test_least_squares_are_those_of_implicit() -> None:
    implicit = pytest.importorskip("implicit.als", reason="implicit is not installed")
    rng = np.random.default_rng(1)
    data = srns.simulate(n_users=80, n_items=40, n_interactions=1200, seed=3).interactions
    model = implicit.AlternatingLeastSquares(
        factors=6, regularization=2.0, alpha=7.0, iterations=3, random_state=0, use_gpu=False
    )
    matrix = data.to_csr().astype(np.float32)

    model.fit(sp.csr_matrix(matrix), show_progress=False)
    fold = Squares.of(model.item_factors, 2.0, 7.0)
    for user in rng.integers(0, 80, 5):
        liked = data.items_of(int(user))
        theirs = model.recalculate_user(int(user), sp.csr_matrix(matrix[[user]]))
        assert fold.vector(liked) == pytest.approx(np.ravel(theirs), rel=2e-2, abs=2e-3)
        total, top, _ = model.explain(int(user), sp.csr_matrix(matrix), 5, N=3)
        shares, _ = fold.shares(liked, 5)
        assert shares.sum() == pytest.approx(total, rel=1e-2, abs=1e-3)
        assert np.sort(shares)[::-1][:3] == pytest.approx([value for _, value in top], rel=2e-2, abs=2e-3)


@pytest.fixture(scope="module")
def world() -> tuple[srns.Interactions, srns.Recommender]:
    data = srns.simulate(n_users=300, n_items=120, n_interactions=9_000, seed=1).interactions
    return data, srns.Recommender(dim=16, epochs=12, seed=1).fit(data)


def test_a_known_user_folded_in_gets_much_the_same(world: tuple[srns.Interactions, srns.Recommender]) -> None:
    data, model = world
    shared = []
    for user in range(40):
        label = data.user_ids.label(user)
        items = data.item_ids.take(data.items_of(user))
        ids, scores = model.recommend_for(items, k=10)
        assert not set(ids) & set(items), "what they had is not recommended"
        assert (np.diff(scores) <= 0).all()
        assert scores[0] == pytest.approx(
            float(model.fold_in(items) @ model.item_factors[data.item_ids.indices([ids[0]])[0]]), rel=1e-4
        )
        shared.append(len(set(ids) & set(model.recommend(label, k=10)[0])))
    assert np.mean(shared) > 5, "ten at random of a hundred would share one"


def test_reasons_are_the_users_own_items_most_first(world: tuple[srns.Interactions, srns.Recommender]) -> None:
    data, model = world
    user = data.user_ids.label(0)
    own = set(data.item_ids.take(data.items_of(0)))
    item = model.recommend(user, k=1)[0][0]
    ids, shares = model.explain(user, item, k=3)
    assert set(ids) <= own
    assert (np.diff(shares) <= 0).all()
    every, all_shares = model.explain(user, item, k=10_000)
    assert set(every) == own
    expected = float(model.fold_in(list(own)) @ model.item_factors[data.item_ids.indices([item])[0]])
    assert all_shares.sum() == pytest.approx(expected, rel=0.05)


def test_each_scorer_answers_or_says_why_not() -> None:
    data = srns.simulate(n_users=60, n_items=40, n_interactions=900).interactions
    items = data.item_ids.take(data.items_of(0))
    ease = srns.Recommender(scorer="ease").fit(data)
    ids, scores = ease.recommend_for(items, k=5)
    known, theirs = ease.recommend(data.user_ids.label(0), k=5)
    assert list(ids) == list(known), "for EASE a user is what they had"
    assert scores == pytest.approx(theirs, rel=1e-5)
    top, shares = ease.explain(data.user_ids.label(0), ids[0], k=1000)
    assert shares.sum() == pytest.approx(scores[0], rel=1e-4)
    assert len(top) == len(items)
    popular = srns.Recommender(scorer="popularity").fit(data)
    assert len(popular.recommend_for(items, k=3)[0]) == 3
    with pytest.raises(ConfigError, match="scorer 'popularity' has no factors"):
        popular.explain(data.user_ids.label(0), ids[0])


def test_what_cannot_be_folded_in(world: tuple[srns.Interactions, srns.Recommender]) -> None:
    data, model = world
    with pytest.raises(ConfigError, match="no items to go by"):
        model.fold_in([])
    with pytest.raises(UnknownIdError):
        model.recommend_for(["no such item"])
    with pytest.raises(UnknownIdError):
        model.explain(data.user_ids.label(0), "no such item")
    with pytest.raises(ConfigError, match="k must be at least 1"):
        model.recommend_for([data.item_ids.label(0)], k=0)
