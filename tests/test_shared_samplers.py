"""Samplers whose negatives are shared by a batch: NNCF and in-batch, and the engines that train with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from srns.config import RunConfig
from srns.engines import FusedSharedEngine, PlainEngine, make_engine
from srns.interactions import Interactions
from srns.losses import softmax
from srns.presets import make_config
from srns.samplers import Truth
from srns.samplers.in_batch import InBatch
from srns.samplers.nncf import NNCF
from srns.samplers.seen import Seen


def skewed(n_users: int = 80, n_items: int = 50, n: int = 1_500, seed: int = 0) -> Interactions:
    draw = np.random.default_rng(seed)
    return Interactions.from_pairs(draw.integers(0, n_users, n), (n_items * draw.random(n) ** 2).astype(int))


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_nncf_draws_by_a_power_of_popularity(power: float) -> None:
    train = skewed()
    popularity = np.bincount(train.items, minlength=train.n_items) ** power
    state = NNCF(shared_negatives=500, power=power).start(train, seed=1)
    counts, log_q = np.zeros(train.n_items), np.zeros(train.n_items)
    for epoch in range(5):
        state.begin_epoch(epoch, None)
        for step in range(20):
            drawn = state.sample(train.users[:3], train.items[:3], None, step)
            np.add.at(counts, drawn.ids[0], 1)
            log_q[drawn.ids[0]] = drawn.log_q[0]
    expected = popularity / popularity.sum()
    assert stats.chisquare(counts, expected * counts.sum()).pvalue > 1e-4
    np.testing.assert_allclose(np.exp(log_q[counts > 0]), expected[counts > 0], rtol=1e-5)


def test_nncf_weights_are_zero_exactly_for_items_of_the_user() -> None:
    train = skewed()
    drawn = NNCF(shared_negatives=64).start(train, seed=0).sample(train.users, train.items, None, 0)
    pairs = set(zip(train.users.tolist(), train.items.tolist(), strict=True))
    expected = [[float((user, item) not in pairs) for item in drawn.ids[0].tolist()] for user in train.users.tolist()]
    np.testing.assert_array_equal(drawn.weight, expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_nncf_order_is_a_permutation_in_chunks_of_one_item(size: int) -> None:
    train = skewed()
    state = NNCF(positives_per_item=size).start(train, seed=3)
    orders = [state.order(epoch) for epoch in range(3)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(len(train)))
        items, place, chunks = train.items[order], 0, {}
        while place < len(items):  # read it as chunks: as many of one item as there are left of it, at most `size`
            item = int(items[place])
            left = int(train.whole.item_counts[item]) - sum(chunks.setdefault(item, []))
            # The item's last chunk may be short and may stand anywhere among its chunks.
            run = 1
            while run < size and place + run < len(items) and items[place + run] == item and run < left:
                run += 1
            chunks[item].append(run)
            place += run
        for item, found in chunks.items():
            count = int(train.whole.item_counts[item])
            assert sum(found) == count
            assert sum(run != size for run in found) <= 2  # the short one; another if it came right before a whole one
            assert len(found) <= -(-count // size) + 1
    assert not np.array_equal(orders[0], orders[1])
    np.testing.assert_array_equal(NNCF(positives_per_item=size).start(train, seed=3).order(2), orders[2])


def test_chunks_of_an_item_are_made_anew_in_each_epoch() -> None:
    """Each of the three ways to pair four interactions is equally likely."""
    train = Interactions.from_pairs([0, 1, 2, 3, 4], [0, 0, 0, 0, 1])
    state, partners = NNCF(positives_per_item=2).start(train, seed=0), np.zeros(4)
    for epoch in range(3000):
        order = [x for x in state.order(epoch).tolist() if train.items[x] == 0]
        partners[order[order.index(0) ^ 1]] += 1
    assert partners[0] == 0
    assert stats.chisquare(partners[1:]).pvalue > 1e-4


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("table", [True, False])
def test_weights_are_0_for_what_was_seen_and_1_for_the_rest(library: str, table: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    train = skewed()
    if not table:
        monkeypatch.setattr("srns.samplers.seen.TABLE_BYTES", 0)
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, train.n_users, 50), rng.integers(0, train.n_items, 70)  # some of each twice
    pairs = set(zip(train.users.tolist(), train.items.tolist(), strict=True))
    expected = [[float((user, item) not in pairs) for item in items.tolist()] for user in users.tolist()]
    found = Seen(train, xp).unseen_weight(xp.asarray(users), xp.asarray(items))
    assert found.dtype == xp.float32
    assert found.tolist() == expected
    assert 0 < np.mean(expected) < 1


NNCF_RUN: dict[str, Any] = {
    "sampler": "nncf", "shared_negatives": 70, "loss": "bpr", "dim": 6, "batch_size": 100, "learn_beta": True, "init_std": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_fused_takes_the_steps_of_plain(train_alike: Any, l2: float) -> None:
    train = skewed()
    engines = [make_engine(make_config({**NNCF_RUN, "l2": l2, "engine": name}), train) for name in ("fused", "plain")]
    assert [type(engine) for engine in engines] == [FusedSharedEngine, PlainEngine]
    train_alike(*engines, 1e-4)


def test_a_restored_fused_engine_goes_on_bit_for_bit() -> None:
    train, config = skewed(), make_config(NNCF_RUN)
    whole, first, second = (make_engine(config, train) for _ in range(3))
    for epoch in range(4):
        whole.run_epoch(epoch)
    for epoch in range(2):
        first.run_epoch(epoch)
    second.load_state_dict({name: np.array(tensor) for name, tensor in first.state_dict().items()})
    for epoch in (2, 3):
        second.run_epoch(epoch)
    for name, tensor in whole.state_dict().items():
        np.testing.assert_array_equal(second.state_dict()[name], tensor, err_msg=name)


def test_in_batch_negatives_are_the_positives_without_those_of_the_user() -> None:
    train = skewed()
    batch = np.random.default_rng(0).permutation(len(train))[:60]
    users, positives = train.users[batch], train.items[batch]
    drawn = InBatch().start(train, seed=0).sample(users, positives, None, 0)
    np.testing.assert_array_equal(drawn.ids, positives[None])
    for row, user in enumerate(users.tolist()):
        np.testing.assert_array_equal(drawn.weight[row] == 0, np.isin(positives, train.items_of(user)))
        assert drawn.weight[row, row] == 0
    shares = [np.count_nonzero(train.items == item) / len(train) for item in positives.tolist()]
    np.testing.assert_allclose(np.exp(drawn.log_q[0]) * 60 / 59, shares, rtol=1e-6)  # of 60 columns 59 are draws


@pytest.mark.parametrize("others", [2, 64])
def test_corrected_softmax_of_batches_estimates_that_over_all_unseen_items(others: int) -> None:
    """With log_q the sum over a batch, averaged over random batches, is the sum of exp(r) over all items the user has not
    seen."""
    train, draw = skewed(), np.random.default_rng(1)
    state = InBatch().start(train, seed=0)
    r, user = draw.normal(size=train.n_items).astype(np.float32), 5
    own = int(train.items_of(user)[0])
    sums = []
    config = RunConfig(sampler="in_batch", log_q=True)
    for _ in range(200_000 // others):
        batch = draw.integers(0, len(train), others)
        users, positives = np.append(train.users[batch], user), np.append(train.items[batch], own)
        drawn = state.sample(users, positives, None, 0)
        loss = config.loss_of(np.zeros(1, np.float32), r[positives][None], drawn._replace(weight=drawn.weight[-1:]))[0]
        sums.append(np.expm1(float(loss[0])))
    unseen = np.setdiff1d(np.arange(train.n_items), train.items_of(user))
    there = unseen[train.whole.item_counts[unseen] > 0]
    expected, error = np.exp(r[there]).sum(), np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - expected) < 4 * error
    assert error < 0.02 * expected


@pytest.mark.parametrize("sampler", [NNCF(shared_negatives=40), InBatch()], ids=["nncf", "in_batch"])
def test_torch_draws_the_same(sampler: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    train = skewed()
    ours, theirs = sampler.start(train, seed=7), sampler.start(train, seed=7, xp=torch)
    for state in (ours, theirs):
        state.begin_epoch(3, None)
    expected = ours.sample(train.users, train.items, None, 5)
    found = theirs.sample(torch.tensor(train.users), torch.tensor(train.items), None, 5)
    for one, other in zip(expected[:3], found[:3], strict=True):
        assert isinstance(other, torch.Tensor)
        np.testing.assert_array_equal(other.numpy(), one)


@pytest.mark.parametrize(
    "values", [NNCF_RUN | {"l2": 0.1}, {"sampler": "in_batch", "log_q": True, "dim": 6, "batch_size": 100}]
)
def test_torch_engine_follows_plain_on_shared_negatives(values: dict[str, Any]) -> None:
    """Losses, what L2 pulls on and counted label errors."""
    pytest.importorskip("torch", reason="torch is not installed")
    whole = skewed()
    hidden = np.arange(len(whole)) % 9 == 0
    train, truth = whole.select(~hidden), Truth(whole.select(hidden))
    engines = [make_engine(make_config({**values, "engine": name}), train, truth) for name in ("torch", "plain")]
    losses = np.array([[engine.run_epoch(epoch) for engine in engines] for epoch in range(4)])
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-3)
    np.testing.assert_allclose(losses[0, 0], losses[0, 1], rtol=1e-6)
    errors = [engine.observations()["label_error_ratio"] for engine in engines]
    assert errors[0] == pytest.approx(errors[1])
    assert 0 < errors[0] < 1


@pytest.mark.parametrize("scorer", ["gmf", "mlp", "lightgcn"])
def test_shared_items_score_as_items_of_each(scorer: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    engine: Any = make_engine(make_config({"scorer": scorer, "dim": 8, "engine": "torch"}), skewed())
    view, users, items = engine.module.view(0), torch.arange(9), torch.tensor([[3, 1, 4, 1, 5]])
    found, expected = view(users, items), view(users, items.expand(9, -1).contiguous())
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_negative_without_weight_does_not_drown_the_others() -> None:
    """One that counts nothing, far above the rest, leaves the loss of the rest as it is; a row without weight has none."""
    positive, negative, weight = np.array([0.0, 0.0]), np.array([[120.0, 1.0], [5.0, 7.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    loss, to_positive, to_negative = softmax(positive, negative, weight=weight)
    alone = softmax(positive[:1], negative[:1, 1:])
    np.testing.assert_allclose(loss, [alone[0][0], 0])
    np.testing.assert_allclose(to_positive, [alone[1][0], 0])
    np.testing.assert_allclose(to_negative, [[0, alone[2][0, 0]], [0, 0]])
