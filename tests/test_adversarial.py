"""Samplers with a generator: they draw from the softmax they name, and learn by the gradient of the expected reward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from srns.config import RunConfig
from srns.engines import make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.presets import make_config
from srns.samplers import SAMPLERS
from srns.samplers.generator import BLOCK, places_at
from srns.scorers import GMF, MLP

NAMES = ("irgan", "rns_as", "advir")


def dense(users: Any, items: Any, n_users: int, n_items: int) -> Interactions:
    return Interactions.from_pairs(users, items, user_ids=IdMap.dense(n_users, "user"), item_ids=IdMap.dense(n_items, "item"))


SMALL = dense([0, 0, 0, 1, 1, 2], [1, 4, 5, 0, 8, 3], 3, 9)
MODEL = GMF.init(3, 9, dim=4, std=0.8, learn_beta=True, seed=5)


def unseen_softmax(train: Interactions, model: GMF, temperature: float) -> Any:
    """p(j | u) over items that u has not interacted with, (n_users, n_items), by brute force in float64."""
    scores = np.array(
        [[sum(model.users[u] * model.beta * model.items[j]) for j in range(train.n_items)] for u in range(train.n_users)]
    )
    seen = np.array(
        [[bool(train.contains(np.array(u), np.array(j))) for j in range(train.n_items)] for u in range(train.n_users)]
    )
    return softmax(np.where(seen, -np.inf, scores.astype(np.float64) / temperature), axis=1)


def started(name: str, train: Interactions = SMALL, model: Any = MODEL, xp: Any = np, **fields: Any) -> Any:
    state = SAMPLERS[name](**{"generator_start": "copy", **fields}).start(train, seed=3, xp=xp)
    state.begin_epoch(0, model)
    return state


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_draws_follow_the_softmax_of_the_generator(name: str, temperature: float) -> None:
    """With as many candidates as there are unseen items, all three draw from the softmax over all of them."""
    fields = {} if name == "irgan" else {"candidates": 9}
    state = started(name, temperature=temperature, negatives=3, **fields)
    probability = unseen_softmax(SMALL, MODEL, temperature)
    counts = np.zeros((3, 9))
    for epoch in range(3000):
        state.begin_epoch(epoch, MODEL)
        np.add.at(counts, (SMALL.users[:, None], state.sample(SMALL.users, SMALL.items, MODEL, 0).ids), 1)
    for user in range(3):
        unseen = probability[user] > 0
        assert counts[user, ~unseen].sum() == 0
        expected = counts[user].sum() * probability[user, unseen]
        assert stats.chisquare(counts[user, unseen], expected).pvalue > 1e-4


def test_few_candidates_are_drawn_by_their_softmax() -> None:
    """Observed counts against the sum of brute-force probabilities over the candidate sets that came up."""
    train = dense(np.repeat(np.arange(40), 5), (np.arange(200) * 7) % 60, 40, 60)
    model = GMF.init(40, 60, dim=4, std=1.0, learn_beta=False, seed=1)
    state = started("rns_as", train, model, candidates=5, temperature=0.7)
    scores = (model.users.astype(np.float64) @ model.items.T.astype(np.float64)) / 0.7
    observed, expected, variance, in_set = np.zeros(60), np.zeros(60), np.zeros(60), np.zeros(60)
    for epoch in range(60):
        state.begin_epoch(epoch, model)
        ids = state.sample(train.users, train.items, model, 0).ids[:, 0]
        candidates = state._drawn.given[0]
        assert len(np.unique(candidates[0])) == 5
        assert not train.contains(train.users[:, None], candidates).any()
        probability = softmax(np.take_along_axis(scores[train.users], candidates, axis=1), axis=1)
        np.add.at(observed, ids, 1)
        np.add.at(in_set, candidates, 1)
        np.add.at(expected, candidates, probability)
        np.add.at(variance, candidates, probability * (1 - probability))
    assert np.abs((observed - expected) / np.sqrt(variance)).max() < 4.5
    unseen = ~train.contains(train.users[:, None], np.arange(60)[None])  # (N, 60); each is as likely to be a candidate
    chance = 5 / unseen.sum(axis=1, keepdims=True) * unseen
    spread = np.sqrt(60 * np.sum(chance * (1 - chance), axis=0))
    assert np.abs((in_set - 60 * chance.sum(axis=0)) / spread).max() < 4.5


@pytest.mark.parametrize("name", NAMES)
def test_a_random_start_is_small_and_no_copy(name: str) -> None:
    world = GMF.init(300, 9, dim=16, std=1.0, learn_beta=False, seed=0)
    train = dense(np.arange(300), np.arange(300) % 9, 300, 9)
    state, again = (started(name, train, world, generator_start="random") for _ in range(2))
    factors = state.state_dict()
    assert 0.08 < factors["value.users"].std() < 0.1  # normal of 0.1, cut at two standard deviations: 0.088
    assert abs(np.corrcoef(factors["value.users"].ravel(), world.users.ravel())[0, 1]) < 0.06
    np.testing.assert_array_equal(again.state_dict()["value.items"], factors["value.items"])
    with pytest.raises(ConfigError, match="has none"):
        started(name, train, lambda users, items: items, generator_start="random")


def test_log_q_of_irgan_is_the_log_of_its_probability() -> None:
    drawn = started("irgan", negatives=4).sample(SMALL.users, SMALL.items, MODEL, 0)
    np.testing.assert_allclose(
        np.exp(drawn.log_q), unseen_softmax(SMALL, MODEL, 1.0)[SMALL.users[:, None], drawn.ids], rtol=1e-5
    )


@pytest.mark.parametrize("width", [7, BLOCK, 4 * BLOCK])
def test_places_are_where_running_sums_pass(width: int) -> None:
    rng = np.random.default_rng(width)
    weights = (rng.random((50, width)) * (rng.random((50, width)) < 0.3)).astype(np.float32)
    weights[:, width // 2] = 0.5
    weights[0] = 0
    weights[0, -1] = 1e-30  # all there is, at the very end
    shares = rng.random((50, 6)).astype(np.float32)
    shares[:, 0], shares[:, 1] = 0, np.nextafter(np.float32(1), np.float32(0))
    places = places_at(weights, shares, np)
    assert (np.take_along_axis(weights, places, axis=1) > 0).all()
    running = np.cumsum(weights.astype(np.float64), axis=1)
    above = np.take_along_axis(running, places, axis=1)
    below = above - np.take_along_axis(weights, places, axis=1)
    sought, total = shares * running[:, -1:], running[:, -1:]
    assert (sought >= below - 1e-6 * total).all()
    assert (sought <= above + 1e-6 * total).all()


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_those_of_the_expected_reward(name: str) -> None:
    """Averaged over what may be drawn, REINFORCE is the gradient of sum_u sum_j p(j | u) R_uj, here by finite differences."""
    temperature, rng = 0.8, np.random.default_rng(0)
    reward = rng.random((3, 9))
    fields = {} if name == "irgan" else {"candidates": 9}
    state = started(name, temperature=temperature, **fields)
    users, positives = np.array([0, 1, 2]), np.array([1, 0, 3])
    probability = unseen_softmax(SMALL, MODEL, temperature)
    found = {"users": np.zeros((3, 4)), "items": np.zeros((9, 4))}
    state.sample(users, positives, MODEL, 0)
    for user in users:
        for item in range(9):
            advantage = np.zeros((3, 1), np.float32)
            advantage[user] = (reward[user, item] - 0.4) / temperature  # any baseline will do
            negatives = np.argmax(probability, axis=1)[:, None]  # of the others, which count for nothing
            negatives[user] = item
            if probability[user, item] == 0:
                continue
            for kind, slope in state._slopes(users, negatives, advantage, state._drawn).items():
                found[kind] += probability[user, item] * slope

    def expected(kind: str, row: int, column: int, step: float) -> float:
        factors = {"users": (MODEL.users * MODEL.beta).astype(np.float64), "items": MODEL.items.astype(np.float64)}
        factors[kind][row, column] += step
        scores = np.where(probability > 0, factors["users"] @ factors["items"].T / temperature, -np.inf)
        return float((softmax(scores, axis=1) * reward).sum())

    for kind, slopes in found.items():
        numeric = [
            [(expected(kind, r, c, 1e-5) - expected(kind, r, c, -1e-5)) / 2e-5 for c in range(4)] for r in range(len(slopes))
        ]
        np.testing.assert_allclose(slopes, numeric, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_fixed_reward_is_learnt(name: str) -> None:
    """Items that are always rewarded are drawn ever more often, from a start at which all are alike."""
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, [20, 70], (200, 2)), axis=0)
    train = dense(pairs[:, 0], pairs[:, 1], 20, 70)
    good = np.arange(70) % 7 == 0
    state = started(name, train, GMF.init(20, 70, dim=8, std=0.05, learn_beta=False, seed=0), generator_learning_rate=0.02)
    shares = []
    for epoch in range(40):
        state.begin_epoch(epoch, MODEL)
        ids = state.sample(train.users, train.items, MODEL, 0).ids
        shares.append(good[ids].mean())
        state.feedback(train.users, ids, good[ids].astype(np.float32))
    assert np.mean(shares[:3]) < 0.25
    assert np.mean(shares[-3:]) > (0.9 if name == "irgan" else 0.6)  # ten candidates often have no good one among them


@pytest.mark.parametrize("name", NAMES)
def test_reward_without_differences_teaches_nothing(name: str) -> None:
    state = started(name, negatives=2)
    before = {key: np.array(value) for key, value in state.state_dict().items()}
    ids = state.sample(SMALL.users, SMALL.items, MODEL, 0).ids
    state.feedback(SMALL.users, ids, np.full(ids.shape, 0.25, np.float32))
    for kind in ("users", "items"):
        np.testing.assert_array_equal(state.state_dict()[f"value.{kind}"], before[f"value.{kind}"])
    assert int(state.state_dict()["steps"]) == 1


def config(name: str, **fields: Any) -> RunConfig:
    return RunConfig(sampler=name, loss="bpr", dim=6, batch_size=128, learn_beta=True, **fields)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ["plain", "torch"])
def test_a_restored_engine_goes_on_bit_for_bit(name: str, engine: str, train: Interactions) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    settings = config(name, engine=engine, negatives=2, perturbation=0.05)
    whole, first, second = (make_engine(settings, train) for _ in range(3))
    for epoch in range(4):
        whole.run_epoch(epoch)
    for epoch in range(2):
        first.run_epoch(epoch)
    second.load_state_dict({name: np.array(tensor) for name, tensor in first.state_dict().items()})
    for epoch in range(2, 4):
        second.run_epoch(epoch)
    restored = second.state_dict()
    for key, tensor in whole.state_dict().items():
        np.testing.assert_array_equal(restored[key], tensor, err_msg=key)
    assert any(key.startswith("sampler.second") for key in restored)


@pytest.mark.parametrize("name", NAMES)
def test_torch_draws_and_learns_as_numpy(name: str, train: Interactions) -> None:
    torch = pytest.importorskip("torch")
    model = GMF.init(train.n_users, train.n_items, dim=5, std=0.5, learn_beta=True, seed=2)
    parts = {key: torch.tensor(value) for key, value in model.tensors().items()}
    on_torch = type("Factors", (), {"tensors": lambda self: parts})()
    plain = started(name, train, model, negatives=2)
    other = started(name, train, on_torch, xp=torch, negatives=2)
    users, positives = (torch.tensor(ids.astype(np.int64)) for ids in (train.users, train.items))
    same = []
    for step in range(5):
        ids = plain.sample(train.users, train.items, model, step).ids
        same.append(np.mean(ids == np.asarray(other.sample(users, positives, model, step).ids)))
        reward = np.random.default_rng(step).random(ids.shape).astype(np.float32)
        plain.feedback(train.users, ids, reward)
        other.feedback(users, torch.tensor(ids), torch.tensor(reward))
    assert min(same) > 0.999  # sums and exponentials differ in the last bit
    for key, tensor in plain.state_dict().items():
        np.testing.assert_allclose(np.asarray(other.state_dict()[key]), tensor, atol=1e-5, err_msg=key)


def test_plain_and_torch_engines_follow_one_curve(train: Interactions) -> None:
    pytest.importorskip("torch")
    plain, other = (make_engine(config("rns_as", engine=engine), train) for engine in ("plain", "torch"))
    losses = np.array([[engine.run_epoch(epoch) for engine in (plain, other)] for epoch in range(4)])
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-3)
    assert {"p_pos_05", "p_pos_50", "p_pos_95"} <= plain.observations().keys()


def test_the_generator_makes_harder_negatives_than_chance(train: Interactions) -> None:
    trained = make_engine(config("rns_as", engine="plain", generator_learning_rate=0.01), train)
    uniform = make_engine(config("rns_as", engine="plain", generator_learning_rate=1e-9, temperature=1e6), train)
    for epoch in range(8):
        trained.run_epoch(epoch)
        uniform.run_epoch(epoch)
    assert trained.observations()["p_pos_50"] > uniform.observations()["p_pos_50"]


@pytest.mark.parametrize("name", NAMES)
def test_a_score_without_factors_is_refused(name: str) -> None:
    perceptron = MLP.init(3, 9, dim=4, hidden_layers=1, std=0.1, seed=0)
    for score in (perceptron, lambda users, items: np.zeros(np.shape(items), np.float32)):
        with pytest.raises(ConfigError, match=f"the generator of '{name}' is like the model's factors"):
            started(name, SMALL, score)


def test_sampling_before_an_epoch_is_refused() -> None:
    state = SAMPLERS["irgan"]().start(SMALL, seed=0)
    with pytest.raises(ConfigError, match="no epoch has begun"):
        state.sample(SMALL.users, SMALL.items, MODEL, 0)
    with pytest.raises(ConfigError, match="call sample first"):
        state.feedback(SMALL.users, SMALL.items[:, None], np.zeros((len(SMALL), 1), np.float32))


@pytest.mark.parametrize(
    ("name", "temperature", "perturbation"), [("irgan", 1.0, 0.0), ("rns_as", 0.5, 0.0), ("advir", 1.0, 0.01)]
)
def test_presets_hold_the_papers_values(name: str, temperature: float, perturbation: float) -> None:
    run = make_config({"sampler": name}, preset="paper-ml-1m")
    assert (run.temperature, run.perturbation, run.learning_rate) == (temperature, perturbation, 5e-4)  # type: ignore[attr-defined]
    assert run.generator_start == ("random" if name == "irgan" else "copy")  # type: ignore[attr-defined]
    assert name == "irgan" or run.make_sampler().candidates == 10  # type: ignore[attr-defined]
