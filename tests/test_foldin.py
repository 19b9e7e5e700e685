"""Users who were not there in training: their vectors, their recommendations, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

import srns
from srns.errors import ConfigError, DataError, UnknownIdError
from srns.foldin import CATALOGUE, FoldIn, Squares


def loss(p: Any, factors: Any, liked: Any, l2: float) -> float:
    """The function of the module's docstring, over all items, in float64."""
    scores = factors @ p
    return float(len(liked) * (logsumexp(scores) + l2 / 2 * p @ p) - scores[liked].sum())


def minimum(factors: Any, liked: Any, l2: float) -> Any:
    """Of `loss`, by a general optimiser with the exact slope: (F,)."""

    def slope(p: Any, *given: Any) -> Any:
        return len(liked) * (softmax(factors @ p) @ factors + l2 * p) - factors[liked].sum(axis=0)

    def bend(p: Any, *given: Any) -> Any:
        weights = softmax(factors @ p)
        mean = weights @ factors
        return len(liked) * ((factors.T * weights) @ factors - np.outer(mean, mean) + l2 * np.eye(len(p)))

    found = minimize(
        loss, np.zeros(factors.shape[1]), (factors, liked, l2), jac=slope, method="trust-exact", hess=bend, tol=1e-10
    )
    return found.x


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 60), st.integers(1, 6), st.sampled_from([0.001, 0.01, 0.1, 1.0]))
def test_the_vector_is_the_minimum_and_shares_add_up(seed: int, n_items: int, dim: int, l2: float) -> None:
    rng = np.random.default_rng(seed)
    factors = rng.normal(0, 0.7, (n_items, dim)).astype(np.float32)
    liked = np.sort(rng.choice(n_items, rng.integers(1, n_items), replace=False))
    fold = FoldIn.of(factors, l2)
    shares, vector = fold.shares(liked, np.arange(n_items))
    assert np.array_equal(vector, fold.vector(liked))
    best = minimum(factors.astype(np.float64), liked, l2)
    assert vector == pytest.approx(best, rel=1e-4, abs=1e-4 * (1 + float(np.abs(best).max())))
    scores = factors @ best
    assert shares.sum(axis=0) == pytest.approx(scores, rel=1e-4, abs=1e-4 * (1 + float(np.abs(scores).max())))
    mean = softmax(scores) @ factors.astype(np.float64)
    by_hand = (factors[liked] - mean) @ factors.T / (len(liked) * l2)  # the docstring's formula at the minimum
    assert shares == pytest.approx(by_hand, rel=1e-4, abs=1e-4 * (1 + float(np.abs(by_hand).max())))


def test_a_large_catalogue_is_stood_for_by_part_of_it() -> None:
    rng = np.random.default_rng(0)
    factors = rng.normal(0, 0.3, (2 * CATALOGUE, 8)).astype(np.float32)
    fold = FoldIn.of(factors, 0.1)
    assert len(fold.some) == CATALOGUE
    whole = FoldIn(factors, np.arange(len(factors)), 0.1)
    liked = np.array([3, 9, 4000])
    some, every = fold.vector(liked), whole.vector(liked)
    assert some @ every / np.linalg.norm(some) / np.linalg.norm(every) > 0.98
    assert not fold.vector(np.array([], np.int64)).any()


def test_an_item_beyond_all_that_stand_for_the_catalogue_is_part_of_it() -> None:
    """Otherwise no vector would score the others together as high, and only L2 would keep it from growing."""
    factors = np.random.default_rng(0).normal(0, 0.3, (2 * CATALOGUE, 8)).astype(np.float32)
    l2 = 1e-3
    (outside,) = np.setdiff1d(np.arange(len(factors)), FoldIn.of(factors, l2).some)[:1]
    factors[outside] = 3.0
    liked = np.array([outside])
    some, every = FoldIn.of(factors, l2).vector(liked), minimum(factors.astype(np.float64), liked, l2)
    assert np.linalg.norm(some - every) < 0.1 * np.linalg.norm(every)


def test_factors_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="are all factors of items finite"):
        FoldIn.of(np.full((5, 2), np.nan, np.float32), 0.1).vector(np.array([1]))


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


def test_somebody_folded_in_is_recommended_what_their_vector_scores_highest(
    world: tuple[srns.Interactions, srns.Recommender],
) -> None:
    data, model = world
    for user in range(20):
        items = data.item_ids.take(data.items_of(user))
        ids, scores = model.recommend_for(items, k=10)
        every = model.item_factors @ model.fold_in(items)
        others = sorted(set(range(data.n_items)) - set(data.items_of(user).tolist()), key=lambda i: -float(every[i]))
        assert scores == pytest.approx(every[others[:10]], rel=1e-5)
        assert set(ids[:9]) <= set(data.item_ids.take(np.array(others[:10]))), "the tenth may be tied"


def test_users_held_out_get_nearly_what_they_would_if_trained_in() -> None:
    """Three of ten users are left out of training; all of the items that they touched later on are looked for."""
    data = srns.simulate(n_users=600, n_items=200, n_interactions=18_000, seed=4).interactions
    split = srns.make_split(data, "random", seed=1)
    left = np.random.default_rng(2).random(data.n_users) < 0.3
    settings = {"dim": 16, "epochs": 20, "seed": 1}
    whole = srns.Recommender(**settings).fit(split.train)
    rest = srns.Recommender(**settings).fit(split.train.select(~left[split.train.users]))
    recalls = []
    for user in np.flatnonzero(left):
        had, wanted = split.train.items_of(int(user)), set(data.item_ids.take(split.test.items_of(int(user))))
        if len(had) and wanted:
            folded, _ = rest.recommend_for(data.item_ids.take(had), k=10)
            trained, _ = whole.recommend(data.user_ids.label(int(user)), k=10)
            recalls.append([len(wanted & set(each)) / len(wanted) for each in (folded, trained)])
    folded_in, trained_in = np.mean(recalls, axis=0)
    assert len(recalls) > 150
    assert trained_in > 0.15, "far above chance"
    assert folded_in >= 0.9 * trained_in


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
    assert all_shares.sum() == pytest.approx(expected, rel=1e-4)
    had = every[0]
    others, shares = model.explain(user, had, k=10_000)
    assert set(others) == own - {had}, "no item is a reason for itself"
    assert np.isfinite(shares).all()
    assert len(model.explain_for([had], had)[0]) == 0


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
    with pytest.raises(ConfigError, match="scorer 'popularity' cannot place somebody"):
        popular.explain(data.user_ids.label(0), ids[0])


def test_a_module_of_ones_own_is_not_called_by_the_name_of_another_scorer() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Distance(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, data: srns.Interactions) -> None:
            super().__init__()
            self.users, self.items = torch.nn.Embedding(data.n_users, 2), torch.nn.Embedding(data.n_items, 2)

        def score(self, users: Any, items: Any) -> Any:
            return -((self.users(users)[:, None] - self.items(items)) ** 2).sum(-1)

    data = srns.simulate(n_users=30, n_items=20, n_interactions=200).interactions
    model = srns.Recommender(scorer=Distance, epochs=1).fit(data)
    with pytest.raises(ConfigError, match="a module of your own cannot place somebody by the items they had"):
        model.fold_in([data.item_ids.label(0)])


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
