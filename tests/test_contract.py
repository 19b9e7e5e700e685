"""What every method promises within a run, whatever engine runs it: one suite for all of `srns.SAMPLERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srns.config import RunConfig
from srns.engines import make_engine
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.recommender import Recommender
from srns.samplers import SAMPLERS
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
