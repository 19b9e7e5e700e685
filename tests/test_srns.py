"""SRNS: its parts against brute force, its kernel against its array form, draw for draw."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit
from still_epochs import coarse_model, compare_draws, negatives_of, set_parameters

from srns import rng
from srns.config import RunConfig
from srns.engines import FusedSrnsEngine, PlainEngine, make_engine
from srns.errors import ConfigError, DataError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.kernels.crew import run, wait_for_all
from srns.samplers import SRNS, Noise, Truth
from srns.samplers.elementary import LOWEST_WORTH, exp_nonpositive, gumbel, log, logistic
from srns.samplers.unseen import spread_numbers
from srns.scorers import GMF


def world(n_users: int, n_items: int, n: int, seed: int) -> Interactions:
    """Interactions over fixed sets of users and items; some users have none, and nobody has seen everything."""
    draw = np.random.default_rng(seed)
    users, items = draw.integers(0, n_users, n), (n_items * draw.random(n) ** 2).astype(int)
    ids = {"user_ids": IdMap.dense(n_users, "user"), "item_ids": IdMap.dense(n_items, "item")}
    data = Interactions.from_pairs(users, items, **ids)
    spared = draw.integers(0, n_items, n_users)
    return data.select(data.items != spared[data.users])


@st.composite
def settings_of_srns(draw: st.DrawFn) -> dict[str, Any]:
    memory_size = draw(st.integers(1, 20))
    return {
        "memory_size": memory_size,
        "expansion_size": draw(st.integers(1, 70)),
        "temperature": draw(st.sampled_from([0.1, 0.7, 2.0, 10.0])),
        "strategy": draw(st.sampled_from(["variance", "difficulty", "random"])),
        "criterion": draw(st.sampled_from(["probability", "stale_scores"])),
        "warmup": draw(st.sampled_from(["increase", "flat", "decrease"])),
        "warmup_epochs": draw(st.integers(0, 5)),
        "variance_weight": draw(st.sampled_from([0.0, 1.0, 20.0])),
        "history_epochs": draw(st.integers(1, 5)),
        "lazy_epochs": draw(st.integers(1, 3)),
        "update_after": draw(st.sampled_from(["batch", "positive"])),
        "negatives": draw(st.integers(0, memory_size)),
    }


@given(
    values=settings_of_srns(),
    seed=st.integers(0, 2**40),
    n_items=st.integers(2, 90),
    n=st.integers(1, 700),
    dim=st.integers(1, 19),
    batch_size=st.sampled_from([1, 7, 64, 500]),
    threads=st.integers(1, 2),
    noise=st.booleans(),
    scale=st.sampled_from([1.0, 2.0**-20]),  # of scores: such that probabilities tell them apart, and such that they do not
)
@settings(max_examples=60, deadline=None)
def test_kernel_draws_what_the_array_form_draws(
    values: dict[str, Any],
    seed: int,
    n_items: int,
    n: int,
    dim: int,
    batch_size: int,
    threads: int,
    noise: bool,
    scale: float,
) -> None:
    """Over whole epochs: the same negatives, memories and observations. The model is set anew before each epoch and does not
    move within it (learning rate 0), to values whose scores are exact: what is compared is the sampler alone."""
    n_users, small = 13, seed % 1000
    train = world(n_users, n_items, n if batch_size > 1 else min(n, 40), small)
    truth = Truth(noise=_noise(train, small)) if noise else None
    config = RunConfig(
        sampler="srns", seed=seed, dim=dim, batch_size=batch_size, threads=threads, learning_rate=1e-30, **values
    )
    fused = FusedSrnsEngine(config, train, truth)
    state = config.make_sampler().start(train, seed=seed, **({"noise": truth.noise} if truth else {}))
    state.observing = True
    np.testing.assert_array_equal(fused.state_dict()["memory"], state.memory)
    for epoch in range(7 if len(train) else 0):
        compare_epoch(fused, state, coarse_model(n_users, n_items, dim, small + epoch, scale), epoch)
        assert fused.observations() == state.observations()


def compare_epoch(fused: FusedSrnsEngine, state: Any, model: GMF, epoch: int) -> None:
    """The same negatives in each batch of an epoch, and the same memories after all."""
    compare_draws(fused, state, model, epoch)
    np.testing.assert_array_equal(fused.state_dict()["memory"], state.memory)


def _noise(train: Interactions, seed: int, n: int = 60) -> Noise:
    """Hidden positives for about half of the users, and others that are held out without being injected."""
    other = world(train.n_users, train.n_items, n, seed + 1)
    free = other.select(~train.contains(other.users, other.items))
    room = (train.user_counts + free.user_counts)[free.users] < train.n_items  # somebody must be left to draw
    free = free.select(room & (free.users % 2 == 0))
    hidden = free.select(np.arange(len(free)) % 2 == 0)
    return Noise(hidden, free)


# The parts of the sampler, each against something that is not its code.


def rows_of(seed: int, n: int) -> tuple[Any, Any]:
    """Random words for n rows."""
    return rng.row_keys(rng.stream_key(seed, "test"), np.arange(n, dtype=np.int64), 0)


@given(count=st.integers(1, 60), size=st.integers(1, 60), seed=st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_spread_numbers_are_different_and_as_many_as_there_are(count: int, size: int, seed: int) -> None:
    found = spread_numbers(rows_of(seed, 5), np.full(5, count), size, np)
    for row in found:
        valid = row[row >= 0]
        assert len(valid) == min(size, count)
        assert len(np.unique(valid)) == len(valid)
        assert valid.max() < count


@pytest.mark.parametrize(("count", "size"), [(10, 4), (23, 5), (7, 7), (5, 8), (100, 3)])
def test_every_number_is_equally_likely_to_be_among_the_spread(count: int, size: int) -> None:
    n = 40_000
    found = spread_numbers(rows_of(1, n), np.full(n, count), size, np)
    counts = np.bincount(found[found >= 0], minlength=count)
    assert counts.sum() == n * min(size, count)
    # Arcs make the numbers of a row repel each other: counts vary less than independent draws would, never more.
    assert stats.chisquare(counts).pvalue > 1e-4


def test_the_exponential_and_logistic_functions_are_those_of_scipy() -> None:
    x = np.concatenate([np.linspace(-86, 0, 20_001), [-1e-30, -0.0]]).astype(np.float32)
    np.testing.assert_allclose(exp_nonpositive(x, np), np.exp(x.astype(float)), rtol=1.5e-7)
    both = np.linspace(-30, 30, 9_999).astype(np.float32)
    np.testing.assert_allclose(logistic(both, np), expit(both.astype(float)), rtol=4e-7)
    assert np.isfinite(exp_nonpositive(np.array([-np.inf, np.nan], np.float32), np)).all()


def test_the_logarithm_and_gumbel_noise_are_those_of_numpy() -> None:
    x = np.exp(np.linspace(-40, 40, 100_001)).astype(np.float32)
    np.testing.assert_allclose(log(x, xp), np.log(x.astype(float)), rtol=3e-7, atol=1e-7)
    uppers = np.arange(2**23)
    u = (uppers + 0.5) / 2**23
    np.testing.assert_allclose(gumbel(uppers << 9, xp), -np.log(-np.log(u)), atol=6e-7)


def test_memories_are_drawn_by_score_without_replacement() -> None:
    """The order of picks has the probabilities of equation 3 applied in turn (Plackett-Luce), here by brute force."""
    n_users, n_items, temperature = 20_000, 4, 0.7
    scores = np.array([0.3, -0.4, 1.1, 0.2], np.float32)
    train = Interactions.from_pairs([0], [4], user_ids=IdMap.dense(n_users, "user"), item_ids=IdMap.dense(n_items + 1, "item"))
    model = GMF(np.ones((n_users, 1), np.float32), np.append(scores, -50.0)[:, None].astype(np.float32), np.ones(1, np.float32))
    state = SRNS(memory_size=2, expansion_size=5, temperature=temperature, strategy="difficulty").start(train, seed=3)
    state.begin_epoch(0, model)
    everyone = np.arange(1, n_users)  # user 0 has seen the fifth item; to the others it is not worth drawing
    state.sample(everyone, np.full(len(everyone), 4), model, 0)
    picked = state.memory[1:, 0] * n_items + state.memory[1:, 1]
    weights = np.exp(scores.astype(float) / temperature)
    expected = np.array([
        0.0 if i == j else weights[i] / weights.sum() * weights[j] / (weights.sum() - weights[i])
        for i in range(n_items) for j in range(n_items)
    ])  # fmt: skip
    counts = np.bincount(picked, minlength=n_items**2)
    assert counts[expected == 0].sum() == 0
    assert stats.chisquare(counts[expected > 0], expected[expected > 0] * len(everyone)).pvalue > 1e-4


@given(seed=st.integers(0, 10_000), values=settings_of_srns())
@settings(max_examples=40, deadline=None)
def test_selection_is_equation_4(seed: int, values: dict[str, Any]) -> None:
    """Against a loop in float64 over users, candidates and past models."""
    values |= {"strategy": "variance", "lazy_epochs": 1, "update_after": "batch"}
    sampler, train = SRNS(**values), world(9, 30, 120, seed)
    models = [coarse_model(9, 30, 4, seed + epoch) for epoch in range(7)]
    state = sampler.start(train, seed=seed)
    stale = sampler.criterion == "stale_scores"
    for epoch, model in enumerate(models):
        state.begin_epoch(epoch, model)
        memory = state.memory.copy()
        drawn = state.sample(train.users, train.items, model, 0).ids
        past = models[max(0, epoch - sampler.history_epochs) + 1 : epoch + 1]  # begin_epoch(e) shows the end of epoch e - 1
        past = past if not stale or len(past) == sampler.history_epochs else []
        for user, positive, ids in zip(train.users, train.items, drawn, strict=True):
            candidates = memory[user][memory[user] >= 0]
            asked, who = np.concatenate([[positive], candidates])[None, :], np.array([user])
            now = model(who, asked)[0].astype(float)
            then = np.array([each(who, asked)[0] for each in past], float).reshape(len(past), asked.shape[1])
            worth = now[1:] if stale else expit(now[1:] - now[0])
            history = then[:, 1:] if stale else expit(then[:, 1:] - then[:, :1])
            if len(history) and sampler.uses_variance:
                worth = worth + sampler.weight_at(epoch) * history.std(axis=0)
            best = np.sort(worth)[::-1][np.arange(sampler.n_negatives) % len(candidates)]
            found = worth[[int(np.flatnonzero(candidates == each)[0]) for each in ids]]
            np.testing.assert_allclose(found, best, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epoch", [0, 1])
def test_small_rows_are_told_apart(epoch: int) -> None:
    """Scores of 1e-6, as at the start of training: a probability in float32 has steps of 6e-8 and could not tell them apart."""
    train, draw = world(50, 80, 900, 2), np.random.default_rng(3)
    model = GMF(*(draw.normal(0, 5e-4, (n, 8)).astype(np.float32) for n in (50, 80)), np.ones(8, np.float32))
    sampler = SRNS(memory_size=16, expansion_size=20, negatives=1, variance_weight=5.0 if epoch == 0 else 0.0)
    state = sampler.start(train, seed=0)
    for before in range(epoch):
        state.begin_epoch(before, model)
    state.begin_epoch(epoch, model)
    memory = state.memory.copy()
    drawn = state.sample(train.users, train.items, model, 0).ids[:, 0]
    scores = (model.users.astype(float) @ model.items.T.astype(float))[train.users[:, None], memory[train.users]]
    best = memory[train.users, np.where(memory[train.users] >= 0, scores, -1).argmax(axis=1)]
    np.testing.assert_array_equal(drawn, best)


@given(seed=st.integers(0, 10_000), values=settings_of_srns())
@settings(max_examples=30, deadline=None)
def test_after_each_positive_a_batch_is_as_if_its_positives_came_one_by_one(seed: int, values: dict[str, Any]) -> None:
    sampler, train = SRNS(**values | {"update_after": "positive"}), world(7, 30, 90, seed)
    batch, one_by_one = (sampler.start(train, seed=seed) for _ in range(2))
    order = np.random.default_rng(seed).permutation(len(train))
    users, positives = train.users[order], train.items[order]
    for epoch in range(4):
        model = coarse_model(7, 30, 4, seed + epoch)
        for state in (batch, one_by_one):
            state.begin_epoch(epoch, model)
        drawn = batch.sample(users, positives, model, 0).ids
        for row, ids in enumerate(drawn):
            alone = one_by_one.sample(users[row : row + 1], positives[row : row + 1], model, row).ids
            np.testing.assert_array_equal(ids, alone[0])
        np.testing.assert_array_equal(batch.memory, one_by_one.memory)


@pytest.mark.parametrize(
    ("warmup", "epochs", "expected"),
    [
        ("increase", 4, [0, 0.5, 1, 1.5, 2, 2]),
        ("flat", 4, [2] * 6),
        ("decrease", 4, [2, 1.5, 1, 0.5, 0, 0]),
        ("increase", 0, [2] * 6),
    ],
)
def test_the_variance_weight_warms_up(warmup: str, epochs: int, expected: list[float]) -> None:
    sampler = SRNS(variance_weight=2.0, warmup=warmup, warmup_epochs=epochs)
    assert [sampler.weight_at(epoch) for epoch in range(6)] == expected
    assert sampler.model_copy(update={"strategy": "difficulty"}).weight_at(5) == 0


def test_one_slot_holds_a_hidden_positive_and_the_others_never_do() -> None:
    train = world(40, 60, 600, 5)
    noise = _noise(train, 5, n=800)
    model = coarse_model(40, 60, 3, 5)
    state = SRNS(memory_size=6, expansion_size=20, strategy="difficulty").start(train, seed=1, noise=noise)
    seen_first = set()
    for epoch in range(5):
        state.begin_epoch(epoch, model)
        state.sample(train.users, train.items, model, 0)
        for user in np.unique(train.users):
            first, others = state.memory[user, 0], state.memory[user, 1:]
            if noise.hidden.user_counts[user]:
                assert first in noise.hidden.items_of(user)
                seen_first.add((user, first))
            elif first >= 0:
                assert not noise.excluded.contains([user], [first])[0]
            rest = others[others >= 0]
            assert not noise.excluded.contains(np.full(len(rest), user), rest).any()
            assert not train.contains(np.full(len(rest), user), rest).any()
    assert len(seen_first) > (noise.hidden.user_counts > 0).sum(), "the hidden positive changes"


@given(seed=st.integers(0, 10_000), values=settings_of_srns())
@settings(max_examples=60, deadline=None)
def test_memories_hold_different_unseen_items_and_all_of_them_where_there_are_few(seed: int, values: dict[str, Any]) -> None:
    n_items = 12
    sampler, train = SRNS(**values), world(9, n_items, 90, seed)
    model = coarse_model(9, n_items, 4, seed)
    state = sampler.start(train, seed=seed)
    for epoch in range(4):
        state.begin_epoch(epoch, model)
        before = state.memory.copy()
        state.sample(train.users, train.items, model, 0)
        if epoch % sampler.lazy_epochs:
            np.testing.assert_array_equal(state.memory, before)
        for user, memory in enumerate(state.memory):
            held = memory[memory >= 0]
            unseen = np.setdiff1d(np.arange(n_items), train.items_of(user))
            assert len(np.unique(held)) == len(held) == min(sampler.memory_size, len(unseen))
            assert np.isin(held, unseen).all()


def test_random_takes_each_candidate_equally_often() -> None:
    n_users = 6_000
    train = Interactions.from_pairs(
        np.arange(n_users), np.zeros(n_users, int), user_ids=IdMap.dense(n_users, "user"), item_ids=IdMap.dense(40, "item")
    )
    model = coarse_model(n_users, 40, 2, 0)
    state = SRNS(memory_size=5, strategy="random", negatives=2).start(train, seed=0)
    state.begin_epoch(3, model)
    memory = state.memory.copy()
    drawn = state.sample(train.users, train.items, model, 0).ids
    assert (drawn[:, 0] != drawn[:, 1]).all()
    slots = np.argmax(memory[:, None, :] == drawn[:, :, None], axis=2)
    for k in range(2):
        assert stats.chisquare(np.bincount(slots[:, k], minlength=5)).pvalue > 1e-4


def test_logged_candidates_carry_the_scores_of_past_epochs() -> None:
    """history="candidates": what is logged of a memory and of a positive is what the models of the last epochs would say
    now."""
    train = world(15, 50, 250, 2)
    sampler = SRNS(history="candidates", candidates_size=12, expansion_size=10, memory_size=4, history_epochs=3, negatives=1)
    state = sampler.start(train, seed=0)
    models = [coarse_model(15, 50, 3, epoch) for epoch in range(9)]
    entered = set()
    for epoch, model in enumerate(models):
        state.begin_epoch(epoch, model)
        for step, half in enumerate(np.array_split(np.random.default_rng(epoch).permutation(len(train)), 2)):
            users, positives = train.users[half].astype(np.int64), train.items[half].astype(np.int64)
            memory = state.memory[users]
            past = state._history.past(users, positives, memory)
            ends = {(e - 1) % 3: models[e] for e in range(max(1, epoch - 2), epoch + 1)}
            assert len(past) == len(ends)
            for slot, scores in enumerate(past):
                expected = ends[slot](users, np.concatenate([positives[:, None], memory], axis=1))
                np.testing.assert_array_equal(scores, expected)
            state.sample(users, positives, model, step)
            entered |= set(state.memory.ravel().tolist())
    assert len(entered) > 40, "memories change, and with them their logs"


def test_a_score_without_parameters_cannot_be_remembered() -> None:
    train = world(5, 9, 20, 0)
    state = SRNS(memory_size=2, negatives=1).start(train, seed=0)
    with pytest.raises(ConfigError, match="has none to copy"):
        state.begin_epoch(0, lambda users, items: items)
    state = SRNS(memory_size=2, strategy="difficulty").start(train, seed=0)
    state.begin_epoch(0, lambda users, items: np.zeros(items.shape, np.float32))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"negatives": 9, "memory_size": 8}, "negatives 9 exceed memory_size 8"),
        (
            {"history": "candidates", "expansion_size": 64, "candidates_size": 10},
            "candidates_size 10 is below expansion_size 64",
        ),
        ({"history": "candidates", "criterion": "stale_scores"}, "needs history 'snapshots'"),
    ],
)
def test_settings_that_contradict_each_other_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SRNS(**values)


@pytest.mark.parametrize("update_after", ["batch", "positive"])
def test_torch_modules_draw_what_numpy_draws(update_after: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Scorer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, model: GMF) -> None:
            super().__init__()
            self.users, self.items = (torch.nn.Parameter(torch.tensor(part)) for part in (model.user_factors, model.items))

        def forward(self, users: Any, items: Any) -> Any:
            return torch.einsum("bf,bkf->bk", self.users[users], self.items[items])

    train = world(20, 50, 300, 1)
    sampler = SRNS(memory_size=5, expansion_size=12, temperature=1.0, negatives=2, update_after=update_after)
    ours, theirs = sampler.start(train, seed=4), sampler.start(train, seed=4, xp=torch)
    ours.observing = theirs.observing = True
    users, positives = torch.tensor(train.users), torch.tensor(train.items)
    for epoch in range(8):
        model = coarse_model(20, 50, 4, epoch)
        module = Scorer(model)
        ours.begin_epoch(epoch, model)
        theirs.begin_epoch(epoch, module)
        for step in range(2):
            with torch.no_grad():
                drawn = theirs.sample(users, positives, module, step).ids
            assert isinstance(drawn, torch.Tensor)
            np.testing.assert_array_equal(drawn.numpy(), ours.sample(train.users, train.items, model, step).ids)
        assert ours.observations() == theirs.observations()
        if epoch == 5:  # all of it can be saved and taken up again
            saved, theirs = theirs.state_dict(), sampler.start(train, seed=4, xp=torch)
            theirs.load_state_dict(saved)
            theirs.observing = True
    np.testing.assert_array_equal(theirs.memory.numpy(), ours.memory)


# In training.


def run_config(**values: Any) -> RunConfig:
    base = {
        "sampler": "srns",
        "dim": 6,
        "batch_size": 64,
        "memory_size": 6,
        "expansion_size": 20,
        "negatives": 2,
        "warmup_epochs": 2,
    }
    return RunConfig(**{**base, **values})


def test_both_engines_learn_alike() -> None:
    train = world(200, 150, 4000, 0)
    hidden = world(200, 150, 400, 1)
    hidden = hidden.select(~train.contains(hidden.users, hidden.items))
    config = run_config(learning_rate=0.005)
    fused, plain = FusedSrnsEngine(config, train, Truth(hidden)), PlainEngine(config, train, Truth(hidden))
    curves = np.array([[fused.run_epoch(epoch), plain.run_epoch(epoch)] for epoch in range(6)])
    assert curves[-1, 0] < curves[0, 0], "the model learns"
    np.testing.assert_allclose(curves[:, 0], curves[:, 1], rtol=1e-3)
    one, other = fused.observations(), plain.observations()
    assert one.keys() == other.keys() >= {"label_error_ratio", "p_pos_50", "std_over_mean", "turnover"}
    for name in one:
        assert one[name] == pytest.approx(other[name], rel=0.05, abs=0.01), name


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"criterion": "stale_scores", "update_after": "positive"},
        {"strategy": "random"},
        {"loss": "softmax", "negatives": 6, "update_after": "positive"},
    ],
)
def test_threads_and_resuming_change_nothing(values: dict[str, Any]) -> None:
    train = world(120, 90, 2500, 3)
    engines = [FusedSrnsEngine(run_config(threads=threads, history_epochs=3, **values), train) for threads in (1, 2)]
    for epoch in range(4):
        for engine in engines:
            engine.run_epoch(epoch)
    saved = {name: np.array(value) for name, value in engines[0].state_dict().items()}
    resumed = FusedSrnsEngine(run_config(history_epochs=3, **values), train)
    resumed.load_state_dict(saved)
    for epoch in (4, 5):
        for engine in [*engines, resumed]:
            engine.run_epoch(epoch)
    for other in (engines[1], resumed):
        state = other.state_dict()
        for name, value in engines[0].state_dict().items():
            np.testing.assert_array_equal(value, state[name], err_msg=name)
        assert other.observations() == engines[0].observations()


@pytest.mark.parametrize(
    ("values", "noise"),
    [
        ({}, False),
        ({"batch_size": 4}, False),
        ({"temperature": 0.05}, False),
        ({"criterion": "stale_scores", "l2": 3.0, "init_std": 2.0}, True),
    ],
)
def test_what_the_kernel_does_not_look_at_could_not_have_won(values: dict[str, Any], noise: bool) -> None:
    """The level that candidates must get to is a guess: at the lowest, all are looked at. Here rows move fast, so that a bound
    on them that is not kept up to date is soon wrong; small batches read items from the table, and stale rows are longer than
    those that L2 has shrunk since."""
    train = world(40, 90, 800, 6)
    truth = Truth(noise=_noise(train, 6)) if noise else None
    config = run_config(**{"learning_rate": 0.2, "init_std": 0.01, "temperature": 2.0, "threads": 2, **values})
    engines = [FusedSrnsEngine(config, train, truth) for _ in range(4)]
    for epoch in range(4):
        for engine, level in zip(engines, (LOWEST_WORTH, 1.0, 3.0, 8.0), strict=True):
            engine._desk.levels[:] = level
            engine.run_epoch(epoch)
        states = [engine.state_dict() for engine in engines]
        for other in states[1:]:
            for name, value in states[0].items():
                np.testing.assert_array_equal(value, other[name], err_msg=f"epoch {epoch}, {name}")


def test_observations_count_what_was_drawn() -> None:
    """Against all negatives of an epoch, looked at one by one; the model does not move within it."""
    train, known = world(60, 80, 900, 0), world(60, 80, 300, 9)
    known = known.select(~train.contains(known.users, known.items))
    engine = FusedSrnsEngine(run_config(learning_rate=1e-30, negatives=1), train, Truth(known))
    model = coarse_model(60, 80, 6, 0)
    set_parameters(engine, model)
    drawn = np.concatenate(negatives_of(engine, 0))
    order = rng.permutation(rng.stream_key(0, "shuffle", 0), len(train), np.arange(len(train)))
    users, positives = train.users[order], train.items[order]
    scores = model(users, np.concatenate([positives[:, None], drawn], axis=1)).astype(float)
    found = engine.observations()
    assert found["label_error_ratio"] == known.contains(users[:, None], drawn).mean()
    assert found["p_pos_50"] == pytest.approx(np.median(expit(scores[:, 1] - scores[:, 0])), abs=0.02)
    assert found["p_pos_95"] == pytest.approx(np.quantile(expit(scores[:, 1] - scores[:, 0]), 0.95), abs=0.02)


def test_turnover_and_wavering_are_those_of_a_count_by_hand() -> None:
    """One batch per epoch, so that memories can be compared before and after; models are set before each epoch."""
    train = world(40, 70, 500, 4)
    engine = FusedSrnsEngine(run_config(learning_rate=1e-30, negatives=1, batch_size=1000, history_epochs=3), train)
    models = [coarse_model(40, 70, 6, epoch) for epoch in range(5)]
    for epoch, model in enumerate(models):
        set_parameters(engine, model)
        before = engine.state_dict()["memory"]
        drawn = negatives_of(engine, epoch)[0]
        after = engine.state_dict()["memory"]
    active = np.unique(train.users)
    new = sum(len(np.setdiff1d(after[user], before[user])) for user in active)
    assert engine.observations()["turnover"] == new / (len(active) * after.shape[1])
    order = rng.permutation(rng.stream_key(0, "shuffle", 4), len(train), np.arange(len(train)))
    users, asked = train.users[order], np.concatenate([train.items[order][:, None], drawn], axis=1)
    past = np.array([model(users, asked).astype(float) for model in models[2:]])  # set before an epoch is the end of the last
    p_pos = expit(past[:, :, 1] - past[:, :, 0])
    wavering = (p_pos.std(axis=0) / p_pos.mean(axis=0)).mean()
    assert engine.observations()["std_over_mean"] == pytest.approx(wavering, rel=1e-3)


def test_noise_that_leaves_a_user_nothing_is_named() -> None:
    train = Interactions.from_pairs([0, 0, 1], [0, 1, 2])
    rest = Interactions.from_pairs([0], [2], user_ids=train.user_ids, item_ids=train.item_ids)
    with pytest.raises(DataError, match="all 3 items in train or test, and noise keeps both"):
        SRNS().start(train, seed=0, noise=Noise(rest, rest))


def test_a_diverged_model_stays_within_bounds() -> None:
    """Not a number and infinity among the scores must not send the kernel beyond its arrays; training then reports them."""
    train = world(50, 40, 500, 0)
    engine = FusedSrnsEngine(run_config(), train)
    model = coarse_model(50, 40, 6, 0)
    model.items[::3], model.items[1::3] = np.nan, np.inf
    set_parameters(engine, model)
    engine.run_epoch(0)
    for user, memory in enumerate(engine.state_dict()["memory"]):
        held = memory[memory >= 0]
        assert len(np.unique(held)) == len(held)
        assert memory.min() >= -1
        assert np.isin(held, np.setdiff1d(np.arange(40), train.items_of(user))).all()


def test_the_fused_engine_leaves_logged_candidates_to_the_plain_one() -> None:
    train = world(50, 40, 500, 0)
    config = run_config(history="candidates", candidates_size=20)
    assert isinstance(make_engine(config, train), PlainEngine)
    with pytest.raises(ConfigError, match="no kernel for sampler 'srns' as set"):
        make_engine(config.model_copy(update={"engine": "fused"}), train)


@pytest.mark.parametrize(("n_items", "memory_size", "expansion_size"), [(5_000, 16, 48), (5_000, 512, 1024), (700, 40, 3)])
def test_kernel_draws_what_the_array_form_draws_in_larger_worlds(n_items: int, memory_size: int, expansion_size: int) -> None:
    """Bit maps that hold only some bits of an item, which several may share, and the largest memories there may be."""
    train = world(30, n_items, 600, 7)
    values = {"memory_size": memory_size, "expansion_size": expansion_size, "temperature": 1.0, "negatives": 3}
    config = RunConfig(sampler="srns", seed=1, dim=5, batch_size=128, threads=2, learning_rate=1e-30, **values)
    fused, state = FusedSrnsEngine(config, train), config.make_sampler().start(train, seed=1)
    for epoch in range(3):
        compare_epoch(fused, state, coarse_model(30, n_items, 5, epoch), epoch)


@pytest.mark.parametrize(("loss", "negatives"), [("bpr", 1), ("softmax", 0)])
def test_fused_reaches_the_parameters_of_plain_with_srns(train_alike: Any, loss: str, negatives: int) -> None:
    """Draws that do not look at scores (any of the memory, endless temperature) are the same however scores are rounded."""
    train = world(60, 40, 900, 2)
    config = run_config(strategy="random", temperature=1e30, loss=loss, negatives=negatives, learning_rate=0.01)
    fused, plain = FusedSrnsEngine(config, train), PlainEngine(config, train)
    train_alike(fused, plain, 1e-5)


def test_a_failing_member_of_a_crew_ends_it() -> None:
    def member(task: int, crew: int, gate: Any) -> None:
        if task == 1:
            raise MemoryError("no room")
        wait_for_all(crew, gate)

    with pytest.raises(MemoryError, match="no room"):
        run(member, 2)


def test_a_loop_that_is_not_as_it_should_be_hears_what_is_wrong() -> None:
    train, model = world(5, 20, 30, 0), coarse_model(5, 20, 3, 0)
    state = SRNS(memory_size=4, expansion_size=4, strategy="difficulty").start(train, seed=0)
    with pytest.raises(ConfigError, match="call begin_epoch"):
        state.sample(train.users, train.items, model, 0)
    state.begin_epoch(0, model)
    with pytest.raises(ConfigError, match=r"the scorer returned \(\d+,\)"):
        state.sample(train.users, train.items, lambda users, items: model(users, items)[:, 0], 0)
