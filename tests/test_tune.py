"""`srns tune`: real searches on little data, what they find, keep, say and refuse."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from srns import artifacts
from srns.cli import app
from srns.config import RunConfig
from srns.errors import ConfigError, SrnsError
from srns.locks import owned
from srns.options import train_command
from srns.presets import make_config
from srns.runs import train_run
from srns.simulation import simulate
from srns.splits import make_split
from srns.tuning import Asked, tune, tuner
from srns.tuning.progress import SearchProgress
from srns.tuning.trial import Trial, searched_split

pytest.importorskip("optuna", reason="Optuna is not installed")
PATIENCE_SECONDS = 120.0
# Small and quick: a trial takes a few tenths of a second.
QUICK: dict[str, Any] = {"epochs": 4, "dim": 8, "sampler": "uniform", "engine": "plain", "threads": 1, "batch_size": 128}
FLAGS = [part for name, value in QUICK.items() for part in (f"--{name.replace('_', '-')}", str(value))]
VARY = ("learning_rate=0.0001:0.1:log", "l2=0.001:1:log", "negatives=1:8")


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ask(data: str, out: Path, **more: Any) -> Asked:
    return Asked(data, **{"values": QUICK, "vary": VARY, "out": out, "trials": 6, "seeds": 0, "plot": False, **more})


def tried(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each["state"], each["params"], each["value"], each["epochs"]) for each in answer["trials"]]


def test_a_search_finds_what_is_better_than_a_bad_default(clicks: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("learning_rate = 1e-6\n")
    vary = ["--vary", "learning_rate=1e-6:0.1:log", "--vary", "negatives=4,16"]
    flags = ["--config", bad, "--trials", "12", "--seeds", "2", "--out", tmp_path / "search", *FLAGS, "--epochs", "8"]
    result = call("tune", clicks, *vary, *flags, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["trials"]) == 12
    first, best = found["trials"][0], found["best"]
    assert (first["note"], first["params"]["learning_rate"]) == ("default", 1e-6)
    assert best["value"] == max(each["value"] for each in found["trials"] if each["state"] == "complete")
    assert best["value"] > 1.5 * first["value"]
    assert best["params"]["learning_rate"] > 1e-4
    assert next(iter(found["importance"])) == "learning_rate"
    assert sum(found["importance"].values()) == pytest.approx(1)

    test, metric = found["test"], found["metric"]
    assert test["seeds"] == [0, 1]
    assert test["difference"][metric]["low"] > 0, "the interval tells them apart"
    for name, means in ((test["winner"], test["metrics"]), ("default", test["default"])):
        runs = [artifacts.read_run(Path(folder)) for folder in test["runs"][name]]
        assert [run["config"]["seed"] for run in runs] == [0, 1]
        assert means[metric] == pytest.approx(np.mean([run["metrics"][metric] for run in runs]))
    assert artifacts.read_run(Path(test["runs"]["default"][0]))["config"]["learning_rate"] == 1e-6
    assert all(Path(path).stat().st_size > 1_000 for path in found["plots"])
    assert {Path(path).suffix for path in found["plots"]} == {".png", ".svg"}
    assert json.loads((tmp_path / "search" / "result.json").read_text())["command"] == found["command"]

    shown = call("tune", clicks, *vary, *flags)  # the same command again: nothing is left to do but to say it
    assert shown.exit_code == 0, shown.output
    assert "tuning paid off" in " ".join(shown.stdout.split())
    assert "What mattered" in shown.stdout
    assert found["command"] in shown.stdout
    assert "finished already" in shown.stderr
    # Both have what was fixed: a plain `srns train` is another recipe still, and may be better.
    default = found["default"]
    fixed = {"dim": 8, "sampler": "uniform", "learning_rate": 1e-6, "batch_size": 128, "epochs": 8}
    plain = {"dim": 128, "sampler": "srns", "learning_rate": 0.004, "batch_size": 0, "epochs": 20}
    assert (default["fixed"], default["instead"]) == (fixed, plain)
    assert default["plain"] == shlex.join(["srns", "train", clicks, "--engine", "plain", "--threads", "1"])
    said = "".join(shown.stdout.split())
    flags = "--dim 8 --sampler uniform --learning-rate 1e-06 --batch-size 128 --epochs 8"
    assert "".join(f"against the default recipe with {flags} (".split()) in said
    was = "the default recipe's dim 128, sampler srns, learning_rate 0.004, batch_size 0 and epochs 20"
    assert "".join(f"not {was}: compare with a plain `{default['plain']}` before you take it".split()) in said


def test_the_command_of_the_winner_trains_it(clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vary = ["learning_rate=0.01:0.05:log", "negatives=2:8", "l2=0.01:1:log"]
    found = tune(ask(clicks, tmp_path / "search", trials=4, seeds=1, vary=vary))
    words = shlex.split(found["command"])
    assert words[:3] == ["srns", "train", clicks]
    result = call(*words[1:], "--out", "again", "--json")
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    assert again["config"] == found["config"]
    assert again["metrics"] == {name: pytest.approx(found["test"]["metrics"][name]) for name in again["metrics"]}
    epochs = artifacts.read_run(tmp_path / "again")["history"]
    assert max(each["valid"][found["metric"]] for each in epochs) == pytest.approx(found["best"]["value"])


def test_the_same_seed_tries_the_same_also_where_trials_are_added_later(clicks: str, tmp_path: Path) -> None:
    whole = tune(ask(clicks, tmp_path / "whole"))
    few = tune(ask(clicks, tmp_path / "parts", trials=2))
    assert tried(few) == tried(whole)[:2]
    assert tried(tune(ask(clicks, tmp_path / "parts"))) == tried(whole)
    other = tune(ask(clicks, tmp_path / "other", values={**QUICK, "seed": 3}, trials=2))
    assert [each["params"] for each in other["trials"]] != [each["params"] for each in few["trials"]]


def test_a_search_ends_when_its_time_is_up_but_not_without_a_result(clicks: str, tmp_path: Path) -> None:
    found = tune(ask(clicks, tmp_path / "search", trials=None, minutes=0))
    assert [each["state"] for each in found["trials"]] == ["complete"]
    assert len(tune(ask(clicks, tmp_path / "search", trials=3))["trials"]) == 3


def test_nothing_of_the_search_depends_on_test_data(tmp_path: Path) -> None:
    """Two files that differ in their test part alone: in one it is what users like, in the other nonsense."""
    split = make_split(simulate(n_users=50, n_items=40, n_interactions=1_000, seed=2).interactions)
    assert split.valid is not None
    assert split.test is not None
    parts = {"train": split.train, "val": split.valid, "test": split.test}
    pairs = {name: np.stack([part.users, part.items], axis=1) for name, part in parts.items()}
    nonsense = pairs["test"].copy()
    nonsense[:, 1] = 39 - nonsense[:, 1]
    answers = []
    for name, test in (("true", pairs["test"]), ("poisoned", nonsense)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "world.npz", **{**pairs, "test": test})
        data = str(tmp_path / name / "world.npz")
        assert searched_split(data, RunConfig()).test is None
        answers.append(tune(ask(data, tmp_path / name / "search", trials=5, seeds=1)))
    one, other = answers
    assert tried(one) == tried(other)
    assert one["importance"] == other["importance"]
    assert one["config"] == other["config"]
    assert one["test"]["metrics"] != other["test"]["metrics"], "the poison works"


def test_noise_that_comes_from_test_data_is_refused(clicks: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would look at test data"):
        tune(ask(clicks, tmp_path, values={"noise": 1.0}, vary=()))


def test_data_without_validation_are_refused(clicks: str, tmp_path: Path) -> None:
    result = call("tune", clicks, "--split", "none", "--out", tmp_path / "search")
    assert result.exit_code == 2
    assert "no validation part to choose by" in result.stderr
    assert not (tmp_path / "search").exists()


def test_trials_that_diverge_fail_and_the_search_goes_on(clicks: str, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        found = tune(ask(clicks, tmp_path / "some", vary=["learning_rate=0.01,1e38", "negatives=1:8"], trials=8))
        failed = [each for each in found["trials"] if each["state"] == "failed"]
        assert failed
        assert all(each["params"]["learning_rate"] == 1e38 for each in failed)
        assert "not finite" in failed[0]["note"]
        assert found["best"]["params"]["learning_rate"] == 0.01
        with pytest.raises(SrnsError, match=r"3 of 3 failed; the first: epoch 1: .*parameters not finite; lower learning_rate"):
            tune(ask(clicks, tmp_path / "all", vary=["learning_rate=1e37,1e38", "negatives=1:8"], trials=3))


def test_settings_are_not_trained_twice(clicks: str, tmp_path: Path) -> None:
    found = tune(ask(clicks, tmp_path / "search", vary=["negatives=1,2"], trials=6))
    by_setting: dict[int, set[Any]] = {}
    for each in found["trials"]:
        by_setting.setdefault(each["params"]["negatives"], set()).add(each["value"])
    assert all(len(values) == 1 for values in by_setting.values())
    assert sum(each["note"].startswith("as trial") for each in found["trials"]) == 6 - len(by_setting)


def test_one_folder_holds_one_search(clicks: str, tmp_path: Path) -> None:
    tune(ask(clicks, tmp_path / "search", trials=1))
    for change, message in (
        ({"values": {**QUICK, "dim": 4}}, "holds a search with config: dim = 8, not 4"),
        ({"vary": ["l2=0.1:1"]}, "holds a search with space: "),
        ({"search": "paper", "vary": (), "trials": None}, 'holds a search with search = "tpe", not "paper"'),
    ):
        with pytest.raises(ConfigError, match=message):
            tune(ask(clicks, tmp_path / "search", **change))
    # Threads change nothing that is found.
    tune(ask(clicks, tmp_path / "search", trials=2, values={**QUICK, "threads": 2}))
    with owned(tmp_path / "search"), pytest.raises(ConfigError, match="in use by another srns command"):
        tune(ask(clicks, tmp_path / "search"))


def test_samplers_can_be_searched(clicks: str, tmp_path: Path) -> None:
    values = {name: value for name, value in QUICK.items() if name != "sampler"}
    found = tune(ask(clicks, tmp_path, values=values, vary=["sampler=srns,uniform,dns", "l2=0.01:1:log"], trials=5))
    assert len({each["params"]["sampler"] for each in found["trials"]}) > 1
    assert {each["state"] for each in found["trials"]} <= {"complete", "pruned"}


def test_the_papers_search_runs_its_stages_and_keeps_them(clicks: str, tmp_path: Path) -> None:
    values = {"epochs": 2, "dim": 4, "engine": "plain", "l2": 0.001}
    vary = ["learning_rate=0.0005,0.01", "temperature=1", "memory_size=2,4", "expansion_ratio=1,2", "variance_weight=5"]
    asked = Asked(clicks, values, vary=[*vary, "warmup_epochs=1"], search="paper", out=tmp_path / "search", plot=False)
    found = tune(asked)
    trials = found["trials"]
    assert [each["note"] for each in trials] == ["uniform"] * 2 + ["tau, S1, S2/S1"] * 4 + ["alpha, T0"] + [trials[-1]["note"]]
    assert trials[-1]["note"].startswith("alpha, T0 with S1 ")
    first = max(trials[:2], key=lambda each: each["value"])
    assert {each["params"]["learning_rate"] for each in trials[2:]} == {first["params"]["learning_rate"]}
    assert found["best"]["value"] == max(each["value"] for each in trials[2:])
    assert found["metric"] == "ndcg@1"
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "search" / "results").glob("*.json")}
    assert len(kept) == 8
    winner = artifacts.read_run(Path(found["test"]["runs"][found["test"]["winner"]][0]))["config"]
    assert (winner["loss"], winner["negatives"], winner["l2"]) == ("bpr", 1, 0.001)
    default = artifacts.read_run(Path(found["test"]["runs"]["default"][0]))["config"]
    assert (default["loss"], default["epochs"]) == ("softmax", 2), "what `srns train` does with the same flags"
    again = tune(asked)
    assert tried(again) == tried(found)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "search" / "results").glob("*.json")} == kept
    fixed = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    varied = [word for each in asked.vary for word in ("--vary", each)]
    shown = call("tune", clicks, "--search", "paper", "--no-plot", "--out", tmp_path / "search", *fixed, *varied)
    assert shown.exit_code == 0, shown.output
    assert "The best of 8 trials" in shown.stdout


def test_the_papers_search_says_what_mattered_if_optuna_is_there(
    clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ["--epochs", "2", "--dim", "4", "--engine", "plain", "--seeds", "0", "--sampler", "uniform"]
    vary = ["--vary", "learning_rate=1e-9,0.01,0.02,0.03", "--vary", "l2=0,0.001"]
    search = ["tune", clicks, "--search", "paper", "--out", tmp_path, *values, *vary]
    found = json.loads(call(*search, "--json").stdout)
    assert sum(found["importance"].values()) == pytest.approx(1)
    assert found["importance"]["learning_rate"] > 0.5, "one of its values learns nothing"
    assert (tmp_path / "search.svg").read_text().count("share of importance in its stage") == 1
    assert "shares in being among the best quarter of a stage" in " ".join(call(*search).stdout.split())
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else real(name, *rest))
    assert json.loads(call(*search, "--json").stdout)["importance"] == {}


def test_an_adversarial_search_starts_as_the_paper_if_told_so(clicks: str, tmp_path: Path) -> None:
    config = make_config({**QUICK, "dim": 4, "epochs": 10, "learning_rate": 0.05, "metric": "ndcg@1"})
    start = train_run(clicks, config, out=tmp_path / "uniform")
    vary = ["learning_rate=1e-9", "l2=0", "temperature=1", "candidates=4"]
    asked = Asked(clicks, {"sampler": "rns_as", "epochs": 1, "dim": 4}, vary=vary, search="paper", seeds=0, plot=False)
    said, found = [], []
    for name, more in {"without": {}, "with": {"init": str(tmp_path / "uniform")}}.items():
        terminal = Console(file=io.StringIO(), width=200)
        found.append(tune(replace(asked, values={**asked.values, **more}, out=tmp_path / name), terminal))
        assert isinstance(terminal.file, io.StringIO)
        said.append("the paper starts rns_as from a model trained with uniform negatives" in terminal.file.getvalue())
    assert said == [True, False]
    first = start["history"][start["best_epoch"] - 1]["valid"]["ndcg@1"]
    assert found[1]["best"]["value"] == pytest.approx(first), "steps of no length stay where they start"
    assert found[1]["best"]["value"] > found[0]["best"]["value"]


def test_progress_on_a_terminal_says_how_far_it_is(clicks: str, tmp_path: Path) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    tune(ask(clicks, tmp_path, trials=3), terminal)
    assert isinstance(terminal.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.file.getvalue())
    assert "searching" in shown
    assert re.search(r"3 of 3 trials · best ndcg@10 0\.\d{4} \(trial \d\)", shown)


def test_progress_counts_what_runs_and_what_was_given_up() -> None:
    """The display is asked for a picture by hand: its own come ten times a second, and trials may be quicker."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    states = {"complete": 0.25, "running": None, "pruned": 0.1}
    trials = [Trial(number, state, {}, value=value) for number, (state, value) in enumerate(states.items())]
    with SearchProgress(terminal, "ndcg@10", 5) as shown:
        shown.show(trials)
        shown.bar.refresh()
    assert isinstance(terminal.file, io.StringIO)
    assert "2 of 5 trials · best ndcg@10 0.2500 (trial 0) · 1 running · 1 pruned" in terminal.file.getvalue()


def test_without_matplotlib_all_but_the_plot_is_there(clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else real(name, *rest))
    shown = call("tune", clicks, *FLAGS, "--vary", VARY[0], "--trials", "2", "--seeds", "0", "--out", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "no plot: matplotlib is missing (pip install 'srns[report]')" in " ".join(shown.stdout.split())
    assert not list(tmp_path.glob("*.png"))


def test_without_optuna_it_says_what_to_install(clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "srns.tuning.tpe", raising=False)
    monkeypatch.delattr("srns.tuning.tpe", raising=False)
    monkeypatch.delitem(sys.modules, "srns.tuning.importance", raising=False)
    result = call("tune", clicks)
    assert result.exit_code == 2
    assert "pip install 'srns[tune]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_default_that_wins_is_said_to_have_won(clicks: str, tmp_path: Path) -> None:
    """Everything else in the space is hopeless."""
    values = {**QUICK, "learning_rate": 0.02}
    recipe = {name: value for name, value in values.items() if name != "learning_rate"}
    file = tmp_path / "good.toml"
    file.write_text("learning_rate = 0.02\n")
    found = tune(Asked(clicks, recipe, None, file, ["learning_rate=0.02,1e-9"], out=tmp_path / "search", trials=3))
    assert found["best"]["is_default"]
    assert found["test"]["winner"] == "default"
    assert "difference" not in found["test"]
    run = train_run(clicks, make_config(values), out=tmp_path / "run")
    assert found["test"]["metrics"]["ndcg@10"] == pytest.approx(run["metrics"]["ndcg@10"])


def test_the_default_recipe_is_called_so_only_as_it_is(clicks: str, tmp_path: Path) -> None:
    """What the winner is compared with, as the answer has it and as it is said."""

    def default(values: dict[str, Any], preset: str | None = None) -> dict[str, Any]:
        asked = Asked(clicks, values, preset)
        return tuner._recipe(asked, asked.recipe().config())

    plain = default({"threads": 1, "seed": 3, "min_user": 5})
    assert (plain["fixed"], plain["flags"]) == ({}, "")
    assert plain["plain"] == train_command(clicks, RunConfig(threads=1, seed=3, min_user=5))
    assert default({"init": "run"})["instead"] == {"init": None}
    assert default({"scorer": "ease"})["flags"] == "--scorer ease"
    assert default({"epochs": 5}, "paper")["flags"] == "--preset paper --epochs 5"
    assert default({"candidates": 32, "sampler": "dns"})["flags"] == "--sampler dns --candidates 32"
    assert default({"sampler": "advir"})["flags"] == "--sampler advir --perturbation 0.01"
