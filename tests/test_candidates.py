"""Popularity, AOBPR and the rules among uniform candidates draw what their definitions say, in every form."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from still_epochs import coarse_model, compare_draws

from srns.config import RunConfig
from srns.engines import FusedCandidatesEngine, FusedEngine, PlainEngine, make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.kernels.candidates import KINDS
from srns.presets import make_config
from srns.samplers import SAMPLERS
from srns.samplers.ahns import AHNS, SMALLEST
from srns.samplers.aobpr import AOBPR, TRIES
from srns.samplers.bns import BNS
from srns.samplers.dns import DNS, DNSMN, Softmax
from srns.samplers.popularity import Popularity
from srns.scorers import GMF, MLP

# Each kernel's sampler, some in two forms: a form begins with the sampler's name.
SETTINGS: dict[str, dict[str, Any]] = {
    "popularity": {"negatives": 3},
    "aobpr": {"rank_scale": 9.0, "negatives": 2},
    "dns": {"candidates": 7, "negatives": 2},
    "dns_mn": {"candidates": 9, "top": 4, "negatives": 2},
    "softmax": {"candidates": 12, "negatives": 3, "temperature": 0.3},
    "bns": {"candidates": 5, "reference": 11},
    "ahns": {"candidates": 6, "hardness_power": -3},
    "softmax by hardness": {"candidates": 12, "negatives": 3, "hardness": 0.3},
}


def name_of(form: str) -> str:
    return form.partition(" ")[0]


def sampler_of(form: str) -> Any:
    return SAMPLERS[name_of(form)](**SETTINGS[form])


def dense(users: Any, items: Any, n_users: int, n_items: int) -> Interactions:
    return Interactions.from_pairs(users, items, user_ids=IdMap.dense(n_users, "user"), item_ids=IdMap.dense(n_items, "item"))


@pytest.fixture(scope="module")
def little() -> Interactions:
    """Ten items of which user 0 has seen 1, 4 and 5; some are popular, two nobody has seen."""
    users = [0, 0, 0, *range(1, 9), *range(1, 5), 5, 6, 7]
    items = [1, 4, 5, *[0] * 8, *[1] * 4, 2, 3, 6]
    return dense(users, items, 9, 10)


def test_every_kernel_has_a_setting_here() -> None:
    assert {name_of(form) for form in SETTINGS} == set(KINDS)


def frequencies(sampler: Any, train: Interactions, score: Any, epochs: int, k: int = 0) -> Any:
    """How often user 0 gets each item as negative k of one positive."""
    state = sampler.start(train, seed=1)
    counts = np.zeros(train.n_items)
    users, positives = train.users[:3], train.items[:3]
    for epoch in range(epochs):
        state.begin_epoch(epoch, score)
        np.add.at(counts, state.sample(users, positives, score, 0).ids[:, k], 1)
    return counts


def same_distribution(counts: Any, expected: Any) -> None:
    expected = np.asarray(expected) / np.sum(expected)
    assert counts[expected == 0].sum() == 0
    there = expected > 0
    assert stats.chisquare(counts[there], expected[there] * counts.sum()).pvalue > 1e-4


UNSEEN = np.array([0, 2, 3, 6, 7, 8, 9])
SCORES = np.array([0.3, 9.0, 1.5, -0.4, 8.0, 7.0, 0.9, -1.2, 0.1, 0.7], np.float32)


def by_item(users: Any, items: Any) -> Any:
    return SCORES[items]


MIXED = np.array([0.3, -0.6, 1.5, -0.4, 0.2, 2.0, 0.9, -1.2, 0.1, 0.7], np.float32)  # what user 0 has seen scores -.6, .2, 2


def mixed(users: Any, items: Any) -> Any:
    return MIXED[items]


CIRCLE = [0, 7, 2, 3, 8, 9, 6]  # the unseen items of user 0: number n is item n; those from 7 on stand in for 1, 4 and 5


def pools(size: int) -> Iterator[tuple[int, ...]]:
    """All pools of candidates, one in each of `size` arcs of the circle of unseen items, from any place on."""
    length = 7 // size
    for begin in range(7):
        yield from product(*[[CIRCLE[(begin + c * length + at) % 7] for at in range(length)] for c in range(size)])


def risk(item: int, positive: int, pool: Any, weight: float, train: Interactions) -> float:
    """Of a candidate among the items of a pool, as BNS defines it; F has one more in its denominator, so that it is never 1."""
    f = np.sum(MIXED[list(pool)] <= MIXED[item]) / (len(pool) + 1)
    p = train.item_counts[item] / len(train)
    unbias = (1 - f) * (1 - p) / (1 - f - p + 2 * f * p)
    info = 1 / (1 + np.exp(float(MIXED[positive]) - float(MIXED[item])))
    return float(info * (1 - (1 + weight) * unbias))


def aim_of(positive: int, power: int, offset: float = 0.5) -> float:
    """The score that suits a positive by AHNS, with beta 1.9 and alpha `offset`."""
    return 1.9 * max(float(MIXED[positive]) + offset, SMALLEST) ** (power + 1)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_popularity_follows_its_power_law_over_unseen_items(little: Interactions, power: float) -> None:
    expected = np.zeros(10)
    popular = little.item_counts.astype(float)
    expected[UNSEEN] = popular[UNSEEN] ** power
    counts = frequencies(Popularity(negatives=2, power=power), little, by_item, 4000, k=1)
    if power > 0:  # items that nobody has seen have one chance in a thousand million
        assert counts[[7, 8, 9]].sum() == 0
        expected[[7, 8, 9]] = 0
    same_distribution(counts, expected)


def test_popularity_knows_how_likely_its_draws_are(little: Interactions) -> None:
    state = Popularity(negatives=2, power=1.0).start(little, seed=0)
    state.begin_epoch(0, by_item)
    drawn = state.sample(little.users, little.items, by_item, 0)
    popular = little.item_counts.astype(float)
    for x, user in enumerate(little.users):
        mass = popular.sum() - popular[little.items_of(int(user))].sum()
        known = popular[drawn.ids[x]] > 0
        np.testing.assert_allclose(drawn.log_q[x][known], np.log(popular[drawn.ids[x]][known] / mass), rtol=1e-3, atol=1e-4)


def test_softmax_over_all_unseen_items_is_their_softmax(little: Interactions) -> None:
    expected = np.zeros(10)
    expected[UNSEEN] = np.exp(SCORES[UNSEEN].astype(float) / 0.7)
    same_distribution(frequencies(Softmax(candidates=7, temperature=0.7), little, by_item, 4000), expected)


def test_softmax_over_a_pool_is_the_mean_over_pools() -> None:
    """Of three unseen items two are drawn, each pair as likely: the probabilities by hand."""
    train = dense([0, 0, 0, 1], [0, 1, 2, 3], 2, 6)
    scores = np.array([0, 0, 0, 0.0, 1.0, -0.5])
    expected = np.zeros(6)
    for pair in ((3, 4), (3, 5), (4, 5)):
        weights = np.exp(scores[list(pair)])
        expected[list(pair)] += weights / weights.sum() / 3
    counts = frequencies(Softmax(candidates=2), train, lambda users, items: scores[items].astype(np.float32), 5000)
    same_distribution(counts, expected)


@pytest.mark.parametrize("hardness", [0.05, 1.0, 4.0])
def test_softmax_by_hardness_goes_by_losses_in_standard_deviations(little: Interactions, hardness: float) -> None:
    """Algorithm 2 of its paper over all unseen items, by hand, for the first positive of user 0."""
    losses = np.log1p(np.exp(SCORES[UNSEEN].astype(float) - float(SCORES[1])))
    temperature = np.sqrt(losses.var(ddof=1) / (2 * hardness))
    expected = np.zeros(10)
    expected[UNSEEN] = np.exp(losses / temperature)
    sampler = Softmax(candidates=7, negatives=1, hardness=hardness)
    state, counts = sampler.start(little, seed=1), np.zeros(10)
    users, positives = np.zeros(1, np.int64), np.ones(1, np.int64)
    for epoch in range(6000):
        state.begin_epoch(epoch, by_item)
        counts[state.sample(users, positives, by_item, 0).ids[0, 0]] += 1
    same_distribution(counts, expected)


def test_dns_takes_the_highest_of_its_candidates(little: Interactions) -> None:
    order = UNSEEN[np.argsort(-SCORES[UNSEEN])]
    counts = frequencies(DNS(candidates=3), little, by_item, 4000)
    assert counts[order[5:]].sum() == 0, "two of seven are never the best of three"
    assert abs(counts[order[0]] / counts.sum() - 3 / 7) < 0.02  # each item is among the candidates with probability N / n
    whole = frequencies(DNS(candidates=7, negatives=2), little, by_item, 50, k=1)
    assert whole[order[1]] == whole.sum()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_dns_by_brute_force_over_arcs(little: Interactions, size: int) -> None:
    expected = np.zeros(10)
    for pool in pools(size):
        expected[max(pool, key=lambda item: SCORES[item])] += 1
    same_distribution(frequencies(DNS(candidates=size), little, by_item, 6000), expected)


def test_dns_mn_takes_each_of_the_highest_as_often(little: Interactions) -> None:
    order = UNSEEN[np.argsort(-SCORES[UNSEEN])]
    expected = np.zeros(10)
    expected[order[:3]] = 1
    for k in (0, 1):
        counts = frequencies(DNSMN(candidates=7, top=3, negatives=2), little, by_item, 4000, k)
        same_distribution(counts, expected)


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_bns_takes_the_least_risk_among_all_unseen_items(little: Interactions, weight: float) -> None:
    state = BNS(candidates=7, reference=0, risk_weight=weight, negatives=2).start(little, seed=3)
    state.begin_epoch(0, mixed)
    found = state.sample(little.users[:3], little.items[:3], mixed, 0).ids
    for row, positive in zip(found, little.items[:3], strict=True):
        by_risk = sorted(UNSEEN.tolist(), key=lambda item: risk(item, positive, UNSEEN, weight, little))
        assert row.tolist() == by_risk[:2]


@pytest.mark.parametrize("reference", [0, 1])
def test_bns_by_brute_force_over_arcs(little: Interactions, reference: int) -> None:
    """Two candidates, and as many more items that tell how high they score."""
    expected = np.zeros(10)
    for pool in pools(2 + reference):
        for positive in little.items[:3]:
            expected[min(pool[:2], key=lambda item: risk(item, positive, pool, 1.5, little))] += 1
    sampler = BNS(candidates=2, reference=reference, risk_weight=1.5, negatives=1)
    same_distribution(frequencies(sampler, little, mixed, 4000), expected)


@pytest.mark.parametrize(("power", "offset"), [(-2, 0.5), (-3, 0.5), (-5, 1.0)])
def test_ahns_takes_the_score_nearest_to_its_aim(little: Interactions, power: int, offset: float) -> None:
    sampler = AHNS(candidates=9, hardness_scale=1.9, hardness_offset=offset, hardness_power=power)
    state = sampler.start(little, seed=3)
    state.begin_epoch(0, mixed)
    found = state.sample(little.users, little.items, mixed, 0).ids[:, 0]
    for user, positive, item in zip(little.users, little.items, found, strict=True):
        unseen = np.setdiff1d(np.arange(10), little.items_of(int(user)))
        assert item == unseen[np.argmin(np.abs(MIXED[unseen] - aim_of(positive, power, offset)))]
    assert len(np.unique(found)) > 2, "other positives have other aims"


@pytest.mark.parametrize("power", [-2, -4])
def test_ahns_by_brute_force_over_arcs(little: Interactions, power: int) -> None:
    expected = np.zeros(10)
    for pool in pools(3):
        for positive in little.items[:3]:
            expected[min(pool, key=lambda item: abs(MIXED[item] - aim_of(positive, power)))] += 1
    sampler = AHNS(candidates=3, negatives=1, hardness_scale=1.9, hardness_offset=0.5, hardness_power=power)
    same_distribution(frequencies(sampler, little, mixed, 4000), expected)


def test_aobpr_draws_ranks_by_factors(little: Interactions) -> None:
    """Brute force over factors and ranks, draws of seen items made anew."""
    generator = np.random.default_rng(0)
    model = GMF(
        generator.normal(size=(9, 3)).astype(np.float32),
        generator.normal(size=(10, 3)).astype(np.float32),
        np.array([1.0, -0.5, 2.0], np.float32),
    )
    vector, expected = model.users[0] * model.beta, np.zeros(10)
    weights = np.abs(vector) * model.items.std(axis=0)
    chance = np.exp(-np.arange(10) / 2.5)
    for f in range(3):
        order = np.argsort(-model.items[:, f] * np.sign(vector[f]))
        expected[order] += weights[f] / weights.sum() * chance / chance.sum()
    assert expected[[1, 4, 5]].sum() ** TRIES < 1e-4
    expected[[1, 4, 5]] = 0
    same_distribution(frequencies(AOBPR(rank_scale=2.5, negatives=2), little, model, 4000, k=1), expected)


def test_aobpr_sorts_anew_on_schedule(train: Interactions) -> None:
    """With an interval of one batch each batch sees the items as they are; with longer ones it does not."""
    model = GMF.init(train.n_users, train.n_items, dim=4, std=0.1, learn_beta=False, seed=0)
    size = int(train.n_items * np.log(train.n_items) / 2)  # two batches from sort to sort
    state = AOBPR(rank_scale=5.0, negatives=1).start(train, seed=0)
    state.begin_epoch(0, model)
    users, positives = train.users[:size], train.items[:size]
    state.sample(users, positives, model, 0)
    turned = GMF(model.users, -model.items, model.beta)
    kept = state.sample(users, positives, turned, 1).ids
    sorted_anew = state.sample(users, positives, turned, 2).ids
    assert (kept != sorted_anew).mean() > 0.5


def test_aobpr_needs_factors(train: Interactions) -> None:
    model = MLP.init(train.n_users, train.n_items, dim=4, hidden_layers=1, std=0.1, seed=0)
    state = AOBPR().start(train, seed=0)
    with pytest.raises(ConfigError, match="for scorers gmf and lightgcn"):
        state.sample(train.users, train.items, model, 0)


class TorchFactors:
    """A score on tensors with the numbers of a GMF."""

    def __init__(self, model: GMF) -> None:
        self.model = model

    def __call__(self, users: Any, items: Any) -> Any:
        import torch

        return torch.tensor(self.model(users.numpy(), items.numpy()))

    def tensors(self) -> Any:
        import torch

        return {name: torch.tensor(value) for name, value in self.model.tensors().items()}


@pytest.mark.parametrize("form", SETTINGS)
def test_torch_draws_the_same_negatives(form: str, train: Interactions) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = GMF.init(train.n_users, train.n_items, dim=6, std=0.5, learn_beta=True, seed=5)
    sampler = sampler_of(form)
    expected, state = sampler.start(train, seed=9), sampler.start(train, seed=9, xp=torch)
    score = TorchFactors(model)
    for epoch in (0, 3):
        expected.begin_epoch(epoch, model)
        state.begin_epoch(epoch, score)
        users, positives = torch.tensor(train.users.copy()), torch.tensor(train.items.copy())
        ids = state.sample(users, positives, score, 0).ids
        np.testing.assert_array_equal(ids.numpy(), expected.sample(train.users, train.items, model, 0).ids)


def skewed(n_items: int, n: int, seed: int) -> Interactions:
    """Interactions of 60 users, more with items of low ids; nobody has seen the last."""
    generator = np.random.default_rng(seed)
    items = (n_items * generator.random(n) ** 2).astype(int)
    train = dense(generator.integers(0, 60, n), items, 60, n_items)
    return train.select(train.items != n_items - 1)


@pytest.mark.parametrize("form", SETTINGS)
def test_any_library_of_the_standard_draws_the_same_negatives(form: str, train: Interactions) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    model = GMF.init(train.n_users, train.n_items, dim=6, std=0.5, learn_beta=True, seed=5)
    sampler = sampler_of(form)
    expected, state = sampler.start(train, seed=9), sampler.start(train, seed=9, xp=strict)

    class Score:
        def __call__(self, users: Any, items: Any) -> Any:
            return strict.asarray(model(np.asarray(users), np.asarray(items)))

        def tensors(self) -> Any:
            return {name: strict.asarray(value) for name, value in model.tensors().items()}

    score = Score()
    expected.begin_epoch(2, model)
    state.begin_epoch(2, score)
    ids = state.sample(strict.asarray(train.users.copy()), strict.asarray(train.items.copy()), score, 0).ids
    np.testing.assert_array_equal(np.asarray(ids), expected.sample(train.users, train.items, model, 0).ids)


@pytest.mark.parametrize("form", SETTINGS)
@given(
    seed=st.integers(0, 2**40),
    dim=st.integers(1, 19),
    batch_size=st.sampled_from([1, 7, 64, 300]),
    n_items=st.sampled_from([12, 90, 5000]),  # the last is too many to copy
    threads=st.integers(1, 2),
)
@settings(max_examples=10, deadline=None)
def test_the_kernel_draws_what_the_array_form_draws(
    form: str, seed: int, dim: int, batch_size: int, n_items: int, threads: int
) -> None:
    """Exact scores; for AOBPR, which sorts items by their factors, factors without equals instead."""
    train = skewed(n_items, min(900, 40 * batch_size), seed % 1000)
    config = RunConfig(
        sampler=name_of(form),
        seed=seed,
        dim=dim,
        batch_size=batch_size,
        threads=threads,
        learning_rate=1e-30,
        loss="bpr",
        **SETTINGS[form],
    )
    fused, state = FusedCandidatesEngine(config, train), config.make_sampler().start(train, seed=seed)
    for epoch in (0, 3):
        model = coarse_model(60, n_items, dim, seed % 1000 + epoch)
        if form == "aobpr":
            model = GMF.init(60, n_items, dim, std=0.5, learn_beta=True, seed=seed + epoch)
        compare_draws(fused, state, model, epoch)


@given(
    form=st.sampled_from(list(SETTINGS)),
    seed=st.integers(0, 2**40),
    dim=st.integers(4, 20),
    batch_size=st.sampled_from([7, 64, 300]),
    n_items=st.sampled_from([12, 40, 5000]),  # the last is too many to copy
    learn_beta=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_compiled_epoch_is_the_twin_of_the_array_forms(
    train_alike: Any, form: str, seed: int, dim: int, batch_size: int, n_items: int, learn_beta: bool
) -> None:
    # Of thousands of items some are so close in a factor that the rounding of an engine decides which of them ranks higher.
    assume(form != "aobpr" or n_items < 1000)
    train = skewed(n_items, min(900, 40 * batch_size), seed % 1000)
    values = {"loss": "bpr", "schedule": "constant", "learning_rate": 1e-3, "l2": 0.01, "init_std": 0.3, **SETTINGS[form]}
    config = RunConfig(sampler=name_of(form), seed=seed, dim=dim, batch_size=batch_size, learn_beta=learn_beta, **values)
    train_alike(FusedCandidatesEngine(config, train), PlainEngine(config, train), 1e-4)


@pytest.mark.parametrize(("sampler", "kind"), [("uniform", FusedEngine), ("popularity", FusedCandidatesEngine)])
def test_fused_corrects_for_how_likely_negatives_were(train_alike: Any, sampler: str, kind: type[FusedEngine]) -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(40), 12)
    items = np.concatenate([rng.choice(60, 12, replace=False, p=np.arange(1, 61) / 1830) for _ in range(40)])
    train = dense(users, items, 40, 60)
    values = {"sampler": sampler, "negatives": 5, "loss": "softmax", "dim": 6, "batch_size": 100, "init_std": 0.3, "l2": 0.01}
    losses = []
    for log_q in (True, False):
        config = make_config({**values, "log_q": log_q})
        fused = make_engine(config, train)
        assert type(fused) is kind
        train_alike(fused, PlainEngine(config, train), 1e-4)
        losses.append(fused.run_epoch(3))
    assert losses[0] > losses[1] + 0.5, "5 negatives stand for 48 items"


@pytest.mark.parametrize("form", SETTINGS)
def test_threads_and_resuming_change_nothing(form: str, train: Interactions) -> None:
    def run(threads: int, stop: int = 4) -> Any:
        config = RunConfig(sampler=name_of(form), dim=12, batch_size=100, threads=threads, loss="bpr", **SETTINGS[form])
        engine = FusedCandidatesEngine(config, train)
        losses = [engine.run_epoch(epoch) for epoch in range(stop)]
        return engine, losses

    whole, losses = run(1)
    other, others = run(3)
    half, _ = run(2, 2)
    saved = {key: np.array(value) for key, value in half.state_dict().items()}
    resumed, _ = run(2, 0)
    resumed.load_state_dict(saved)
    assert [resumed.run_epoch(epoch) for epoch in (2, 3)] == losses[2:]
    assert others == losses
    for engine in (other, resumed):
        for key, value in whole.state_dict().items():
            np.testing.assert_array_equal(engine.state_dict()[key], value)
