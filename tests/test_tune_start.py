"""Searches whose trials start from a trained model, `--init RUN`: what they keep when it changes, and what they say of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from srns import artifacts
from srns.cli import app
from srns.errors import ArtifactError, ConfigError
from srns.experiments.store import Store
from srns.presets import make_config
from srns.runs import train_run
from srns.tuning import Asked, plans, trial, tune
from srns.tuning.space import Recipe, default_space

pytest.importorskip("optuna", reason="Optuna is not installed")
QUICK: dict[str, Any] = {"epochs": 2, "dim": 8, "sampler": "uniform", "engine": "plain", "threads": 1, "metric": "ndcg@10"}
GENTLE, HARMFUL = "1e-9", "0.7"  # learning rates: one that stays where it starts, one that loses what was known
VARY = {"tpe": ["l2=0.001:1:log"], "paper": ["l2=0,0.001", f"learning_rate={GENTLE}"]}


def trained(clicks: str, folder: Path, seed: int = 0) -> dict[str, Any]:
    """A run that has learnt something, in place of what the folder held."""
    shutil.rmtree(folder, ignore_errors=True)
    return train_run(clicks, make_config({**QUICK, "epochs": 10, "learning_rate": 0.05, "seed": seed}), out=folder)


def asked(clicks: str, folder: Path, search: str = "tpe", rate: str = GENTLE, **more: Any) -> Asked:
    values = {**QUICK, "init": str(folder / "run"), **({"learning_rate": rate} if search == "tpe" else {})}
    vary = [each.replace(GENTLE, rate) for each in VARY[search]]
    asked = Asked(clicks, values, vary=vary, search=search, out=folder / "search", seeds=0, plot=False)
    return replace(asked, trials=3 if search == "tpe" else None, **more)


def found_by(run: dict[str, Any]) -> float:
    """What validation found of the model that the run kept."""
    value: float = run["history"][run["best_epoch"] - 1]["valid"]["ndcg@10"]
    return value


@pytest.mark.parametrize("search", VARY)
def test_trials_of_another_start_are_not_taken_for_those_of_this(clicks: str, tmp_path: Path, search: str) -> None:
    ask = asked(clicks, tmp_path, search)
    first = trained(clicks, tmp_path / "run")
    found = tune(ask)
    assert found["best"]["value"] == pytest.approx(found_by(first)), "steps of no length stay where they start"
    second = trained(clicks, tmp_path / "run", seed=1)
    assert abs(found_by(second) - found_by(first)) > 1e-3
    before = sorted(path.name for path in (tmp_path / "search").rglob("*"))
    with pytest.raises(ConfigError, match=r"a search that started from another model than .*run holds now; .* --out"):
        tune(ask)
    assert sorted(path.name for path in (tmp_path / "search").rglob("*")) == before
    assert tune(replace(ask, out=tmp_path / "other"))["best"]["value"] == pytest.approx(found_by(second))

    trained(clicks, tmp_path / "run")  # the same seed: the same model again
    assert tune(ask)["trials"] == found["trials"], "kept, to the second that they took"


def test_kept_trials_of_the_papers_search_are_named_by_what_they_start_from(clicks: str, tmp_path: Path) -> None:
    ask = asked(clicks, tmp_path, "paper")
    values, names = [], []
    for seed in (0, 1, 0):
        run = trained(clicks, tmp_path / "run", seed)
        values.append((tune(ask)["best"]["value"], pytest.approx(found_by(run))))
        names.append({path.name for path in (tmp_path / "search" / "results").glob("*.json")})
        (tmp_path / "search" / "search.json").unlink()  # which would refuse another start
    assert all(value == expected for value, expected in values)
    assert [len(each) for each in names] == [2, 4, 4]
    assert names[0] < names[1] == names[2]


@pytest.mark.parametrize("search", VARY)
def test_a_search_made_before_starts_were_noted_is_not_gone_on_with(clicks: str, tmp_path: Path, search: str) -> None:
    trained(clicks, tmp_path / "run")
    ask = asked(clicks, tmp_path, search)
    tune(ask)
    path = tmp_path / "search" / "search.json"
    noted = json.loads(path.read_text())
    assert noted.pop("start")
    path.write_text(json.dumps(noted))
    with pytest.raises(ConfigError, match=r"search does not say which model its trials started from; .*--out"):
        tune(ask)


def test_what_cannot_be_started_from_is_refused_before_anything_is_kept(clicks: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run is not a run: there is no such folder"):
        tune(asked(clicks, tmp_path))
    run = trained(clicks, tmp_path / "run")
    artifacts.write_run(tmp_path / "run", {**run, "status": "running"})
    with pytest.raises(ConfigError, match="run holds an unfinished run; finish it first"):
        tune(asked(clicks, tmp_path))
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize("search", VARY)
def test_a_start_that_changes_meanwhile_ends_the_search(
    clicks: str, tmp_path: Path, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(clicks, tmp_path / "run")
    config = make_config({**QUICK, "init": str(tmp_path / "run")})
    start = trial.start_of(config)
    plan = {"tpe": plans.TPE, "paper": plans.Paper}[search]
    run = plan.run

    def changing(self: Any, *rest: Any) -> Any:
        found = run(self, *rest)
        trained(clicks, tmp_path / "run", seed=1)
        return found

    monkeypatch.setattr(plan, "run", changing)
    with pytest.raises(ConfigError, match="run holds another model than when the search began"):
        tune(asked(clicks, tmp_path, search, seeds=1))
    assert not list((tmp_path / "search").glob("*-seed*")), "the winner was not trained from it"
    with pytest.raises(ConfigError, match="run holds another model than when the search began"):
        trial.train_once(clicks, config.model_dump(mode="json"), start=start)


@pytest.mark.parametrize("search", VARY)
def test_a_trial_that_does_not_beat_its_start_counts_for_its_start(clicks: str, tmp_path: Path, search: str) -> None:
    begun = trained(clicks, tmp_path / "run")
    ask = asked(clicks, tmp_path, search, HARMFUL, seeds=1)
    found = tune(ask)
    best = found["best"]
    again = train_run(clicks, make_config(found["config"]), out=tmp_path / "again")
    assert again["best_epoch"] == 0, "training keeps the start, since nothing was better"
    assert max(each["valid"]["ndcg@10"] for each in again["history"]) < again["start"]["ndcg@10"]
    assert (best["value"], best["best_epoch"]) == (again["start"]["ndcg@10"], 0)
    assert best["value"] == pytest.approx(found_by(begun))
    assert found["start"] == {"run": str(tmp_path / "run"), "value": best["value"], "beaten": False}
    said = CliRunner().invoke(app, words(ask))
    assert said.exit_code == 0, said.output
    whose = "no setting" if search == "tpe" else "no setting of uniform"
    measured = f"ndcg@10 {begun['metrics']['ndcg@10']:.4f} on test"
    told = f"{whose} was better on validation than {tmp_path / 'run'}, which they started from; {measured}: stay with it"
    assert "".join(told.split()) in "".join(said.stdout.split())
    assert found["command"] is None
    assert "The winner" not in said.stdout
    assert "srns train" not in said.stdout
    assert "".join(f"What stays: {tmp_path / 'run'}".split()) in "".join(said.stdout.split())


def words(ask: Asked) -> list[str]:
    """The command that asks for the same."""
    flags = {name.replace("_", "-"): value for name, value in ask.values.items()} | {"search": ask.search, "out": ask.out}
    flags |= {} if ask.trials is None else {"trials": ask.trials}
    fixed = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    return ["tune", ask.data, *fixed, *(word for each in ask.vary for word in ("--vary", each)), "--no-plot"]


def test_a_setting_that_beats_the_start_is_preferred_to_those_that_do_not(clicks: str, tmp_path: Path) -> None:
    config = make_config({**QUICK, "epochs": 1, "learning_rate": 0.001})
    begun = train_run(clicks, config, out=tmp_path / "run")  # has hardly learnt anything
    values = {**QUICK, "epochs": 6, "init": str(tmp_path / "run")}
    vary = [f"learning_rate={GENTLE},0.05", "negatives=1,2"]
    found = tune(Asked(clicks, values, vary=vary, out=tmp_path / "search", trials=12, seeds=0, plot=False))
    gentle = [each for each in found["trials"] if each["params"]["learning_rate"] == float(GENTLE)]
    assert gentle
    assert all(each["value"] == pytest.approx(found_by(begun)) for each in gentle), "pruned ones too"
    assert found["best"]["params"]["learning_rate"] == 0.05
    assert found["start"] == {"run": str(tmp_path / "run"), "value": pytest.approx(found_by(begun)), "beaten": True}
    assert found["best"]["best_epoch"] > 0
    assert found["command"].startswith("srns train ")
    first: dict[str, Any] = {}
    for each in found["trials"]:
        same = first.setdefault(json.dumps(each["params"]), each)
        assert all(each[name] == same[name] for name in ("value", "best_epoch", "start"))
    assert len(first) < len(found["trials"]), "some were as others before them"


def test_without_a_start_there_is_none_to_beat(clicks: str, tmp_path: Path) -> None:
    found = tune(Asked(clicks, QUICK, vary=VARY["tpe"], out=tmp_path, trials=1, seeds=0, plot=False))
    assert found["start"] is None


@pytest.mark.parametrize("search", VARY)
def test_a_start_that_does_not_fit_is_refused_before_anything_is_kept(clicks: str, tmp_path: Path, search: str) -> None:
    trained(clicks, tmp_path / "run")
    ask = asked(clicks, tmp_path, search)
    for values, message in (
        ({"dim": 16}, r"run was trained with dim = 8, not 16; search with --dim 8$"),
        ({"min_user": 21}, r"run was trained on other data; .*; it had --min-user 0$"),
        ({"scorer": "mlp", "engine": "auto"}, r"run was trained with scorer = 'gmf', not 'mlp'; search with --scorer gmf$"),
    ):
        if values.get("scorer") == "mlp":
            pytest.importorskip("torch", reason="PyTorch is not installed")
        with pytest.raises(ConfigError, match=message):
            tune(replace(ask, values={**ask.values, **values}))
        assert not (tmp_path / "search").exists()
    assert tune(ask)["best"]["value"] is not None, "the mended command goes to the same folder"


def test_the_shape_of_a_start_is_not_searched(clicks: str, tmp_path: Path) -> None:
    space = default_space(Recipe({"init": "run", "scorer": "mlp"}), 0.1)
    assert not {"dim", "hidden_layers"} & set(space)
    with pytest.raises(ConfigError, match="'dim' is that of the run that trials start from"):
        tune(Asked(clicks, {"init": "run"}, vary=["dim=8,16"], out=tmp_path / "search"))
    paper = plans.Paper(Asked(clicks, {"init": "run", "scorer": "mlp"}, search="paper"))
    assert paper.search.mlp["hidden_layers"] == (1,)


@pytest.mark.parametrize("search", VARY)
def test_a_study_without_a_trial_that_could_begin_is_not_kept(clicks: str, tmp_path: Path, search: str) -> None:
    from srns.tuning import tpe

    def refusing(*_: Any, **__: Any) -> None:
        raise ConfigError("these do not go together")

    values = {name: value for name, value in QUICK.items() if name != "init"}
    ask = Asked(clicks, values, vary=VARY[search], search=search, out=tmp_path / "search", seeds=0, plot=False)
    ask = replace(ask, trials=2 if search == "tpe" else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tpe, "train_once", refusing)
        patch.setattr(Store, "complete", lambda *_: refusing())
        with pytest.raises(ConfigError, match="these do not go together"):
            tune(ask)
    assert not (tmp_path / "search" / "search.json").exists()
    assert not (tmp_path / "search" / "study.db").exists()
    found = tune(replace(ask, values={**values, "dim": 4}))  # mended, in the same folder
    assert {each["state"] for each in found["trials"]} == {"complete"}
