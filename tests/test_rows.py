"""Compiled rows of SRNS against its array form, bit for bit, and who uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srns.engines import make_engine
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.kernels import compiler, rows
from srns.presets import make_config
from srns.samplers import SRNS, Noise
from srns.samplers import unseen as unseen_module
from srns.samplers.srns import SRNSState

N_USERS = 11


class Scores:
    """A table of scores (n_users, n_items), in the library of the state that asks."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __call__(self, users: Any, items: Any) -> Any:
        return self.table[users[:, None], items]

    def tensors(self) -> dict[str, Any]:
        return {"table": self.table}

    def from_tensors(self, tensors: Mapping[str, Any]) -> Scores:
        return Scores(tensors["table"])


def some_scores(n_items: int, seed: int, wild: bool) -> np.ndarray[Any, Any]:
    """Many are equal; with `wild` some are those of a model that has diverged."""
    draw = np.random.default_rng(seed)
    table = (draw.integers(-40, 41, (N_USERS, n_items)) / 8).astype(np.float32)
    table += (draw.random(table.shape) < 0.5) * draw.normal(size=table.shape).astype(np.float32)
    if wild:
        odd = draw.random(table.shape) < 0.2
        table[odd] = draw.choice(np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40], np.float32), odd.sum())
    return table


def world(n_items: int, share: float, seed: int) -> tuple[Interactions, Noise]:
    """Users who have seen about `share` of the items, the first of them all but two; hidden and excluded positives, and each
    user is left with an item to draw."""
    draw = np.random.default_rng(seed)
    part = draw.random((N_USERS, n_items))
    part[0] = 0
    part[np.arange(N_USERS), draw.integers(0, n_items, N_USERS)] = 2
    ids = {"user_ids": IdMap.dense(N_USERS, "user"), "item_ids": IdMap.dense(n_items, "item")}

    def between(low: float, high: float) -> Interactions:
        return Interactions.from_pairs(*np.nonzero((part >= low) & (part < high)), **ids)

    hidden, excluded = between(share, share + (1 - share) / 4), between(share + (1 - share) / 4, share + (1 - share) / 2)
    return between(-1, share), Noise(hidden, excluded)


@st.composite
def samplers(draw: st.DrawFn) -> SRNS:
    memory_size, expansion_size = draw(st.integers(1, 20)), draw(st.integers(1, 70))
    history = draw(st.sampled_from(["snapshots", "snapshots", "candidates"]))
    stale = history == "snapshots" and draw(st.integers(0, 4)) == 0
    return SRNS(
        memory_size=memory_size,
        expansion_size=expansion_size,
        negatives=draw(st.integers(0, memory_size)),
        temperature=draw(st.sampled_from([1e-6, 0.1, 0.7, 2.0, 10.0])),
        strategy=draw(st.sampled_from(["variance", "variance", "difficulty", "random"])),
        criterion="stale_scores" if stale else "probability",
        variance_weight=draw(st.sampled_from([0.0, 1.0, 5.0, 20.0])),
        warmup=draw(st.sampled_from(["increase", "flat", "decrease"])),
        warmup_epochs=draw(st.integers(0, 4)),
        history_epochs=draw(st.integers(1, 5)),
        history=history,
        candidates_size=expansion_size + draw(st.integers(0, 30)),
        lazy_epochs=draw(st.integers(1, 3)),
        update_after=draw(st.sampled_from(["batch", "batch", "positive"])),
    )


@pytest.mark.parametrize("library", ["numpy", "torch"])
@given(
    sampler=samplers(),
    seed=st.integers(0, 2**40),
    n_items=st.integers(2, 120),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    noise=st.booleans(),
    wild=st.booleans(),
    observing=st.booleans(),
    table=st.booleans(),
)
@settings(max_examples=25, deadline=None)
@np.errstate(all="ignore")  # of models that have diverged
def test_a_state_with_twins_does_what_one_without_does(
    library: str, sampler: SRNS, seed: int, n_items: int, share: float, noise: bool, wild: bool, observing: bool, table: bool
) -> None:
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    train, hidden = world(n_items, share, seed % 1000)
    extra: dict[str, Any] = {"noise": hidden} if noise and sampler.history == "snapshots" else {}
    with pytest.MonkeyPatch.context() as patch:
        if not table:
            patch.setattr(unseen_module, "TABLE_BYTES", 0)
        plain, twinned = (sampler.start(train, seed=seed, xp=xp, **extra) for _ in range(2))
    twinned.twins = rows.RowTwins(xp)
    draw = np.random.default_rng(seed % 1000)
    for state in (plain, twinned):
        state.observing = observing
    for epoch in range(7):
        for state in (plain, twinned):
            state.begin_epoch(epoch, Scores(xp.asarray(some_scores(n_items, epoch, wild))))
        for step in range(3):
            score = Scores(xp.asarray(some_scores(n_items, 10 * epoch + step, wild)))
            batch = draw.integers(0, len(train), 25)
            users, positives = (xp.asarray(ids[batch].astype(np.int64)) for ids in (train.users, train.items))
            expected, found = (state.sample(users, positives, score, step).ids for state in (plain, twinned))
            assert type(found) is type(expected)
            np.testing.assert_array_equal(found, expected, err_msg=f"epoch {epoch}, step {step}")
            for name, value in plain.state_dict().items():
                np.testing.assert_array_equal(twinned.state_dict()[name], value, err_msg=f"{name}, epoch {epoch}, step {step}")
        assert twinned.observations() == plain.observations()
        assert bool(plain.observations()) == observing


@pytest.mark.parametrize("n_items", [2**15 - 1, 2**15], ids=["int16", "int32"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_fresh_candidates_by_tables_of_both_widths(library: str, n_items: int) -> None:
    """Against the look-up without a table."""
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    train, _ = world(n_items, 0.3, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unseen_module, "TABLE_BYTES", 0)
        plain = unseen_module.Unseen(train, xp)
    fast = unseen_module.Unseen(train, xp)
    fast.twins = rows.RowTwins(xp)
    assert fast.has_table
    users = xp.arange(N_USERS)
    words = xp.asarray(np.random.default_rng(1).integers(0, 2**32, (2, N_USERS)))
    for size in (1, 64, 3000):
        found, expected = (each.sample(users, (words[0], words[1]), size) for each in (fast, plain))
        np.testing.assert_array_equal(found, expected)
    assert len(rows.KERNELS["expand"].signatures) == 1


def test_whatever_a_scorer_returns_is_read_by_the_same_machine_code() -> None:
    """Scores in another order or of another width, and arrays that may not be written: no compilation for each of them."""
    train, _ = world(60, 0.3, 2)
    sampler = SRNS(memory_size=5, expansion_size=9, negatives=2, history_epochs=2)
    kinds = [
        lambda table: table,
        lambda table: np.asfortranarray(table).astype(np.float64),
        lambda table: np.repeat(table, 2, 1)[:, ::2],
    ]
    drawn = []
    for kind in kinds:
        state = sampler.start(train, seed=3)
        state.twins = rows.RowTwins(np)
        for epoch in range(3):
            scores = Scores(some_scores(60, epoch, False))
            state.begin_epoch(epoch, scores)
            users, positives = (ids[:40].astype(np.int64) for ids in (train.users, train.items))
            users.flags.writeable = False
            drawn.append(state.sample(users, positives, lambda u, i, kind=kind, scores=scores: kind(scores(u, i)), 0).ids)
    for other in (drawn[3:6], drawn[6:]):
        np.testing.assert_array_equal(other, drawn[:3])
    assert [len(kernel.signatures) for kernel in rows.KERNELS.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "used"),
    [
        ({}, {"expand", "choose", "renew"}),
        ({"strategy": "random"}, {"expand", "renew"}),
        ({"criterion": "stale_scores"}, {"expand", "renew"}),
        ({"sampler": "uniform"}, set()),
    ],
    ids=["srns", "random", "stale", "uniform"],
)
def test_the_torch_engine_uses_twins_and_knows_which_must_be_compiled(
    values: dict[str, Any], used: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    train, _ = world(40, 0.4, 1)
    engine: Any = make_engine(make_config({"engine": "torch", "device": "cpu", "dim": 4, "batch_size": 64, **values}), train)
    asked: set[str] = set()
    names = {id(kernel): name for name, kernel in rows.KERNELS.items()}
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "needs_compiling", lambda kernel: asked.add(names[id(kernel)]))
        assert not engine.needs_compiling()
        assert asked == used
        patch.setattr(compiler, "needs_compiling", lambda kernel: True)
        assert engine.needs_compiling() == bool(used)
    called: set[str] = set()

    def noted(name: str, kernel: Any) -> Any:
        return lambda *args: (called.add(name), kernel(*args))

    with monkeypatch.context() as patch:
        for name, kernel in list(rows.KERNELS.items()):
            patch.setitem(rows.KERNELS, name, noted(name, kernel))
        for epoch in range(2):
            engine.run_epoch(epoch)
    assert called == used
    assert not engine.needs_compiling()
    assert isinstance(engine.sampler, SRNSState) == bool(used)
