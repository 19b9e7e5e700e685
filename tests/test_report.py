"""`srns report`: which runs are compared and how surely, what the page says of them, and commands that make them again."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from srns import artifacts
from srns.cli import app
from srns.comparison import Run, compare, find_runs, labels, read_runs
from srns.config import RunConfig, sampler_fields
from srns.errors import ArtifactError, ConfigError
from srns.evaluation import evaluate, paired_bootstrap
from srns.experiments import reproduce
from srns.markup import escape
from srns.options import train_command
from srns.presets import PRESETS, make_config
from srns.recommender import Recommender
from srns.report import Report, make_page, make_report
from srns.report.training import ENDS, curve
from srns.runs import train_run
from srns.samplers import SAMPLERS
from srns.scorers import SCORERS
from srns.significance import holm, resampled_means, standard_error
from srns.simulation import simulate

ODD = "odd <b> & 'name'.csv"
SMALL = {"dim": 4, "epochs": 3, "engine": "plain", "threads": 1, "ks": "5,10"}


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of an odd name and six runs: two configurations of two seeds, one of one, and one on another split."""
    home = tmp_path_factory.mktemp("home")
    data = simulate(n_users=80, n_items=60, n_interactions=1600, seed=5).interactions
    rows = zip(data.users.tolist(), data.items.tolist(), strict=True)
    lines = [f"u{user},i{item},{number * 7919 % 1601}" for number, (user, item) in enumerate(rows)]
    (home / ODD).write_text("\n".join(["user_id,item_id,timestamp", *lines]) + "\n")
    for name, fields in {
        "uniform-1": {"sampler": "uniform", "seed": 1},
        "uniform-2": {"sampler": "uniform", "seed": 2},
        "srns-1": {"sampler": "srns", "seed": 1},
        "srns-2": {"sampler": "srns", "seed": 2, "epochs": 3},
        "dns": {"sampler": "dns", "validate_every": 2},
        "other": {"sampler": "uniform", "split_seed": 9, "split": "random"},
    }.items():
        train_run(home / ODD, make_config({**SMALL, **fields}), out=home / "runs" / name)
    return home


@pytest.fixture(scope="module")
def runs(home: Path) -> list[Run]:
    found, problems = read_runs(find_runs([home / "runs"]))
    assert problems == []
    return found


def of(runs: list[Run], *names: str) -> list[Run]:
    return [next(run for run in runs if run.folder.name == name) for name in names]


def record(home: Path, name: str) -> dict[str, Any]:
    return json.loads((home / "runs" / name / "run.json").read_text())


def altered(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a run whose run.json says something else, with the right checksum."""
    shutil.copytree(source, target)
    content = artifacts.read_run(source)
    artifacts.write_run(target, {**content, **changes})
    return target


def test_runs_are_compared_where_data_split_and_protocol_are_the_same(runs: list[Run]) -> None:
    groups = compare(runs)
    names = [[[run.folder.name for run in c.runs] for c in group.configurations] for group in groups]
    assert sorted(names, key=len) == [[["other"]], [["dns"], ["srns-1", "srns-2"], ["uniform-1", "uniform-2"]]]
    assert groups[0].fingerprint != groups[1].fingerprint


def test_estimates_are_means_over_seeds_and_users(home: Path, runs: list[Run]) -> None:
    (group,) = compare(of(runs, "uniform-1", "uniform-2", "srns-1"))
    uniform, srns_ = group.configurations
    saved = [record(home, name)["metrics"] for name in ("uniform-1", "uniform-2")]
    for name, found in uniform.estimates.items():
        assert found.mean == pytest.approx(statistics.mean(each[name] for each in saved), abs=1e-12)
        assert found.error == pytest.approx(statistics.stdev(each[name] for each in saved) / math.sqrt(2), abs=1e-12)
    assert math.isnan(srns_.estimates["ndcg@10"].error)
    assert {n for n, e in uniform.estimates.items() if math.isfinite(e.low)} == {"ndcg@5", "ndcg@10", "recall@5", "recall@10"}


def test_intervals_are_those_of_a_plain_bootstrap(runs: list[Run]) -> None:
    (group,) = compare(of(runs, "uniform-1", "uniform-2"))
    found = group.configurations[0].estimates["ndcg@10"]
    values = np.mean([run.per_user["ndcg@10"] for run in group.runs], axis=0)
    rng = np.random.default_rng(123)
    means = sorted(statistics.fmean(values[int(n)] for n in rng.integers(len(values), size=len(values))) for _ in range(4000))
    assert found.low == pytest.approx(means[100], abs=0.008)
    assert found.high == pytest.approx(means[3900], abs=0.008)


def test_differences_are_those_of_the_paired_bootstrap(home: Path, runs: list[Run]) -> None:
    (group,) = compare(of(runs, "srns-1", "dns"), home / "runs" / "srns-1")
    (dns,) = [c for c in group.configurations if c.difference is not None]
    measured = []
    for name in ("dns", "srns-1"):
        model = Recommender.load(home / "runs" / name)
        measured.append(evaluate(model.model_, model.split_, ks=(5, 10)))
    expected = paired_bootstrap(*measured, "ndcg@10")
    assert dns.difference is not None
    assert dns.difference.difference == pytest.approx(expected.difference, abs=1e-12)
    assert dns.difference.low == pytest.approx(expected.low, abs=0.004)
    assert dns.difference.high == pytest.approx(expected.high, abs=0.004)
    assert dns.difference.p_value == pytest.approx(expected.p_value, abs=0.03)
    assert dns.p_holm == dns.difference.p_value  # of a single comparison


def test_equal_models_do_not_differ(home: Path, tmp_path: Path) -> None:
    same = altered(home / "runs" / "dns", tmp_path / "same", config={**record(home, "dns")["config"], "patience": 7})
    found, _ = read_runs([home / "runs" / "dns", same, home / "runs" / "srns-1"])
    (group,) = compare(found, same)
    first = group.configurations[0]
    assert first.difference is not None
    assert (first.difference.difference, first.difference.low, first.difference.high, first.p_holm) == (0, 0, 0, 1)
    assert first.verdict == "no difference shown"


def test_the_reference_is_the_best_on_validation_or_the_one_asked_for(home: Path, runs: list[Run]) -> None:
    def validation(name: str) -> float:
        return max(each["valid"]["ndcg@10"] for each in record(home, name)["history"] if each["valid"])

    by_hand = {
        "uniform": statistics.mean(map(validation, ("uniform-1", "uniform-2"))),
        "srns": statistics.mean(map(validation, ("srns-1", "srns-2"))),
        "dns": validation("dns"),
    }
    same = [run for run in runs if run.folder.name != "other"]
    (group,) = compare(same)
    assert group.reference.label == max(by_hand, key=lambda name: by_hand[name])
    assert {c.label: c.validation("ndcg@10") for c in group.configurations} == pytest.approx(by_hand)
    for name in ("dns", "uniform-2"):
        (group,) = compare(same, home / "runs" / name)
        assert group.asked
        assert name.startswith(group.reference.label)
    with pytest.raises(ConfigError, match="nowhere is not among the runs"):
        compare(runs, Path("nowhere"))


def test_a_repeated_run_counts_once(home: Path, tmp_path: Path, runs: list[Run]) -> None:
    again = altered(home / "runs" / "srns-1", tmp_path / "again")
    found, _ = read_runs([again, *(run.folder for run in of(runs, "srns-1", "srns-2"))])
    (group,) = compare(found, home / "runs" / "srns-1")
    assert [run.folder.name for run in group.configurations[0].runs] == ["again", "srns-2"]
    assert [(run.folder.name, same.folder.name) for run, same in group.repeated] == [("srns-1", "again")]
    assert group.asked


def test_seeds_that_began_with_seeds_of_one_start_are_one_configuration(home: Path, tmp_path: Path) -> None:
    def begun(name: str, start: str, **fields: Any) -> None:
        config = make_config({**SMALL, "sampler": "rns_as", "loss": "bpr", "init": str(home / "runs" / start), **fields})
        train_run(home / ODD, config, out=tmp_path / name)

    begun("a-1", "uniform-1", seed=1)
    begun("a-2", "uniform-2", seed=2, threads=2, checkpoint_epochs=1)
    begun("b-1", "srns-1", seed=1)
    (group,) = compare(read_runs(find_runs([tmp_path]))[0])
    assert [[run.folder.name for run in each.runs] for each in group.configurations] == [["a-1", "a-2"], ["b-1"]]


def test_folders_of_runs_are_looked_into_and_each_is_taken_once(home: Path) -> None:
    folder = home / "runs"
    found = find_runs([folder / "dns", folder, folder / ".." / "runs" / "dns", home / "nowhere"])
    assert [each.name for each in found] == ["dns", "other", "srns-1", "srns-2", "uniform-1", "uniform-2", "nowhere"]


def test_what_cannot_be_used_is_listed_with_the_reason(home: Path, tmp_path: Path) -> None:
    good = home / "runs" / "dns"
    artifacts.write_run(tmp_path / "begun", {"status": "running", "config": {}, "data": {"name": "x"}, "files": {}})
    shutil.copytree(good, tmp_path / "torn")
    (tmp_path / "torn" / "run.json").write_text((good / "run.json").read_text()[:500])
    shutil.copytree(good, tmp_path / "spoilt")
    with (tmp_path / "spoilt" / "model.safetensors").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"spoilt!!")
    Recommender.load(good).save(tmp_path / "model")
    altered(good, tmp_path / "strange", history=[{"epoch": 1, "mood": "good"}])
    altered(good, tmp_path / "short", best_epoch=99)
    report = make_report(
        [good, *(tmp_path / name for name in ("begun", "torn", "spoilt", "model", "strange", "short", "nowhere"))]
    )
    reasons = {Path(problem.folder).name: problem.reason for problem in report.problems}
    assert "unfinished" in reasons["begun"]
    assert "run.json is damaged" in reasons["torn"]
    assert "model.safetensors is damaged" in reasons["spoilt"]
    assert "a saved model, not a run" in reasons["model"]
    assert "not a whole run: TypeError" in reasons["strange"]
    assert "best_epoch is 99" in reasons["short"]
    assert "there is no such folder" in reasons["nowhere"]
    html = make_page(report).html()
    assert all(name in html for name in reasons)
    with pytest.raises(ArtifactError, match=r"no finished run to report on: .*torn: .* is damaged"):
        make_report([tmp_path / "torn", tmp_path / "begun"])


def test_a_metric_that_comes_out_otherwise_is_named(home: Path, tmp_path: Path) -> None:
    metrics = {**record(home, "dns")["metrics"], "ndcg@5": 0.9}
    report = make_report([altered(home / "runs" / "dns", tmp_path / "boast", metrics=metrics)])
    assert re.search(r"boast, measured again: ndcg@5 is 0\.\d{4} now, 0\.9000 in its record", make_page(report).html())


def brute_holm(p_values: list[float]) -> list[float]:
    """By the closed testing principle: a hypothesis is rejected where all sets that hold it are, each by Bonferroni."""
    n = len(p_values)
    sets = [each for size in range(1, n + 1) for each in itertools.combinations(range(n), size)]
    return [max(min(1.0, len(each) * min(p_values[i] for i in each)) for each in sets if h in each) for h in range(n)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_closed_testing_with_bonferroni(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(brute_holm(p_values))


def test_resampled_means_scatter_as_they_should() -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)) * [1.0, 0.0, 2.0] + [0.0, 3.0, 1.0]
    means = resampled_means(values, 20_000)
    assert means.shape == (20_000, 3)
    assert means.mean(axis=0) == pytest.approx(values.mean(axis=0), abs=0.01)
    assert means.std(axis=0) == pytest.approx(values.std(axis=0) / np.sqrt(50), rel=0.03, abs=1e-12)
    assert np.allclose(means[:, 1], 3)
    assert np.corrcoef(means[:, 0], resampled_means(values[:, :1], 20_000)[:, 0])[0, 1] == pytest.approx(1)


def test_standard_error_of_one_seed_is_unknown() -> None:
    assert math.isnan(standard_error([0.3]))
    assert standard_error([1, 2, 3, 4]) == pytest.approx(statistics.stdev([1, 2, 3, 4]) / 2)


def test_labels_tell_configurations_apart() -> None:
    configs = [
        RunConfig(),
        RunConfig(sampler="dns"),
        RunConfig(sampler="dns", dim=64),
        RunConfig(scorer="mlp"),
        RunConfig(scorer="ease"),
    ]
    assert labels(configs) == ["srns", "dns, dim 128", "dns, dim 64", "mlp + srns", "ease"]
    many = [RunConfig(sampler="uniform", dim=d, epochs=d, l2=d, batch_size=d, patience=p) for d, p in ((1, 1), (2, 1), (2, 2))]
    found = labels(many)
    assert len(set(found)) == 3
    assert found[0] == "uniform, dim 1, l2 1, batch_size 1 and 2 more"
    assert found[2] == f"{found[1]} #2"


def test_curves_are_means_over_all_seeds_and_end_with_the_first(runs: list[Run]) -> None:
    (group,) = compare(of(runs, "uniform-1", "uniform-2"))
    (configuration,) = group.configurations
    first, second = configuration.runs
    short = Run(**{**vars(second), "history": second.history[:2]})
    configuration.runs = [first, short]
    found = curve(configuration, lambda epoch: epoch.loss)
    assert found is not None
    losses = [epoch.loss for epoch in first.history]
    both = [sorted((losses[n], second.history[n].loss)) for n in range(2)]
    assert found.x == [1, 2], "the mean of those that are left would jump"
    assert found.y == pytest.approx([statistics.mean(pair) for pair in both])
    assert found.low == pytest.approx([low for low, _ in both])
    assert found.high == pytest.approx([high for _, high in both])
    timed = curve(configuration, lambda epoch: epoch.loss, by_time=True)
    assert timed is not None
    first_seconds, second_seconds = ([epoch.seconds for epoch in run.history[:2]] for run in (first, second))
    means = [statistics.mean(pair) for pair in zip(first_seconds, second_seconds, strict=True)]
    start = min(means[0], statistics.median(means))
    assert timed.x == pytest.approx([start, start + means[1]])
    assert curve(configuration, lambda epoch: None) is None
    known = [0.5, 0.6, 0.7]
    partly = curve(configuration, lambda epoch: known[epoch.epoch - 1] if epoch in first.history else None)
    assert partly is not None
    assert partly.y == known, "a seed that says nothing of it at all ends nothing"


def test_the_page_says_that_curves_end_early(home: Path, tmp_path: Path) -> None:
    for name, stopped in (("whole", None), ("stopped", 2)):
        folder = tmp_path / name
        for seed in ("1", "2"):
            history = record(home, f"uniform-{seed}")["history"]
            kept = history[:stopped] if seed == "2" else history
            altered(home / "runs" / f"uniform-{seed}", folder / seed, history=kept, best_epoch=1)
        found = make_page(make_report([folder]))
        assert (ENDS in found.html()) == (stopped is not None)


@pytest.fixture(scope="module")
def page(home: Path) -> tuple[dict[str, Any], str]:
    """What `srns report --json` prints, and the page it writes."""
    result = call("report", home / "runs", "-o", home / "report.html", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout, parse_constant=pytest.fail), (home / "report.html").read_text(encoding="utf-8")


def test_the_page_says_what_the_json_says(home: Path, page: tuple[dict[str, Any], str]) -> None:
    found, html = page
    assert found["report"] == str(home / "report.html")
    assert len(found["runs"]) == 6
    for group in found["groups"]:
        for each in group["configurations"]:
            row = re.search(rf'<th scope="row">{re.escape(each["label"])}</th>.*?</tr>', html)
            assert row is not None
            assert f"{each['metrics'][group['metric']]['mean']:.4f}" in html
            if each["difference"]:
                assert f"{each['difference']['difference']:+.4f}" in html
                assert each["difference"]["verdict"] in html
    for run in found["runs"]:
        assert run["metrics"] == pytest.approx(record(home, Path(run["run"]).name)["metrics"], abs=1e-9)
    for heading in (
        "What was compared",
        "Learning curves: ",
        "What the samplers did: ",
        "Runs, time and memory",
        "How to make",
    ):
        assert heading in html
    for words in (
        "fewer than 3 seeds",
        "Of 2 comparisons",
        "best on validation data",
        "different data, or on data that were split",
    ):
        assert words in html
    assert "odd &lt;b&gt; &amp; &#x27;name&#x27;.csv" in html
    assert "<b>" not in html


def section_of(html: str, heading: str) -> str:
    found = re.search(rf"<h2[^>]*>{heading}</h2>(.*?)</section>", html, re.S)
    assert found is not None, heading
    return found.group(1)


def rows_of(html: str) -> list[list[str]]:
    """The cells of the first table."""
    rows = re.findall(r"<tr>(.*?)</tr>", html.partition("</table>")[0], re.S)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)] for row in rows]


def test_the_table_of_accuracy_begins_with_what_matters_and_the_best(home: Path) -> None:
    report = make_report([home / "runs" / name for name in ("uniform-1", "uniform-2", "srns-1", "srns-2", "dns")])
    (group,) = report.groups
    section = section_of(make_page(report).html(), "Accuracy")
    head, *rows = rows_of(section)
    assert head[:5] == ["configuration", "test ndcg@10", "difference", "95% interval of it", "verdict"]
    assert head[-1] == "seeds"
    means = {each.label: each.estimates["ndcg@10"].mean for each in group.configurations}
    ranked = sorted(means, key=lambda label: -means[label])
    assert list(means) != ranked, "else this would tell nothing"
    assert [row[0] for row in rows] == ranked
    assert {row[0]: row[-1] for row in rows} == {"uniform": "2 (1, 2)", "srns": "2 (1, 2)", "dns": "1 (seed 0)"}
    drawn = rows_of(section.partition('class="bar-chart"')[2])[1:]
    assert [row[0] for row in drawn] == ranked
    intervals = [row[head.index("95% interval of test")] for row in rows]
    assert [row[2] for row in drawn] == [f"{row[1]} ({each})" for row, each in zip(rows, intervals, strict=True)]


def test_groups_are_called_by_how_their_data_were_divided(home: Path, tmp_path: Path) -> None:
    (home / "untimed.csv").write_text("user_id,item_id\n" + "".join(f"u{n % 20},i{n * n % 17}\n" for n in range(300)))
    for name, data, fields in (
        ("again", ODD, {"split": "random", "split_seed": 3}),
        ("named", ODD, {"split": "leave-one-out"}),
        ("few", ODD, {"split": "random", "split_seed": 3, "min_user": 15}),
        ("untimed", "untimed.csv", {}),
    ):
        config = make_config({**SMALL, "epochs": 1, "sampler": "uniform", "min_item": 0, **fields})
        train_run(home / data, config, out=tmp_path / name)
    report = make_report(
        [home / "runs" / "dns", home / "runs" / "other", *(tmp_path / name for name in ("again", "named", "few", "untimed"))]
    )
    html = make_page(report).html()
    page_names = re.findall(r"<h2[^>]*>Accuracy: (.*?)</h2>", html)
    told = {tuple(run.folder.name for run in group.runs): name for group, name in zip(report.groups, page_names, strict=True)}
    odd = escape(str(home / ODD))
    assert told == {
        ("dns", "named"): f"{odd}, leave-one-out",
        ("other",): f"{odd}, random, split seed 9, min user 0",
        ("again",): f"{odd}, random, split seed 3, min user 0",
        ("few",): f"{odd}, random, split seed 3, min user 15",
        ("untimed",): f"{escape(str(home / 'untimed.csv'))}, random",
    }
    section = section_of(html, "What was compared")
    for folders, name in told.items():
        listed = ", ".join(str(run.folder) for run in report.runs if run.folder.name in folders)
        assert re.search(rf"<li>{re.escape(name)}: [^<]*; runs? {re.escape(listed)};", section)
    head, *rows = rows_of(section_of(html, "Runs, time and memory"))
    assert head[:2] == ["run", "group"]
    assert {Path(row[0]).name: row[1] for row in rows} == {name: told[key] for key in told for name in key}


def test_groups_that_nothing_tells_apart_are_numbered(home: Path) -> None:
    report = make_report([home / "runs" / "dns"])
    again = replace(report.groups[0], fingerprint="another")
    html = make_page(Report([*report.groups, again], [])).html()
    name = f"{escape(str(home / ODD))}, leave-one-out"
    assert re.findall(r"<h2[^>]*>Accuracy: (.*?)</h2>", html) == [name, f"{name} #2"]


def test_label_errors_are_called_what_they_are(home: Path) -> None:
    """Those of validation are counted, which says nothing of how good a sampler is."""
    html = make_page(make_report([home / "runs" / "srns-1"])).html()
    assert "drawn negatives that are validation items of the user (test items are not looked up). More" in html
    assert "More is not worse by itself" in html
    assert "lower is better" not in html
    (group,) = make_report([home / "runs" / "srns-1"]).groups
    (configuration,) = group.configurations
    noisy = replace(group.runs[0], config=configuration.config.model_copy(update={"noise": 0.5}))
    html = make_page(Report([replace(group, configurations=[replace(configuration, runs=[noisy])])], [])).html()
    assert "drawn negatives that are test items of the user that the noise experiment hid. More" in html
    assert "validation items" not in html


def test_a_page_of_tables_of_the_paper_has_a_name_for_each_column(tmp_path: Path) -> None:
    """A column without one is sorted by a button that says no more than that."""
    made_by = {"date": "2026-01-01", "python": "3", "packages": {"srns": "1"}, "machine": "x", "cores": 1}
    nothing: dict[str, Any] = {name: [] for name in ("runs", "tables", "figures", "charts", "checks", "notes")}
    record = {"title": "Table 2", "command": "srns reproduce table2", "seeds": 0, "environment": made_by, **nothing}
    (tmp_path / "table2.json").write_text(json.dumps(record))
    html = reproduce.page(tmp_path, "", {}).read_text(encoding="utf-8")
    head, row = rows_of(section_of(html, "How this was made"))
    assert head == ["target", "date", "versions", "machine"]
    assert row[0] == "table2"


def test_only_settings_that_differ_are_listed(page: tuple[dict[str, Any], str]) -> None:
    section = re.search(r"Settings that differ: [^<]*</h2>(.*?)</section>", page[1], re.S)
    assert section is not None
    fields = re.findall(r'<th scope="row">([a-z_0-9]+)</th>', section.group(1))
    assert {"sampler", "validate_every", "memory_size", "negatives", "candidates"} <= set(fields)
    assert not {"dim", "epochs", "seed", "learning_rate"} & set(fields)


def test_the_command_of_a_run_makes_the_same_model(home: Path, page: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    run = next(each for each in page[0]["runs"] if each["run"].endswith("srns-2"))
    words = shlex.split(run["command"])
    assert words[:3] == ["srns", "train", str(home / ODD)]
    assert call(*words[1:], "--out", tmp_path / "again").exit_code == 0
    one, two = (artifacts.read_run(folder)["files"] for folder in (home / "runs" / "srns-2", tmp_path / "again"))
    assert one == two


TRAIN = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]


def parsed(command: str) -> tuple[str, RunConfig]:
    """What `srns train` makes of a command line, without training."""
    words = shlex.split(command)
    assert words[:2] == ["srns", "train"]
    given = TRAIN.make_context("train", words[2:]).params
    names = {*RunConfig.model_fields, *sampler_fields()}
    return given["data"], make_config({name: value for name, value in given.items() if name in names and value is not None})


def field_values(name: str) -> st.SearchStrategy[Any]:
    """Values of a field, some of them beyond what is allowed or sensible together: configs that are refused are left out."""
    variants = [RunConfig.model_fields[name]] if name in RunConfig.model_fields else list(sampler_fields()[name].values())
    default = variants[0].default
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, int):
        return st.integers(-3, 2000)
    if isinstance(default, float):
        return st.floats(0, 2, exclude_min=True)
    if isinstance(default, tuple):
        return st.lists(st.integers(1, 50), min_size=1, max_size=4)
    if name in ("min_weight", "noise"):
        return st.floats(0, 1)
    words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
    if default is None:
        return st.one_of(words, words.map(lambda text: f"-{text}"))
    options = {"loss": ["bpr", "hinge", "bce"], "l2": [0.5, 1e-7, "auto"], "split": ["random", "temporal"], "metric": ["map@7"]}
    return st.sampled_from(options.get(name, ["cosine", "constant", "full", "plain", "random", "flat", "candidates", "copy"]))


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    sampler, scorer = draw(st.sampled_from(sorted(SAMPLERS))), draw(st.sampled_from(sorted(SCORERS)))
    names = sorted({*RunConfig.model_fields, *SAMPLERS[sampler].model_fields} - {"sampler", "scorer"})
    fields: dict[str, Any] = {"sampler": sampler, "scorer": scorer}
    for name in draw(st.lists(st.sampled_from(names), max_size=6, unique=True)):
        attempt = {**fields, name: draw(field_values(name))}
        try:
            make_config(attempt)
        except ConfigError:
            continue
        fields = attempt
    return make_config(fields)


paths = st.one_of(
    st.sampled_from(["ml-1m", ODD, "-x.csv", "--dim", "a b/$HOME `ls`;.csv", "*"]), st.text("ab -'\"\\\n", min_size=1)
)


@settings(max_examples=100, deadline=None)
@given(paths, configs())
def test_a_command_read_again_gives_the_same_run(data: str, config: RunConfig) -> None:
    command = train_command(data, config)
    found_data, found = parsed(command)
    assert found_data == data
    assert found.model_dump() == config.model_dump()


@pytest.mark.parametrize("preset", PRESETS)
def test_commands_of_presets_name_what_is_not_default_alone(preset: str) -> None:
    config = make_config(preset=preset)
    command = train_command("data", config)
    assert parsed(command)[1] == config
    changed = {name for name, value in config.model_dump().items() if value != RunConfig().model_dump()[name]}
    assert {word[2:].removeprefix("no-").replace("-", "_") for word in shlex.split(command) if word.startswith("--")} == changed
    assert train_command("data", RunConfig()) == "srns train data"
    assert train_command("data", RunConfig(), 4) == "torchrun --nproc-per-node 4 -m srns train data"


def test_runs_without_a_test_part_or_curve_still_make_a_page(home: Path, tmp_path: Path) -> None:
    untested = altered(home / "runs" / "dns", tmp_path / "untested", metrics={})
    html = make_page(make_report([untested])).html()
    assert "there is nothing to measure" in html
    assert "Learning curves" in html
    history = [{**each, "valid": {}} for each in artifacts.read_run(untested)["history"]]
    unchosen = altered(untested, tmp_path / "unchosen", history=history, best_epoch=len(history))
    assert f">last of {len(history)}<" in make_page(make_report([unchosen])).html()
    train_run(home / ODD, make_config({"scorer": "popularity"}), out=tmp_path / "solved")
    html = make_page(make_report([tmp_path / "solved"])).html()
    assert "made in one step" in html
    assert "There is one run." in html


def test_the_paper_protocol_brings_full_ranking_too(home: Path, tmp_path: Path) -> None:
    config = make_config({**SMALL, "sampler": "uniform", "protocol": "paper"})
    train_run(home / ODD, config, out=tmp_path / "paper")
    report = make_report([tmp_path / "paper", home / "runs" / "uniform-1"])
    assert [group.protocol for group in report.groups] == ["paper", "full"]
    saved = artifacts.read_run(tmp_path / "paper")
    html = make_page(report).html()
    assert "Lists of 10, full ranking, as the records of the runs have it" in html
    assert f"{saved['metrics_full']['ndcg@10']:.4f}" in html


def test_fifty_long_runs_stay_one_quick_page(home: Path, tmp_path: Path) -> None:
    source = artifacts.read_run(home / "runs" / "srns-1")
    valid = {"ndcg@10": source["history"][0]["valid"]["ndcg@10"]}
    history = [{**source["history"][n % 3], "valid": valid, "epoch": n + 1} for n in range(400)]
    for n in range(50):
        config = {**source["config"], "learning_rate": 0.001 * (n + 1), "epochs": 400}
        altered(home / "runs" / "srns-1", tmp_path / f"{n:02}", config=config, history=history, best_epoch=1)
    report = make_report([tmp_path])
    assert len(report.groups[0].configurations) == 50
    html = make_page(report).html()
    assert "Drawn with at most 180 of 400 points each." in html
    assert len(html) < 8e6
    drawn = re.findall(r'class="line"[^>]* d="([^"]*)"', html)
    assert max(path.count("L") for path in drawn) < 180


def test_titles_and_references_are_taken_from_the_command_line(home: Path, tmp_path: Path) -> None:
    flags = ("--title", "My <title>", "--reference", home / "runs" / "uniform-1", "-o", tmp_path / "page.html")
    result = call("report", home / "runs" / "uniform-1", home / "runs" / "srns-1", *flags)
    assert result.exit_code == 0
    assert result.stdout.strip() == f"2 runs on one page: {tmp_path / 'page.html'}"
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>My &lt;title&gt;</h1>" in html
    assert "“uniform”, as asked for" in html


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "there is no finished run to report on: nowhere: nowhere is not a run"),
        (["RUN", "--reference", "nowhere"], "--reference nowhere is not among the runs"),
        (["RUN", "-o", "RUN/run.json/x"], "cannot write"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_are_explained(args: list[str], message: str, home: Path) -> None:
    result = call("report", *(arg.replace("RUN", str(home / "runs" / "dns")) for arg in args))
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.stderr)
    assert "Traceback" not in result.stderr


def test_unusable_runs_are_named_while_the_page_is_written(home: Path, tmp_path: Path) -> None:
    result = call("report", home / "runs" / "dns", tmp_path / "[/x]", "-o", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "left out: " in result.stderr
    assert "[/x]" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_report_needs_no_matplotlib_and_no_torch(home: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None; from srns.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "report", str(home / "runs"), "-o", str(tmp_path / "page.html")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "page.html").exists()
