"""What negatives look like while a model learns: measured functions against loops, the figure's conclusions, and all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from srns import rng
from srns.cli import app
from srns.config import RunConfig
from srns.errors import DataError
from srns.experiments import figure1, figure1_runs
from srns.experiments.outcome import Asked
from srns.experiments.store import Job
from srns.interactions import Interactions
from srns.negatives import (
    DEPTH,
    DIFFICULTIES,
    Watch,
    auc,
    ccdf,
    draw_population,
    draw_rows,
    hardest,
    matched,
    p_pos,
    wavering,
)
from srns.samplers.unseen import Unseen
from srns.scorers import GMF
from srns.simulation import simulate
from srns.splits import Split, split_random
from srns.trainer import Trainer

numbers = st.floats(0, 1, width=16)


@pytest.fixture(scope="module")
def parts() -> tuple[Interactions, Interactions]:
    split = split_random(simulate(60, 40, 700, seed=2).interactions, ratio=(0.8, 0, 0.2))
    assert split.test is not None
    return split.train, split.test


@pytest.fixture(scope="module")
def watched(parts: tuple[Interactions, Interactions]) -> Watch:
    """A watch after a short training."""
    train, hidden = parts
    watch = Watch(train, hidden, draw_rows(train, hidden, 200, seed=1), seed=1, every=2)
    trainer = Trainer(RunConfig(sampler="uniform", dim=4, epochs=8, engine="plain"), Split("x", train, None, None))
    watch.engine, trainer.callbacks = trainer.engine, [watch]
    trainer.run()
    return watch


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def test_p_pos_is_that_of_each_pair() -> None:
    model = GMF.init(5, 9, 3, std=1.0, learn_beta=True, seed=0)
    users, positives, items = np.array([0, 4, 4]), np.array([1, 2, 8]), np.array([[3, 0], [2, 5], [7, 1]])

    def score(user: int, item: int) -> float:
        return float(sum(model.beta[f] * model.users[user, f] * model.items[item, f] for f in range(3)))

    expected = [
        [sigmoid(score(u, j) - score(u, i)) for j in row]
        for u, i, row in zip(users.tolist(), positives.tolist(), items.tolist(), strict=True)
    ]
    np.testing.assert_allclose(p_pos(model, users, positives, items), expected, rtol=1e-5)


@given(st.lists(numbers, min_size=1, max_size=9), st.lists(numbers, min_size=1, max_size=9))
def test_auc_counts_pairs(one: list[float], other: list[float]) -> None:
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in one for b in other]
    assert auc(one, other) == pytest.approx(np.mean(wins))


@given(st.lists(st.lists(numbers, min_size=6, max_size=6), min_size=1, max_size=5))
def test_hardest_is_the_best_of_the_first_candidates(rows: list[list[float]]) -> None:
    found = hardest(np.array(rows), (1, 3, 6))
    for row, places in zip(rows, found.tolist(), strict=True):
        assert [row[place] for place in places] == [max(row[:n]) for n in (1, 3, 6)]


@given(st.lists(numbers, min_size=1, max_size=20), st.lists(numbers, min_size=1, max_size=5))
def test_ccdf_is_a_share(values: list[float], at: list[float]) -> None:
    assert ccdf(values, at).tolist() == pytest.approx([sum(v >= x for v in values) / len(values) for x in at])


def test_wavering_and_its_peers() -> None:
    values = np.random.default_rng(0).random((DEPTH, 3))
    expected = [float(np.sqrt(np.mean((column - column.mean()) ** 2)) / column.mean()) for column in values.T]
    np.testing.assert_allclose(wavering(values), expected)
    assert wavering(np.zeros((3, 2))).tolist() == [0, 0], "a P_pos of 0 throughout does not waver"
    assert matched(0.25, [0.1, 0.2, 0.3], [5.0, 4.0, 2.0]) == pytest.approx(3.0)
    assert np.isnan(matched(0.5, [0.1, 0.2], [5.0, 4.0])), "nothing is as hard"
    assert np.isnan(matched(0.05, [0.1, 0.2], [5.0, 4.0])), "nothing is as easy"
    assert auc([], [0.1]) != auc([], [0.1]), "NaN: there is nothing to tell"


def test_rows_and_population_are_what_they_say(parts: tuple[Interactions, Interactions]) -> None:
    train, hidden = parts
    users, positives, false = draw_rows(train, hidden, 300, seed=0)
    assert len(users) == 300
    assert len({*zip(users.tolist(), positives.tolist(), strict=True)}) == 300, "no interaction twice"
    assert train.contains(users, positives).all()
    has = hidden.user_counts[users] > 0
    assert ((false >= 0) == has).all()
    assert hidden.contains(users[has], false[has]).all()
    assert len(draw_rows(train, hidden, 10**6, seed=0).users) == len(train)
    users, positives, items = draw_population(train, 60_000, seed=0)
    assert train.contains(users, positives).all()
    assert not train.contains(users, items).any()
    times = np.bincount(users * train.n_items + items, minlength=train.n_users * train.n_items)
    unseen = train.n_users * train.n_items - len(train)
    assert np.count_nonzero(times) == unseen, "every pair is drawn at times"
    expected = 60_000 / unseen
    assert ((times[times > 0] - expected) ** 2 / expected).sum() / unseen == pytest.approx(1, abs=0.1)  # chi squared


def test_a_look_equals_loops_over_rows(watched: Watch, parts: tuple[Interactions, Interactions]) -> None:
    train, hidden = parts
    assert [look["epoch"] for look in watched.found] == [1, 2, 4, 6, 8]
    assert len(watched.past) == DEPTH
    users, positives, false = (part.tolist() for part in watched.rows)
    unseen = Unseen(train, np)
    keys = unseen.row_keys(rng.stream_key(1, "looking", 8), *watched.rows[:2])
    candidates = unseen.draw(watched.rows.users, keys, max(DIFFICULTIES)).tolist()
    hidden_of = [set(hidden.items_of(user).tolist()) for user in range(train.n_users)]

    def chance(model: Any, user: int, positive: int, item: int) -> float:
        scores = model(np.array([user]), np.array([[positive, item]]))[0]
        return sigmoid(float(scores[1] - scores[0]))

    errors, values, wavers = [], [], []
    for user, positive, mine, offered in zip(users, positives, false, candidates, strict=True):
        latest = watched.past[-1](np.array([user]), np.array([offered]))[0].tolist()
        drawn = [offered[max(range(n), key=lambda place: latest[place])] for n in DIFFICULTIES]
        errors.append([item in hidden_of[user] for item in drawn])
        if mine >= 0:
            history = [[chance(model, user, positive, item) for model in watched.past] for item in [mine, *drawn]]
            values.append([each[-1] for each in history])
            wavers.append([np.std(each) / np.mean(each) for each in history])
    look = watched.found[-1]
    np.testing.assert_allclose(look["label_error_ratio"], np.mean(errors, axis=0))
    np.testing.assert_allclose(look["p_pos"], np.median(values, axis=0), rtol=1e-5)
    np.testing.assert_allclose(look["wavering"], np.median(wavers, axis=0), rtol=1e-4)
    told = np.array(values), np.array([each for each, one in zip(errors, false, strict=True) if one >= 0])
    assert look["detection"]["score"] == pytest.approx(auc(told[0][:, 0], told[0][~told[1][:, 0], 1]))


def made_up(ratio: float, errors: list[float], false: float = 0.35) -> dict[str, Any]:
    """A run in which hard negatives waver by their hardness, and false ones `ratio` times as much as their equals."""
    medians = np.linspace(0.1, 0.7, len(DIFFICULTIES))
    looks = [
        {
            "epoch": epoch,
            "p_pos": [false, *medians],
            "wavering": [ratio * (1 - false), *(1 - medians)],
            "label_error_ratio": errors,
        }
        for epoch in range(1, 11)
    ]
    return {"looks": looks, "shares": [[1, [1.0] * len(figure1_runs.AT)], [10, [0.5] * len(figure1_runs.AT)]]}


@pytest.mark.parametrize(
    ("ratio", "false", "holds"),
    [([0.9, 0.91, 0.92], 0.35, True), ([1.1, 1.11, 1.1], 0.35, False), ([0.8, 1.2, 1.0], 0.35, None), ([0.9] * 3, 0.9, None)],
)
def test_the_figure_concludes_from_hard_negatives_of_the_same_median(
    ratio: list[float], false: float, holds: bool | None
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    asked = Asked(seeds=3)
    rising = np.linspace(0.01, 0.07, len(DIFFICULTIES)).tolist()
    jobs = figure1.jobs(asked, {})
    found: dict[Job, dict[str, Any]] = {job: made_up(each, rising, false) for job, each in zip(jobs, ratio, strict=True)}
    outcome = figure1.outcome(asked, found)
    steadier, more = outcome.checks
    assert steadier.holds is holds, steadier.detail
    assert more.holds is True
    assert list(outcome.figures) == ["figure1"]
    if holds is not None:
        assert outcome.tables[0].rows[-1][:3] == ["hard, as hard as the false", "0.3500", "0.6500"]
    fallen = dict.fromkeys(jobs, made_up(1.0, rising[::-1]))
    assert figure1.outcome(asked, fallen).checks[1].holds is False


def test_data_of_one_name_have_figures_of_their_own() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    asked = Asked(("a/clicks.csv", "b/clicks.csv"), seeds=1)
    rising = np.linspace(0.01, 0.07, len(DIFFICULTIES)).tolist()
    outcome = figure1.outcome(asked, dict.fromkeys(figure1.jobs(asked, {}), made_up(0.9, rising)))
    assert list(outcome.figures) == ["figure1-clicks", "figure1-clicks-2"]
    assert [table.title.partition(":")[0] for table in outcome.tables] == ["a/clicks.csv", "b/clicks.csv"]


def test_figure1_end_to_end_on_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    data = simulate(60, 50, 900, seed=4).interactions
    clicks = tmp_path / "clicks.csv"
    pl.DataFrame({"user": data.user_ids.take(data.users), "item": data.item_ids.take(data.items)}).write_csv(clicks)
    arguments = [
        "reproduce",
        "figure1",
        "--quick",
        "--epochs",
        "12",
        "--dataset",
        clicks,
        "--jobs",
        "1",
        "--out",
        tmp_path / "o",
    ]
    result = CliRunner().invoke(app, [str(each) for each in (*arguments, "--json")])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    claims = [check["claim"] for check in answer["targets"]["figure1"]["checks"]]
    assert len(claims) == 2
    assert all(claim.startswith("clicks: ") for claim in claims)
    assert (tmp_path / "o" / "quick-12-epochs" / "figure1-clicks.png").exists()
    once = tmp_path / "once.csv"
    pl.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3]}).write_csv(once)
    with pytest.raises(DataError, match="no positives can be hidden"):
        figure1_runs.parts(str(once))
