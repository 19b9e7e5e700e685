"""ENMF: its loss over all pairs in the efficient form against the sum over every pair, and how a run with it behaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from srns import rng
from srns.config import RunConfig
from srns.engines import make_engine
from srns.engines.enmf import EnmfEngine
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.presets import make_config
from srns.recommender import Recommender
from srns.samplers import ENMF
from srns.splits import Split
from srns.trainer import Callback, EpochRecord, Trainer

SMALL: dict[str, Any] = {"sampler": "enmf", "dim": 6, "learn_beta": True, "batch_size": 32, "learning_rate": 0.01, "l2": 0.1}
Tensors = dict[str, Any]


def engine(train: Interactions, **fields: Any) -> EnmfEngine:
    made = make_engine(RunConfig(**(SMALL | {"init_std": 0.5} | fields)), train)
    assert isinstance(made, EnmfEngine)
    return made


def brute_force(values: Tensors, train: Interactions, users: Any, c: float, kept: Any = 1.0) -> float:
    """The weighted squared error of every pair of some users, one by one, in float64."""
    total = 0.0
    for row, user in enumerate(users):
        p = values["users"][user] * (kept if np.isscalar(kept) else kept[row])
        for item in range(train.n_items):
            r = float(np.sum(values["beta"] * p * values["items"][item]))
            total += (1 - r) ** 2 if item in train.items_of(user) else c * r**2
    return total


def ridge(values: Tensors, train: Interactions, users: Any, l2: float) -> float:
    """Each observed pair counts the squares of both of its rows."""
    squares = {name: np.sum(values[name] ** 2, axis=1) for name in ("users", "items")}
    return sum(l2 / 2 * (squares["users"][user] + squares["items"][item]) for user in users for item in train.items_of(user))


def as_float64(model: Any) -> Tensors:
    return {name: tensor.astype(np.float64) for name, tensor in model.tensors().items()}


@pytest.mark.parametrize("c", [0.05, 0.3, 1.0])
def test_the_loss_is_that_of_all_pairs(train: Interactions, c: float) -> None:
    some = engine(train, negative_weight=c)
    users = np.array([7, 3, 50, 119])
    loss, _ = some.loss_and_gradient(users)
    assert loss == pytest.approx(brute_force(as_float64(some.model), train, users, c), rel=1e-5)


@pytest.mark.parametrize("dropout", [False, True])
def test_the_gradient_is_that_of_finite_differences(train: Interactions, dropout: bool) -> None:
    some = engine(train, negative_weight=0.2)
    users = np.array([7, 3, 50])
    draw = np.random.default_rng(0)
    kept = np.where(draw.random((3, 6)) < 0.4, 0, 1 / 0.6).astype(np.float32) if dropout else None
    _, gradient = some.loss_and_gradient(users, kept)
    values = as_float64(some.model)

    def objective() -> float:
        factor = 1.0 if kept is None else kept.astype(np.float64)
        return brute_force(values, train, users, 0.2, factor) + ridge(values, train, users, 0.1)

    for name, rows in {"users": [7, 3, 50, 8], "items": [0, 1, int(train.items_of(7)[0])], "beta": [None]}.items():
        for row in rows:
            place = (int(draw.integers(6)),) if row is None else (row, int(draw.integers(6)))
            before, step = values[name][place], 1e-4
            ends = []
            for sign in (1, -1):
                values[name][place] = before + sign * step
                ends.append(objective())
            values[name][place] = before
            assert gradient[name][place] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3, abs=1e-3), (name, place)


def test_batches_of_users_add_up_to_all(train: Interactions) -> None:
    some = engine(train)
    users = np.arange(train.n_users)
    loss, gradient = some.loss_and_gradient(users)
    parts = [some.loss_and_gradient(part) for part in np.array_split(np.random.default_rng(1).permutation(users), 5)]
    assert loss == pytest.approx(sum(part[0] for part in parts), rel=1e-5)
    for name, whole in gradient.items():
        np.testing.assert_allclose(sum(part[1][name] for part in parts), whole, rtol=1e-4, atol=1e-3)


def test_beta_is_learnt_only_if_asked_for(train: Interactions) -> None:
    learnt, left = engine(train), engine(train, learn_beta=False)
    start = learnt.model.beta.copy()
    for each in (learnt, left):
        each.run_epoch(0)
    assert np.all(learnt.model.beta != start)
    np.testing.assert_array_equal(left.model.beta, 1)


def test_dropout_leaves_out_its_share_and_keeps_the_mean(train: Interactions) -> None:
    some = engine(train, dropout=0.3, dim=64)
    users = np.arange(120)
    kept = some._kept(rng.stream_key(0, "dropout", 5), users)
    assert kept is not None
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.7)}
    assert stats.binomtest(int(np.sum(kept == 0)), kept.size, 0.3).pvalue > 1e-4
    order = np.random.default_rng(0).permutation(120)  # what a user keeps does not depend on the batch
    np.testing.assert_array_equal(some._kept(rng.stream_key(0, "dropout", 5), users[order]), kept[order])
    assert np.any(some._kept(rng.stream_key(0, "dropout", 6), users) != kept)
    assert engine(train, dropout=0)._kept(rng.stream_key(0, "dropout"), users) is None


def test_training_lowers_the_loss_of_all_pairs(world: Split) -> None:
    some = engine(world.train, init_std=0.01, dropout=0, epochs=30)  # the last of which hardly move
    users = np.arange(world.train.n_users)
    losses = [some.run_epoch(epoch) for epoch in range(30)]
    found = brute_force(as_float64(some.model), world.train, users, 0.1) / len(world.train)
    assert found < 0.8 * losses[0]
    assert losses[-1] == pytest.approx(found, rel=1e-3)


class FirstEpochs(Callback):
    """Ends a run after its second epoch, and leaves the checkpoint of that."""

    def on_epoch(self, record: EpochRecord) -> bool:
        return record.epoch == 2


def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(world: Split, tmp_path: Path) -> None:
    config = RunConfig(**SMALL, dropout=0.2, epochs=5)
    whole = Trainer(config, world).run()
    Trainer(config, world, checkpoint=tmp_path / "checkpoint", callbacks=[FirstEpochs()]).run()
    resumed = Trainer(config, world, checkpoint=tmp_path / "checkpoint").run(resume=True)
    assert [(r.loss, r.valid) for r in resumed.history] == [(r.loss, r.valid) for r in whole.history]
    for name, tensor in whole.model.tensors().items():
        np.testing.assert_array_equal(resumed.model.tensors()[name], tensor)
    other = Trainer(config.model_copy(update={"seed": 1}), world).run()
    assert np.any(other.model.tensors()["items"] != whole.model.tensors()["items"])


def test_a_recommender_and_its_file(world: Split, tmp_path: Path) -> None:
    fitted = Recommender(**SMALL, epochs=3).fit(world)
    fitted.save(tmp_path)
    user = world.train.user_ids.label(3)
    for one, other in zip(fitted.recommend(user), Recommender.load(tmp_path).recommend(user), strict=True):
        np.testing.assert_array_equal(one, other)


def test_users_without_and_with_all_items_are_no_obstacle() -> None:
    train = Interactions.from_pairs(["ann", "ann", "bob", "cid"], ["x", "y", "x", "y"])
    some = engine(train.select(np.array([True, True, True, False])), epochs=2)
    assert np.isfinite(some.run_epoch(0))
    assert np.isfinite(some.run_epoch(1))


def test_what_it_cannot_do_is_refused(world: Split) -> None:
    with pytest.raises(ConfigError, match="draws no negatives"):
        ENMF().start(world.train, seed=0)
    for fields in ({"scorer": "mlp"}, {"engine": "fused"}, {"engine": "torch"}, {"device": "cuda"}):
        (field,) = fields
        with pytest.raises(ConfigError, match=f"{field} '{fields[field]}' cannot be trained with sampler 'enmf'"):
            make_engine(RunConfig(**(SMALL | fields)), world.train)
    ranks: Any = SimpleNamespace(size=3, rank=0)
    with pytest.raises(ConfigError, match="for one process, not for 3 ranks"):
        make_engine(RunConfig(**SMALL), world.train, ranks=ranks)
    with pytest.raises(ConfigError, match="no module of your own"):
        Recommender(scorer=lambda train: None, sampler="enmf").fit(world)


def test_the_loss_field_is_said_to_be_without_effect(world: Split) -> None:
    notes = Trainer(make_config({"sampler": "enmf", "loss": "bpr"}), world).notes
    assert "without effect: loss, since sampler 'enmf' draws no negatives" in notes
    assert not any("without effect" in note for note in Trainer(make_config(SMALL), world).notes)


def test_the_preset_has_the_values_of_the_paper() -> None:
    config = make_config({"sampler": "enmf"}, preset="paper-ml-1m")
    sampler = config.make_sampler()
    assert isinstance(sampler, ENMF)
    assert (config.learning_rate, config.l2, sampler.negative_weight) == (0.01, 1e-4, 0.3)
