"""Samplers that mix: MixGCF, positives into candidates; AdaSIR, old pools into new; DENS, by gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from srns.engines import make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.losses import LOSSES, blended
from srns.presets import make_config
from srns.samplers import Truth
from srns.samplers.adasir import AdaSIR, resampled
from srns.samplers.dens import DENS
from srns.samplers.mixgcf import MixGCF
from srns.scorers import GMF
from srns.simulation import simulate


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def world(n_users: int = 60, n_items: int = 40, n: int = 700, seed: int = 0) -> Interactions:
    draw = np.random.default_rng(seed)
    return Interactions.from_pairs(draw.integers(0, n_users, n), (n_items * draw.random(n) ** 2).astype(int))


def scorer(train: Interactions, seed: int = 0) -> GMF:
    return GMF.init(train.n_users, train.n_items, dim=4, std=1.0, learn_beta=False, seed=seed)


def batch_of(train: Interactions, size: int) -> tuple[Any, Any]:
    chosen = np.random.default_rng(9).permutation(len(train))[:size]
    return train.users[chosen].astype(np.int64), train.items[chosen].astype(np.int64)


def test_resampling_is_by_softmax_with_replacement() -> None:
    scores = np.random.default_rng(0).normal(0, 2, (3, 30)).astype(np.float32)
    expected = np.exp(scores.astype(np.float64))
    expected /= expected.sum(axis=1, keepdims=True)
    words = np.random.default_rng(1).integers(0, 2**32, (3, 50_000))
    places, share = resampled(scores, words, np)
    for row in range(3):
        counts = np.bincount(places[row], minlength=30)
        rarest = np.argsort(expected[row])  # some together, as chi-square wants
        observed, wanted = (np.append(x[rarest[10:]], x[rarest[:10]].sum()) for x in (counts, expected[row] * 50_000))
        assert stats.chisquare(observed, wanted).pvalue > 1e-4
        np.testing.assert_allclose(share[row], expected[row][places[row]], rtol=1e-4, atol=1e-6)


def test_adasir_pools_follow_the_softmax_over_unseen_items() -> None:
    """With many candidates the long run of first pools is softmax(r_u) over the user's unseen items."""
    train = world(n_users=8, n_items=12, n=30)
    model, counts = scorer(train), np.zeros((train.n_users, train.n_items))
    for seed in range(60):
        state = AdaSIR(candidates=512, memory_size=64).start(train, seed=seed)
        state.begin_epoch(0, model)
        for user in range(train.n_users):
            counts[user] += np.bincount(state.memory[user], minlength=train.n_items)
    for user in range(train.n_users):
        weights = np.exp(model.score_all([user])[0])
        weights[train.items_of(user)] = 0
        np.testing.assert_allclose(counts[user] / counts[user].sum(), weights / weights.sum(), atol=0.03)
        assert not counts[user, train.items_of(user)].any()


def test_adasir_weighs_by_the_share_among_candidates() -> None:
    train = world()
    state = AdaSIR(candidates=100).start(train, seed=0)
    state.begin_epoch(0, lambda users, items: items * np.float32(0))
    np.testing.assert_allclose(state.weight, 1, rtol=1e-5)
    state = AdaSIR(candidates=1).start(train, seed=0)
    state.begin_epoch(0, scorer(train))
    np.testing.assert_array_equal(state.weight, 1)


def test_adasir_weighs_uneven_candidates_by_their_softmax() -> None:
    """With the same three unseen items as candidates again and again, N w_c by hand."""
    train = Interactions.from_pairs(
        [0, 0, 1, 1], [0, 1, 2, 3], user_ids=IdMap.dense(2, "user"), item_ids=IdMap.dense(5, "item")
    )
    values = np.array([0.0, 0.0, 1.0, -0.5, 2.0], np.float32)
    state = AdaSIR(candidates=64, memory_size=64).start(train, seed=0)
    asked: list[Any] = []

    def score(users: Any, items: Any) -> Any:
        asked.append(items)
        return values[items]

    state.begin_epoch(0, score)
    for user, (items, weights) in enumerate(zip(state.memory, state.weight, strict=True)):
        pool = np.exp(values[asked[0][user]].astype(float))
        np.testing.assert_allclose(weights, 64 * np.exp(values[items]) / pool.sum(), rtol=1e-4)


def test_adasir_keeps_half_of_a_pool_with_its_weights() -> None:
    train = world(n_items=400, n=3000)
    model = scorer(train)
    state = AdaSIR(memory_size=64).start(train, seed=0)
    state.begin_epoch(0, model)
    old = [dict(zip(*pool, strict=True)) for pool in zip(state.memory.tolist(), state.weight.tolist(), strict=True)]
    fresh = AdaSIR(memory_size=64).start(train, seed=0)
    fresh.begin_epoch(1, model)  # what epoch 1 resamples, without a past
    state.begin_epoch(1, model)
    kept = 0
    for user in range(train.n_users):
        new = dict(zip(fresh.memory[user].tolist(), fresh.weight[user].tolist(), strict=True))
        for item, weight in zip(state.memory[user].tolist(), state.weight[user].tolist(), strict=True):
            assert weight in (old[user].get(item), new.get(item))
            kept += weight == old[user].get(item)
    share = kept / state.memory.size
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(state.memory.size)


def test_adasir_draws_from_the_pool_uniformly() -> None:
    train = world()
    users, positives = batch_of(train, 1)
    state, counts = AdaSIR(memory_size=10, negatives=50, weighted=True).start(train, seed=0), np.zeros(10)
    for epoch in range(200):
        state.begin_epoch(epoch, scorer(train))
        state.memory[:], state.weight[:] = np.arange(10), np.arange(10)
        drawn = state.sample(users, positives, None, 0)
        counts += np.bincount(drawn.ids[0], minlength=10)
        np.testing.assert_array_equal(drawn.weight, drawn.ids)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_mixgcf_takes_the_hardest_of_uniform_candidates() -> None:
    """The best of N uniform draws is of rank at least r among m with probability (r / m)^N; blends are uniform."""
    train = world(n_users=5, n_items=30, n=40)
    model, user, n = scorer(train), 2, 4
    unseen = np.setdiff1d(np.arange(train.n_items), train.items_of(user))
    ranked = unseen[np.argsort(model.score_all([user])[0][unseen])]  # worst first
    state, counts, blends = MixGCF(candidates=n, negatives=20).start(train, seed=0), np.zeros(train.n_items), []
    for epoch in range(600):
        state.begin_epoch(epoch, model)
        drawn = state.sample(np.array([user]), train.items_of(user)[:1], model, 0)
        np.add.at(counts, drawn.ids[0], 1)
        blends.append(drawn.blend[0])
    below = (np.arange(len(ranked) + 1) / len(ranked)) ** n
    assert stats.chisquare(counts[ranked], np.diff(below) * counts.sum()).pvalue > 1e-4
    assert stats.kstest(np.concatenate(blends), "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    "sampler",
    [AdaSIR(negatives=5, memory_size=20, candidates=60, weighted=True), MixGCF(negatives=3, candidates=5)],
    ids=["adasir", "mixgcf"],
)
def test_torch_draws_the_same(sampler: Any, torch: Any) -> None:
    train = world()
    model = scorer(train)
    users, positives = batch_of(train, 100)

    def score(users: Any, items: Any) -> Any:  # the same bits in both libraries
        return torch.tensor(model(np.asarray(users), np.asarray(items)))

    ours, theirs = sampler.start(train, seed=7), sampler.start(train, seed=7, xp=torch)
    for epoch in range(3):
        ours.begin_epoch(epoch, model)
        theirs.begin_epoch(epoch, score)
        expected = ours.sample(users, positives, model, 0)
        found = theirs.sample(torch.tensor(users), torch.tensor(positives), score, 0)
        for one, other in zip(expected, found, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_array_equal(other.numpy(), one)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", ["adasir", "mixgcf"])
def test_engines_follow_the_same_curve(name: str) -> None:
    train = world()
    values = {"sampler": name, "negatives": 3, "loss": "bpr", "dim": 6, "batch_size": 64, "l2": 0.05, "init_std": 0.3}
    engines = [make_engine(make_config({**values, "engine": engine}), train) for engine in ("torch", "plain")]
    losses = np.array([[engine.run_epoch(epoch) for engine in engines] for epoch in range(5)])
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-3)
    np.testing.assert_allclose(losses[0, 0], losses[0, 1], rtol=1e-6)


def tiny_graph() -> tuple[Interactions, Any]:
    """Seven users, six items, two steps of propagation, in float64."""
    from srns.scorers.lightgcn import Graph
    from srns.scorers.modules import LightGCNModule

    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(0, (7, 6), (20, 2)), axis=0)
    train = Interactions.from_pairs(*pairs.T, user_ids=IdMap.dense(7, "user"), item_ids=IdMap.dense(6, "item"))
    module = LightGCNModule(GMF.init(7, 6, 4, std=0.7, learn_beta=False, seed=1), Graph(train), 2, lambda rows: rows).double()
    module.graph.items_to_users, module.graph.users_to_items = (
        part.double() for part in (module.graph.items_to_users, module.graph.users_to_items)
    )
    return train, module


def layers_of(train: Interactions, users: Any, items: Any) -> Any:
    """Rows of users and then items in layers 0, 1, 2 by the dense adjacency: (3, 13, F)."""
    adjacency = np.zeros((13, 13))
    adjacency[train.users, 7 + train.items] = adjacency[7 + train.items, train.users] = 1
    root = 1 / np.sqrt(np.maximum(adjacency.sum(axis=0), 1))
    step = root[:, None] * adjacency * root
    return np.stack([np.linalg.matrix_power(step, power) @ np.concatenate([users, items]) for power in range(3)])


@pytest.mark.parametrize("name", ["bpr", "softmax", "bce", "hinge"])
def test_slopes_of_mixtures_by_finite_differences(name: str) -> None:
    """By the scores of positives and of the items in mixtures, for GMF, whose mixed rows score as mixed scores do."""
    draw = np.random.default_rng(0)
    positive, negative, blend = draw.normal(size=5), draw.normal(size=(5, 3)), draw.random((5, 3))

    def loss_of_mixtures(positive: Any, negative: Any) -> Any:
        mixture = (1 - blend) * negative + blend * positive[:, None]
        margin = mixture - positive[:, None]
        if name == "softmax":
            return np.log1p(np.exp(margin).sum(axis=1))
        if name == "bce":
            return np.log1p(np.exp(-positive)) + np.log1p(np.exp(mixture)).mean(axis=1)
        return (np.log1p(np.exp(margin)) if name == "bpr" else np.maximum(0, 1 + margin)).mean(axis=1)

    value, to_positive, to_negative = blended(LOSSES[name], positive, negative, blend)
    np.testing.assert_allclose(value, loss_of_mixtures(positive, negative))
    step = 1e-6
    moved = [loss_of_mixtures(positive + sign * step, negative) for sign in (1, -1)]
    np.testing.assert_allclose(to_positive, (moved[0] - moved[1]) / (2 * step), atol=1e-8)
    for k in range(3):
        move = step * np.eye(3)[k]
        moved = [loss_of_mixtures(positive, negative + sign * move) for sign in (1, -1)]
        np.testing.assert_allclose(to_negative[:, k], (moved[0] - moved[1]) / (2 * step), atol=1e-8)


@pytest.mark.parametrize("name", ["mixgcf", "dens"])
def test_candidates_are_uniform_over_unseen_items(name: str, torch: Any) -> None:
    """With one candidate per negative, there is nothing to choose."""
    from srns.scorers.modules import GMFModule

    train = world(n_users=8, n_items=12, n=30)
    view = GMFModule(scorer(train), learn_beta=True).view(0)
    sampler = {"mixgcf": MixGCF, "dens": DENS}[name](negatives=2, candidates=1)
    state, counts = sampler.start(train, seed=5, xp=torch), np.zeros((train.n_users, train.n_items))
    for epoch in range(400):
        state.begin_epoch(epoch, view)
        with torch.no_grad():
            ids = state.sample(
                torch.tensor(train.users.astype(np.int64)), torch.tensor(train.items.astype(np.int64)), view, 0
            ).ids
        np.add.at(counts, (train.users[:, None], ids.numpy()), 1)
    for user in range(train.n_users):
        unseen = np.setdiff1d(np.arange(train.n_items), train.items_of(user))
        assert counts[user].sum() == counts[user, unseen].sum()
        assert stats.chisquare(counts[user, unseen]).pvalue > 1e-4


def test_mixgcf_on_lightgcn_by_brute_force(torch: Any) -> None:
    """Candidates by layer, and scores of mixed rows with their gradient by finite differences."""
    train, module = tiny_graph()
    state = MixGCF(negatives=2, candidates=3).start(train, seed=0, xp=torch)
    state.begin_epoch(4, None)
    users, positives = torch.tensor(train.users.astype(np.int64)), torch.tensor(train.items.astype(np.int64))
    with torch.no_grad():
        drawn = state.sample(users, positives, module.view(0), 0)
    flat = MixGCF(negatives=6, candidates=1).start(train, seed=0)  # the candidates themselves: each is the best of one
    flat.begin_epoch(4, None)
    pools = flat.sample(train.users, train.items, lambda users, items: items * 0.0, 0).ids.reshape(len(train), 2, 3)
    parameters = [module.users.detach().numpy().copy(), module.items.detach().numpy().copy()]

    def scores(values: list[Any], choose: bool = False) -> Any:
        layers = layers_of(train, *values)
        found = np.zeros((len(train), 3))
        for row, (user, positive) in enumerate(zip(train.users, train.items, strict=True)):
            p_u = layers[:, user].mean(axis=0)
            found[row, 0] = p_u @ layers[:, 7 + positive].mean(axis=0)
            for k in range(2):
                mixed = []
                for layer in range(3):
                    rows = layers[layer, 7 + pools[row, k]]
                    item = int(drawn.ids[row, k, layer])
                    if choose:
                        assert item == pools[row, k, np.argmax(rows @ p_u)]
                    a = float(drawn.blend[row, k, layer])
                    mixed.append((1 - a) * layers[layer, 7 + item] + a * layers[layer, 7 + positive])
                found[row, 1 + k] = p_u @ np.mean(mixed, axis=0)
        return found

    expected = scores(parameters, choose=True)
    found = module.view(0).mixed(users, positives, drawn.ids, drawn.blend)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-7)  # the graph was rounded to float32
    slopes = np.random.default_rng(3).normal(size=expected.shape)
    found.backward(torch.tensor(slopes))
    for values, parameter in zip(parameters, (module.users, module.items), strict=True):
        for place in np.ndindex(*values.shape):
            before, sums = values[place], []
            for step in (1e-5, -1e-5):
                values[place] = before + step
                sums.append(np.sum(slopes * scores(parameters)))
            values[place] = before
            assert parameter.grad[place].item() == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-4, abs=1e-6)


@pytest.mark.usefixtures("torch")
def test_mixgcf_trains_lightgcn() -> None:
    train = simulate(n_users=60, n_items=200, n_interactions=1_500, seed=0).interactions
    values = {
        "sampler": "mixgcf",
        "scorer": "lightgcn",
        "negatives": 2,
        "candidates": 3,
        "loss": "bpr",
        "dim": 6,
        "batch_size": 64,
    }
    config = make_config({**values, "l2": 0.01, "learning_rate": 0.02})
    engine = make_engine(config, train, Truth(train.select(np.arange(len(train)) < 50)))
    losses = [engine.run_epoch(epoch) for epoch in range(6)]
    assert losses[-1] < 0.98 * losses[0]


def dens_in_numpy(gates: Any, p_u: Any, q_i: Any, q_c: Any) -> tuple[Any, Any, Any]:
    """Relevant parts of the positive and of candidates, and the contrastive loss with all candidates as negatives, by loops."""
    values = {name: tensor.numpy().astype(np.float64) for name, tensor in gates._values.items()}
    of_positive, of_candidates, losses = np.zeros_like(q_i), np.zeros_like(q_c), []
    for b in range(len(p_u)):
        z = q_i[b] @ values["item"] + p_u[b] @ values["user"] + values["positive_bias"][0]
        of_positive[b] = q_i[b] / (1 + np.exp(-z))
        for c in range(q_c.shape[1]):
            z = q_c[b, c] @ values["candidate"] + of_positive[b] @ values["positive"] + values["candidate_bias"][0]
            of_candidates[b, c] = q_c[b, c] / (1 + np.exp(-z))
            good, bad = p_u[b] @ of_positive[b], p_u[b] @ (q_i[b] - of_positive[b])
            same, other = p_u[b] @ of_candidates[b, c], p_u[b] @ (q_c[b, c] - of_candidates[b, c])
            losses.append([np.log1p(np.exp(x)) for x in (bad - good, same - other, same - good, bad - other)])
    return of_positive, of_candidates, np.mean(losses)


def test_gates_of_dens_by_hand(torch: Any) -> None:
    from srns.samplers.gates import Gates

    draw = np.random.default_rng(0)
    p_u, q_i, q_c = draw.normal(size=(5, 4)), draw.normal(size=(5, 4)), draw.normal(size=(5, 3, 4))
    gates = Gates(4, seed=1, learning_rate=0.01)
    tensors = [torch.tensor(x, dtype=torch.float32) for x in (p_u, q_i, q_c)]
    _, of_candidates, expected = dens_in_numpy(gates, p_u, q_i, q_c)
    assert gates.loss(*tensors).item() == pytest.approx(expected, rel=1e-5)
    for share in (1.0, 0.3, 0.0):
        worth = np.einsum("bf,bnf->bn", p_u, share * q_c - of_candidates)
        np.testing.assert_allclose(gates.worth(*tensors, share).numpy(), worth, atol=1e-5)
    before = {name: tensor.numpy().copy() for name, tensor in gates._values.items()}
    gates.learn(*tensors)
    for name, tensor in gates._values.items():  # Adam's first step: the rate, against the sign of the slope
        slopes = np.zeros(before[name].shape)
        for place in np.ndindex(*slopes.shape):
            probe, sums = Gates(4, seed=1, learning_rate=0.01), []
            for step in (1e-3, -1e-3):
                probe._values[name][place] = float(before[name][place]) + step
                sums.append(dens_in_numpy(probe, p_u, q_i, q_c)[2])
            slopes[place] = (sums[0] - sums[1]) / 2e-3
        clear = np.abs(slopes) > 1e-4
        assert clear.any()
        np.testing.assert_allclose((tensor.numpy() - before[name])[clear], -0.01 * np.sign(slopes[clear]), rtol=0.01)


@pytest.mark.parametrize("epoch", [0, 7, 20])
def test_dens_takes_the_candidate_of_highest_worth(epoch: int, torch: Any) -> None:
    from srns.samplers.gates import Gates
    from srns.scorers.modules import GMFModule

    train = world()
    users, positives = batch_of(train, 30)
    view = GMFModule(scorer(train), learn_beta=True).view(0)
    state = DENS(negatives=2, candidates=5, warmup_epochs=10).start(train, seed=0, xp=torch)
    state.begin_epoch(epoch, view)
    with torch.no_grad():
        ids = state.sample(torch.tensor(users), torch.tensor(positives), view, 0).ids.numpy()
    alone = DENS(negatives=10, candidates=1, warmup_epochs=10).start(train, seed=0, xp=torch)  # the candidates themselves
    alone.begin_epoch(epoch, view)
    pools = alone.sample(torch.tensor(users), torch.tensor(positives), view, 0).ids.numpy()
    model = scorer(train)
    p_u, q_i, q_c = (rows.astype(np.float64) for rows in (model.users[users], model.items[positives], model.items[pools]))
    _, relevant, _ = dens_in_numpy(Gates(4, seed=0, learning_rate=0.01), p_u, q_i, q_c)
    worth = np.einsum("bf,bnf->bn", p_u, (1 - min(1, epoch / 10)) * q_c - relevant).reshape(30, 2, 5)
    best = np.take_along_axis(pools.reshape(30, 2, 5), worth.argmax(axis=2)[..., None], axis=2)[..., 0]
    np.testing.assert_array_equal(ids, best)


def test_gates_learn_what_is_relevant(torch: Any) -> None:
    """Two factors, one of which the users like in positives and one in negatives: their gates open and close."""
    from srns.samplers.gates import Gates

    gates = Gates(2, seed=0, learning_rate=0.05)
    p_u = torch.ones(64, 2)
    q_i, q_j = torch.tensor([[2.0, -2.0]]).expand(64, 2), torch.tensor([[[2.0, -2.0]]]).expand(64, 1, 2)
    before = gates.loss(p_u, q_i, q_j).item()
    for _ in range(300):
        gates.learn(p_u, q_i, q_j)
    assert gates.loss(p_u, q_i, q_j).item() < 0.6 * before
    relevant = gates.relevant_positive(p_u[:1], q_i[:1])[0]
    assert relevant[0] > 1.8  # all of the factor that the users like
    assert relevant[1] > -0.2  # nothing of the other


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("scorer_name", ["gmf", "lightgcn"])
@pytest.mark.parametrize("name", ["dens", "adasir", "mixgcf"])
def test_a_restored_engine_goes_on_bit_for_bit(name: str, scorer_name: str) -> None:
    train = world()
    values = {
        "sampler": name,
        "scorer": scorer_name,
        "loss": "bpr",
        "negatives": 2,
        "dim": 6,
        "batch_size": 64,
        "engine": "torch",
    }
    whole, first, second = (make_engine(make_config(values), train) for _ in range(3))
    for epoch in range(4):
        whole.run_epoch(epoch)
    for epoch in range(2):
        first.run_epoch(epoch)
    second.load_state_dict(first.state_dict())
    for epoch in (2, 3):
        second.run_epoch(epoch)
    expected, found = whole.state_dict(), second.state_dict()
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        np.testing.assert_array_equal(found[key], tensor, err_msg=key)


@pytest.mark.usefixtures("torch")
def test_dens_names_what_it_cannot_gate() -> None:
    train = world()
    with pytest.raises(ConfigError, match="use scorer gmf or lightgcn"):
        make_engine(make_config({"sampler": "dens", "scorer": "mlp", "dim": 8}), train).run_epoch(0)
    with pytest.raises(ConfigError, match="start it with xp=torch"):
        DENS().start(train, seed=0)
    assert make_engine(make_config({"sampler": "dens"}), train).name == "torch"
