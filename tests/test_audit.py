"""The audit: what is counted against counting by hand, estimates against a world that knows, conclusions, page and messages."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from srns.audit import Plan
from srns.audit.findings import Contestant, Sums, conclude
from srns.audit.hiding import Answers, hide, observed, read_answers
from srns.audit.page import make_page
from srns.audit.questions import questions
from srns.audit.sweep import contestants
from srns.audit.trial import GROUPS, Trained, asked, groups, train, trial
from srns.audit.words import answer, headline, numbers
from srns.cli import app
from srns.cli.auditing import table
from srns.config import RunConfig
from srns.engines import make_engine
from srns.errors import ConfigError, DataError
from srns.interactions import Interactions
from srns.presets import make_config
from srns.samplers import SAMPLERS, SRNS, Truth
from srns.simulation import World, simulate

SMALL: dict[str, Any] = {"dim": 8, "epochs": 4, "batch_size": 128}


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(150, 120, 3_000, seed=6)


@pytest.fixture(scope="module")
def clicks(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "clicks.csv"
    data = world.interactions
    pl.DataFrame({"user": data.user_ids.take(data.users), "item": data.item_ids.take(data.items)}).write_csv(path)
    return path


@pytest.fixture(scope="module")
def everything(world: World) -> pl.DataFrame:
    """Who likes what, of all pairs."""
    data = world.interactions
    users, items = (each.ravel() for each in np.indices((data.n_users, data.n_items)))
    liked = world.would_like(users, items).astype(int)
    return pl.DataFrame({"user": data.user_ids.take(users), "item": data.item_ids.take(items), "liked": liked})


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


@pytest.mark.parametrize(
    "values",
    [
        {"sampler": "uniform", "negatives": 3},
        {"sampler": "dns", "candidates": 8, "negatives": 2},
        {"sampler": "srns", "memory_size": 6, "negatives": 2, "expansion_size": 6},
        {"sampler": "adasir", "candidates": 20, "memory_size": 8, "negatives": 3, "weighted": True},
        {"sampler": "adasir", "candidates": 20, "memory_size": 8, "negatives": 3, "weighted": True, "engine": "torch"},
        {"sampler": "in_batch"},
        {"sampler": "in_batch", "engine": "torch"},
        {"sampler": "nncf", "loss": "bpr"},
        {"sampler": "nncf", "loss": "bpr", "engine": "fused"},
    ],
)
def test_draws_of_known_positives_are_those_counted_one_by_one(world: World, values: dict[str, Any]) -> None:
    if values.get("engine") == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    parts = hide(world.interactions, 0.2, 0)
    train, hidden = parts.train, parts.hidden
    config = make_config({**SMALL, "engine": "plain", **values})
    engine: Any = make_engine(config, train, Truth(hidden))
    counts: dict[tuple[int, int], float] = {}
    sample = engine.sampler.sample

    def counted(users: Any, positives: Any, score: Any, step: int) -> Any:
        drawn = sample(users, positives, score, step)
        ids = np.broadcast_to(drawn.ids, (len(users), drawn.ids.shape[1])).tolist()
        weights = np.ones_like(ids, float).tolist() if drawn.weight is None else drawn.weight.tolist()
        for user, row, weight in zip(users.tolist(), ids, weights, strict=True):
            for item, each in zip(row, weight, strict=True):
                if each > 0:  # what counts nothing in the loss was not drawn, and does not thin out what was
                    counts[user, item] = counts.get((user, item), 0.0) + each / sum(weight)
        return drawn

    engine.sampler.sample = counted
    for epoch in range(2):
        counts.clear()
        engine.run_epoch(epoch)
        expected = [counts.get(pair, 0.0) for pair in zip(hidden.users.tolist(), hidden.items.tolist(), strict=True)]
        np.testing.assert_allclose(engine.known_draws(), expected)
        assert engine.observations()["label_error_ratio"] == pytest.approx(sum(expected) / len(train))


def test_shared_negatives_are_mistaken_as_often_as_those_drawn_for_each() -> None:
    """Those of NNCF that count for a user follow popularity ^ .75 over what the user has not seen, as those of `popularity`."""
    parts = hide(simulate(300, 200, 12_000, seed=3).interactions, 0.2, 0)
    found = {}
    for values in ({"sampler": "nncf", "loss": "bpr"}, {"sampler": "popularity"}):
        engine = make_engine(make_config({"dim": 8, **values}), parts.train, Truth(parts.hidden))
        engine.run_epoch(0)
        found[values["sampler"]] = engine.known_draws().sum()
    assert found["nncf"] == pytest.approx(found["popularity"], rel=0.03)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_fused_engine_counts_what_the_plain_one_does(world: World, threads: int) -> None:
    parts = hide(world.interactions, 0.2, 0)
    names = {"fused": {"threads": threads}, "plain": {}}
    config = {**SMALL, "sampler": "uniform", "negatives": 3}
    engines = [
        make_engine(make_config({**config, "engine": n, **v}), parts.train, Truth(parts.hidden)) for n, v in names.items()
    ]
    for epoch in range(2):
        for engine in engines:
            engine.run_epoch(epoch)
        np.testing.assert_allclose(engines[0].known_draws(), engines[1].known_draws())
        assert engines[0].known_draws().sum() > 0


def test_the_torch_engine_counts_what_the_plain_one_does(world: World) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    parts = hide(world.interactions, 0.2, 0)
    for sampler in ("uniform", "in_batch", "nncf"):
        config = {**SMALL, "sampler": sampler}
        engines = [
            make_engine(make_config({**config, "engine": n}), parts.train, Truth(parts.hidden)) for n in ("torch", "plain")
        ]
        for engine in engines:
            engine.run_epoch(0)
        np.testing.assert_allclose(engines[0].known_draws(), engines[1].known_draws(), rtol=1e-6)


def test_columns_can_be_named(clicks: Path, tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    frame = pl.read_csv(clicks).rename({"user": "who", "item": "what"}).with_columns(stars=pl.lit(5))
    pl.concat([frame, frame.head(3).with_columns(who=pl.lit(None, frame.schema["who"]))]).write_csv(path)
    named = ["--user-column", "who", "--item-column", "what", "--weight-column", "stars", "--drop-bad-rows"]
    result = call(path, *named, "--ask", tmp_path / "questions.csv", "--questions", 50)
    assert result.exit_code == 0, result.output
    assert pl.read_csv(tmp_path / "questions.csv").columns[:2] == ["who", "what"]
    assert "--set user_column=who" in " ".join(result.output.split())
    assert "--set drop_bad_rows=true" in " ".join(result.output.split())
    result = call(path, *named, "--set", "user_column=what")
    assert result.exit_code == 2
    assert "--user-column and --set user_column=what both say it" in " ".join(result.output.split())


def test_nothing_is_drawn_where_nothing_is_sampled(world: World) -> None:
    for values in ({"sampler": "enmf"}, {"scorer": "ease"}):
        engine = make_engine(make_config(dict(values)), world.interactions)
        assert len(engine.known_draws()) == 0


def test_hiding_leaves_every_user_something(world: World) -> None:
    data = world.interactions
    parts = hide(data, 0.3, 4)
    assert len(parts.hidden) == round(0.3 * len(data)) == len(parts.choosing) + len(parts.judging)
    assert abs(len(parts.choosing) - len(parts.judging)) <= 1
    assert parts.train.user_counts.min() >= 1
    assert len(parts.train.union(parts.hidden)) == len(data), "nothing is lost, nothing twice"
    assert not np.array_equal(hide(data, 0.3, 5).hidden.items, parts.hidden.items)
    np.testing.assert_array_equal(hide(data, 0.3, 4).hidden.items, parts.hidden.items)
    pairs = Interactions.from_pairs([*range(50), *range(50)], [0] * 50 + [1] * 50)
    assert hide(pairs, 0.5, 0).train.user_counts.tolist() == [1] * 50, "one of two is the most that can be hidden"


def test_what_cannot_be_audited_is_said() -> None:
    once = Interactions.from_pairs(range(100), [item % 7 for item in range(100)])
    with pytest.raises(DataError, match="no user has two positives"):
        hide(once, 0.2, 0)
    few = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 0, 1, 0])
    with pytest.raises(DataError, match=r"only 1 of 5 positives could be hidden, too few .* at least 40"):
        hide(few, 0.2, 0)
    for share in (0.0, 0.6, -1.0):
        with pytest.raises(ConfigError, match=r"above 0 and at most 0\.5"):
            hide(few, share, 0)


def test_data_are_all_of_a_file_and_all_but_test_of_a_split(world: World, clicks: Path, tmp_path: Path) -> None:
    assert len(observed(str(clicks), RunConfig())) == len(world.interactions)
    pairs = np.stack([world.interactions.users, world.interactions.items], axis=1)
    split = tmp_path / "split.npz"
    np.savez(split, train=pairs[:2000], val=pairs[2000:2500], test=pairs[2500:])
    assert len(observed(str(split), RunConfig())) == 2500


def test_trial_counts_mistakes_and_chance(clicks: Path) -> None:
    values = {**SMALL, "sampler": "uniform", "negatives": 8, "epochs": 10}
    found = trial(str(clicks), values, 0.2, 3, None, "")
    data = observed(str(clicks), RunConfig())
    parts = hide(data, 0.2, 3)
    assert sum(found["positives"]) == len(parts.train)
    group = groups(data.n_users)
    chance = np.zeros(GROUPS)
    for user in range(data.n_users):
        mine, hidden = len(parts.train.items_of(user)), len(parts.hidden.items_of(user))
        chance[group[user]] += hidden * mine / (data.n_items - mine)
    np.testing.assert_allclose(found["chance"], chance)
    assert sum(found["drawn"]) == pytest.approx(chance.sum(), rel=0.05), "uniform negatives are chance"
    assert len(found["by_epoch"]) == 10
    assert np.mean(found["by_epoch"]) == pytest.approx(sum(found["drawn"]) / len(parts.train))
    assert sum(found["judged"]) == np.count_nonzero(parts.judging.user_counts)
    assert 0 < sum(found["metric"]) / sum(found["judged"]) < 1
    assert "asked" not in found


@pytest.mark.parametrize("sampler", ["uniform", "popularity", "dns", "in_batch", "srns-difficulty", "srns-variance"])
def test_label_error_ratio_is_within_ten_percent_of_the_truth(
    world: World, clicks: Path, everything: pl.DataFrame, tmp_path: Path, sampler: str
) -> None:
    """By all answers it is the truth. By 3,000, many times others, it is near in nearly all cases, and right in the mean; of
    the intervals no more than one in twenty misses. docs/audit.md has larger worlds."""
    everything.write_csv(tmp_path / "answers.csv")
    (contestant,) = contestants(Plan(str(clicks), (sampler,), (5.0,), settings=SMALL))
    done = train(str(clicks), dict(contestant.values), 0.2, 0, str(tmp_path / "answers.csv"))
    told, truth = done.told, true_ratio(world, done.data, contestant)
    assert told is not None
    drawn = done.drawn_of(told)
    assert Sums([asked(told, drawn)]).ratio("asked_liked", "asked").value == pytest.approx(truth, rel=1e-9)
    for ask in (blindly, by_questions):
        found = []
        for seed in range(120):
            place, weight = ask(done, 3_000, seed)
            some = Answers(told.users[place], told.items[place], told.liked[place], weight)
            found.append(Sums([asked(some, drawn[place])]).ratio("asked_liked", "asked"))
        value, low, high = np.array(found).T
        off = value / truth - 1
        assert abs(off.mean()) < 0.015
        assert np.mean(np.abs(off) < 0.1) >= 0.93
        assert np.mean((low < truth) & (truth < high)) >= 0.9, "at least as often as promised, but for luck"
        assert np.median(high - low) < 0.25 * truth, "and not by being wide"


def blindly(done: Trained, size: int, seed: int) -> tuple[Any, Any]:
    assert done.told is not None
    return np.random.default_rng(seed).choice(len(done.told.users), size, replace=False), np.ones(size)


def by_questions(done: Trained, size: int, seed: int) -> tuple[Any, Any]:
    """The places of their answers, found one by one, and their weights."""
    assert done.told is not None
    places = {pair: n for n, pair in enumerate(zip(done.told.users.tolist(), done.told.items.tolist(), strict=True))}
    pairs = questions(done.data, size, done.config, seed)
    users, items = done.data.user_ids.indices(pairs["user"]), done.data.item_ids.indices(pairs["item"])
    return [places[pair] for pair in zip(users.tolist(), items.tolist(), strict=True)], pairs["weight"].to_numpy()


def test_questions_are_weighed_by_how_likely_they_are(world: World) -> None:
    """Of any number that pairs have, the weighted mean over questions is that of all pairs that are not in the data."""
    data = world.interactions
    likely = np.zeros((data.n_users, data.n_items))
    for user in range(data.n_users):
        free = np.setdiff1d(np.arange(data.n_items), data.items_of(user))
        popular = np.maximum(data.item_counts[free], 1e-9) ** 0.75
        likely[user, free] = len(data.items_of(user)) / len(data) * (0.5 / len(free) + 0.5 * popular / popular.sum())
    many = questions(data, 400_000, RunConfig(), seed=1)
    users, items = data.user_ids.indices(many["user"]), data.item_ids.indices(many["item"])
    assert not data.contains(users, items).any()
    assert len(set(zip(users.tolist(), items.tolist(), strict=True))) == len(many), "none is asked twice"
    times = many["weight"].to_numpy() * likely[users, items]
    often = times * 400_000 / times.sum()
    assert often == pytest.approx(np.round(often), abs=0.05), "asked a whole number of times, by these probabilities"
    expected = 400_000 * likely[users, items]
    assert np.mean((often - expected) ** 2 / expected) == pytest.approx(1, abs=0.1), "chi-square"
    few = questions(data, 500, RunConfig(user_column="who"), seed=1)
    assert few.columns == ["who", "item", "weight"]
    assert few["weight"].mean() == pytest.approx(1)


def true_ratio(world: World, data: Interactions, contestant: Contestant) -> float:
    """The share of negatives drawn in all epochs, hidden ones aside, that their user would like: by what the world knows of
    every pair that is not in the data."""
    known = world.interactions.item_ids.indices(data.item_ids.labels)  # of those that anybody took
    pairs = [
        (user, item) for user in range(data.n_users) for item in set(range(data.n_items)) - set(data.items_of(user).tolist())
    ]
    users, items = np.array(pairs).T
    outside = Interactions.from_pairs(users, items, user_ids=data.user_ids, item_ids=data.item_ids)
    parts, config = hide(data, 0.2, 0), make_config({**contestant.values, "seed": 0, "threads": 1})
    engine = make_engine(config, parts.train, Truth(outside))
    drawn = np.zeros(len(outside))
    for epoch in range(config.epochs):
        engine.run_epoch(epoch)
        drawn += engine.known_draws()
    likes = [set(world.false_negatives(user).tolist()) for user in range(data.n_users)]
    liked = sum(
        times
        for user, item, times in zip(outside.users.tolist(), outside.items.tolist(), drawn.tolist(), strict=True)
        if known[item] in likes[user]
    )
    return liked / float(drawn.sum())


def test_answers_are_read_and_checked(clicks: Path, everything: pl.DataFrame, tmp_path: Path) -> None:
    data, path = observed(str(clicks), RunConfig()), tmp_path / "answers.csv"
    stranger = pl.DataFrame({"user": ["nobody"], "item": everything["item"][:1], "liked": [1]})
    pl.concat([everything, stranger]).write_csv(path)
    found = read_answers(path, data, RunConfig())
    assert len(found.users) == data.n_users * data.n_items - len(data)
    assert not data.contains(found.users, found.items).any()
    never = (everything["item"].n_unique() - data.n_items) * data.n_users  # about items that nobody took
    assert [note.split()[2] for note in found.notes] == [f"{1 + never:,}", f"{len(data):,}"]
    stranger.write_csv(path)
    with pytest.raises(DataError, match="no answer is about a pair"):
        read_answers(path, data, RunConfig())
    everything.with_columns(liked=pl.lit(3)).write_csv(path)
    with pytest.raises(DataError, match="column liked has values other than 0 and 1"):
        read_answers(path, data, RunConfig())
    everything.with_columns(weight=pl.int_range(1, len(everything) + 1)).write_csv(path)
    weighed = read_answers(path, data, RunConfig())
    order = dict(zip(everything.select("user", "item").iter_rows(), range(1, len(everything) + 1), strict=True))
    labels = zip(data.user_ids.take(weighed.users), data.item_ids.take(weighed.items), strict=True)
    assert weighed.weight.tolist() == [order[pair] for pair in labels], "each with its own weight"
    assert set(found.weight) == {1.0}
    everything.with_columns(weight=pl.lit(0)).write_csv(path)
    with pytest.raises(DataError, match="column weight has values that are not above 0"):
        read_answers(path, data, RunConfig())
    everything.drop("liked").write_csv(path)
    with pytest.raises(DataError, match="liked"):
        read_answers(path, data, RunConfig())


def made_up(metric: float, noise: float, seed: int, drawn: float = 2.0) -> dict[str, Any]:
    """A run whose users have this metric, more or less."""
    generator = np.random.default_rng(seed)
    per_group = 4 * (metric + noise * generator.standard_normal(GROUPS))
    look = {"p_pos": [0.4, 0.1, *[0.5] * 6], "wavering": [0.1, 0.2, *[0.1] * 6]}
    detection = dict.fromkeys(("score", "steady", "score_hard", "steady_hard"), 0.5)
    return {
        "positives": [100.0] * GROUPS,
        "drawn": [drawn] * GROUPS,
        "chance": [1.0] * GROUPS,
        "metric": per_group.tolist(),
        "judged": [4.0] * GROUPS,
        "by_epoch": [0.02, 0.03],
        "looks": [{"epoch": epoch, **look, "detection": detection} for epoch in (1, 2)],
        "best_epoch": 2,
        "notes": ["a note"],
        "facts": {"users": 800, "items": 50, "positives": 20_000, "hidden": 4_000, "answers": 0, "metric": "ndcg@10"},
    }


NAMES = {"uniform": None, "dns": None, "srns-difficulty": 0.0, "srns-variance 5": 5.0}
CONTESTANTS = [Contestant(name, {"sampler": name.split("-")[0], "negatives": 16}, weight) for name, weight in NAMES.items()]


def conclusion(metrics: list[list[float]], noise: float = 0.01) -> Any:
    """Of metrics by contestant and seed."""
    runs = {
        each.name: [made_up(value, noise, 100 * n + seed) for seed, value in enumerate(values)]
        for n, (each, values) in enumerate(zip(CONTESTANTS, metrics, strict=True))
    }
    return conclude(CONTESTANTS, runs)


def test_a_clear_winner_is_recommended() -> None:
    found = conclusion([[0.30] * 3, [0.36] * 3, [0.33] * 3, [0.34] * 3])
    advice = found.recommendation
    assert advice.chosen.contestant.name == advice.best.contestant.name == "dns"
    assert advice.as_good == ()
    assert [each.worse for each in found.each] == [True, False, True, True]
    assert advice.chosen.to_uniform is not None
    assert advice.chosen.to_uniform.value == pytest.approx(0.06, abs=0.003)
    assert advice.chosen.to_chance.value == 2
    assert "Use dns" in headline(found)
    assert advice.weight is not None
    assert (advice.weight.chosen, advice.weight.best) == (5, 5)


def test_one_sampler_alone_is_compared_with_nothing() -> None:
    found = conclude(CONTESTANTS[:1], {CONTESTANTS[0].name: [made_up(0.3, 0.01, 0)]})
    assert headline(found).startswith("Only uniform was looked at")
    assert answer(found)[0].startswith("Only uniform was looked at")
    assert "trained once" in answer(found)[-1]
    assert found.alone
    assert numbers(found)["recommended"] is None
    shown = make_page(found, "x", "y", "srns audit x").html()
    for praise in ("the plainest that no other", "recommended</td>", "Train with it", ">verdict<"):
        assert praise not in shown, praise
    assert "Compare it with others" in shown
    weights = [Contestant(f"srns-variance {weight:g}", {"sampler": "srns"}, weight) for weight in (0.0, 5.0)]
    found = conclude(weights, {each.name: [made_up(0.3 + 0.01 * n, 0.01, n)] for n, each in enumerate(weights)})
    assert headline(found).startswith("Only srns-variance was looked at"), "other weights are no other sampler"
    assert "Use" not in " ".join(answer(found))
    assert not conclusion([[0.30], [0.36], [0.33], [0.34]]).alone


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([0.57], None),  # how much of it is luck is not known
        ([0.57, 0.58, 0.575], "score more steadily"),
        ([0.43, 0.42, 0.425], "score less steadily"),
        ([0.49, 0.65, 0.57], "no more than a guess"),  # seeds disagree
        ([0.515, 0.517, 0.516], "no more than a guess"),  # sure, but next to nothing
    ],
)
def test_steadiness_is_told_with_its_interval_or_not_at_all(told: list[float], said: str | None) -> None:
    runs = []
    for seed, value in enumerate(told):
        run = made_up(0.3, 0.01, seed)
        looks = [{**look, "detection": {**look["detection"], "steady_hard": value}} for look in run["looks"]]
        runs.append({**run, "looks": looks})
    each = CONTESTANTS[:2]
    text = " ".join(answer(conclude(each, {one.name: runs for one in each})))
    assert ("steadi" in text) is (said is not None)
    assert said is None or (said in text and "95% over seeds" in text)


def test_adversarial_samplers_are_said_to_start_at_random() -> None:
    each = [CONTESTANTS[0], Contestant("irgan", {"sampler": "irgan"}), Contestant("rns_as", {"sampler": "rns_as"})]
    found = conclude(each, {one.name: [made_up(0.3, 0.01, n)] for n, one in enumerate(each)})
    assert answer(found)[-1].startswith("irgan and rns_as learned from the first epoch on here")
    assert "srns train --init" in make_page(found, "x", "y").html()
    assert not any("--init" in said for said in answer(conclusion([[0.3], [0.36], [0.33], [0.34]])))


@pytest.mark.parametrize(
    ("metrics", "noise"),
    [
        ([[0.300, 0.300], [0.301, 0.301], [0.30, 0.30], [0.30, 0.30]], 0.0001),  # sure, but too little to matter
        ([[0.30, 0.30], [0.31, 0.31], [0.30, 0.30], [0.30, 0.30]], 0.4),  # enough, but luck
        ([[0.30, 0.30], [0.36, 0.298], [0.30, 0.30], [0.30, 0.30]], 0.001),  # the seeds disagree
    ],
)
def test_no_recommendation_is_made_from_noise(metrics: list[list[float]], noise: float) -> None:
    found = conclusion(metrics, noise)
    assert found.recommendation.chosen.contestant.name == "uniform"
    assert headline(found).startswith("Stay with uniform negatives")
    assert found.recommendation.weight is not None
    assert found.recommendation.weight.chosen == 0
    assert "dns" in found.recommendation.as_good


def test_intervals_hold_what_they_should() -> None:
    """One in twenty misses the truth: neither more, which would be wrong, nor fewer, which would be idle. Of 400 that is 20, by
    a standard deviation of 4.4; of 100 differences 5, by 2.2."""
    beyond = 0
    for seed in range(400):
        found = Sums([made_up(0.3, 0.1, seed)]).ratio("metric", "judged")
        beyond += not found.low <= 0.3 <= found.high
    assert 9 <= beyond <= 33
    beyond = 0
    for number in range(100):
        runs = {each.name: [made_up(0.3, 0.1, 1000 * number + n)] for n, each in enumerate(CONTESTANTS[:2])}
        gain = conclude(CONTESTANTS[:2], runs).each[1].to_uniform
        assert gain is not None
        beyond += not gain.low <= 0 <= gain.high
    assert 1 <= beyond <= 13


def test_intervals_are_as_wide_as_the_spread_of_groups_makes_them() -> None:
    """The standard error in closed form: 1.96 * noise / sqrt(groups) on each side, and sqrt(2) times that for a difference."""
    found = conclusion([[0.30], [0.36], [0.33], [0.34]], noise=0.1)
    half = 1.96 * 0.1 / np.sqrt(GROUPS)
    for each in found.each:
        low, high = each.metric.value - each.metric.low, each.metric.high - each.metric.value
        assert (low, high) == (pytest.approx(half, rel=0.2), pytest.approx(half, rel=0.2))
    gain = found.named("dns").to_uniform
    assert (gain.high - gain.low) / 2 == pytest.approx(np.sqrt(2) * half, rel=0.2)


def test_the_page_starts_with_the_answer() -> None:
    found = conclusion([[0.30] * 2, [0.36] * 2, [0.33] * 2, [0.34] * 2])
    html = make_page(found, "my <clicks>.csv", "srns audit 'my <clicks>.csv'").html()
    assert "my &lt;clicks&gt;.csv" in html
    assert "<clicks>" not in html
    first, *rest = [
        html.index(part) for part in (headline(found), ">The answer</h2>", "2.0 times chance", ">What this cannot tell</h2>")
    ]
    assert [first, *rest] == sorted([first, *rest])
    for words in ("ndcg@10 0.36", "4,000 positives", "The variance weight", "a note", "srns train", "--ask"):
        assert words in html, words
    for jargon in ("AUC", "std / mean", "label error"):
        assert jargon not in html, jargon
    assert html.index("is read as a likelihood of being liked (P_pos") < html.index(">likelihood of being liked</th>")
    assert html.index("the first 10 recommended") < html.index(">ndcg@10</th>"), "explained before it is used in a table"
    assert all(line.split("(")[0] in html for line in answer(found) if "'" not in line)
    assert json.dumps(numbers(found))


def test_a_higher_number_that_is_behind_is_explained() -> None:
    """Of four, the best is surely ahead of one whose users have the same luck, but not of a lower one with other luck."""
    runs = {each.name: [made_up(0.3, 0.05, 7)] for each in CONTESTANTS}
    runs["uniform"], runs["dns"] = [made_up(0.2, 0.05, 7)], [made_up(0.312, 0.05, 8)]
    for name, metric in (("srns-difficulty", 0.322), ("srns-variance 5", 0.327)):
        runs[name] = [made_up(metric, 0.05, 7)]
    found = conclude(CONTESTANTS, runs)
    assert found.recommendation.chosen.contestant.name == "dns"
    assert found.named("srns-difficulty").worse  # type: ignore[union-attr]
    assert "is no mistake" in make_page(found, "x", "y").html()
    assert "srns-variance 5 is not measurably better: it is ahead by" in answer(found)[0]
    assert "is no mistake" not in make_page(conclusion([[0.3], [0.36], [0.33], [0.34]]), "x", "y").html()


def test_contestants_are_checked() -> None:
    each = contestants(Plan("x", variance_weights=(2.0,), settings={"dim": 8, "candidates": 32}))
    assert [one.name for one in each] == ["uniform", "popularity", "dns", "srns-difficulty", "srns-variance 2"]
    assert [one.values.get("candidates") for one in each] == [None, None, 32, None, None], "for those that have the field"
    for plan, message in (
        (Plan("x", ("pdq",)), "no sampler 'pdq'; there are: .*srns-variance"),
        (Plan("x", ("enmf",)), "'enmf' draws no negatives"),
        (Plan("x", ()), "no sampler to audit"),
        (Plan("x", seeds=0), "seeds = 0"),
        (Plan("x", settings={"colour": "red"}), "'colour' is not a field"),
        (Plan("x", settings={"scorer": "ease"}), "scorer 'ease' draws no negatives"),
        (Plan("x", settings={"dim": 0}), "dim"),
        (Plan("x", settings={"negatives": "many"}), "negatives"),
        (Plan("x", ("dns_mn",), settings={"negatives": 4}), "dns_mn: expected negatives <= top <= candidates, found 4, 32, 16"),
        (Plan("x", ("uniform",), settings={"candidates": 8}), "'candidates' is a field of none of the samplers"),
    ):
        with pytest.raises(ConfigError, match=message):
            contestants(plan)


@pytest.mark.parametrize("settings", [{}, {"negatives": "4"}, {"candidates": "32"}, {"negatives": 8, "candidates": 20}])
def test_every_contestant_has_as_many_negatives(settings: dict[str, Any]) -> None:
    free = [name for name, each in SAMPLERS.items() if "negatives" in each.model_fields and "top" not in each.model_fields]
    names = (*free, "srns-difficulty", "srns-variance")
    each = contestants(Plan("x", names, settings=settings))
    made = {one.name: make_config(dict(one.values)).make_sampler() for one in each}
    assert len(made) == len(names) + 2, "three weights"
    assert {each.n_negatives for each in made.values()} == {int(settings.get("negatives", 16))}
    memories = [each.memory_size for name, each in made.items() if isinstance(each, SRNS) and name != "srns"]
    assert memories == [2 * int(settings.get("negatives", 16))] * 4, "of which half can be selected"
    assert made["dns"].model_dump()["candidates"] > made["dns"].n_negatives


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        *[(name, "the audit itself decides it") for name in ("sampler", "seed", "threads", "init", "noise")],
        *[(name, "so that all samplers have as many negatives") for name in ("memory_size", "strategy")],
        ("variance_weight", "name them with --variance-weight"),
        *[(name, "hides positives instead") for name in ("split", "split_seed", "valid_share")],
        ("protocol", "ranks all items"),
        ("ks", "nothing but `metric`"),
        *[(name, "keeps finished trainings alone") for name in ("checkpoint_epochs", "checkpoint_minutes")],
    ],
)
def test_what_an_audit_does_not_use_is_refused(field: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"'{field}' cannot be set in an audit: .*{reason}"):
        contestants(Plan("x", settings={field: "1"}))


def test_the_order_of_samplers_does_not_matter() -> None:
    """What is recommended among equals is the plainest, however they were named."""
    names, weights = ("uniform", "popularity", "dns", "srns", "srns-difficulty", "srns-variance", "irgan"), (1.0, 5.0)
    one, other = contestants(Plan("x", names, weights)), contestants(Plan("x", names[::-1], weights[::-1]))
    assert one == other
    assert [each.name for each in one] == [*names[:5], "srns-variance 1", "srns-variance 5", "irgan"]
    assert "dns" not in [each.name for each in contestants(Plan("x", ("srns-variance", "uniform")))][:1]
    runs = {each.name: [made_up(0.3, 0.0001, n)] for n, each in enumerate(one)}
    assert conclude(other, runs).recommendation.chosen.contestant.name == "uniform"


def test_audit_on_the_command_line(clicks: Path, everything: pl.DataFrame, tmp_path: Path) -> None:
    asked, page, runs = tmp_path / "answers.csv", tmp_path / "audit.html", tmp_path / "runs"
    everything.sample(4_000, seed=2).write_csv(asked)
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    short = ["--sampler", "uniform", "--sampler", "dns", "--seeds", 1, "--jobs", 1, "--runs", runs]
    short += ["--answers", asked, *settings]
    result = call(clicks, *short, "--out", page, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["sampler"] for row in found["samplers"]] == ["uniform", "dns"]
    assert found["samplers"][0]["times_chance"]["value"] == pytest.approx(1, abs=0.1)
    assert found["samplers"][1]["times_chance"]["value"] > 1
    assert all(0 < row["label_error_ratio"]["low"] < row["label_error_ratio"]["high"] < 1 for row in found["samplers"])
    assert found["facts"]["hidden"] == 600
    assert "false negatives, by the answers" in page.read_text()
    again = call(clicks, *short)
    assert again.exit_code == 0
    assert "2 of 2 runs are there already" in again.stderr
    assert "x chance" in again.stdout
    assert "verdict" in again.stdout
    assert "use" in again.stdout
    assert "user" in again.stderr, "how the file is read is said as of srns train"
    assert "columns" in again.stderr
    assert found["next"] == found["train"]
    only = call(clicks, *short[2:])
    assert only.exit_code == 0, only.output
    assert "verdict" not in only.stdout
    following = only.stdout.partition("next: ")[2]
    assert following.startswith(f"srns audit {clicks} --seeds 1"), "with the samplers of an audit by default"
    assert json.loads(call(clicks, *short[2:], "--json").stdout)["train"] is None

    assert found["answer"][0].split(":")[0] in again.stdout
    assert f"kept in {runs}:" in again.stdout
    assert f"next: {found['train']}\n" in again.stdout
    assert found["train"].startswith(f"srns train {clicks} ")
    assert f"--sampler {found['recommended']['sampler']}" in found["train"]
    assert html.unescape(page.read_text()).count(found["train"]) == 1
    assert (Path(found["runs"]), found["page"]) == (runs, str(page))


def test_every_row_of_the_table_has_a_verdict() -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(table(conclusion([[0.30] * 2, [0.36] * 2, [0.36] * 2, [0.34] * 2]), "clicks.csv"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = {line.split()[0]: line.rstrip() for line in text.splitlines() if line.strip()}
    assert rows["sampler"].endswith("verdict")
    assert rows["uniform"].endswith("behind")
    assert rows["dns"].endswith("use")
    assert rows["srns-difficulty"].endswith("no different")


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    for rows, message in (
        ({"user": [1, 1, 2], "item": [1, 2, 1]}, "too few to measure anything by"),
        ({"user": [1, 2, 3], "item": [1, 2, 1]}, "no user has two positives"),
    ):
        pl.DataFrame(rows).write_csv(path)
        result = call(path, "--runs", tmp_path / "runs")
        assert result.exit_code == 2
        assert message in result.stderr.replace("\n", " ")
        assert "Traceback" not in result.stderr
        assert not (tmp_path / "runs").exists()
    assert "no sampler 'pdq'" in call(path, "--sampler", "pdq").stderr
    assert "'split' cannot be set in an audit" in call(path, "--set", "split=temporal").stderr.replace("\n", " ")


def test_questions_on_the_command_line(clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked_about = tmp_path / "questions.csv"
    result = call(clicks, "--ask", asked_about, "--questions", 200)
    assert result.exit_code == 0, result.stderr
    assert f"--answers {asked_about}" in result.stdout.replace("\n", "")
    found = pl.read_csv(asked_about)
    assert found.columns == ["user", "item", "weight"]
    assert 150 < len(found) <= 200
    assert not (tmp_path / "audit-runs").exists(), "nothing was trained"
    found.with_columns(liked=1).write_csv(asked_about)
    data = observed(str(clicks), RunConfig())
    assert len(read_answers(asked_about, data, RunConfig()).users) == len(found), "as they are, with answers"
    refused = call(clicks, "--ask", asked_about, "--questions", 200)
    assert (refused.exit_code, "perhaps with answers" in refused.stderr.replace("\n", " ")) == (2, True)
    assert "liked" in pl.read_csv(asked_about).columns
    as_json = call(clicks, "--ask", asked_about, "--questions", 200, "--replace", "--json")
    assert json.loads(as_json.stdout)["questions"] == len(found)


def test_a_metric_of_any_length_is_measured(clicks: Path) -> None:
    found = trial(str(clicks), {**SMALL, "sampler": "uniform", "metric": "recall@7"}, 0.2, 0, None, "")
    assert 0 < sum(found["metric"]) / sum(found["judged"]) < 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sampler", "uniform", "--variance-weight", 5], "--variance-weight goes with --sampler srns-variance"),
        (["--questions", 7], "--questions and --replace go with --ask FILE"),
        (["--replace"], "--questions and --replace go with --ask FILE"),
        (["--ask", "q.csv", "--answers", "nofile.csv"], "--ask picks questions and --answers takes what came back"),
        (["--ask", "q.csv", "--out", "p.html", "--jobs", 2], "--out, --jobs: not with --ask, which trains nothing"),
        (["--ask", "q.csv", "--runs", "there"], "--runs: not with --ask, which trains nothing"),
        (["--ask", "q.csv", "--sampler", "dns", "--variance-weight", 5], "--variance-weight goes with"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(clicks, *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == [], "nothing is trained or asked"


def test_what_an_audit_takes_from_its_questions_is_in_the_next_command(clicks: Path, tmp_path: Path) -> None:
    flags = ["--sampler", "srns-variance", "--variance-weight", "5", "--hide", "0.1", "--seeds", "2"]
    result = call(clicks, "--ask", tmp_path / "q.csv", "--questions", 50, *flags)
    assert result.exit_code == 0, result.output
    assert " ".join(flags) in " ".join(result.stdout.split())
    assert result.stdout.count("--answers") == 1
