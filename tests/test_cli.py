"""The command line as its users meet it: what goes to standard output, what to standard error, and how it fails."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner, Result

import srns.demo
from srns import artifacts
from srns.cli import app
from srns.config import RunConfig
from srns.display import Progress, paired_table, plain_table
from srns.presets import PRESETS
from srns.runs import short_name
from srns.samplers import SRNS
from srns.scorers import GMF
from srns.simulation import simulate
from srns.trainer import COMPILING, EpochRecord, Training

COMMANDS = [
    "demo",
    "datasets",
    "look",
    "train",
    "evaluate",
    "info",
    "update",
    "tune",
    "recommend",
    "similar",
    "explain",
    "export",
    "serve",
    "report",
    "audit",
    "bench",
    "reproduce",
]
ODD_USER, ODD_ITEM = "[red]é", "[/x] [b]"  # what a terminal library could take for markup
Row = tuple[str, str, int, int]


def call(*args: str | Path) -> Result:
    """A command within this process."""
    return CliRunner().invoke(app, [str(arg) for arg in args])


def run(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own."""
    command = [sys.executable, "-m", "srns", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


def answer(result: Result | subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object on standard output of a command that succeeded."""
    assert (result.returncode if isinstance(result, subprocess.CompletedProcess) else result.exit_code) == 0, result.stderr
    assert result.stdout.count("\n") == 1
    value = json.loads(result.stdout, parse_constant=pytest.fail)
    assert isinstance(value, dict)
    return value


def failure(result: Result) -> str:
    """The message of a command that failed as commands should."""
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "item_id", "rating", "timestamp"])
        writer.writerows(rows)


def make_rows() -> list[Row]:
    chance = random.Random(0)
    users = [ODD_USER, *(f"user {u}" for u in range(39))]
    items = [ODD_ITEM, *(f"film, {i}" for i in range(29))]
    rows = []
    for user in users:
        times = chance.sample(range(10**9), len(items))
        rows += [(user, item, chance.randint(1, 5), times.pop()) for item in chance.sample(items, chance.randint(5, 15))]
    return rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return make_rows()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> Path:
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    write_csv(path, rows)
    return path


@pytest.fixture(scope="module")
def trained(data: Path) -> dict[str, Any]:
    """What `srns train --json` prints, from a process of its own; its folder is data.parent / "run"."""
    flags = ("--out", "run", "--epochs", "4", "--dim", "4", "--seed", "1", "--threads", "1", "--json")
    process = run("train", data, *flags, cwd=data.parent)
    assert "4 epochs in" in process.stderr
    return answer(process)


@pytest.fixture(scope="module")
def folder(data: Path, trained: dict[str, Any]) -> Path:
    return data.parent / str(trained["run"])


def seen_pairs(rows: list[Row]) -> set[tuple[str, str]]:
    return {(user, item) for user, item, _, _ in rows}


def test_help_lists_every_command_and_no_arguments_show_it() -> None:
    text = call("--help").stdout
    assert all(re.search(rf"\b{name}\b", text) for name in COMMANDS)
    assert "srns demo" in text
    assert [command.name for command in app.registered_commands] == COMMANDS
    nothing = call()
    assert "Usage" in nothing.stdout + nothing.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_and_takes_json(command: str) -> None:
    text = call(command, "--help").stdout
    assert re.search(rf"Example:\s+srns {command}", text)
    assert "--json" in text


def test_help_shows_what_it_says_of_defaults() -> None:
    """Text in brackets is markup to Rich, and would vanish."""
    groups: Any = typer.main.get_command(app)
    told = [
        (name, each.help or "") for name, command in groups.commands.items() for each in command.params if hasattr(each, "help")
    ]
    assert sum("[default: " in text for _, text in told) > 10
    assert [
        (name, text) for name, text in told if "default: " in text and "default: " not in Text.from_markup(text).plain
    ] == []


def test_train_has_a_flag_for_every_field_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 250)
    text = call("train", "--help").stdout
    for name, field in RunConfig.model_fields.items():
        line = next(line for line in text.splitlines() if f"--{name.replace('_', '-')} " in line)
        shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        assert shown is None or f"[default: {shown}]" in line


def test_version_is_printed() -> None:
    assert call("--version").stdout == f"srns {srns.__version__}\n"


def test_demo_in_a_process_of_its_own_shows_tables_and_recommendations() -> None:
    process = run("demo")
    assert process.returncode == 0, process.stderr
    assert "ndcg@10" in process.stdout
    assert "Recommendations" in process.stdout
    assert "Traceback" not in process.stderr


def test_demo_as_json_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srns.demo, "simulate", lambda: simulate(n_users=60, n_items=50, n_interactions=900))
    found = answer(call("demo", "--json"))
    assert 0 <= found["metrics"]["ndcg@10"] <= 1
    assert len(found["recommendations"]) == 3


def test_datasets_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SRNS_DATA", str(tmp_path))
    np.savez(tmp_path / "mine.npz", interactions=np.array([[0, 1], [1, 0]]))
    found = answer(call("datasets", "--json"))["datasets"]
    assert [each["name"] for each in found] == ["synthetic", "ml-100k", "ml-1m", "mine"]
    shown = call("datasets")
    assert all(each["name"] in shown.stdout for each in found)
    assert shown.stderr == ""


def test_a_folder_of_data_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SRNS_DATA", str(tmp_path / "absent"))
    listed = call("datasets")
    assert listed.exit_code == 0
    assert f"SRNS_DATA is set to {tmp_path / 'absent'}, which is not a folder" in listed.stderr
    assert [each["name"] for each in answer(call("datasets", "--json"))["datasets"]] == ["synthetic", "ml-100k", "ml-1m"]


def test_look_says_what_is_in_the_data(data: Path, rows: list[Row]) -> None:
    found = answer(call("look", data, "--min-weight", "3", "--json"))
    kept = [(user, item) for user, item, rating, _ in rows if rating >= 3]
    users, items = map(set, zip(*kept, strict=True))
    assert (found["users"], found["items"], found["interactions"]) == (len(users), len(items), len(kept))
    for place, kind in enumerate(("users", "items")):
        counts = sorted(Counter(pair[place] for pair in kept).values())
        quantiles = found["interactions_of"][kind]
        assert (quantiles["least"], quantiles["most"]) == (counts[0], counts[-1])
        assert quantiles["median"] == statistics.median(counts)
    assert sum(found["split"][part] for part in ("train", "valid", "test")) == len(kept)
    assert found["example"]["user"] in {user for user, _ in kept}
    shown = call("look", data, "--min-user", "7").stdout
    assert f"user {min(user for user, _, _, _ in rows)}, item " in shown
    assert re.search(r"dropped [0-9]+ pairs of users with fewer than 7\n", shown), shown
    assert "what is in data says: srns look" in failure(call("info", data))


def test_look_and_train_say_when_a_split_is_random_for_want_of_times(tmp_path: Path, rows: list[Row]) -> None:
    path = tmp_path / "clicks.csv"
    pl.DataFrame(rows, ["user", "item", "stars", "gekauft"], orient="row").with_columns(gekauft=pl.lit("2026-01-02")).write_csv(
        path
    )
    told = "no times: valid and test items were chosen at random\n"
    shown = call("look", path).stdout
    assert "though 'gekauft' looks like a time: --time-column gekauft" in shown
    assert f"{told}split random: " in shown
    assert told not in call("look", path, "--time-column", "gekauft").stdout
    trained = call("train", path, "--epochs", "1", "--dim", "4", "--out", tmp_path / "run")
    assert told in trained.stderr


def test_train_reports_what_the_run_is(trained: dict[str, Any], folder: Path) -> None:
    assert {"metrics", "best_epoch", "epochs", "seconds_per_epoch", "peak_rss_mb", "run"} <= trained.keys()
    assert trained["epochs"] == 4
    assert 1 <= trained["best_epoch"] <= 4
    assert trained["seconds_per_epoch"] > 0
    assert 20 < trained["peak_rss_mb"] < 5_000
    assert {"ndcg@3", "recall@3", "recall@20"} <= trained["metrics"].keys()
    assert all(0 <= trained["metrics"][f"{name}@3"] <= 1 for name in ("ndcg", "recall", "hit", "mrr", "map", "precision"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "ids.safetensors",
        "interactions.safetensors",
        "memories.safetensors",
        "model.safetensors",
        "run.json",
    ]


def test_evaluate_finds_what_train_reported(trained: dict[str, Any], folder: Path) -> None:
    found = answer(call("evaluate", folder, "--json"))
    assert found["metrics"] == trained["metrics"]
    assert (found["protocol"], found["on"], found["users"]) == ("full", "test", 40)
    other = answer(call("evaluate", folder, "--protocol", "paper", "--on", "valid", "--ks", "2,4", "--json"))
    assert (other["protocol"], other["on"]) == ("paper", "valid")
    assert {name.partition("@")[2] for name in other["metrics"]} - {""} == {"2", "4"}
    assert "ndcg" in call("evaluate", folder).stdout


def test_evaluate_against_another_run_compares_user_by_user(
    trained: dict[str, Any], folder: Path, data: Path, tmp_path: Path
) -> None:
    second = tmp_path / "[b]second"
    other = answer(call("train", data, "--out", second, "--epochs", "1", "--engine", "plain", "--json"))
    found = answer(call("evaluate", folder, "--against", second, "--json"))
    assert found["against"]["metrics"] == other["metrics"]
    for name, each in found["difference"].items():
        assert each["difference"] == pytest.approx(trained["metrics"][name] - other["metrics"][name])
        assert each["low"] <= each["difference"] <= each["high"]
    shown = call("evaluate", folder, "--against", second).stdout
    assert "[b]second" in shown
    assert "95% interval" in shown
    assert found["against"]["same_data"]
    assert "other interactions" not in shown
    assert "takes one run" in failure(call("evaluate", folder, "--against", second, "--against", folder))
    answer(call("train", data, "--out", tmp_path / "few", "--min-weight", "2", "--epochs", "1", "--engine", "plain", "--json"))
    told = " ".join(call("evaluate", folder, "--against", tmp_path / "few").stdout.split())
    assert "few was trained on other interactions, or other parts of them (min_weight 2, here unset)" in told


def test_how_popular_shown_items_are_is_no_metric_among_metrics(trained: dict[str, Any], folder: Path) -> None:
    shown = call("evaluate", folder).stdout
    assert not re.search(r"^ +popularity", shown, re.M)
    times = trained["metrics"]["popularity@10"]
    assert f"items in lists of 10 are {times:.1f} times as popular as the average item" in shown
    assert "items in lists of 7 are" in call("evaluate", folder, "--ks", "2,7").stdout
    assert "as popular as" not in call("evaluate", folder, "--protocol", "paper").stdout


def test_without_validation_no_epoch_is_the_best(data: Path, tmp_path: Path) -> None:
    flags = ("--split", "none", "--epochs", "3", "--engine", "plain", "--out", tmp_path / "all")
    said = call("train", data, *flags)
    assert "last epoch kept, 3 of 3 (no validation to choose by)" in said.stdout
    assert "the model is from the last, without validation to choose by" in said.stderr
    assert "last epoch kept, 3 of 3" in re.sub(r"\s+", " ", call("info", tmp_path / "all").stdout)
    assert "best epoch" not in said.output
    again = call("update", tmp_path / "all", data, "--out", tmp_path / "again")  # nothing is new
    assert "no epoch was trained" in again.stdout
    assert "the model is the one it started from" in again.stderr


def test_a_comparison_fits_a_narrow_terminal() -> None:
    names = "clicks-of-last-week-srns-seed0", "clicks-of-last-week-popularity-seed0"
    metrics = {"ndcg@10": 0.1237, "recall@10": 0.2425}
    differences = {name: {"difference": 0.015, "low": 0.0131, "high": 0.0188} for name in metrics}
    written = io.StringIO()
    for shown in (names, ("a-folder-with-quite-a-long-name", "another-folder-with-quite-a-long-name-indeed")):
        Console(width=80, file=written).print(paired_table("Compared", shown, metrics, metrics, differences))
    lines = written.getvalue().splitlines()
    assert sum("+0.0150   +0.0131 to +0.0188   *" in re.sub(r"  +", "   ", line) for line in lines) == 4, written.getvalue()
    assert max(map(len, lines)) <= 80
    assert "metric srns popularity difference 95% interval" in re.sub(" +", " ", written.getvalue())


def test_evaluate_refuses_a_run_that_cannot_be_compared(folder: Path, data: Path, tmp_path: Path, rows: list[Row]) -> None:
    """One that has learnt from what is held out here, and one of other people."""
    write_csv(tmp_path / "others.csv", [(f"other {user}", *rest) for user, *rest in rows])
    train = ("--epochs", "1", "--engine", "plain", "--json")
    answer(call("train", data, "--split", "none", "--out", tmp_path / "whole", *train))
    answer(call("train", tmp_path / "others.csv", "--out", tmp_path / "others", *train))
    for other in ("whole", "others"):
        assert "cannot be compared user by user" in failure(call("evaluate", folder, "--against", tmp_path / other))
    assert "goes with --against" in failure(call("evaluate", folder, "--fail-if-worse"))


def test_recommend_lists_unseen_items_of_several_users(folder: Path, rows: list[Row]) -> None:
    found = answer(call("recommend", folder, "--user", ODD_USER, "--user", "user 3", "-k", "4", "--json"))["recommendations"]
    assert [(each["user_id"], each["rank"]) for each in found] == [
        (user, r) for user in (ODD_USER, "user 3") for r in (1, 2, 3, 4)
    ]
    assert not {(each["user_id"], each["item_id"]) for each in found} & seen_pairs(rows)
    shown = call("recommend", folder, "--user", ODD_USER, "-k", "4").stdout
    assert ODD_USER in shown
    assert all(each["item_id"] in shown for each in found[:4])


def test_recommend_shows_all_users_however_small_the_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srns.recommender.BLOCK_BYTES", 1)
    found = answer(call("recommend", folder, "--user", "user 1", "--user", "user 2", "--json"))["recommendations"]
    assert {each["user_id"] for each in found} == {"user 1", "user 2"}


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_recommend_to_all_users_writes_a_file(folder: Path, rows: list[Row], tmp_path: Path, ending: str) -> None:
    path = tmp_path / "[/new]" / f"recs.{ending}"
    found = answer(call("recommend", folder, "--all-users", "--out", path, "-k", "3", "--json"))
    read: Any = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[ending]
    frame = read(path.read_bytes())  # polars would take the brackets of the path for a pattern
    assert frame.columns == ["user_id", "item_id", "score", "rank"]
    assert found["rows"] == len(frame) == 3 * 40
    assert found["users"] == frame["user_id"].n_unique() == 40
    assert not set(frame.select("user_id", "item_id").rows()) & seen_pairs(rows)
    for user in frame.partition_by("user_id"):
        assert user["rank"].to_list() == [1, 2, 3]
        assert user["score"].is_sorted(descending=True)
    shown = call("recommend", folder, "--all-users", "--out", path, "--replace")
    assert shown.exit_code == 0
    assert str(path) in shown.stdout
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("whom", [("--all-users",), ("--user", "user 3")])
def test_recommend_refuses_a_file_that_is_there(folder: Path, tmp_path: Path, whom: tuple[str, ...]) -> None:
    path = tmp_path / "recs.csv"
    path.write_text("mine")
    for more in ((), ("--resume",) if "--all-users" in whom else ()):
        said = failure(call("recommend", folder, *whom, "--out", path, *more))
        assert f"{path} is there already: --replace puts the new recommendations in its place" in said
    assert path.read_text() == "mine"
    assert answer(call("recommend", folder, *whom, "--out", path, "--replace", "--json"))["rows"] == len(pl.read_csv(path))
    assert "--replace goes with --out FILE or --to URL" in failure(call("recommend", folder, "--user", "user 3", "--replace"))


def test_recommend_may_include_seen_items(folder: Path, rows: list[Row]) -> None:
    found = answer(call("recommend", folder, "--user", "user 3", "-k", "99", "--include-seen", "--json"))["recommendations"]
    assert {each["item_id"] for each in found} == {item for _, item, _, _ in rows}


def test_recommend_gives_an_unknown_user_what_is_popular_on_request(folder: Path) -> None:
    assert "unknown user 'stranger'" in failure(call("recommend", folder, "--user", "stranger"))
    flags = ("--user", "stranger", "--unknown", "popular", "-k", "2", "--json")
    found = answer(call("recommend", folder, *flags))["recommendations"]
    assert [(each["user_id"], each["rank"]) for each in found] == [("stranger", 1), ("stranger", 2)]


def test_similar_items_are_listed_without_the_item(folder: Path) -> None:
    found = answer(call("similar", folder, "--item", ODD_ITEM, "-k", "5", "--json"))["similar"]
    assert [each["rank"] for each in found] == [1, 2, 3, 4, 5]
    assert ODD_ITEM not in {each["item_id"] for each in found}
    assert sorted((each["similarity"] for each in found), reverse=True) == [each["similarity"] for each in found]
    shown = call("similar", folder, "--item", ODD_ITEM, "-k", "5").stdout
    assert f"Items like {ODD_ITEM}" in shown
    assert found[0]["item_id"] in shown


def test_info_shows_results_and_settings(trained: dict[str, Any], folder: Path) -> None:
    found = answer(call("info", folder, "--json"))
    assert found["metrics"] == trained["metrics"]
    assert len(found["history"]) == 4
    shown = call("info", folder).stdout
    assert "40 users, 30 items" in shown
    assert re.search(r"dim\s+4\s+changed", shown)
    assert f"{trained['metrics']['ndcg@3']:.4f}" in shown


def test_info_leaves_out_what_other_settings_make_idle(data: Path, tmp_path: Path) -> None:
    fields = ("--sampler", "softmax", "--hardness", "2", "--epochs", "1")
    answer(call("train", data, *fields, "--out", tmp_path / "run", "--json"))
    shown = call("info", tmp_path / "run").stdout
    assert re.search(r"hardness\s+2.0\s+changed", shown)
    assert "temperature" not in shown


def test_info_of_a_method_without_negatives_has_its_own_settings_alone(data: Path, tmp_path: Path) -> None:
    made = call("train", data, "--scorer", "ease", "--out", tmp_path / "run")
    assert re.search(r"^solved in [\d.]+ s, \d+ MB at most$", made.stdout, re.M), made.stdout
    shown = call("info", tmp_path / "run").stdout
    assert re.search(r"training\s+solved in [\d.]+ s", shown)
    settings = shown[shown.index("Settings") :]
    assert re.search(r"l2\s+", settings)
    assert re.search(r"split\s+", settings)
    assert not re.search(r"sampler|learning_rate|memory_size|dim", settings)


@pytest.mark.parametrize(
    "change",
    [{"data": {"name": "x", "users": "many"}}, {"environment": {}}, {"config": {"ks": 3}}, {"metrics": {"ndcg@1": "high"}}],
)
def test_info_of_a_forged_run_is_an_error(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    artifacts.write_run(tmp_path, {**artifacts.read_run(folder), **change})
    assert "run.json is not a whole run" in failure(call("info", tmp_path))


def test_flags_win_over_set_over_the_file_over_the_preset(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('patience = 7\ndim = 3\nl2 = 0.5\nengine = "plain"\nks = [2, 1]\n')
    flags = ("--config", config, "--preset", "paper-ml-1m", "--set", "dim=4", "--set", "l2=0.25", "--dim", "5", "--epochs", "1")
    found = answer(call("train", data, *flags, "--out", tmp_path / "run", "--json"))["config"]
    assert [found[name] for name in ("dim", "l2", "patience", "epochs", "ks")] == [5, 0.25, 7, 1, [1, 2]]
    preset = PRESETS["paper-ml-1m"]
    assert found["learning_rate"] == preset["learning_rate"] != RunConfig().learning_rate
    assert found["memory_size"] == preset["memory_size"] != SRNS().memory_size
    assert found["validate_every"] == RunConfig().validate_every


def test_columns_and_filters_are_flags(tmp_path: Path, rows: list[Row]) -> None:
    pl.DataFrame(rows, schema=["who", "what", "stars", "when"], orient="row").write_parquet(tmp_path / "odd.parquet")
    columns = ("--user-column", "who", "--item-column", "what", "--weight-column", "stars", "--time-column", "when")
    flags = (*columns, "--min-weight", "3", "--epochs", "1", "--engine", "plain", "--out", tmp_path / "run", "--json")
    found = answer(call("train", tmp_path / "odd.parquet", *flags))["data"]
    assert found["train"] + found["valid"] + found["test"] == sum(rating >= 3 for _, _, rating, _ in rows)


def test_runs_without_a_name_are_numbered(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--epochs", "1", "--engine", "plain", "--seed", "3", "--json")
    found = [answer(call("train", data, *flags))["run"] for _ in range(2)]
    assert found == ["runs/ratings-srns-seed3", "runs/ratings-srns-seed3-2"]


def test_the_name_of_a_run_says_what_was_trained() -> None:
    methods = {"sampler": "dns"}, {"sampler": "popularity"}, {"scorer": "popularity"}, {"scorer": "mlp", "sampler": "dns"}
    names = [short_name("in/ratings.csv", RunConfig(**method)) for method in methods]
    assert names == ["ratings-dns", "ratings-gmf-popularity", "ratings-popularity", "ratings-mlp-dns"]


def test_the_next_command_can_be_copied_from_a_narrow_terminal(data: Path, tmp_path: Path) -> None:
    out = tmp_path / ("a-long-name-" * 6)
    shown = call("train", data, "--out", out, "--epochs", "1", "--engine", "plain")
    assert f"next: srns recommend {out} --user ID\n" in shown.stdout
    assert "1 epoch in" in shown.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "no-such-data"], "unknown data set 'no-such-data'"),
        (["train", "sintetic"], "did you mean synthetic"),
        (["train", "none/at/all.csv"], "none/at/all.csv: no such file"),
        (["train", "ml-9k-paper"], "set SRNS_DATA to a folder that has ml-9k-paper.npz"),
        (["train", "beauty"], "users and 12,101 items, and cannot be downloaded from here"),
        (["train", "DATA", "--set", "flavour=3"], "'flavour' is not a field of a run with sampler 'srns'"),
        (["train", "DATA", "--set", "dim"], "--set 'dim': expected field=value"),
        (["train", "DATA", "--dim", "many"], "dim = 'many'"),
        (["train", "DATA", "--dim", "0"], "dim = '0'"),
        (["train", "DATA", "--learning-rate", "-1"], "learning_rate = '-1'"),
        (["train", "DATA", "--learning-rate", "nan"], "learning_rate = 'nan'"),
        (["train", "DATA", "--seed", "1.5"], "seed = '1.5'"),
        (["train", "DATA", "--ks", "1,two"], "ks.1 = 'two'"),
        (["train", "DATA", "--ks", "0"], "expected list lengths of at least 1"),
        (["train", "DATA", "--metric", "fun@3"], "metric = 'fun@3'"),
        (["train", "DATA", "--sampler", "psychic"], "sampler 'psychic' is unknown; expected one of: srns, uniform"),
        (["train", "DATA", "--engine", "steam"], "engine = 'steam'"),
        (["train", "DATA", "--split", "sideways"], "split 'sideways' is unknown"),
        (["train", "DATA", "--protocol", "secret"], "protocol = 'secret'"),
        (["train", "DATA", "--preset", "slow"], "unknown preset 'slow'; presets: "),
        (["train", "DATA", "--config", "missing.toml"], "cannot read config missing.toml: No such file"),
        (["train", "DATA", "--user-column", "who"], "who"),
        (["train", "DATA", "--min-user", "99"], "no interactions left"),
        (["train", "DATA", "--out", "RUN"], "already holds a run; add --resume to go on with it"),
        (["train", "DATA", "--out", "DATA"], "ratings.csv is not a folder"),
        (["train", "DATA", "--dimension", "3"], "No such option"),
        (["train"], "Missing argument"),
        (["info", "nowhere"], "nowhere is not a run: there is no such folder"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["recommend", "nowhere", "--user", "1"], "nowhere is not a run"),
        (["similar", "nowhere", "--item", "1"], "nowhere is not a run"),
        (["evaluate", "RUN", "--on", "train"], "on='train'"),
        (["evaluate", "RUN", "--protocol", "secret"], "protocol = 'secret'"),
        (["evaluate", "RUN", "--ks", "few"], "ks.0 = 'few'"),
        (["evaluate", "RUN", "--against", "nowhere"], "nowhere is not a run"),
        (
            ["recommend", "RUN"],
            "say for whom: --user ID (repeatable), --had ITEM (repeatable) for somebody new, or --all-users",
        ),
        (["recommend", "RUN", "--user", "user 1", "--all-users"], "say for whom by one of these: --user ID"),
        (["recommend", "RUN", "--all-users"], "--all-users needs --out FILE"),
        (["recommend", "RUN", "--all-users", "--out", "recs.docx"], "expected a name that ends in .parquet, .csv or .jsonl"),
        (["recommend", "RUN", "--user", "[/x]"], "unknown user '[/x]'"),
        (["recommend", "RUN", "--user", "\udcff"], "unknown user"),
        (["recommend", "RUN", "--user", "user 1", "-k", "0"], "Invalid value for '-k'"),
        (["recommend", "RUN", "--user", "user 1", "--unknown", "hope"], "--unknown 'hope': expected raise or popular"),
        (["similar", "RUN", "--item", "no such film"], "unknown item 'no such film'"),
        (
            ["recommend", "RUN", "--user", "USER 7"],
            "unknown user 'USER 7': not among the 40 users of the training data; did you mean 'user 7'?",
        ),
        (["recommend", "RUN", "--had", "[/y] [b]"], "did you mean '[/x] [b]'"),
        (["explain", "RUN", "--user", "user 7", "--item", "[/y] [b]"], "did you mean '[/x] [b]'"),
    ],
)
def test_mistakes_are_explained(
    args: list[str], message: str, data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SRNS_DATA", raising=False)
    places = {"DATA": str(data), "RUN": str(folder)}
    said = failure(call(*(places.get(arg, arg) for arg in args)))
    assert message in re.sub(r"\s+", " ", said)
    assert list(tmp_path.iterdir()) == [] or [*tmp_path.glob("**/*")] == [tmp_path / "runs"]  # nothing half done stays behind


def test_a_mistake_as_json_is_one_object_too(tmp_path: Path) -> None:
    result = call("info", tmp_path, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {"error": f"{tmp_path} is not a run: it has no run.json"}


def test_a_failed_start_does_not_stand_in_the_way_of_the_next(tmp_path: Path, rows: list[Row]) -> None:
    path, out = tmp_path / "late.csv", tmp_path / "run"
    assert "no such file" in failure(call("train", path, "--out", out))
    write_csv(path, rows)
    assert answer(call("train", path, "--out", out, "--epochs", "1", "--engine", "plain", "--json"))["epochs"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id,item_id,rating\nann,1,5\nbob,2,lots\n", r"clicks\.csv, line 3.*'lots'"),
        ("user_id,item_id\nann,1\nbob\n", r"clicks\.csv, line 3"),
        ("user_id,item_id\nann,1\nbob,\n", r"clicks\.csv, line 3"),
        ("apples,pears\n1,2\n", r"clicks\.csv.*'apples', 'pears'"),
        ("", r"clicks\.csv.*empty"),
        ("user_id,item_id\n", r"clicks\.csv"),
    ],
)
def test_malformed_files_are_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(text)
    assert re.search(message, failure(call("train", path, "--out", tmp_path / "run")))


def test_a_process_of_its_own_fails_in_the_same_way(folder: Path) -> None:
    process = run("recommend", folder, "--user", "stranger")
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("error: unknown user 'stranger'")
    assert process.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_standard_output_is_an_error_without_a_stack_trace(folder: Path) -> None:
    command = [sys.executable, "-u", "-m", "srns", "info", str(folder), "--json"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, check=False)
    assert process.returncode == 2
    assert process.stderr == "error: [Errno 28] No space left on device\n"


def test_import_is_quick_and_light() -> None:
    program = (
        "import time; start = time.perf_counter(); import srns; seconds = time.perf_counter() - start; import sys; "
        "print(seconds, *sorted({'torch', 'numba', 'polars', 'scipy', 'pydantic'} & set(sys.modules)))"
    )
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(3)
    ]
    assert min(float(each.split()[0]) for each in said) < 1
    assert all(len(each.split()) == 1 for each in said)


def test_no_command_imports_torch(folder: Path) -> None:
    program = (
        "import sys; from srns.cli import app; app(sys.argv[1:], standalone_mode=False); assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "recommend", str(folder), "--user", "user 1"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"})
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_shows_every_column_in_a_terminal_of_any_width(width: int) -> None:
    columns = ["method", *(f"metric {n}" for n in range(12))]
    rows = [[f"method-{m}", *(f".{m}{n:02} +- .001" for n in range(12))] for m in range(3)]
    console = Console(width=width, file=io.StringIO())
    console.print(plain_table("Results", columns, rows))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    for row in rows:
        mine = [line for line in lines if row[0] in line]
        assert [cell for line in mine for cell in row[1:] if cell in line] == row[1:], "whole, in order, beside the name"
    assert (len([line for line in lines if "method " in line]) == 1) is (width == 200)
    tables = [line for line in lines if "method " in line]
    assert sum("continued" in line for line in lines) == len(tables) - 1, "each of its parts says what it is of"


@pytest.mark.parametrize("letter", ["n", "\N{HIRAGANA LETTER A}"])
def test_a_table_keeps_numbers_whole_beside_a_name_that_is_too_long(letter: str) -> None:
    console = Console(width=60, file=io.StringIO())
    console.print(plain_table("Results", ["A", "B", "C"], [[letter * 70, "0.1234", "0.5678"]]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, text.splitlines())) <= 60
    assert text.replace("continued", "").count(letter) == 2 * 70, "beside each number"
    assert text.count("0.1234") == text.count("0.5678") == 1


def test_a_table_measures_wide_letters_by_the_room_they_take() -> None:
    console = Console(width=80, file=io.StringIO())
    cells = [letter * count for letter, count in zip("\u3042\u3044\u3046", (12, 14, 16), strict=True)]
    console.print(plain_table("Results", ["a", "b", "c"], [cells]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(cell in text for cell in cells)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_last_line_says_what_took_the_time(compiled: bool) -> None:
    progress = Progress(Console(file=io.StringIO(), width=200))
    if compiled:
        progress.on_message(COMPILING)
    record = EpochRecord(1, 0.5, 3.0, {"ndcg@10": 0.1}, True, {})
    progress.on_end(Training(GMF.init(2, 3, 4, std=0.1, seed=0, learn_beta=False), 1, (record,), "fused"))
    said = progress.console.file.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert f"3.0 s of it {'compiling and ' * compiled}training, the rest mostly validation" in said
