"""Training that starts from a trained model takes over its parameters, and refuses what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srns.config import RunConfig
from srns.errors import ArtifactError, ConfigError
from srns.evaluation import evaluate
from srns.presets import make_config
from srns.recommender import Recommender
from srns.runs import train_run
from srns.simulation import simulate
from srns.splits import Split, make_split
from srns.trainer import Trainer

BASE: dict[str, Any] = {"dim": 6, "epochs": 2, "loss": "bpr", "learn_beta": True, "negatives": 1}
# With so small a step size what a run ends with is what it started from.
STILL = 1e-12


@pytest.fixture(scope="module")
def trained(world: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starts") / "run"
    Recommender(sampler="uniform", engine="plain", **BASE).fit(world).save(folder)
    return folder


def tensors(folder: Path) -> Any:
    return Recommender.load(folder).model_.tensors()


@pytest.mark.parametrize(
    ("engine", "sampler"),
    [("fused", "uniform"), ("fused", "srns"), ("plain", "srns"), ("plain", "irgan"), ("torch", "uniform"), ("torch", "rns_as")],
)
def test_every_engine_starts_from_the_parameters(engine: str, sampler: str, trained: Path, world: Split) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    config = RunConfig(**BASE, sampler=sampler, engine=engine, init=str(trained), learning_rate=STILL)
    trainer = Trainer(config, world)
    model = trainer.run().model
    assert trainer.engine.name == engine
    for name, expected in tensors(trained).items():
        np.testing.assert_allclose(model.tensors()[name], expected, atol=1e-7, err_msg=name)


def test_engines_that_start_alike_go_on_alike(trained: Path, world: Split) -> None:
    """The fused engine with SRNS against the plain one, whose catching up and history must begin at the given parameters."""
    runs = [
        Trainer(RunConfig(**{**BASE, "epochs": 4}, engine=engine, init=str(trained), batch_size=64), world).run()
        for engine in ("fused", "plain")
    ]
    losses = np.array([[record.loss for record in run.history] for run in runs])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    fresh = Trainer(RunConfig(**{**BASE, "epochs": 1}, engine="plain", batch_size=64), world).run()
    assert losses[0, 0] < fresh.history[0].loss


def test_the_start_is_the_result_where_nothing_is_better(trained: Path, world: Split, tmp_path: Path) -> None:
    """Steps so large that they destroy the model: the best epoch is none, also after a resume."""
    fields = {
        **BASE,
        "sampler": "uniform",
        "engine": "plain",
        "schedule": "constant",
        "learning_rate": 3.0,
        "init": str(trained),
    }
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(RunConfig(**{**fields, "epochs": 1}), world, checkpoint=checkpoint).run()
    training = Trainer(RunConfig(**fields), world, checkpoint=checkpoint).run(resume=True)
    loaded = Recommender.load(trained)
    assert len(training.history) == 2
    assert training.best_epoch == 0
    assert training.start == dict(evaluate(loaded.model_, world, on="valid"))
    assert max(record.valid["ndcg@10"] for record in training.history) < training.start["ndcg@10"]
    for name, expected in loaded.model_.tensors().items():
        np.testing.assert_array_equal(training.model.tensors()[name], expected, err_msg=name)


def test_mlp_starts_from_an_mlp(world: Split, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    fields = {**BASE, "learn_beta": False, "scorer": "mlp", "sampler": "uniform"}
    first = Recommender(**fields).fit(world)
    first.save(tmp_path / "mlp")
    second = Recommender(**fields, init=str(tmp_path / "mlp"), learning_rate=STILL).fit(world)
    for name, expected in first.model_.tensors().items():
        np.testing.assert_allclose(second.model_.tensors()[name], expected, atol=1e-6, err_msg=name)


def test_a_model_in_memory_is_a_start(trained: Path, world: Split) -> None:
    loaded = Recommender.load(trained)
    still = {**BASE, "sampler": "uniform", "engine": "plain", "learning_rate": STILL}
    for init in (loaded, loaded.model_):
        found = Recommender(**still).fit(world, init=init).model_
        np.testing.assert_allclose(found.tensors()["items"], loaded.model_.tensors()["items"], atol=1e-7)
    with pytest.raises(ConfigError, match="expected one of them"):
        Recommender(**still, init=str(trained)).fit(world, init=loaded)
    with pytest.raises(ConfigError, match=r"'users' of shape \(120, 6\); this run expects \(120, 7\)"):
        Recommender(**{**still, "dim": 7}).fit(world, init=loaded)


def test_the_run_records_its_start_and_resumes_without_it(trained: Path, world: Split, tmp_path: Path) -> None:
    config = RunConfig(**{**BASE, "epochs": 4}, sampler="rns_as", schedule="constant", init=str(trained))
    whole = Trainer(config, world).run().model
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(config.model_copy(update={"epochs": 2}), world, checkpoint=checkpoint).run()
    (trained / "model.safetensors").rename(trained / "aside")
    try:
        resumed = Trainer(config, world, checkpoint=checkpoint).run(resume=True).model
    finally:
        (trained / "aside").rename(trained / "model.safetensors")
    for name, expected in whole.tensors().items():
        np.testing.assert_array_equal(resumed.tensors()[name], expected, err_msg=name)


def test_a_run_from_files_starts_from_a_run_from_files(tmp_path: Path) -> None:
    lines = "".join(f"u{user},i{(user * 7 + step * step) % 40}\n" for user in range(30) for step in range(12))
    (tmp_path / "clicks.csv").write_text("user,item\n" + lines)
    fields = {**BASE, "sampler": "uniform", "engine": "plain"}
    train_run(tmp_path / "clicks.csv", make_config(fields), out=tmp_path / "first")
    again = train_run(
        tmp_path / "clicks.csv", make_config({**fields, "init": str(tmp_path / "first")}), out=tmp_path / "second"
    )
    assert again["config"]["init"] == str(tmp_path / "first")
    other = make_config({**fields, "init": str(tmp_path / "first"), "split_seed": 5, "split": "random"})
    with pytest.raises(ConfigError, match="was trained on other data"):
        train_run(tmp_path / "clicks.csv", other, out=tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_what_does_not_fit_is_refused(trained: Path, world: Split, tmp_path: Path) -> None:
    def start(split: Split = world, **fields: Any) -> None:
        Trainer(RunConfig(**{**BASE, "sampler": "uniform", "engine": "plain", "init": str(trained), **fields}), split).run()

    with pytest.raises(ConfigError, match=r"was trained with dim = 6, not 8"):
        start(dim=8)
    other = make_split(simulate(n_users=120, n_items=90, n_interactions=2_400, seed=4).interactions)
    with pytest.raises(ConfigError, match="was trained on other data"):
        start(other)
    with pytest.raises(ArtifactError, match="is not a run"):
        start(init=str(tmp_path))
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="was trained with scorer = 'gmf', not 'mlp'"):
        start(scorer="mlp", engine="torch")
    with pytest.raises(ConfigError, match="scorer 'lightgcn' cannot start from a run"):
        start(scorer="lightgcn", engine="torch", learn_beta=False)
