"""Methods that draw no negatives: popularity, EASE and ALS, against their definitions and against `implicit`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from srns import artifacts
from srns.cli import app
from srns.config import RunConfig
from srns.engines import make_engine
from srns.errors import ArtifactError, ConfigError
from srns.evaluation import evaluate
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.presets import make_config
from srns.recommender import Recommender
from srns.runs import train_run
from srns.scorers import EASE, GMF, Popularity, ease
from srns.splits import Split
from srns.terms import FEW_POSITIVES, advice, temperature_advice
from srns.trainer import Callback, EpochRecord, Trainer

SCORERS = ["popularity", "ease", "als"]


def matrix_of(train: Interactions) -> Any:
    matrix = np.zeros((train.n_users, train.n_items))
    matrix[train.users, train.items] = 1
    return matrix


def trained(split: Split, **fields: Any) -> Any:
    return Trainer(RunConfig(**fields), split).run()


def test_popularity_counts(world: Split) -> None:
    model = trained(world, scorer="popularity").model
    expected = [sum(item == each for each in world.train.items) for item in range(world.train.n_items)]
    np.testing.assert_array_equal(model.score_all([3, 5]), [expected, expected])
    np.testing.assert_array_equal(model(np.array([3, 5]), np.array([[1, 0], [2, 2]])), np.array(expected)[[[1, 0], [2, 2]]])
    by_hand = evaluate(lambda users, items: np.array(expected)[items], world)
    assert evaluate(model, world) == by_hand


def test_popularity_knows_of_no_similar_items(world: Split) -> None:
    with pytest.raises(ConfigError, match="not which of them are alike"):
        Recommender(scorer="popularity").fit(world).similar_items(world.train.item_ids.label(0))


@pytest.mark.parametrize("l2", [0.5, 20.0])
def test_ease_is_the_closed_form(world: Split, l2: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix_of(world.train)
    inverse = np.linalg.inv(x.T @ x + l2 * np.eye(x.shape[1]))
    expected = np.eye(x.shape[1]) - inverse / np.diag(inverse)  # the paper's equation 8
    for block in (ease.BLOCK, 7 * x.shape[1]):  # at once, and seven rows at a time
        monkeypatch.setattr(ease, "BLOCK", block)
        model, loss = EASE.solve(world.train, l2)
        assert model.weights.dtype == np.float32
        np.testing.assert_allclose(model.weights, expected, atol=1e-5)
        assert not np.diag(model.weights).any()
        assert loss == pytest.approx(np.sum((x - x @ expected) ** 2) + l2 * np.sum(expected**2))


def test_ease_is_a_ridge_regression_of_each_item_on_the_others(world: Split) -> None:
    x, l2 = matrix_of(world.train), 3.0
    weights = EASE.solve(world.train, l2)[0].weights
    for item in range(x.shape[1]):
        others = np.delete(np.arange(x.shape[1]), item)
        rows = np.concatenate([x[:, others], np.sqrt(l2) * np.eye(len(others))])
        found = np.linalg.lstsq(rows, np.concatenate([x[:, item], np.zeros(len(others))]), rcond=None)[0]
        np.testing.assert_allclose(weights[others, item], found, atol=1e-5)


def test_scores_of_ease_are_sums_over_what_a_user_has(world: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = replace(world.train.select(world.train.users != 4))
    model = trained(Split("fit", nobody, None, None), scorer="ease", l2=5).model
    users, items = np.array([4, 0, 9, 0]), np.random.default_rng(0).integers(0, nobody.n_items, (4, 6))
    expected = np.array([model.weights[nobody.items_of(user)].sum(axis=0) for user in users])
    assert not expected[0].any()
    np.testing.assert_allclose(model.score_all(users), expected, atol=1e-5)
    for block in (ease.BLOCK, 1):
        monkeypatch.setattr(ease, "BLOCK", block)
        np.testing.assert_allclose(model(users, items), np.take_along_axis(expected, items, axis=1), atol=1e-5)


def test_items_similar_by_ease_are_explained_by_the_same_items(world: Split) -> None:
    recommender = Recommender(scorer="ease", l2=20).fit(world)
    x = matrix_of(world.train)
    inverse = np.linalg.inv(x.T @ x + 20 * np.eye(x.shape[1]))
    np.fill_diagonal(inverse, 0)
    lengths = np.maximum(np.linalg.norm(inverse, axis=0), 1e-12)  # 0 of an item that occurs with no other
    cosines = inverse[:, 7] @ inverse / lengths / lengths[7]
    cosines[7] = -np.inf
    labels = world.train.item_ids
    ids, scores = recommender.similar_items(labels.label(7), k=5)
    assert [labels.index(each) for each in ids.tolist()] == np.argsort(-cosines)[:5].tolist()
    np.testing.assert_allclose(scores, np.sort(cosines)[::-1][:5], atol=1e-4)


def test_ease_refuses_what_memory_cannot_hold(world: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    n = world.train.n_items
    monkeypatch.setattr(ease, "_memory", lambda: 10_000)
    with pytest.raises(ConfigError, match=rf"{12 * n * n:,} bytes for {n} items.*10,000, enough for 27 items.*--min-item"):
        trained(world, scorer="ease")
    monkeypatch.setattr(ease, "_memory", lambda: 12 * n * n * 2)
    trained(world, scorer="ease")
    monkeypatch.setattr(ease, "_memory", lambda: None)
    trained(world, scorer="ease")


def test_memory_is_that_of_the_machine_or_of_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ease._memory()
    assert found is None or found > 2**27
    monkeypatch.setattr(Path, "read_text", lambda *args, **kwargs: "12345\n")
    assert ease._memory() == 12345
    monkeypatch.setattr(Path, "read_text", lambda *args, **kwargs: "max\n")
    assert ease._memory() == (None if found is None else pytest.approx(found, rel=10))


def test_ease_without_l2_says_what_is_wrong() -> None:
    train = Interactions.from_pairs([0, 0, 1, 1, 2], ["a", "b", "a", "b", "c"])  # a and b cannot be told apart
    with pytest.raises(ConfigError, match=r"l2 = 0: the items .* cannot be told apart"):
        Recommender(scorer="ease", l2=0).fit(train)


ALS: dict[str, Any] = {"scorer": "als", "dim": 6, "l2": 2.0, "confidence": 5.0, "seed": 11}


def test_als_is_that_of_implicit(world: Split) -> None:
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    train = world.train
    start = GMF.init(train.n_users, train.n_items, 6, std=0.1, learn_beta=False, seed=11)
    with threadpool_limits(1, "blas"):
        oracle = AlternatingLeastSquares(factors=6, regularization=2.0, alpha=5.0, iterations=4)
        oracle.user_factors, oracle.item_factors = start.users.copy(), start.items.copy()
        oracle.fit(sp.csr_matrix(matrix_of(train).astype(np.float32)), show_progress=False)
    model = trained(Split("fit", train, None, None), **ALS, epochs=4).model
    np.testing.assert_array_equal(model.users, oracle.user_factors)
    np.testing.assert_array_equal(model.items, oracle.item_factors)
    np.testing.assert_array_equal(model.beta, 1)


def test_als_comes_to_rest_where_the_gradient_of_its_loss_is_0(world: Split) -> None:
    model = trained(Split("fit", world.train, None, None), **ALS, epochs=400).model
    x = matrix_of(world.train)
    p, q = model.users.astype(float), model.items.astype(float)
    slope = np.where(x > 0, 5.0, 1.0) * (p @ q.T - x)
    for gradient, pulled in ((slope @ q + 2.0 * p, 2.0 * p), (slope.T @ p + 2.0 * q, 2.0 * q)):
        assert np.abs(gradient).max() < 0.01 * np.abs(pulled).max()


def test_als_does_not_depend_on_threads_but_on_the_seed(world: Split) -> None:
    def items(**fields: Any) -> Any:
        return trained(world, **(ALS | {"epochs": 3, **fields})).model.items

    np.testing.assert_array_equal(items(threads=1), items(threads=2))
    assert np.abs(items() - items(seed=12)).max() > 1e-3


def test_als_without_implicit_says_how_to_get_it(world: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "implicit.als", None)
    with pytest.raises(ConfigError, match=r"pip install 'srns\[als\]'"):
        trained(world, scorer="als")


@pytest.mark.parametrize("scorer", SCORERS)
def test_what_was_fitted_is_saved_and_loaded(world: Split, tmp_path: Path, scorer: str) -> None:
    fitted = Recommender(scorer=scorer, dim=8, epochs=3).fit(world)
    fitted.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    users = [world.train.user_ids.label(user) for user in range(5)]
    for one, other in zip(fitted.recommend(users, k=4), loaded.recommend(users, k=4), strict=True):
        np.testing.assert_array_equal(one, other)
    scores = np.array(fitted.model_.score_all(np.arange(5)))
    scores[world.train.union(world.valid, world.test).contains(np.arange(5)[:, None], np.arange(world.train.n_items))] = -np.inf
    np.testing.assert_array_equal(fitted.recommend(users, k=4)[1], -np.sort(-scores, axis=1)[:, :4])


@pytest.mark.parametrize("scorer", SCORERS)
def test_the_epochs_of_a_run(world: Split, scorer: str) -> None:
    training = trained(world, scorer=scorer, dim=8, epochs=3)
    assert len(training.history) == (3 if scorer == "als" else 1)
    assert np.isfinite([record.loss for record in training.history]).all()
    if scorer == "als":
        assert training.history[2].loss < training.history[0].loss


class FirstEpoch(Callback):
    """Ends a run after its first epoch, and leaves the checkpoint of that."""

    def on_epoch(self, record: EpochRecord) -> bool:
        return record.epoch == 1


@pytest.mark.parametrize("valid_share", [0.0, 0.1])
@pytest.mark.parametrize("scorer", SCORERS)
def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(
    world: Split, tmp_path: Path, scorer: str, valid_share: float
) -> None:
    """Also from that of its last epoch, written before the run itself was."""
    split = world if valid_share else Split("fit", world.train, None, None)
    config = RunConfig(scorer=scorer, dim=8, epochs=4, seed=5, checkpoint_epochs=1, moving_average=0.5)
    whole = Trainer(config, split).run()

    Trainer(config, split, checkpoint=tmp_path / "checkpoint", callbacks=[FirstEpoch()]).run()
    resumed = Trainer(config, split, checkpoint=tmp_path / "checkpoint").run(resume=True)
    assert [r.valid for r in resumed.history] == [r.valid for r in whole.history]
    for name, tensor in whole.model.tensors().items():
        np.testing.assert_array_equal(resumed.model.tensors()[name], tensor)


def test_settings_without_effect_are_named_once(world: Split) -> None:
    def notes(**fields: Any) -> str:
        return "\n".join(Trainer(make_config(fields), world).notes)

    assert notes(scorer="popularity") == ""
    assert notes(scorer="popularity", epochs=7, seed=3) == ""
    found = notes(scorer="ease", l2=3, sampler="uniform", negatives=2, learning_rate=0.1, loss="bpr", dim=4)
    assert found == "without effect: dim, sampler, loss, learning_rate, negatives, since scorer 'ease' has no use for it"
    assert "without effect: temperature, since" in notes(scorer="als", dim=4, l2=1, confidence=2, epochs=2, temperature=3)
    assert "l2 auto: " in notes(scorer="ease")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_layers": 2, "margin": 0.5}, ["hidden_layers, since scorer is 'gmf'", "margin, since loss is 'softmax'"]),
        ({"variance_weight": 1.0}, ["variance_weight, since all of a memory is used; set negatives below memory_size (16)"]),
        ({"negatives": 4, "strategy": "difficulty", "warmup": "flat"}, ["warmup, since strategy is 'difficulty'"]),
        ({"negatives": 4, "variance_weight": 1.0}, []),
        ({"sampler": "softmax", "hardness": 1.0, "temperature": 2.0}, ["temperature, since hardness takes its place"]),
    ],
)
def test_settings_that_others_make_idle_are_named_with_why(world: Split, fields: dict[str, Any], said: list[str]) -> None:
    found = [note for note in Trainer(make_config(fields), world).notes if note.startswith("without effect")]
    assert len(found) == len(said)
    for note, expected in zip(sorted(found), sorted(said), strict=True):
        assert note.startswith(f"without effect: {expected}")


def test_a_method_without_what_makes_it_one_is_told() -> None:
    assert advice(make_config({"sampler": "in_batch"}), started=False) == [
        "sampler 'in_batch' without its correction takes popular items for worse than they are: --log-q"
    ]
    assert advice(make_config({"sampler": "in_batch", "log_q": True}), started=False) == []
    (start,) = advice(make_config({"sampler": "rns_as"}), started=False)
    assert start == "sampler 'rns_as' starts at random; as published, from a model of uniform negatives: --init RUN"
    (perturbation,) = advice(make_config({"sampler": "advir"}), started=True)
    assert perturbation.endswith("--perturbation 0.01")
    assert advice(make_config({"sampler": "advir", "perturbation": 0.01}), started=True) == []


def test_users_with_few_positives_bring_advice_on_the_temperature(world: Split) -> None:
    per_user = len(world.train) / np.count_nonzero(world.train.user_counts)
    note = f"users have {per_user:.1f} positives each; on most such data temperature 1 was better than 2: try --temperature 1"
    new = Trainer(RunConfig(epochs=1), world)
    assert note in new.notes
    assert note not in Trainer(RunConfig(epochs=1), world, init=new.run().model).notes
    assert temperature_advice(RunConfig(), FEW_POSITIVES) == []


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.5}, {"negatives": 4}, {"memory_size": 32}, {"loss": "bpr"}, {"scorer": "mlp"}, {"sampler": "dns"}],
)
def test_advice_on_the_temperature_is_for_the_default_recipe(fields: dict[str, Any]) -> None:
    assert temperature_advice(make_config({}), 7.5)
    assert temperature_advice(make_config(fields), 7.5) == []


def test_l2_auto_follows_the_scorer(world: Split) -> None:
    n, users = 93_430, 1_000  # as in ml-1m-paper
    found = {scorer: RunConfig(scorer=scorer).l2_for(n, users) for scorer in ("gmf", "ease", "als")}
    assert found["ease"] == pytest.approx(193, abs=1)
    assert len(set(found.values())) == 3
    assert RunConfig(scorer="ease", l2=7).l2_for(n, users) == 7


@pytest.mark.parametrize("scorer", SCORERS)
def test_what_they_cannot_do_is_refused(world: Split, scorer: str) -> None:
    for fields, words in (({"engine": "torch"}, "engine 'torch'"), ({"device": "cuda"}, "device 'cuda'")):
        with pytest.raises(ConfigError, match=f"{words} cannot train scorer '{scorer}'"):
            make_engine(RunConfig(scorer=scorer, **fields), world.train)
    ranks: Any = SimpleNamespace(size=2, rank=0)
    with pytest.raises(ConfigError, match=f"scorer '{scorer}' is trained by one process, not by 2 ranks"):
        make_engine(RunConfig(scorer=scorer), world.train, ranks=ranks)


def test_a_user_who_has_everything_counts_too() -> None:
    train = Interactions.from_pairs(["ann", "ann", "bob"], ["x", "y", "x"])
    model = Recommender(scorer="popularity").fit(train).model_
    assert isinstance(model, Popularity)
    assert model.counts.tolist() == [2, 1]
    empty = Interactions.from_pairs([], [], user_ids=IdMap.dense(2, "user"), item_ids=IdMap.dense(3, "item"))
    with pytest.raises(ConfigError, match="nothing to learn from"):
        Recommender(scorer="popularity").fit(empty)


@pytest.mark.parametrize("wrong", ["weights", "indptr", "items", "ids", "rows"])
def test_a_saved_ease_that_does_not_fit_is_named(world: Split, tmp_path: Path, wrong: str) -> None:
    Recommender(scorer="ease").fit(world).save(tmp_path)
    tensors = dict(artifacts.read_tensors(tmp_path / artifacts.MODEL)[0])
    if wrong == "ids":
        tensors["items"] = np.full_like(tensors["items"], world.train.n_items)
    elif wrong == "rows":
        tensors["indptr"] = tensors["indptr"][::-1].copy()
    elif wrong == "items":
        del tensors["items"]
    else:
        tensors[wrong] = tensors[wrong][1:]
    run = artifacts.read_run(tmp_path)
    run["files"][artifacts.MODEL] = artifacts.write_tensors(tmp_path / artifacts.MODEL, tensors)
    artifacts.write_run(tmp_path, run)
    with pytest.raises(ArtifactError, match=r"model\.safetensors does not fit its run: "):
        Recommender.load(tmp_path)


def test_the_command_line(tmp_path: Path, world: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{user},{item}" for user, item in zip(world.train.users, world.train.items, strict=True)]
    Path("clicks.csv").write_text("\n".join(["user_id,item_id", *rows]), encoding="utf-8")

    def call(*args: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*args, "--json"])
        assert result.exit_code == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    for scorer in SCORERS:
        run = call("train", "clicks.csv", "--scorer", scorer, "--dim", "8")
        assert run["run"] == f"runs/clicks-{scorer}-seed0"
        assert run["metrics"]["ndcg@10"] > (0.05 if scorer == "popularity" else 0.1)
        assert len(call("recommend", run["run"], "--user", "3", "-k", "4")["recommendations"]) == 4
    assert len(call("similar", "runs/clicks-als-seed0", "--item", "3", "-k", "4")["similar"]) == 4
    against = call("evaluate", "runs/clicks-ease-seed0", "--against", "runs/clicks-popularity-seed0")
    assert against["metrics"]["ndcg@10"] == train_run("clicks.csv", RunConfig(scorer="ease"))["metrics"]["ndcg@10"]
