"""The fused engine reaches what the plain one specifies, whose gradients are right; threads and resuming change nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srns import rng
from srns.adam import descend
from srns.config import RunConfig
from srns.engines import FusedEngine, PlainEngine, make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.kernels import dense
from srns.kernels.batches import make_batches, take_positives
from srns.kernels.compiler import compiled, needs_compiling
from srns.kernels.elementary import exp_nonpositive
from srns.kernels.step import SHARE
from srns.kernels.uniform import draw_uniform
from srns.kernels.unseen import Pool, make_pool, maybe_seen, resolve
from srns.losses import bpr
from srns.presets import make_config
from srns.samplers import Uniform
from srns.samplers.unseen import Unseen
from srns.scorers import GMF, MLP
from srns.splits import make_split
from srns.trainer import Trainer


def uniform(**values: Any) -> RunConfig:
    """A run with uniform negatives, in the manner of the paper."""
    base = {"sampler": "uniform", "negatives": 1, "loss": "bpr", "schedule": "constant", "learning_rate": 0.001, "l2": 0.01}
    return RunConfig(**{**base, "dim": 32, "learn_beta": True, "init_std": 0.01, **values})


def interactions(n_users: int, n_items: int, n: int, seed: int = 0) -> Interactions:
    rng = np.random.default_rng(seed)
    return Interactions.from_pairs(rng.integers(0, n_users, n), (n_items * rng.random(n) ** 2).astype(int))


def no_score(users: Any, items: Any) -> Any:
    return np.zeros(np.shape(items), np.float32)


def same_bits(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


@given(
    seed=st.integers(0, 2**40),
    dim=st.integers(4, 20),  # with fewer, a beta near 0 makes most gradients that small
    batch_size=st.sampled_from([1, 7, 64, 300, 5000]),
    l2=st.sampled_from([0.0, 0.01, 0.3]),
    learning_rate=st.sampled_from([1e-3, 1e-2]),
    loss=st.sampled_from(["bpr", "softmax"]),
    negatives=st.sampled_from([1, 2, 40]),
    learn_beta=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_fused_reaches_the_parameters_of_plain(
    train_alike: Any,
    seed: int,
    dim: int,
    batch_size: int,
    l2: float,
    learning_rate: float,
    loss: str,
    negatives: int,
    learn_beta: bool,
) -> None:
    # At most 120 steps: Adam divides by the size of the gradient, so rounding differences of small gradients grow over many.
    # Where a gradient is so small that eps rules (below 3e-7), missed moves fade by .9 and not by .9004 a step as the closed
    # form has it, half a percent of the drift: rare numbers may be off by more than rounding, few and never by much.
    train = interactions(60, 40, min(900, 40 * batch_size), seed % 1000)
    values = {
        "l2": l2,
        "learning_rate": learning_rate,
        "loss": loss,
        "negatives": negatives,
        "learn_beta": learn_beta,
        "init_std": 0.01,
    }
    config = uniform(seed=seed, dim=dim, batch_size=batch_size, **values)
    fused, plain = FusedEngine(config, train), PlainEngine(config, train)
    start = train_alike(fused, plain, 1e-4)
    assert np.array_equal(plain.model.beta, start["beta"]) != learn_beta


def test_loss_curves_agree_over_ten_epochs() -> None:
    train = interactions(300, 200, 6000)
    config = uniform(dim=16, batch_size=128, learning_rate=0.005)
    fused, plain = FusedEngine(config, train), PlainEngine(config, train)
    curves = np.array([[fused.run_epoch(epoch), plain.run_epoch(epoch)] for epoch in range(10)])
    assert curves[-1, 0] < 0.8 * curves[0, 0], "the model learns"
    np.testing.assert_allclose(curves[:, 0], curves[:, 1], rtol=1e-4)


@pytest.mark.parametrize("make", [FusedEngine, PlainEngine])
def test_rows_that_no_gradient_reaches_stay_as_initialised(make: Any) -> None:
    """Users without interactions: dense Adam leaves them alone, and so must catching up."""
    train = interactions(60, 40, 900)
    silent = train.select(train.users % 2 == 0)
    config = uniform(dim=5, batch_size=50)
    engine = make(config, silent)
    before = engine.model.users.copy()
    for epoch in range(3):
        engine.run_epoch(epoch)
    np.testing.assert_array_equal(engine.model.users[1::2], before[1::2])
    assert not np.array_equal(engine.model.users[0::2], before[0::2])


def test_moments_that_fade_away_do_not_become_subnormal_numbers() -> None:
    """A row touched once long ago: its momentum fades by 0.9 a step, and subnormal numbers would slow every later pass."""
    n_items = 2000  # an item is drawn about once in fifty epochs of forty steps
    train = Interactions.from_pairs([0] * 40, range(40), user_ids=IdMap.dense(1, "user"), item_ids=IdMap.dense(n_items, "item"))
    engine = FusedEngine(uniform(dim=4, batch_size=1), train)
    for epoch in range(60):
        engine.run_epoch(epoch)
    tiny = np.finfo(np.float32).tiny
    for name, tensor in engine.state_dict().items():
        magnitudes = np.abs(tensor[tensor != 0]) if tensor.ndim else np.zeros(0)
        assert not (magnitudes < tiny).any(), name


@pytest.mark.parametrize("make", [FusedEngine, PlainEngine])
def test_a_restored_engine_goes_on_bit_for_bit(make: Any) -> None:
    train = interactions(100, 80, 1500)
    config = uniform(dim=6, batch_size=64)
    whole, first = make(config, train), make(config, train)
    for epoch in range(5):
        whole.run_epoch(epoch)
    for epoch in range(2):
        first.run_epoch(epoch)
    saved = {name: np.array(tensor) for name, tensor in first.state_dict().items()}
    second = make(config, train)
    second.load_state_dict(saved)
    for epoch in range(2, 5):
        second.run_epoch(epoch)
    assert same_bits(whole.state_dict(), second.state_dict())


def test_gradients_of_a_batch_are_those_of_the_loss() -> None:
    """Central differences in float64 of the batch loss with L2, against the first Adam moments after one step from zero."""
    train = interactions(8, 6, 14)
    config = uniform(dim=3, batch_size=len(train), l2=0.05)
    engine = PlainEngine(config, train)
    start = {name: tensor.astype(np.float64) * 20 for name, tensor in engine.model.tensors().items()}
    engine.load_state_dict(
        {
            "steps": np.asarray(0),
            **{f"value.{name}": tensor.astype(np.float32) for name, tensor in start.items()},
            **{f"{kind}.{name}": np.zeros_like(t, np.float32) for kind in ("first", "second") for name, t in start.items()},
        }
    )
    state = Uniform(negatives=1).start(train, seed=config.seed)
    state.begin_epoch(0, engine.model)
    users, positives = train.users.astype(np.int64), train.items.astype(np.int64)
    negatives = state.sample(users, positives, engine.model, 0).ids[:, 0]

    def loss(values: dict[str, Any]) -> float:
        p, q_i, q_j = values["users"][users], values["items"][positives], values["items"][negatives]
        margin = (p * (q_i - q_j)) @ values["beta"]
        return float(np.log1p(np.exp(-margin)).sum() + config.l2 / 2 * (np.sum(p**2) + np.sum(q_i**2) + np.sum(q_j**2)))

    engine.run_epoch(0)
    for name in start:
        gradient = engine.state_dict()[f"first.{name}"] / 0.1  # m after one step is (1 - b1) * gradient
        for index in np.ndindex(*start[name].shape):
            shifted = []
            for step in (1e-5, -1e-5):
                values = {each: tensor.copy() for each, tensor in start.items()}
                values[name][index] += step
                shifted.append(loss(values))
            assert gradient[index] == pytest.approx((shifted[0] - shifted[1]) / 2e-5, abs=2e-4)


@given(margins=st.lists(st.floats(-60, 60), min_size=1, max_size=20), k=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_bpr_gradients_against_central_differences(margins: list[float], k: int) -> None:
    positive = np.asarray(margins)
    negative = np.random.default_rng(0).normal(size=(len(positive), k))
    loss, to_positive, to_negative = bpr(positive, negative)
    np.testing.assert_allclose(loss, np.logaddexp(0, negative - positive[:, None]).mean(axis=1), rtol=1e-9)
    step = 1e-6
    numeric = (bpr(positive + step, negative)[0] - bpr(positive - step, negative)[0]) / (2 * step)
    np.testing.assert_allclose(to_positive, numeric, atol=1e-6)
    for column in range(k):
        shift = np.zeros_like(negative)
        shift[:, column] = step
        numeric = (bpr(positive, negative + shift)[0] - bpr(positive, negative - shift)[0]) / (2 * step)
        np.testing.assert_allclose(to_negative[:, column], numeric, atol=1e-6)


def test_exponential_is_accurate_to_float32() -> None:
    @compiled()
    def apply(x, out):  # type: ignore[no-untyped-def]
        for row in range(len(x)):
            out[row] = exp_nonpositive(x[row])

    x = -np.concatenate([np.linspace(0, 87, 100_001), np.geomspace(1e-30, 87, 10_001)]).astype(np.float32)
    out = np.empty_like(x)
    apply(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=2e-7)


def test_initial_embeddings_are_truncated_normal_and_beta_uniform() -> None:
    model = GMF.init(5000, 300, 16, std=0.01, learn_beta=True, seed=3)
    for table in (model.users, model.items):
        assert np.abs(table).max() <= 0.02 + 1e-7
        assert abs(table.mean()) < 3e-4
        assert table.std() == pytest.approx(0.01 * 0.8796, rel=0.02)  # a normal cut at two sigma has 0.8796 of its spread
    bound = np.sqrt(6 / 17)
    betas = np.concatenate([GMF.init(1, 1, 16, std=0.01, learn_beta=True, seed=seed).beta for seed in range(200)])
    assert np.abs(betas).max() <= bound
    assert betas.std() == pytest.approx(bound / np.sqrt(3), rel=0.05)
    fewer = GMF.init(10, 300, 16, std=0.01, learn_beta=True, seed=3)
    np.testing.assert_array_equal(fewer.users, model.users[:10])  # a row does not depend on how many there are


@pytest.mark.parametrize("cached", [2**17, 40])  # all rows at once, and one after the other
def test_scores_in_all_forms_agree(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srns.scorers.gmf.CACHED", cached)
    model = GMF.init(7, 9, 4, std=0.01, learn_beta=True, seed=0)
    users = np.array([0, 3, 6])
    loop = [[sum(model.beta[f] * model.users[u, f] * model.items[i, f] for f in range(4)) for i in range(9)] for u in users]
    np.testing.assert_allclose(model.score_all(users), loop, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(model(users, np.tile(np.arange(9), (3, 1))), loop, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(model.user_factors[users] @ model.item_factors.T, loop, rtol=1e-5, atol=1e-9)


def test_scores_for_fewer_users_than_rows_of_items_are_refused() -> None:
    model = GMF.init(5, 9, 4, std=0.1, seed=0, learn_beta=False)
    for users in ([1], [0, 1]):
        with pytest.raises(ValueError, match="users for 3 rows of items"):
            model(users, np.zeros((3, 2), np.int64))


def test_auto_takes_the_fused_engine_and_fused_refuses_what_it_has_no_kernel_for() -> None:
    train = interactions(10, 8, 20)
    assert make_engine(uniform(), train).name == "fused"
    assert make_engine(uniform(engine="plain"), train).name == "plain"
    unsupported = make_config({"engine": "fused"}).model_copy(update={"loss": "another"})
    with pytest.raises(ConfigError, match="fused"):
        make_engine(unsupported, train)


def test_a_kernel_knows_whether_it_must_be_compiled() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "sample.py"
        source.write_text("def double(x):\n    return 2 * x\n")
        namespace: dict[str, Any] = {}
        exec(compile(source.read_text(), str(source), "exec"), namespace)
        kernel = compiled()(namespace["double"])
        assert needs_compiling(kernel)
        assert kernel(2) == 4
        assert not needs_compiling(kernel)
        assert not needs_compiling(compiled()(namespace["double"])), "the second dispatcher finds the first one's file"


def test_the_kernel_draws_the_negatives_of_uniform_draw_for_draw() -> None:
    train = interactions(300, 200, 6000)
    state = Uniform(negatives=3).start(train, seed=11)
    batches, pool = make_batches(1, 100, 3), make_pool(train)
    for epoch in (0, 7):
        state.begin_epoch(epoch, no_score)
        key = rng.stream_key(11, Uniform.name, epoch)
        shuffle_key = rng.stream_key(11, "shuffle", epoch)
        order = rng.permutation(shuffle_key, len(train), np.arange(len(train)))
        words = np.uint32(key.a), np.uint32(key.b)
        for start in (0, 100, len(train) - len(train) % 100):  # the last batch is not full
            shuffle = rng.feistel(shuffle_key, len(train))
            take_positives(0, start, train.users, train.items, shuffle, batches)
            for share in range(-(-100 // SHARE)):
                draw_uniform(0, share, words, pool, batches)
            rows = order[start : start + 100]
            expected = state.sample(train.users[rows], train.items[rows], no_score, 0).ids
            np.testing.assert_array_equal(batches.users[0, : len(rows)], train.users[rows])
            np.testing.assert_array_equal(batches.positives[0, : len(rows)], train.items[rows])
            np.testing.assert_array_equal(batches.negatives[0, : len(rows)], expected)


@numba.njit  # type: ignore[untyped-decorator]
def items_of(user: int, pool: Pool) -> Any:
    """The items that all numbers of a user stand for."""
    found = np.arange(pool.counts[user])
    for number in found.copy():
        if maybe_seen(np.uint32(number), pool.maps, pool.starts[user], pool.masks[user]):
            begin, end = pool.indptr[user], pool.indptr[user + 1]
            found[number] = resolve(np.uint32(number), begin, end, pool.seen, pool.maps, pool.starts[user], pool.masks[user])
    return found


@given(st.integers(0, 2**40), st.sampled_from([2, 33, 500, 5000]), st.integers(1, 400), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_the_kernel_numbers_unseen_items_as_the_array_form_does(seed: int, n_items: int, n: int, block: int) -> None:
    """With many items and few interactions, several seen items share a bit of the map."""
    draw = np.random.default_rng(seed)
    users, items = draw.integers(0, 5, n), (n_items * draw.random(n) ** draw.choice([1, 4])).astype(int)
    train = Interactions.from_pairs(users, items, user_ids=IdMap.dense(5, "user"), item_ids=IdMap.dense(n_items, "item"))
    train = train.select(train.items != draw.integers(0, n_items, 5)[train.users])  # nobody has seen everything
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("srns.kernels.unseen.BLOCK", block)
        pool = make_pool(train)
    unseen = Unseen(train, np)
    for user in range(5):
        found = items_of(user, pool)
        np.testing.assert_array_equal(found, unseen.at(user, np.arange(len(found))))
        assert sorted(found) == sorted(set(range(n_items)) - set(train.items_of(user).tolist()))


def test_more_threads_than_cores_give_the_same_bits() -> None:
    found = []
    for threads in (1, 2, 3, 5):
        engine = FusedEngine(uniform(dim=12, batch_size=100, threads=threads), interactions(300, 200, 6000))
        losses = [engine.run_epoch(epoch) for epoch in range(3)]
        found.append((losses, engine.state_dict()))
    for losses, state in found[1:]:
        assert losses == found[0][0]
        assert same_bits(state, found[0][1])


def test_training_leaves_the_callers_number_of_threads_alone() -> None:
    before = numba.get_num_threads()
    FusedEngine(uniform(threads=1, dim=4), interactions(30, 20, 100)).run_epoch(0)
    assert numba.get_num_threads() == before


def test_compiled_adam_has_the_bits_of_the_array_form() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, scale, (203, 33)).astype(np.float32) for scale in (0.1, 1e-3)]
    compiled = [rows[0], rows[1], rows[1] ** 2]
    array_form = [np.asfortranarray(each) for each in compiled]  # a layout that is left to NumPy
    for step in range(5):
        slopes = rng.normal(0, 10.0**-step, rows[0].shape).astype(np.float32) * (rng.random(rows[0].shape) < 0.7)
        dense.descend(*(each.reshape(-1) for each in (compiled[0], slopes, *compiled[1:])), np.float32(0.001 * step))
        descend(array_form[0], np.asfortranarray(slopes), *array_form[1:], 0.001 * step)
        for found, expected in zip(compiled, array_form, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_without_torch_the_engine_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import srns\n"
        "data = srns.simulate(n_users=50, n_items=40, n_interactions=500).interactions\n"
        "srns.Recommender(epochs=1, dim=4, engine='plain').fit(data)\n"
        "for fields in ({'engine': 'torch'}, {'scorer': 'mlp'}, {'scorer': 'lightgcn'}, {'device': 'cuda'}):\n"
        "    try: srns.Recommender(epochs=1, dim=4, **fields).fit(data)\n"
        "    except srns.ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install 'srns[torch]'") == 4


def test_amp_and_compile_without_torch_are_said_to_have_no_effect() -> None:
    config = make_config({"amp": True, "engine": "plain"})
    assert "amp, which" in str(Trainer(config, make_split(interactions(30, 20, 200))).notes)


def test_mlp_by_hand() -> None:
    """Appendix B.3 with a loop over layers and a concatenation."""
    model = MLP.init(5, 4, 4, hidden_layers=3, std=1.0, seed=2)
    assert [weight.shape for weight in model.weights] == [(4, 8), (2, 4), (1, 2), (1, 1)]
    for user in range(5):
        for item in range(4):
            z = np.concatenate([model.users[user], model.items[item]]).astype(np.float64)
            for weight, bias in zip(model.weights[:-1], model.biases[:-1], strict=True):
                z = 1 / (1 + np.exp(-(weight @ z + bias)))
            expected = model.weights[-1] @ z + model.biases[-1]
            assert model(np.array([user]), np.array([[item]]))[0, 0] == pytest.approx(expected[0], rel=1e-4)
