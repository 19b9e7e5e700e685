"""What every method promises within a run, whatever engine runs it: one suite for all of `srns.SAMPLERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from srns.config import RunConfig
from srns.engines import make_engine
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.ranks import Ranks
from srns.recommender import Recommender
from srns.samplers import SAMPLERS
from srns.scorers import GMF
from srns.splits import Split

SMALL: dict[str, dict[str, Any]] = {"nncf": {"shared_negatives": 32}}  # where a default suits larger data


def config_of(name: str, **values: Any) -> RunConfig:
    return RunConfig(
        sampler=name, loss="bpr", dim=8, batch_size=256, epochs=3, learning_rate=0.01, **SMALL.get(name, {}), **values
    )


def ready(name: str) -> None:
    if SAMPLERS[name].needs_torch:
        pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(params=list(SAMPLERS))
def name(request: pytest.FixtureRequest) -> str:
    ready(request.param)
    return str(request.param)


def test_it_learns(name: str, train: Interactions) -> None:
    """Positives come to score above random items that the user has not seen."""
    engine = make_engine(config_of(name), train)
    for epoch in range(12):
        assert np.isfinite(engine.run_epoch(epoch))
    users = train.users.astype(np.int64)
    others = np.random.default_rng(0).integers(0, train.n_items, len(users))
    scores = engine.model(users, np.stack([train.items, others], axis=1))
    fair = ~train.contains(users, others)
    assert np.mean(scores[fair, 0] > scores[fair, 1]) > 0.6


def test_threads_and_resuming_change_nothing(name: str, train: Interactions) -> None:
    def run(threads: int, first: int, last: int, state: Any = None) -> Any:
        engine = make_engine(config_of(name, threads=threads), train)
        if state is not None:
            engine.load_state_dict(state)
        return engine, [engine.run_epoch(epoch) for epoch in range(first, last)]

    whole, losses = run(1, 0, 4)
    half, _ = run(1, 0, 2)
    saved = {key: np.array(value) for key, value in half.state_dict().items()}
    resumed, rest = run(1, 2, 4, saved)
    assert rest == losses[2:]
    other, others = run(2, 0, 4)
    exact = whole.name != "torch"  # whose sums are torch's own
    np.testing.assert_allclose(others, losses, rtol=0 if exact else 1e-5)
    expected = whole.state_dict()
    for key, value in resumed.state_dict().items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)
    for key, value in other.model.tensors().items():
        np.testing.assert_allclose(value, whole.model.tensors()[key], rtol=0, atol=0 if exact else 1e-3)


def test_ranks_draw_what_one_draws(name: str, train: Interactions) -> None:
    """Each of two ranks, with its own users, draws for them what one rank does; and nothing for nobody. What it then remembers
    is the part of the whole that `by_user` says."""
    sampler = SAMPLERS[name](**SMALL.get(name, {}))
    if not sampler.draws or sampler.one_rank:
        pytest.skip("this method is for one rank, and says so")
    model = GMF.init(train.n_users, train.n_items, dim=6, std=0.3, learn_beta=True, seed=1)
    whole = sampler.start(train, seed=3)
    whole.begin_epoch(2, model)
    expected = whole.sample(train.users, train.items, model, 0).ids
    for rank in range(2):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, 2
        part = ranks.share_of(train)
        first = part.whole.first_user
        mine = GMF(model.users[first : first + part.n_users], model.items, model.beta)
        state = sampler.start(part, seed=3)
        state.begin_epoch(2, mine)
        ids = state.sample(part.users, part.items, mine, 0).ids
        np.testing.assert_array_equal(ids, expected[part.whole.first : part.whole.first + len(part)])
        kept = state.state_dict()
        assert kept.keys() == whole.state_dict().keys()
        for key, value in whole.state_dict().items():
            cut = value[first : first + part.n_users] if whole.by_user(key, ("users",)) else value
            np.testing.assert_array_equal(kept[key], cut, err_msg=key)
        assert len(state.sample(part.users[:0], part.items[:0], mine, 1).ids) == 0


@pytest.mark.parametrize("name", ["nncf", "in_batch", "enmf", "irgan", "rns_as", "advir", "adasir", "mixgcf"])
def test_threads_of_products_of_matrices_change_nothing(name: str) -> None:
    """Large enough for the linear algebra to divide the work, if it were let."""
    generator = np.random.default_rng(0)
    users, items = generator.integers(0, 600, 6_000), generator.integers(0, 2_000, 6_000)
    ids = {"user_ids": IdMap.dense(600, "user"), "item_ids": IdMap.dense(2_000, "item")}
    data = Interactions.from_pairs(users, items, **ids)
    found = []
    for threads in (1, 4):
        config = RunConfig(sampler=name, loss="bpr", dim=32, batch_size=1024, **SMALL.get(name, {}))
        engine = make_engine(config, data)
        with threadpool_limits(threads, "blas"):
            engine.run_epoch(0)
        found.append(engine.model.tensors())
    for key, value in found[0].items():
        np.testing.assert_array_equal(found[1][key], value, err_msg=key)


def test_a_user_who_has_seen_nearly_everything(name: str) -> None:
    """One user has left a single item, another two; nothing breaks, and what is drawn for them is that."""
    n_items = 30
    users = np.repeat([0, 1, 2, 3], [n_items - 1, n_items - 2, 3, 5])
    items = np.concatenate([np.arange(n_items - 1), np.arange(2, n_items), [0, 4, 9], [1, 2, 3, 5, 8]])
    train = Interactions.from_pairs(users, items, user_ids=IdMap.dense(4, "user"), item_ids=IdMap.dense(n_items, "item"))
    engine = make_engine(config_of(name), train)
    assert all(np.isfinite(engine.run_epoch(epoch)) for epoch in range(3))
    assert all(np.isfinite(tensor).all() for tensor in engine.model.tensors().values())
    sampler = SAMPLERS[name](**SMALL.get(name, {}))
    if not sampler.draws or sampler.needs_torch:
        return
    state = sampler.start(train, seed=0)
    state.begin_epoch(0, engine.model)
    drawn = state.sample(train.users, train.items, engine.model, 0)
    ids = np.broadcast_to(drawn.ids, (len(train), drawn.ids.shape[1]))
    counts = np.ones(ids.shape, bool) if drawn.weight is None else np.broadcast_to(drawn.weight, ids.shape) > 0
    assert set(ids[0][counts[0]]) <= {n_items - 1}
    assert set(ids[n_items][counts[n_items]]) <= {0, 1}


def test_a_saved_model_recommends_the_same(name: str, world: Split, tmp_path: Path) -> None:
    model = Recommender(config_of(name)).fit(world)
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.config == model.config
    users = world.train.user_ids.take(np.arange(20))
    for one, other in zip(model.recommend(users, k=5), loaded.recommend(users, k=5), strict=True):
        np.testing.assert_array_equal(one, other)
