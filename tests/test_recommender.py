"""Recommendations against a loop over all items, against `implicit`, and in the caller's own ids."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from srns import recommender as module
from srns.config import RunConfig
from srns.errors import ConfigError, UnknownIdError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.lists import write_frames
from srns.readers import read
from srns.recommender import Recommender
from srns.runs import train_run
from srns.scorers import GMF
from srns.splits import Split

DIM = 2
USERS = ["", "ann", "bob", "cid", "dan é"]  # dan has no interactions
ITEMS = [-5, 0, 3, 7, 2**40, 2**41]


def use(seen: Any, users: Any, items: Any, beta: Any = (1, 2), user_labels: Any = None, item_labels: Any = None) -> Recommender:
    """A recommender of given factors, where seen (n_users, n_items) is 1 for train, 2 for valid and 3 for test."""
    seen = np.asarray(seen)
    maps: dict[str, Any] = {
        "user_ids": IdMap.of(user_labels or USERS[: len(seen)], "user"),
        "item_ids": IdMap.of(item_labels or ITEMS[: seen.shape[1]], "item"),
    }
    train, valid, test = (Interactions.from_pairs(*np.nonzero(seen == part), **maps) for part in (1, 2, 3))
    model = GMF(*(np.asarray(each, np.float32) for each in (users, items, beta)))
    return Recommender(dim=DIM)._use(model, Split("given", train, valid, test))


@st.composite
def worlds(draw: st.DrawFn) -> Recommender:
    """Factors are small integers, so that scores are exact and often equal."""
    n_users, n_items = draw(st.integers(1, len(USERS))), draw(st.integers(1, len(ITEMS)))

    def table(rows: int, columns: int, low: int, high: int) -> list[list[int]]:
        return draw(
            st.lists(st.lists(st.integers(low, high), min_size=columns, max_size=columns), min_size=rows, max_size=rows)
        )

    return use(table(n_users, n_items, 0, 3), table(n_users, DIM, -2, 2), table(n_items, DIM, -2, 2))


def expected(
    recommender: Recommender,
    user: str,
    k: int,
    exclude_seen: bool = True,
    exclude: Collection[Any] = (),
    candidates: Collection[Any] | None = None,
) -> list[tuple[Any, float]]:
    """The specification: (item, score) best first, equal scores by ascending item, from the exposed factors alone."""
    split = recommender.split_
    users, items = split.train.user_ids.labels.to_list(), split.train.item_ids.labels.to_list()
    parts = [part for part in (split.train, split.valid, split.test) if part is not None]
    pairs = [{(users[u], items[i]) for u, i in zip(part.users, part.items, strict=True)} for part in parts]
    known = set().union(*pairs)
    scored = []
    for item in items:
        if user in {u for u, _ in pairs[0]}:
            factors = recommender.user_factors[users.index(user)] * recommender.item_factors[items.index(item)]
            score = float(factors.sum())
        else:
            score = float(np.float32(sum(i == item for _, i in pairs[0]) / max(1, len(pairs[0]))))
        if not (exclude_seen and (user, item) in known) and item not in exclude and (candidates is None or item in candidates):
            scored.append((item, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


def listed(ids: Any, scores: Any) -> list[tuple[Any, float]]:
    return [(item, score) for item, score in zip(ids.tolist(), scores.tolist(), strict=True) if score > -np.inf]


@given(
    recommender=worlds(),
    k=st.integers(1, 8),
    exclude_seen=st.booleans(),
    exclude=st.none() | st.sets(st.sampled_from(ITEMS)),
    candidates=st.none() | st.sets(st.sampled_from(ITEMS)),
    asked=st.lists(st.sampled_from([*USERS, "stranger"]), max_size=7),
    block=st.sampled_from([1, 30, 1 << 20]),
)
@settings(max_examples=100, deadline=None)
def test_recommend_is_the_sorted_loop(
    recommender: Recommender, k: int, exclude_seen: bool, exclude: Any, candidates: Any, asked: list[str], block: int
) -> None:
    n_items = recommender.split_.train.n_items
    exclude, candidates = (None if given is None else given & set(ITEMS[:n_items]) for given in (exclude, candidates))
    options: dict[str, Any] = {"exclude_seen": exclude_seen, "exclude": exclude, "candidates": candidates, "unknown": "popular"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        ids, scores = recommender.recommend(asked, k, **options)
    assert ids.shape == scores.shape == (len(asked), min(k, n_items))
    assert scores.dtype == np.float32
    for user, row_ids, row_scores in zip(asked, ids, scores, strict=True):
        wanted = expected(recommender, user, k, exclude_seen, exclude or (), candidates)
        assert listed(row_ids, row_scores) == wanted
        padding = slice(len(wanted), None)
        assert (row_ids[padding] == -1).all()
        assert (row_scores[padding] == -np.inf).all()
        one_ids, one_scores = recommender.recommend(user, k, **options)
        assert list(zip(one_ids.tolist(), one_scores.tolist(), strict=True)) == wanted  # no padding for one user


@given(recommender=worlds(), k=st.integers(1, 8), exclude_seen=st.booleans(), block=st.sampled_from([1, 30, 1 << 20]))
@settings(max_examples=100, deadline=None)
def test_frames_for_all_users_are_what_recommend_gives(
    recommender: Recommender, k: int, exclude_seen: bool, block: int
) -> None:
    train = recommender.split_.train
    trained = [user for user, n in zip(train.user_ids.labels, train.user_counts, strict=True) if n]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        frames = list(recommender.recommend_frames(k=k, exclude_seen=exclude_seen))
    rows = [row for frame in frames for row in frame.rows()]
    wanted = [
        (user, item, score, rank)
        for user in trained
        for rank, (item, score) in enumerate(expected(recommender, user, k, exclude_seen), start=1)
    ]
    assert rows == wanted
    assert all(frame.columns == ["user_id", "item_id", "score", "rank"] for frame in frames)


def cosines(recommender: Recommender, item: int) -> list[tuple[int, float]]:
    items = recommender.split_.train.item_ids.labels.to_list()
    vectors = recommender.item_factors.astype(np.float64)
    at = items.index(item)
    norms = np.linalg.norm(vectors, axis=1)
    scores = [
        (float(vectors[at] @ vectors[j] / (norms[at] * norms[j])) if norms[at] * norms[j] else 0.0) for j in range(len(items))
    ]
    return sorted(((items[j], scores[j]) for j in range(len(items)) if j != at), key=lambda pair: -pair[1])


@given(recommender=worlds(), k=st.integers(1, 8), block=st.sampled_from([1, 1 << 20]))
@settings(max_examples=50, deadline=None)
def test_similar_items_are_those_of_highest_cosine(recommender: Recommender, k: int, block: int) -> None:
    items = recommender.split_.train.item_ids.labels.to_list()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        ids, scores = recommender.similar_items(items, k)
    assert ids.shape == scores.shape == (len(items), min(k, len(items) - 1))
    for item, row_ids, row_scores in zip(items, ids, scores, strict=True):
        wanted = cosines(recommender, item)
        by_id = dict(wanted)
        np.testing.assert_allclose(row_scores, [score for _, score in wanted][: len(row_scores)], atol=1e-6)
        np.testing.assert_allclose(row_scores, [by_id[other] for other in row_ids.tolist()], atol=1e-6)  # never the item itself
        one_ids, one_scores = recommender.similar_items(item, k)
        assert len(one_ids) == len(row_ids)
        np.testing.assert_allclose(one_scores, row_scores, atol=1e-6)  # one row is multiplied in another order than many


def test_similar_items_of_none_is_none() -> None:
    ids, scores = use([[1, 0]], [[1, 1]], [[1, 0], [0, 1]]).similar_items([], k=3)
    assert ids.shape == scores.shape == (0, 1)


@pytest.fixture(scope="module")
def fitted(world: Split) -> Recommender:
    return Recommender(dim=8, epochs=3, learning_rate=0.02, engine="plain").fit(world)


@pytest.fixture
def tiny() -> Recommender:
    """ann has seen 0 and 3; cid has seen everything; dan is in valid only, bob nowhere."""
    seen = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [1, 2, 3, 1], [0, 0, 0, 2]]
    return use(seen, np.ones((5, DIM)), [[1, 0], [0, 1], [1, 1], [0, 0]])


def test_ids_may_come_in_any_container(fitted: Recommender) -> None:
    users = fitted.split_.train.user_ids.labels.to_list()[:5]
    ids, scores = fitted.recommend(users, k=4)
    for container in (tuple(users), np.array(users), pl.Series(users), pd.Series(users, index=list("vwxyz")), iter(users)):
        found_ids, found_scores = fitted.recommend(container, k=4)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found_ids, ids)
        np.testing.assert_array_equal(found_scores, scores)
    one_ids, _ = fitted.recommend(np.array(users)[2], k=4)
    np.testing.assert_array_equal(one_ids, ids[2])


@pytest.mark.parametrize("wrap", [list, tuple, iter, np.array, pl.Series, lambda ids: pd.Series(ids, index=list("yz"))])
def test_unknown_users_and_items_are_named(fitted: Recommender, wrap: Any) -> None:
    known = fitted.split_.train.user_ids.label(0)
    with pytest.raises(UnknownIdError, match=r"unknown user .*u987654.*: not among the 120 users"):
        fitted.recommend(wrap([known, "u987654"]))
    with pytest.raises(UnknownIdError, match=r"unknown item .*u987654.*: not among the 90 items"):
        fitted.similar_items(wrap(["u987654", "u987654"]))


def test_a_user_whom_the_filters_left_out_is_told_so(tmp_path: Path) -> None:
    """In the file, but with too little in it to be trained on."""
    rows = [(f"u{user}", f"i{(user + step) % 9}") for user in range(12) for step in range(6)] + [("rare", "i1")]
    pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row").write_csv(tmp_path / "clicks.csv")
    config = RunConfig(dim=4, epochs=1, engine="plain", min_user=5)
    train_run(tmp_path / "clicks.csv", config, out=tmp_path / "run")
    told = r"unknown user 'rare'.* \(the model was trained with min_user = 5, which leaves out"
    with pytest.raises(UnknownIdError, match=told):
        Recommender.load(tmp_path / "run").recommend("rare")


def test_unknown_items_to_exclude_or_choose_from_are_named(fitted: Recommender) -> None:
    for name in ("exclude", "candidates"):
        with pytest.raises(UnknownIdError, match="unknown item 'u987654'"):
            fitted.recommend(fitted.split_.train.user_ids.label(0), **{name: ["u987654"]})  # type: ignore[arg-type]


def test_a_cold_user_is_an_error_or_gets_what_is_popular_and_not_yet_had(tiny: Recommender) -> None:
    with pytest.raises(UnknownIdError, match="user 'dan é' has no training interactions; unknown='popular'"):
        tiny.recommend("dan é")
    ids, scores = tiny.recommend(["dan é", "bob", "stranger"], k=3, unknown="popular")
    assert ids.tolist() == [[-5, 0, 3], [-5, 0, 3], [-5, 0, 3]]
    np.testing.assert_allclose(scores[0], [2 / 5, 1 / 5, 1 / 5])
    assert tiny.recommend("dan é", k=9, unknown="popular")[0].tolist() == [-5, 0, 3]  # 7 is dan's already
    assert tiny.recommend("stranger", k=9, unknown="popular")[0].tolist() == [-5, 0, 3, 7]


def test_one_who_has_seen_everything_gets_nothing_new(tiny: Recommender) -> None:
    ids, scores = tiny.recommend("cid")
    assert len(ids) == len(scores) == 0
    assert tiny.recommend("cid", exclude_seen=False)[0].tolist() == [3, 0, -5, 7]
    assert tiny.recommend(["cid"], k=2)[0].tolist() == [[-1, -1]]


def test_text_ids_are_padded_with_the_empty_string() -> None:
    recommender = use([[1, 0]], [[1, 1]], [[1, 0], [0, 1]], item_labels=["film é", "zoo"])
    ids, scores = recommender.recommend([""], k=9)
    assert ids.tolist() == [["zoo", ""]]
    assert scores.tolist() == [[2, -np.inf]]


def test_text_finds_integer_ids(tiny: Recommender) -> None:
    assert tiny.similar_items("7", k=1)[0].tolist() == tiny.similar_items(7, k=1)[0].tolist()


@pytest.mark.parametrize("k", [0, -1])
def test_a_list_has_at_least_one_place(tiny: Recommender, k: int) -> None:
    for call in (tiny.recommend, tiny.similar_items):
        with pytest.raises(ConfigError, match=f"k must be at least 1, found {k}"):
            call("ann" if call == tiny.recommend else 7, k=k)
    with pytest.raises(ConfigError, match=f"k must be at least 1, found {k}"):
        next(tiny.recommend_frames(k=k))


def test_unknown_takes_two_values_only(tiny: Recommender) -> None:
    with pytest.raises(ConfigError, match="unknown = 'ignore': expected 'raise' or 'popular'"):
        tiny.recommend("ann", unknown="ignore")  # type: ignore[arg-type]


def test_frames_keep_the_type_of_ids_where_some_users_are_unknown() -> None:
    recommender = use([[1, 0], [0, 1]], np.ones((2, DIM)), np.ones((2, DIM)), user_labels=[10, 20])
    frame = next(recommender.recommend_frames(["10", "30"], unknown="popular"))
    assert frame.rows() == [(10, 0, 3.0, 1), (30, -5, 0.5, 1), (30, 0, 0.5, 2)]
    assert next(recommender.recommend_frames(["x"], unknown="popular"))["user_id"].to_list() == ["x", "x"]
    assert next(recommender.recommend_frames(20)).rows() == [(20, -5, 3.0, 1)]


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_written_frames_are_read_back(tiny: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    path = tmp_path / "new folder" / f"recs.{ending}"
    wanted = pl.concat(list(tiny.recommend_frames(k=2)))
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)  # a frame per user, that of cid without rows
    assert write_frames(tiny.recommend_frames(k=2), path) == len(wanted) == 4
    read: Any = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[ending]
    assert read(path).rows() == wanted.rows()


def test_a_csv_of_no_recommendations_has_one_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    recommender = use([[1, 1], [1, 1]], np.ones((2, DIM)), np.ones((2, DIM)))
    assert write_frames(recommender.recommend_frames(), tmp_path / "recs.csv") == 0
    assert (tmp_path / "recs.csv").read_text() == "user_id,item_id,score,rank\n"


def test_other_kinds_of_file_are_refused(tiny: Recommender, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recs\.xlsx: expected a name that ends in \.parquet, \.csv or \.jsonl"):
        write_frames(tiny.recommend_frames(), tmp_path / "recs.xlsx")


def test_inner_products_of_factors_are_the_scores(fitted: Recommender) -> None:
    users = np.arange(fitted.split_.train.n_users)
    items = np.tile(np.arange(fitted.split_.train.n_items), (len(users), 1))
    scores = fitted.user_factors @ fitted.item_factors.T
    np.testing.assert_allclose(scores, fitted.model_(users, items), rtol=1e-4, atol=1e-6)
    model = fitted.model_
    np.testing.assert_allclose(scores, np.einsum("uf,if,f->ui", model.users, model.items, model.beta), rtol=1e-4, atol=1e-6)
    assert fitted.user_factors.dtype == fitted.item_factors.dtype == np.float32


@pytest.mark.filterwarnings("ignore:OpenBLAS:RuntimeWarning")
def test_lists_are_those_of_implicit(fitted: Recommender) -> None:
    als = pytest.importorskip("implicit.cpu.als")
    other = als.AlternatingLeastSquares(factors=8, num_threads=1)
    other.user_factors, other.item_factors = fitted.user_factors, fitted.item_factors
    users = fitted.split_.train.user_ids
    every = np.arange(len(users))
    seen = fitted.seen_.to_csr()
    wanted_ids, wanted_scores = other.recommend(every, sp.csr_matrix(seen), N=7)
    ids, scores = fitted.recommend(users.labels, k=7)
    assert ids.shape == wanted_ids.shape
    np.testing.assert_array_equal(fitted.split_.train.item_ids.indices(ids.ravel()).reshape(ids.shape), wanted_ids)
    np.testing.assert_allclose(scores, wanted_scores, rtol=1e-5, atol=1e-6)  # sums of float32 that may cancel to nearly 0
    wanted_ids, wanted_scores = other.similar_items(np.arange(5), N=7)  # the item itself first, which ours leaves out
    ids, scores = fitted.similar_items(fitted.split_.train.item_ids.labels[:5], k=6)
    np.testing.assert_array_equal(fitted.split_.train.item_ids.indices(ids.ravel()).reshape(ids.shape), wanted_ids[:, 1:])
    np.testing.assert_allclose(scores, wanted_scores[:, 1:], rtol=1e-5)


def test_before_fitting_every_use_says_what_to_do(tmp_path: Path) -> None:
    fresh = Recommender()
    uses = [
        lambda: fresh.recommend(1),
        lambda: fresh.similar_items(1),
        lambda: next(fresh.recommend_frames()),
        lambda: fresh.save(tmp_path / "run"),
        lambda: fresh.user_factors,
        lambda: fresh.item_factors,
    ]
    for each in uses:
        with pytest.raises(ConfigError, match=r"has not been trained: call fit\(\) or load\(\)"):
            each()


def test_parameters_are_those_given_over_those_of_the_config() -> None:
    params = Recommender(RunConfig(dim=7, seed=3), dim=9).get_params()
    assert (params["dim"], params["seed"], params["epochs"]) == (9, 3, RunConfig().epochs)
    assert Recommender(**params).get_params() == params
    with pytest.raises(ConfigError, match="'flavour' is not a field"):
        Recommender(flavour=1)


def test_fit_takes_a_split_or_its_parts(world: Split, fitted: Recommender) -> None:
    again = Recommender(**fitted.get_params()).fit(world.train, world.valid)
    for name, tensor in fitted.model_.tensors().items():
        np.testing.assert_array_equal(again.model_.tensors()[name], tensor)
    with pytest.raises(ConfigError, match="the Split brings its own valid part"):
        Recommender().fit(world, world.valid)


def test_a_saved_recommender_is_the_same_in_a_fresh_process(fitted: Recommender, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    users = fitted.split_.train.user_ids.labels.to_list()
    ids, scores = fitted.recommend(users, k=5)
    np.savez(tmp_path / "expected.npz", ids=ids.astype(str), scores=scores)
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.get_params() == fitted.get_params()
    program = """
import sys, numpy, srns
expected = numpy.load("expected.npz")
recommender = srns.Recommender.load("model")
ids, scores = recommender.recommend(recommender.split_.train.user_ids.labels, k=5)
numpy.testing.assert_array_equal(ids, expected["ids"])
numpy.testing.assert_array_equal(scores, expected["scores"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)


def test_fit_takes_what_read_takes_and_refuses_fields_it_cannot_apply() -> None:
    frame = pl.DataFrame({"user": [f"u{n % 9}" for n in range(60)], "item": [n * 7 % 23 for n in range(60)]})
    by_frame = Recommender(dim=4, epochs=2, engine="plain").fit(frame)
    by_data = Recommender(dim=4, epochs=2, engine="plain").fit(read(frame))
    np.testing.assert_array_equal(by_frame.user_factors, by_data.user_factors)
    for name, value in (("min_user", 5), ("split", "temporal"), ("time_column", "when")):
        with pytest.raises(ConfigError, match=f"{name} is for `srns train`"):
            Recommender(**{name: value}).fit(frame)
