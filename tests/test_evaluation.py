"""Evaluation against oracles that share no code with it: loops over all orders of tied items, closed forms, scikit-learn,
scipy, and the published models of the paper."""

from __future__ import annotations

import itertools
import math
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from sklearn.metrics import ndcg_score, roc_auc_score  # type: ignore[import-untyped]

from srns.errors import ConfigError, DataError
from srns.evaluation import Evaluation, Part, evaluate, paired_bootstrap
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.kernels.ranking import tie_groups, top_k
from srns.splits import Split

DATA = Path(os.environ.get("SRNS_DATA", "/nonexistent"))
needs_models = pytest.mark.skipif(
    not (DATA / "ml-1m-paper-models.npz").exists(), reason="SRNS_DATA does not name a folder with ml-1m-paper-models.npz"
)
Array = NDArray[Any]


def interactions(mask: Array) -> Interactions:
    """The pairs where mask (n_users, n_items) is true."""
    return pairs(np.argwhere(mask), *mask.shape)


def pairs(rows: Array, n_users: int, n_items: int) -> Interactions:
    """The pairs user, item in rows (n, 2)."""
    users, items = rows.T
    return Interactions.from_pairs(users, items, user_ids=IdMap.dense(n_users, "user"), item_ids=IdMap.dense(n_items, "item"))


def split_of(train: Array, test: Array, valid: Array | None = None, negatives: Array | None = None) -> Split:
    return Split("world", interactions(train), None if valid is None else interactions(valid), interactions(test), negatives)


def table(scores: Array) -> Callable[[Array, Array], Array]:
    """A scorer that looks pairs up in scores (n_users, n_items)."""
    return lambda users, items: scores[users[:, None], items]


class Table:
    """The same scorer with `score_all`."""

    def __init__(self, scores: Array) -> None:
        self.scores = scores

    def __call__(self, users: Array, items: Array) -> Array:
        return self.scores[users[:, None], items]

    def score_all(self, users: Array) -> Array:
        return self.scores[users]


def metrics_of_order(order: list[int], relevant: set[int], k: int) -> dict[str, float]:
    """The textbook definitions, for one order of recommended items."""
    hits = [item in relevant for item in order[:k]]
    best = min(k, len(relevant))
    positions = [p for p, hit in enumerate(hits, 1) if hit]
    return {
        "recall": sum(hits) / len(relevant),
        "precision": sum(hits) / k,
        "hit": float(any(hits)),
        "ndcg": sum(1 / math.log2(p + 1) for p in positions) / sum(1 / math.log2(p + 1) for p in range(1, best + 1)),
        "mrr": 1 / positions[0] if positions else 0.0,
        "map": sum(sum(hits[:p]) / p for p in positions) / best,
    }


def orders(scores: Array, candidates: list[int]) -> Iterator[list[int]]:
    """All orders of the candidates by descending score: every permutation of every group of equals. -inf is not shown."""
    levels = sorted({float(scores[i]) for i in candidates if scores[i] > -np.inf}, reverse=True)
    groups = [[i for i in candidates if scores[i] == level] for level in levels]
    for choice in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [item for group in choice for item in group]


def brute_force(
    scores: Array, train: Array, valid: Array, test: Array, on: Part, ks: list[int]
) -> tuple[dict[str, float], Any]:
    """Means over users of means over tie orders; also the evaluated users."""
    lift = (
        train.sum(axis=0) / train.mean(axis=0).sum() * train.shape[1] / len(train) if train.any() else np.zeros(train.shape[1])
    )
    seen = train if on == "valid" else train | valid
    target = valid if on == "valid" else test
    users = [u for u in range(len(scores)) if target[u].any()]
    rows, in_list = [], {k: np.zeros((len(users), scores.shape[1])) for k in ks}
    for row, u in enumerate(users):
        candidates = [i for i in range(scores.shape[1]) if not seen[u, i]]
        relevant = set(np.flatnonzero(target[u]).tolist())
        drawn = []
        for order in orders(scores[u], candidates):
            drawn.append({f"{name}@{k}": value for k in ks for name, value in metrics_of_order(order, relevant, k).items()})
            for k in ks:
                shown = order[:k]
                in_list[k][row, shown] += 1
                drawn[-1][f"popularity@{k}"] = float(np.mean(lift[shown])) if shown else 0.0
        for k in ks:
            in_list[k][row] /= len(drawn)
        rows.append({name: np.mean([order[name] for order in drawn]) for name in drawn[0]})
    if not users:
        return {}, users
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return means | {f"coverage@{k}": float(np.mean(1 - np.prod(1 - in_list[k], axis=0))) for k in ks}, users


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Array, Array, Array, Array]:
    """Scores with few levels, so nearly everything ties, and random train, valid and test."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    scores = draw(hnp.arrays(dtype, shape, elements=st.sampled_from([-np.inf, -1.0, 0.5, 0.5, 2.0])))
    part = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 3)))
    return scores, part == 0, part == 1, part == 2


@settings(max_examples=150, deadline=None)
@given(world=worlds(), on=st.sampled_from(["valid", "test"]), with_all=st.booleans(), block=st.sampled_from([None, 1, 2]))
def test_full_ranking_is_the_mean_over_all_tie_orders(world: Any, on: Part, with_all: bool, block: int | None) -> None:
    scores, train, valid, test = world
    before = scores.copy()
    expected, users = brute_force(scores, train, valid, test, on, ks=[1, 2, 4, 9])
    scorer = Table(scores) if with_all else table(scores)
    if not users:
        with pytest.raises(DataError, match="nothing to evaluate"):
            evaluate(scorer, split_of(train, test, valid), on=on)
        return
    result = evaluate(scorer, split_of(train, test, valid), on=on, ks=[1, 2, 4, 9], block=block)
    assert result.users.tolist() == users
    assert (scores == before).all()
    assert set(result) - {"auc"} == set(expected)
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    for name, values in result.per_user.items():
        assert result[name] == pytest.approx(values.mean())
        assert values.shape == (len(users),)


@settings(max_examples=60, deadline=None)
@given(
    scores=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 4), st.integers(1, 60)), elements=st.sampled_from([-np.inf, -2, 0, 1, 3])
    ),
    k=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_kernels_equal_their_readable_twins(scores: Array, k: int, seed: int) -> None:
    n_users, n = scores.shape
    ids, values = top_k(scores, k)
    relevant = interactions(np.random.default_rng(seed).random(scores.shape) < 0.3 + np.eye(n_users, n))
    users = np.flatnonzero(relevant.user_counts)
    groups, auc = tie_groups(scores[users], values[users], users, relevant.indptr, relevant.items)
    for u in range(n_users):
        order = sorted((i for i in range(n) if scores[u, i] > -np.inf), key=lambda i: (-scores[u, i], i))[:k]
        assert ids[u].tolist() == order + [-1] * (k - len(order))
        assert values[u].tolist() == [scores[u, i] for i in order] + [-np.inf] * (k - len(order))
    for row, u in enumerate(users.tolist()):
        mine = relevant.items_of(u)
        for p in range(k):
            value = values[u, p]
            expected = (p, 1, 0)
            if value > -np.inf:
                expected = (
                    int((scores[u] > value).sum()),
                    int((scores[u] == value).sum()),
                    int((scores[u, mine] == value).sum()),
                )
            assert tuple(int(part[row, p]) for part in groups) == expected
        others = np.delete(scores[u], mine[0])
        others = others[others > -np.inf]
        target = scores[u, mine[0]]
        wins = np.mean(others < target) + np.mean(others == target) / 2 if len(others) else 0.5
        assert auc[row] == pytest.approx(wins if target > -np.inf else 0)


@pytest.mark.parametrize("n", [50, 100_000])
def test_all_scores_equal_has_closed_forms(n: int) -> None:
    k, users, n_relevant = 20, 3, 7
    test = np.zeros((users, n), bool)
    test[:, -n_relevant:] = True
    train = np.zeros_like(test)
    train[0, 0] = True
    free = np.array([n - 1, n, n])
    result = evaluate(table(np.zeros((users, n), np.float32)), split_of(train, test), ks=[k])
    no_hit = scipy.stats.hypergeom.pmf(0, free, n_relevant, k)
    assert result["recall@20"] == pytest.approx(np.mean(k / free))
    assert result["precision@20"] == pytest.approx(np.mean(n_relevant / free))
    assert result.per_user["hit@20"] == pytest.approx(1 - no_hit)
    first = [
        scipy.stats.hypergeom.pmf(0, total, n_relevant, np.arange(k)) * n_relevant / (total - np.arange(k)) for total in free
    ]
    assert result.per_user["mrr@20"] == pytest.approx([np.sum(chance / np.arange(1, k + 1)) for chance in first])
    missed = np.prod(1 - k / free)
    assert result["coverage@20"] == pytest.approx(1 - (missed * (n - 1) + np.prod(1 - k / free[1:])) / n)
    assert result["popularity@20"] == pytest.approx(2 / 3)  # only item 0 is popular: n times the average, shown 1 in n times
    assert "auc" not in result


@settings(max_examples=40, deadline=None)
@given(scores=hnp.arrays(np.float64, (4, 12), elements=st.integers(0, 5).map(float)), seed=st.integers(0, 999))
def test_agrees_with_scikit_learn(scores: Array, seed: int) -> None:
    rng = np.random.default_rng(seed)
    test = rng.random(scores.shape) < 0.3
    test[:, 0] = True
    result = evaluate(table(scores), split_of(np.zeros_like(test), test), ks=[3, 12])
    for k in (3, 12):
        assert result[f"ndcg@{k}"] == pytest.approx(ndcg_score(test, scores, k=k))
    one = np.zeros_like(test)
    one[:, 3] = True
    auc = evaluate(table(scores), split_of(np.zeros_like(test), one)).per_user["auc"]
    assert auc == pytest.approx([roc_auc_score(truth, row) for truth, row in zip(one, scores, strict=True)])


@settings(max_examples=60, deadline=None)
@given(
    scores=hnp.arrays(np.float32, (3, 8), elements=st.integers(0, 4).map(float)),
    negatives=hnp.arrays(np.int64, (3, 4), elements=st.integers(-1, 7)),
)
def test_paper_protocol_counts_strictly_better_negatives(scores: Array, negatives: Array) -> None:
    test = np.zeros((3, 8), bool)
    test[[0, 2], [5, 1]] = True  # user 1 has no test item
    result = evaluate(table(scores), split_of(np.zeros_like(test), test, negatives=negatives), protocol="paper", ks=[1, 3, 200])
    assert result.users.tolist() == [0, 2]
    assert result.protocol == "paper"
    for row, (user, target) in enumerate([(0, 5), (2, 1)]):
        opponents = [scores[user, i] for i in negatives[user] if i >= 0]
        rank = sum(value > scores[user, target] for value in opponents)
        order = [-1] * rank + [target]
        for k in (1, 3, 200):
            for name, value in metrics_of_order(order, {target}, k).items():
                assert result.per_user[f"{name}@{k}"][row] == pytest.approx(value)
        assert result.per_user["auc"][row] == pytest.approx(1 - rank / len(opponents) if opponents else 0.5)
    assert not [name for name in result if name.startswith(("coverage", "popularity"))]


def test_paper_protocol_draws_negatives_by_seed() -> None:
    rng = np.random.default_rng(0)
    train = rng.random((40, 130)) < 0.2
    train[0] = np.arange(130) < 125  # five items left, two of them held out
    train[1:, 128:] = False
    valid, test = np.zeros_like(train), np.zeros_like(train)
    valid[:, 128] = test[:, 129] = True
    asked: list[Array] = []

    def spy(users: Array, items: Array) -> Array:
        asked.append(items)
        return np.zeros(items.shape)

    split = split_of(train, test, valid)
    evaluate(spy, split, protocol="paper")
    evaluate(spy, split, on="valid", protocol="paper", block=7)
    evaluate(spy, split, protocol="paper", seed=1)
    first, blocks, other = asked[0], np.concatenate(asked[1:-1]), asked[-1]
    assert (first[:, 0] == 129).all()
    assert (blocks[:, 0] == 128).all()
    assert (first[:, 1:] == blocks[:, 1:]).all()
    assert (first[:, 1:] != other[:, 1:]).any()
    assert sorted(first[0, 1:4]) == [125, 126, 127]
    for user in range(1, 40):
        free = int((~train[user, :128]).sum())
        drawn = first[user, 1 : 1 + min(100, free)]
        assert len(set(drawn.tolist())) == len(drawn)
        assert not (train | valid | test)[user, drawn].any()
    counts = np.bincount(first[1:, 1:].ravel(), minlength=130)[1:128]
    assert counts.min() > 0


def ml_1m() -> Split:
    with np.load(DATA / "ml-1m-paper.npz", allow_pickle=False) as data:
        train, valid, test = (pairs(data[name], 6028, 3533) for name in ("train", "val", "test"))
        return Split("ml-1m-paper", train, valid, test, data["test_neg"].astype(np.int64))


class Published:
    """One of the authors' models: beta . (p * q)."""

    def __init__(self, name: str) -> None:
        with np.load(DATA / "ml-1m-paper-models.npz", allow_pickle=False) as data:
            self.users = data[f"{name}_users"] * data[f"{name}_beta"]
            self.items = data[f"{name}_items"][:3533]

    def __call__(self, users: Array, items: Array) -> Array:
        return np.asarray(np.einsum("bf,bkf->bk", self.users[users], self.items[items]))

    def score_all(self, users: Array) -> Array:
        return np.asarray(self.users[users] @ self.items.T)


@needs_models
def test_published_models_print_the_table_of_the_paper() -> None:
    expected = {
        "enmf": "0.1846 0.2970 0.3804",
        "uniform": "0.1744 0.2846 0.3663",
        "nncf": "0.0831 0.1428 0.1873",
        "aobpr": "0.1782 0.2907 0.3749",
        "irgan": "0.1763 0.2878 0.3706",
        "rns": "0.1810 0.2950 0.3801",
        "advir": "0.1792 0.2889 0.3699",
        "srns": "0.1911 0.3056 0.3907",
    }
    split = ml_1m()
    for name, row in expected.items():
        result = evaluate(Published(name), split, protocol="paper", ks=[1, 3])
        assert " ".join(f"{result[metric]:.4f}" for metric in ("ndcg@1", "ndcg@3", "recall@3")) == row, name


@needs_models
def test_published_models_ranked_against_the_whole_catalogue() -> None:
    expected = {
        "uniform": "0.0345 0.0710 0.0490 0.1287",
        "enmf": "0.0395 0.0793 0.0546 0.1397",
        "srns": "0.0398 0.0816 0.0554 0.1438",
    }
    split = ml_1m()
    for name, row in expected.items():
        result = evaluate(Published(name), split)
        assert " ".join(f"{result[metric]:.4f}" for metric in ("ndcg@10", "recall@10", "ndcg@20", "recall@20")) == row, name
    popularity = split.train.item_counts
    result = evaluate(lambda users, items: popularity[items], split)
    assert f"{result['ndcg@10']:.4f} {result['recall@20']:.4f}" == "0.0226 0.0756"


def test_k_beyond_the_catalogue_and_a_user_who_has_seen_everything() -> None:
    train = np.array([[True, False, False], [True, True, True]])
    test = np.array([[False, True, False], [False, False, False]])
    result = evaluate(table(np.array([[9.0, 1.0, 2.0]] * 2)), split_of(train, test), ks=(1, 50))
    assert result.users.tolist() == [0]
    assert result["recall@50"] == 1.0
    assert result["precision@50"] == 1 / 50
    assert result["mrr@50"] == 0.5
    assert result["auc"] == 0.0
    assert result["coverage@50"] == pytest.approx(2 / 3)


def test_validation_never_looks_at_test() -> None:
    rng = np.random.default_rng(0)
    part = rng.integers(0, 3, (5, 9))
    scores = rng.random((5, 9))
    both = evaluate(table(scores), split_of(part == 0, part == 2, part == 1), on="valid")
    alone = evaluate(table(scores), Split("world", interactions(part == 0), interactions(part == 1), None), on="valid")
    assert both == alone
    assert both.on == "valid"


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("protocol", ["full", "paper"])
def test_scores_that_cannot_be_ranked_are_named(value: float, protocol: Any) -> None:
    scores = np.zeros((3, 4), np.float32)
    scores[2, 1] = value
    test = np.zeros((3, 4), bool)
    test[:, 3] = True
    negatives = np.tile([0, 1, -1], (3, 1))
    with pytest.raises(DataError, match=f"user 2 for item 1 is {value}"):
        evaluate(table(scores), split_of(np.zeros_like(test), test, negatives=negatives), protocol=protocol)
    with pytest.raises(DataError, match=f"row 2, item 1 is {value}"):
        top_k(scores, 2)


def test_wrong_requests_say_what_was_expected() -> None:
    test = np.eye(3, dtype=bool)
    split = split_of(~test, test)
    two = split_of(np.zeros_like(test), ~test)
    scorer = table(np.zeros((3, 3)))
    with pytest.raises(ConfigError, match="leave-one-out"):
        evaluate(scorer, two, protocol="paper")
    with pytest.raises(ConfigError, match="no valid part"):
        evaluate(scorer, split, on="valid")
    with pytest.raises(ConfigError, match="protocol='other'"):
        evaluate(scorer, split, protocol="other")  # type: ignore[arg-type]
    for ks in ([], [0], [1.5], [-1, 2]):
        with pytest.raises(ConfigError, match="ks must be"):
            evaluate(scorer, split, ks=ks)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="block"):
        evaluate(scorer, split, block=0)
    for protocol in ("full", "paper"):
        with pytest.raises(DataError, match="shape"):
            evaluate(lambda users, items: np.zeros(7), split, protocol=protocol)
        with pytest.raises(DataError, match="type"):
            evaluate(lambda users, items: items.astype(str), split, protocol=protocol)
    for negatives in (np.full((3, 2), 3), np.full((3, 2), -2)):
        with pytest.raises(DataError, match="negatives of split 'world'"):
            evaluate(scorer, split_of(~test, test, negatives=negatives), protocol="paper")


def test_same_numbers_for_any_threads_block_and_precision() -> None:
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 40, (120, 300)).astype(np.float32)
    part = rng.choice(4, scores.shape, p=[0.1, 0.02, 0.02, 0.86])
    split = split_of(part == 0, part == 2, part == 1)
    threads = numba.get_num_threads()
    results = []
    try:
        for count in range(1, threads + 1):
            numba.set_num_threads(count)
            results += [evaluate(Table(scores), split, block=block) for block in (None, 1, 7, 120)]
    finally:
        numba.set_num_threads(threads)
    results += [evaluate(table(scores.astype(kind)), split) for kind in (np.float16, np.float64, np.int64)]
    for result in results[1:]:
        assert result == results[0]
        for name, values in result.per_user.items():
            assert (values == results[0].per_user[name]).all()


def test_full_ranking_never_holds_users_by_items() -> None:
    sizes: list[int] = []

    def spy(users: Array, items: Array) -> Array:
        sizes.append(items.size)
        assert items.strides[0] == 0  # a view: the catalogue is not copied for each user
        return np.zeros(items.shape, np.float32)

    n = 300_000
    train, test = (pairs(np.array([[user, item] for user in range(4)]), 4, n) for item in (0, 1))
    evaluate(spy, Split("wide", train, None, test), ks=[5])
    assert sizes == [n] * 4


def evaluation_of(values: Array, **changes: Any) -> Evaluation:
    defaults: Any = {"per_user": {"m": values}, "users": np.arange(len(values)), "protocol": "full", "on": "test"}
    return Evaluation({}, **(defaults | changes))


@pytest.mark.parametrize("levels", [None, 5])  # many distinct differences, or few: two ways to resample
def test_bootstrap_agrees_with_scipy(levels: int | None) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random((2, 500)) if levels is None else rng.integers(0, levels, (2, 500)) / levels
    a = a + 0.04 if levels is None else a
    result = paired_bootstrap(evaluation_of(a), evaluation_of(b), "m")
    theirs = scipy.stats.bootstrap((a - b,), np.mean, method="percentile", rng=np.random.default_rng(2), batch=1000)
    spread = theirs.standard_error
    assert result.difference == pytest.approx(np.mean(a - b))
    assert result.n_users == 500
    assert result.low == pytest.approx(theirs.confidence_interval.low, abs=0.1 * spread)
    assert result.high == pytest.approx(theirs.confidence_interval.high, abs=0.1 * spread)
    t_test = scipy.stats.ttest_rel(a, b)
    assert result.p_value == pytest.approx(t_test.pvalue, abs=0.02)
    narrow = paired_bootstrap(evaluation_of(a), evaluation_of(b), "m", confidence=0.5)
    assert result.low < narrow.low < narrow.high < result.high
    assert paired_bootstrap(evaluation_of(a), evaluation_of(b), "m") == result
    assert paired_bootstrap(evaluation_of(a), evaluation_of(b), "m", seed=1) != result
    swapped = paired_bootstrap(evaluation_of(b), evaluation_of(a), "m")
    assert swapped.difference == -result.difference


def test_bootstrap_of_equals_and_of_what_cannot_be_compared() -> None:
    a = evaluation_of(np.ones(9))
    same = paired_bootstrap(a, a, "m")
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    clear = paired_bootstrap(a, evaluation_of(np.zeros(9)), "m", resamples=999)
    assert (clear.low, clear.high, clear.p_value) == (1, 1, 0.002)
    for other, match in [
        (evaluation_of(np.ones(9), users=np.arange(1, 10)), "different users"),
        (evaluation_of(np.ones(9), protocol="paper"), "protocol 'full' with 'paper'"),
        (evaluation_of(np.ones(9), on="valid"), "on 'test' with 'valid'"),
        (evaluation_of(np.ones(9), per_user={}), "no per-user values of 'm'"),
    ]:
        with pytest.raises(ConfigError, match=match):
            paired_bootstrap(a, other, "m")
    for options in ({"confidence": 1.0}, {"confidence": 0.0}, {"resamples": 0}):
        with pytest.raises(ConfigError, match="confidence="):
            paired_bootstrap(a, a, "m", **options)


def test_an_evaluation_is_a_dict_that_survives_pickling() -> None:
    test = np.eye(3, dtype=bool)
    result = evaluate(table(np.zeros((3, 3))), split_of(np.zeros_like(test), test), ks=[1])
    again = pickle.loads(pickle.dumps(result))
    assert again == dict(result)
    assert (again.users == result.users).all()
    assert again.per_user.keys() == result.per_user.keys()
