"""An update goes on from a trained model: rows follow their labels, nothing learnt is measured by, nothing there is touched."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import srns
from srns import artifacts, storage
from srns.carrying import carry_memories, carry_model
from srns.cli import app
from srns.config import RunConfig
from srns.errors import ArtifactError, ConfigError, DataError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.judging import judge
from srns.merging import merge
from srns.recommender import Recommender
from srns.simulation import simulate
from srns.splits import SPLITS, make_split
from srns.trainer import Trainer
from srns.updates import config_of, update, update_run

BASE: dict[str, Any] = {
    **{"dim": 6, "epochs": 12, "learning_rate": 0.03, "engine": "plain"},
    **{"memory_size": 6, "expansion_size": 6, "batch_size": 128},
}
STILL = 1e-12  # a step size that leaves what a run starts from
Row = tuple[Any, Any, int]
Pair = tuple[Any, Any]


def rows_of(data: Interactions | None) -> set[Pair]:
    """The pairs in the caller's ids."""
    if data is None:
        return set()
    return set(zip(data.user_ids.take(data.users), data.item_ids.take(data.items), strict=True))


def table(rows: list[Row]) -> Interactions:
    users, items, times = zip(*rows, strict=True)
    return Interactions.from_pairs(list(users), list(items), time=np.array(times))


def by_time(**sizes: int) -> list[Row]:
    """A simulated world in the order of time."""
    data = simulate(**sizes, seed=5).interactions
    assert data.time is not None
    users, items = data.user_ids.take(data.users), data.item_ids.take(data.items)
    return sorted(zip(users, items, data.time.tolist(), strict=True), key=lambda row: (row[2], row[0], row[1]))


@pytest.fixture(scope="module")
def stream() -> list[Row]:
    """The last tenth brings a user and an item between those there are."""
    rows = by_time(n_users=80, n_items=60, n_interactions=1_600)
    end = rows[-1][2]
    return [*rows, *(("u05b", item, end + n) for n, item in enumerate(["i03", "i07x", "i11", "i20", "i31"]))]


@pytest.fixture(scope="module")
def parts(stream: list[Row]) -> tuple[list[Row], list[Row]]:
    cut = int(0.9 * len(stream))
    return stream[:cut], stream[cut:]


@pytest.fixture(scope="module")
def model(parts: tuple[list[Row], list[Row]]) -> Recommender:
    return Recommender(**BASE).fit(make_split(table(parts[0])))


def write(path: Path, rows: list[Row], header: str = "user_id,item_id,timestamp") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, parts: tuple[list[Row], list[Row]]) -> Path:
    """A folder with old.csv, new.csv and the run old, trained on the former."""
    folder = tmp_path_factory.mktemp("updates")
    write(folder / "old.csv", parts[0])
    write(folder / "new.csv", parts[1])
    srns.train_run(folder / "old.csv", RunConfig(**BASE), out=folder / "old")
    return folder


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


labels = st.one_of(st.lists(st.integers(-20, 20)), st.lists(st.text("ab7", max_size=3)))


@given(labels, labels)
@with_settings(max_examples=150, deadline=None)
def test_a_union_of_ids_is_that_of_sets(one: list[Any], other: list[Any]) -> None:
    kinds = {type(label) for label in one}, {type(label) for label in other}
    if kinds == ({int}, {str}) and any(label != str(int(label)) if label.isdigit() else True for label in other):
        with pytest.raises(DataError, match="ids are integers, found the text"):
            IdMap.of(one, "user").union(IdMap.of(other, "user"))
        return
    kind = next(iter(kinds[0] or kinds[1] or {int}))
    found = IdMap.of(one, "user").union(IdMap.of(other, "user"))
    assert found.labels.to_list() == sorted({kind(label) for label in [*one, *other]})


triples = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=40)


@pytest.mark.parametrize("method", [name for name in SPLITS if name != "temporal"])
@given(triples, triples, st.integers(0, 3))
@with_settings(max_examples=60, deadline=None)
def test_what_was_learnt_is_never_held_out(method: str, old: list[Row], new: list[Row], seed: int) -> None:
    """By brute force on pairs: all are there once, in one part, under the label they had."""
    before = make_split(table(old), method, seed=seed)
    merged = merge(before, table(new), method, seed=seed)
    split = merged.split
    train, valid, test = (rows_of(part) for part in (split.train, split.valid, split.test))
    pairs = {(user, item) for user, item, _ in [*old, *new]}
    assert train | valid | test == pairs
    assert len(train) + len(valid) + len(test) == len(pairs)
    assert rows_of(before.train) <= train
    fresh = pairs - {(user, item) for user, item, _ in old}
    assert merged.new["interactions"] == len(fresh)
    quiet = {user for user, _, _ in old} - {user for user, _ in fresh}
    for was, now in ((before.valid, valid), (before.test, test)):
        if method != "none":
            assert {pair for pair in rows_of(was) if pair[0] in quiet} == {pair for pair in now if pair[0] in quiet}
    assert [split.train.user_ids.label(place) for place in merged.users] == before.train.user_ids.labels.to_list()
    assert [split.train.item_ids.label(place) for place in merged.items] == before.train.item_ids.labels.to_list()


def test_a_later_item_is_the_test_item_and_the_one_before_is_learnt() -> None:
    before = make_split(table([("ann", item, item) for item in range(1, 5)]))
    split = merge(before, table([("ann", 9, 9), ("ann", 8, 8)])).split
    assert rows_of(split.test) == {("ann", 9)}
    assert rows_of(split.valid) == {("ann", 8)}
    assert rows_of(split.train) == {("ann", item) for item in range(1, 5)}
    repeated = merge(before, table([("ann", 1, 7)])).split  # it was learnt, whenever it happened again
    assert rows_of(repeated.test) == {("ann", 4)}
    assert repeated.train.time is not None
    assert repeated.train.time.max() == 7
    everything = merge(before, table([("ann", 9, 9)]), "none").split
    assert (len(everything.train), everything.valid, everything.test) == (5, None, None)


def test_a_temporal_split_cuts_at_a_later_moment() -> None:
    rows: list[Row] = [(n % 7, n, n) for n in range(100)]
    before = make_split(table(rows[:90]), "temporal")
    split = merge(before, table(rows[90:]), "temporal").split
    assert split.train.time is not None
    assert split.test is not None
    assert split.test.time is not None
    assert (split.train.time.max(), split.test.time.min()) == (79, 90)


def test_an_update_divides_as_the_model_was_divided(tmp_path: Path) -> None:
    rows: list[Row] = [(n % 7, n, n) for n in range(100)]
    model = Recommender(**BASE).fit(make_split(table(rows[:90]), "temporal"))
    model.save(tmp_path / "model")
    for each in (model, Recommender.load(tmp_path / "model")):
        split = update(each, table(rows[90:])).split_
        assert split.name == "temporal"
        assert rows_of(split.test) == {(n % 7, n) for n in range(90, 100)}


@given(triples, triples)
@with_settings(max_examples=60, deadline=None)
def test_a_temporal_split_never_holds_out_what_was_learnt(old: list[Row], new: list[Row]) -> None:
    """Its users may lose what they had held out: it is past now."""
    old = [(7, 9, 0), (8, 9, 5), *old]  # a cut needs two times
    before = make_split(table(old), "temporal")
    split = merge(before, table(new), "temporal").split
    train, valid, test = (rows_of(part) for part in (split.train, split.valid, split.test))
    assert rows_of(before.train) <= train
    pairs = {(user, item) for user, item, _ in [*old, *new]}
    assert train | valid | test == pairs
    assert len(train) + len(valid) + len(test) == len(pairs)


def test_few_interactions_are_counted_with_those_of_before() -> None:
    before = make_split(table([(user, item, item) for user in range(4) for item in range(4)]), "none")
    new = table([(0, 9, 9), (1, 9, 9), (2, 8, 9), (7, 1, 9), (8, 0, 9), (8, 1, 9)])
    merged = merge(before, new, "none", min_user=2, min_item=2)
    assert rows_of(merged.split.train) - rows_of(before.train) == {(0, 9), (1, 9), (8, 0), (8, 1)}
    assert merged.split.train.user_ids.labels.to_list() == [0, 1, 2, 3, 8]
    assert "left out 2 new pairs" in " ".join(merged.split.notes)


@pytest.mark.parametrize("engine", ["plain", "fused", "torch"])
def test_rows_follow_their_labels(engine: str, model: Recommender, parts: tuple[list[Row], list[Row]]) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    newer = update(model, table(parts[1]), engine=engine, learning_rate=STILL, epochs=2)
    ids, before = newer.split_.train, model.split_.train
    assert newer.training_ is not None
    assert newer.training_.engine == engine
    for kind, old_ids, new_ids in (("users", before.user_ids, ids.user_ids), ("items", before.item_ids, ids.item_ids)):
        there = new_ids.indices(old_ids.labels)
        assert not np.array_equal(there, np.arange(len(there)))  # the new ones have moved some
        same = ids.user_counts[there] == before.user_counts if kind == "users" else np.ones(len(there), bool)
        assert same.sum() > 10
        np.testing.assert_allclose(newer.model_.tensors()[kind][there][same], model.model_.tensors()[kind][same], atol=1e-6)
    news = [len({row[column] for row in parts[1]} - {row[column] for row in parts[0]}) for column in (0, 1)]
    assert newer.updated_["new"] == {"users": news[0], "items": news[1], "interactions": len(parts[1])}
    assert "u05b" in ids.user_ids.labels
    assert len(newer.recommend("u05b", 5)[0]) == 5


def test_a_new_user_starts_near_those_who_had_the_same(model: Recommender) -> None:
    """Somebody with the items of a user there is, and one with other items: the first is nearer."""
    train = model.split_.train
    user = int(train.user_counts.argmax())
    mine = train.item_ids.take(train.items_of(user))
    far = [label for label in train.item_ids.labels if label not in set(mine)][: len(mine)]
    rows = [(name, item, 10**9 + n) for name, items in (("new1", mine), ("new2", far)) for n, item in enumerate(items)]
    merged = merge(model.split_, table(rows), "none")
    start = carry_model(model.model_, train, merged, model.config)
    places = merged.split.train.user_ids.indices(["new1", "new2"])
    vectors = start.tensors()["users"][[*places, merged.users[user]]]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert unit[0] @ unit[2] > max(0.5, unit[1] @ unit[2])


def test_users_move_with_the_mean_of_their_items(model: Recommender, parts: tuple[list[Row], list[Row]]) -> None:
    """By scikit-learn's ridge regression of rows on means, fitted to those there were, user by user."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    merged = merge(model.split_, table(parts[1]))
    train, before = merged.split.train, model.split_.train
    start = carry_model(model.model_, before, merged, model.config).tensors()
    users, items = (model.model_.tensors()[kind] for kind in ("users", "items"))
    means = np.array([items[before.items_of(user)].mean(axis=0) for user in range(before.n_users)])
    strength = 1e-3 * np.square(means).sum() / means.shape[1]
    fitted = linear_model.Ridge(alpha=strength, fit_intercept=False).fit(means.astype(np.float64), users)
    old_place = {place: user for user, place in enumerate(merged.users)}
    for user in range(train.n_users):
        mine = [item for item in train.items_of(user) if item in set(merged.items)]
        now = start["items"][mine].mean(axis=0)
        was = old_place.get(user)
        base, mean = (np.zeros(6), np.zeros(6)) if was is None else (users[was], means[was])
        np.testing.assert_allclose(start["users"][user], base + fitted.predict((now - mean)[None])[0], atol=1e-4)


VARIANCE = {"negatives": 2, "history_epochs": 3, "warmup_epochs": 3}


@pytest.mark.parametrize("engine", ["plain", "fused"])
def test_memories_and_history_carry_over(engine: str, parts: tuple[list[Row], list[Row]]) -> None:
    """What each user remembered is there under the same labels, but for items that have become positives."""
    model = Recommender(**{**BASE, **VARIANCE, "engine": engine}).fit(make_split(table(parts[0])))
    merged = merge(model.split_, table(parts[1]))
    train = merged.split.train
    start = carry_model(model.model_, model.split_.train, merged, model.config)
    fresh = model.config.make_sampler().start(train, seed=9).memory  # type: ignore[attr-defined]
    old = model.memories()
    found = carry_memories(old, start, fresh, merged)
    replaced = 0
    for user, label in enumerate(train.user_ids.labels):
        now = found["memory"][user]
        positives = set(train.items_of(user).tolist())
        assert (now >= 0).all()
        assert len(set(now.tolist())) == len(now)
        assert not positives & set(now.tolist())
        if label not in set(model.split_.train.user_ids.labels):
            assert now.tolist() == fresh[user].tolist()
            continue
        was = {merged.items[item] for item in old["memory"][model.split_.train.user_ids.index(label)] if item >= 0}
        assert was - positives <= set(now.tolist())
        replaced += len(was & positives)
    assert replaced > 0
    assert int(found["epochs"]) == BASE["epochs"]
    for slot in range(3):
        factors = old[f"past.{slot}.users"] * old[f"past.{slot}.beta"]
        np.testing.assert_array_equal(found[f"past.{slot}.users"][merged.users], factors)
        np.testing.assert_array_equal(found[f"past.{slot}.items"][merged.items], old[f"past.{slot}.items"])


def test_engines_that_take_over_the_same_go_on_alike(parts: tuple[list[Row], list[Row]]) -> None:
    """History and warm-up go on where they were: losses of the fused and of the plain engine stay together."""
    model = Recommender(**{**BASE, **VARIANCE}).fit(make_split(table(parts[0])))
    losses = []
    for engine in ("plain", "fused"):
        training = update(model, table(parts[1]), engine=engine, epochs=3, learning_rate=0.004).training_
        assert training is not None
        losses.append([record.loss for record in training.history])
        assert int(training.memories["epochs"]) == BASE["epochs"] + 3
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def test_without_news_the_model_stays(files: Path, tmp_path: Path) -> None:
    """The table it has learnt from, again: not a list changes, nor what is held out."""
    again = update_run(files / "old", files / "old.csv", {}, out=tmp_path / "same")
    one, other = Recommender.load(files / "old"), Recommender.load(tmp_path / "same")
    assert again["updated"]["new"] == {"users": 0, "items": 0, "interactions": 0}
    assert (again["epochs"], again["best_epoch"]) == (0, 0)
    assert one.split_.fingerprint() == other.split_.fingerprint()
    users = one.split_.train.user_ids.labels
    for found, expected in zip(other.recommend(users), one.recommend(users), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert again["metrics"] == again["updated"]["metrics_before"] == artifacts.read_run(files / "old")["metrics"]
    np.testing.assert_array_equal(storage.load_memories(tmp_path / "same")["memory"], one.memories()["memory"])


@pytest.mark.parametrize(
    ("positives", "epochs", "rate"), [(100, 3, 0.28), (28, 3, 1.0), (12, 4, 28 / 12), (7, 6, 4.0), (2, 6, 4.0)]
)
def test_the_fewer_positives_the_more_and_longer_the_steps(positives: int, epochs: int, rate: float) -> None:
    """Of a training of 20 epochs: 15% of them, up to twice as many below 16 positives per user."""
    pace = RunConfig(epochs=20, learning_rate=0.01).pace_of_update(1000 * positives, 1000)
    assert pace == {"epochs": epochs, "learning_rate": pytest.approx(0.01 * rate)}


def test_an_update_is_validated_once_unless_asked_for_more(model: Recommender, parts: tuple[list[Row], list[Row]]) -> None:
    for fields, times in (({"epochs": 4}, 1), ({"epochs": 4, "validate_every": 2}, 2)):
        training = update(model, table(parts[1]), **fields).training_
        assert training is not None
        assert [bool(record.valid) for record in training.history].count(True) == times
        assert training.history[-1].valid


def test_the_command_makes_a_run_like_any_other(files: Path, tmp_path: Path) -> None:
    before = digests(files / "old")
    result = call("update", files / "old", files / "new.csv", "--out", tmp_path / "new", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["updated"]["from"] == str(files / "old")
    assert found["updated"]["fingerprint"] == artifacts.read_run(files / "old")["data"]["fingerprint"]
    assert found["updated"]["new"]["users"] >= 1
    assert found["epochs"] == round(0.15 * BASE["epochs"])
    per_user = found["data"]["train"] / found["data"]["users"]
    assert found["config"]["learning_rate"] == pytest.approx(BASE["learning_rate"] * 28 / per_user)
    assert digests(files / "old") == before
    shown = call("info", tmp_path / "new").stdout
    assert "updated from" in shown.replace("\n", " ")
    for command in (["recommend", "--user", "u05b"], ["similar", "--item", "i07x"], ["evaluate"]):
        assert call(command[0], tmp_path / "new", *command[1:]).exit_code == 0, command
    assert "srns update" in call("report", tmp_path / "new", "--out", tmp_path / "page.html", "--json").stdout
    assert call("update", tmp_path / "new", files / "new.csv", "--out", tmp_path / "third", "--json").exit_code == 0
    recipe = artifacts.read_run(tmp_path / "third")["updated"]["recipe"]
    assert recipe == {"epochs": BASE["epochs"], "learning_rate": BASE["learning_rate"]}


def test_the_old_model_is_measured_by_the_same_pairs(files: Path, tmp_path: Path) -> None:
    """By hand: rank of each test item among all items the old model knows and the user has not had."""
    run = update_run(files / "old", files / "new.csv", {}, out=tmp_path / "new")
    old, new = Recommender.load(files / "old"), Recommender.load(tmp_path / "new")
    one, other, left_out = judge(new, old, "test", "full", (10,))
    assert left_out == 0
    assert dict(other)["recall@10"] == pytest.approx(run["updated"]["metrics_before"]["recall@10"])
    assert dict(one)["recall@10"] == pytest.approx(run["metrics"]["recall@10"])
    split, hits = new.split_, []
    known = old.split_.train
    for user, item in sorted(rows_of(split.test)):
        had = {pair[1] for part in (split.train, split.valid) for pair in rows_of(part) if pair[0] == user}
        if user in set(known.user_ids.labels):
            scores = old.user_factors[known.user_ids.index(user)] @ old.item_factors.T
        else:
            scores = known.item_counts.astype(np.float32)
        by_label = {label: score for label, score in zip(known.item_ids.labels, scores, strict=True) if label not in had}
        if item not in by_label:
            hits.append(0.0)
            continue
        above = sum(score > by_label[item] for score in by_label.values())
        ties = sum(score == by_label[item] for score in by_label.values())
        hits.append(float(np.clip((10 - above) / ties, 0, 1)))
    assert dict(other)["recall@10"] == pytest.approx(np.mean(hits))


def test_the_exit_code_tells_a_worse_model(files: Path, tmp_path: Path) -> None:
    update_run(files / "old", files / "new.csv", {}, out=tmp_path / "good")
    run = artifacts.read_run(tmp_path / "good")
    worse = {name: np.array(tensor) for name, tensor in artifacts.read_tensors(tmp_path / "good" / artifacts.MODEL)[0].items()}
    worse["items"] = -worse["items"]
    loaded = Recommender.load(tmp_path / "good")
    storage.save_model(tmp_path / "bad", loaded.model_.from_tensors(worse), loaded.split_, run)
    assert call("evaluate", tmp_path / "good", "--against", files / "old", "--fail-if-worse").exit_code == 0
    result = call("evaluate", tmp_path / "bad", "--against", files / "old", "--fail-if-worse", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["worse"] == {"metric": "ndcg@10", "worse": True}
    assert found["difference"]["ndcg@10"]["high"] < 0


@pytest.mark.parametrize(
    ("rows", "header", "flags", "message"),
    [
        ([("u1", "i1", 5)], "customer,thing,timestamp", (), "no item column recognised"),
        ([("u1", "i1", 5)], "user_id,item_id,other", (), "have times and the new ones have none"),
        ([], "user_id,item_id,timestamp", (), "new.csv"),
        ([("u1", "i1", 5)], "user_id,item_id,timestamp", ("--set", "dim=9"), "dim cannot be changed by an update"),
        ([("u1", "i1", 5)], "user_id,item_id,timestamp", ("--set", "init=x"), "init cannot be changed by an update"),
        ([("u1", "i1", 5)], "user_id,item_id,timestamp", ("--table", "clicks"), "is for databases"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    rows: list[Row], header: str, flags: tuple[str, ...], message: str, files: Path, tmp_path: Path
) -> None:
    write(tmp_path / "new.csv", rows, header)
    result = call("update", files / "old", tmp_path / "new.csv", "--out", tmp_path / "out", *flags)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_runs_that_cannot_be_updated_are_refused(files: Path, tmp_path: Path) -> None:
    missing = call("update", files / "old", tmp_path / "absent.csv", "--out", tmp_path / "out")
    assert (missing.exit_code, "no such file" in missing.stderr) == (2, True)
    taken = call("update", files / "old", files / "new.csv", "--out", files / "old")
    assert (taken.exit_code, "already holds a run" in taken.stderr) == (2, True)
    artifacts.write_run(tmp_path / "begun", {"status": "running", "config": {}, "data": {"name": "x"}, "files": {}})
    with pytest.raises(ArtifactError, match="unfinished run"):
        update_run(tmp_path / "begun", files / "new.csv", {}, out=tmp_path / "out")
    numbers = Recommender(**BASE).fit(table([(user, item, item) for user in range(9) for item in range(user % 5 + 2)]))
    with pytest.raises(DataError, match="user ids are integers, found the text 'ann'"):
        update(numbers, table([("ann", 1, 5)]))
    graph = Recommender(scorer="lightgcn", engine="torch")
    with pytest.raises(ConfigError, match="scorer 'lightgcn' cannot be updated"):
        config_of(graph, {})
    with pytest.raises(ConfigError, match="module of your own"):
        config_of(Recommender(scorer=lambda train: None), {})


@pytest.mark.parametrize("scorer", ["ease", "popularity"])
def test_what_is_solved_is_solved_again(scorer: str, parts: tuple[list[Row], list[Row]]) -> None:
    model = Recommender(scorer=scorer).fit(make_split(table(parts[0])))
    newer = update(model, table(parts[1]))
    anew = Trainer(model.config, newer.split_).run().model
    for name, tensor in anew.tensors().items():
        np.testing.assert_array_equal(newer.model_.tensors()[name], tensor)
    assert any("solved anew" in note for note in newer.split_.notes)


def test_runs_without_memories_say_so_and_are_updated(files: Path, tmp_path: Path) -> None:
    loaded = Recommender.load(files / "old")
    run = {"status": "finished", "config": loaded.config.model_dump(mode="json")}
    storage.save_model(tmp_path / "old", loaded.model_, loaded.split_, run)
    assert not (tmp_path / "old" / artifacts.MEMORIES).exists()
    found = update_run(tmp_path / "old", files / "new.csv", {}, out=tmp_path / "new")
    assert any("keeps no memories of sampler 'srns'" in note for note in found["data"]["notes"])
    other = update_run(files / "old", files / "new.csv", {"temperature": 5.0}, out=tmp_path / "other")
    assert any("other settings" in note for note in other["data"]["notes"])


@pytest.mark.parametrize("unit", [1, 10**3, 10**6])
def test_notes_tell_times_as_dates(unit: int) -> None:
    early, late = (int(datetime(2026, 1, day, 7, 5, tzinfo=timezone.utc).timestamp()) * unit for day in (1, 6))
    before = make_split(table([("ann", item, early + item) for item in range(4)]))
    said = "; ".join(merge(before, table([("ann", 7, late), ("ann", 8, late + unit * 3600)])).split.notes)
    assert "times 2026-01-06 07:05 UTC to 2026-01-06 08:05 UTC; the run learnt from times up to 2026-01-01 07:05 UTC" in said
    other_clock = "; ".join(merge(before, table([("ann", 7, late * 1000)])).split.notes)
    assert f"times {late * 1000} to {late * 1000}; the run learnt from times up to {early + 1}" in other_clock


def test_the_name_of_a_run_tells_what_it_goes_on_from(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "current").symlink_to(files / "old")
    names, before = [], tmp_path / "current"
    for data in ("new", "new", "old"):
        result = call("update", before, files / f"{data}.csv", "--epochs", "1", "--json")
        assert result.exit_code == 0, result.stderr
        before = tmp_path / json.loads(result.stdout)["run"]
        names.append(before.name)
    assert names == ["old-new", "old-new-2", "old-new-2-old"]


def test_numbers_are_text_where_ids_are_text(files: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.csv", [(7, "i03", 10**10)])
    found = update_run(files / "old", tmp_path / "new.csv", {}, out=tmp_path / "new")
    assert found["updated"]["new"] == {"users": 1, "items": 0, "interactions": 1}
    assert "7" in Recommender.load(tmp_path / "new").split_.train.user_ids.labels


def test_all_of_a_saved_model_is_learnt_from(model: Recommender, parts: tuple[list[Row], list[Row]], tmp_path: Path) -> None:
    """A model that held nothing out holds nothing out now; memories survive a save."""
    whole = Recommender(**BASE).fit(table(parts[0]))
    whole.save(tmp_path / "model")
    newer = update(Recommender.load(tmp_path / "model"), table(parts[1]))
    assert newer.split_.test is None
    assert rows_of(newer.split_.train) == {(user, item) for user, item, _ in [*parts[0], *parts[1]]}
    np.testing.assert_array_equal(Recommender.load(tmp_path / "model").memories()["memory"], whole.memories()["memory"])
    assert not any("memories" in note for note in newer.split_.notes)


def test_the_same_bytes_on_any_number_of_threads(files: Path, tmp_path: Path) -> None:
    for threads in (1, 2):
        fields = {"threads": threads, "engine": "fused", "epochs": 2}
        update_run(files / "old", files / "new.csv", fields, out=tmp_path / str(threads))
    for name in (artifacts.MODEL, artifacts.MEMORIES, artifacts.INTERACTIONS):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_a_killed_update_goes_on_and_ends_with_the_same_bytes(files: Path, tmp_path: Path) -> None:
    flags = ["--epochs", "12", "--set", "checkpoint_epochs=1", "--json"]

    def command(folder: Path, *more: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "srns",
            "update",
            str(files / "old"),
            str(files / "new.csv"),
            "--out",
            str(folder),
            *flags,
            *more,
        ]

    killed = tmp_path / "killed"
    process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (killed / artifacts.CHECKPOINT).exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert artifacts.read_run(killed)["status"] == "running"
    done = subprocess.run(command(killed, "--resume"), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "resumed after epoch" in done.stderr
    update_run(files / "old", files / "new.csv", {"epochs": 12, "checkpoint_epochs": 1}, out=tmp_path / "whole")
    for name in (artifacts.MODEL, artifacts.MEMORIES, artifacts.INTERACTIONS, artifacts.IDS):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


NIGHTLY = Path(__file__).parent.parent / "docs" / "updating.md"


def test_the_nightly_job_of_the_docs_publishes_what_is_not_worse(tmp_path: Path, parts: tuple[list[Row], list[Row]]) -> None:
    """The script as the page has it, first with an update, then with a model that has hardly learnt anything in its place."""
    (script,) = re.findall(r"```sh\n(.*?)```", NIGHTLY.read_text(encoding="utf-8"), re.S)
    (tmp_path / "nightly.sh").write_text(script)
    poor = "--sampler uniform --dim 2 --epochs 1 --learning-rate 1e-9 --engine plain"
    shim = tmp_path / "bin" / "srns"
    shim.parent.mkdir()
    real = f'exec "{sys.executable}" -m srns'
    shim.write_text(
        f'#!/bin/sh\nif [ "$1" = update ] && [ -n "$POOR" ]; then {real} train "$3" --out "$5" {poor}; fi\n{real} "$@"\n'
    )
    shim.chmod(0o755)
    rows = by_time(n_users=250, n_items=200, n_interactions=7_000)
    write(tmp_path / "old.csv", rows[:6_300])
    write(tmp_path / "new.csv", rows[6_300:])
    write(tmp_path / "all.csv", rows)
    runs = tmp_path / "runs"
    srns.train_run(tmp_path / "old.csv", RunConfig(**BASE), out=runs / "first")
    (runs / "current").symlink_to("first")
    environment = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}", "RUNS": str(runs), "POOR": ""}

    def night(data: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "nightly.sh", data]
        return subprocess.run(
            command, cwd=tmp_path, env=environment | more, capture_output=True, text=True, timeout=200, check=False
        )

    done = night("new.csv")
    assert done.returncode == 0, done.stderr
    published = (runs / "current").resolve()
    assert published != runs / "first"
    assert artifacts.read_run(published)["updated"]["from"] == str(runs / "first")
    done = night("all.csv", POOR="yes")
    assert done.returncode == 1, done.stderr
    assert "is worse by ndcg@10" in done.stdout
    assert (runs / "current").resolve() == published
    done = night("absent.csv")
    assert done.returncode == 2
    assert (runs / "current").resolve() == published


def test_a_database_is_read_by_the_table_of_the_run(tmp_path: Path, parts: tuple[list[Row], list[Row]]) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "shop.db") as base:
        base.execute("create table clicks (user_id text, item_id text, timestamp integer)")
        base.executemany("insert into clicks values (?, ?, ?)", parts[0])
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    srns.train_run(url, RunConfig(**BASE, table="clicks"), out=tmp_path / "old")
    with sqlite3.connect(tmp_path / "shop.db") as base:
        base.executemany("insert into clicks values (?, ?, ?)", parts[1])
    found = update_run(tmp_path / "old", url, {}, out=tmp_path / "new")
    assert found["updated"]["new"]["interactions"] == len(parts[1])
    write(tmp_path / "more.csv", [("u01", "i07x", 10**10)])
    again = update_run(tmp_path / "new", tmp_path / "more.csv", {}, out=tmp_path / "newer")
    assert again["updated"]["new"]["interactions"] == 1
