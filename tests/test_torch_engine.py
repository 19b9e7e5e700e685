"""The torch engine: the same run as the other engines, gradients by finite differences, scorers in both their forms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import srns
from srns.engines import make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.losses import LOSSES
from srns.presets import make_config
from srns.scorers import GMF, MLP

torch = pytest.importorskip("torch", reason="torch is not installed")
from srns.engines.torch import TorchEngine  # noqa: E402 - needs torch
from srns.engines.torch_adam import TorchAdam  # noqa: E402
from srns.scorers.lightgcn import Graph  # noqa: E402 - needs torch
from srns.scorers.modules import GMFModule, LightGCNModule, MLPModule  # noqa: E402

SMALL: dict[str, Any] = {"dim": 8, "memory_size": 6, "expansion_size": 12, "negatives": 2, "batch_size": 128}


@pytest.fixture(scope="module")
def world() -> Interactions:
    return srns.simulate(n_users=120, n_items=90, n_interactions=2_400, seed=3).interactions


def interactions(n_users: int, n_items: int, n: int, seed: int = 0) -> Interactions:
    draw = np.random.default_rng(seed)
    ids = {"user_ids": IdMap.dense(n_users, "user"), "item_ids": IdMap.dense(n_items, "item")}
    return Interactions.from_pairs(draw.integers(0, n_users, n), draw.integers(0, n_items, n), **ids)


@pytest.mark.parametrize("other", ["fused", "plain"])
@pytest.mark.parametrize(
    "values",
    [
        {"sampler": "uniform", "negatives": 1, "loss": "bpr", "learn_beta": True, "init_std": 0.01, "l2": 0.01},
        {"sampler": "uniform", "negatives": 3},
        SMALL | {"loss": "bpr", "negatives": 1, "learn_beta": True, "init_std": 0.01, "l2": 0.01},
        SMALL,
        SMALL | {"negatives": 0},
    ],
    ids=["uniform-bpr", "uniform-softmax", "srns-bpr", "srns-softmax", "srns-whole-memory"],
)
def test_engines_draw_the_same_and_follow_the_same_curve(world: Interactions, other: str, values: dict[str, Any]) -> None:
    engines = [
        make_engine(make_config({"dim": 8, "batch_size": 128, "epochs": 10, **values, "engine": e}), world)
        for e in ("torch", other)
    ]
    losses = np.array([[engine.run_epoch(epoch) for engine in engines] for epoch in range(10)])
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-3)
    np.testing.assert_allclose(losses[0, 0], losses[0, 1], rtol=1e-6)  # another negative would show in the first epoch


@pytest.mark.parametrize("values", [{"sampler": "uniform", "negatives": 2}, SMALL], ids=["uniform", "srns"])
def test_negatives_of_the_first_epoch_are_those_of_the_plain_engine(world: Interactions, values: dict[str, Any]) -> None:
    drawn: dict[str, list[Any]] = {}
    for name in ("torch", "plain"):
        engine: Any = make_engine(make_config({"dim": 8, "batch_size": 128, **values, "engine": name}), world)
        sample, seen = engine.sampler.sample, drawn.setdefault(name, [])

        def noted(*args: Any, sample: Any = sample, seen: Any = seen) -> Any:
            found = sample(*args)
            seen.append(np.asarray(found.ids))
            return found

        engine.sampler.sample = noted
        engine.run_epoch(0)
    np.testing.assert_array_equal(np.concatenate(drawn["torch"]), np.concatenate(drawn["plain"]))


def test_memories_after_the_first_epoch_are_those_of_the_fused_engine(world: Interactions) -> None:
    engines = [make_engine(make_config({**SMALL, "engine": name}), world) for name in ("torch", "fused")]
    for engine in engines:
        engine.run_epoch(0)
    np.testing.assert_array_equal(engines[0].state_dict()["sampler.memory"], engines[1].state_dict()["memory"])


def modules() -> dict[str, Any]:
    """Each scorer in float64, its rows large enough that all terms of a gradient count."""
    train = interactions(7, 6, 20)
    made = {f"mlp-{layers}": MLPModule(MLP.init(7, 6, 4, hidden_layers=layers, std=0.7, seed=1)) for layers in range(4)}
    factors = GMF.init(7, 6, 4, std=0.7, learn_beta=True, seed=1)
    made |= {
        "gmf": GMFModule(factors, learn_beta=True),
        "lightgcn": LightGCNModule(factors, Graph(train), 2, lambda rows: rows),
    }
    for module in made.values():
        module.double()
    graph = made["lightgcn"].graph
    graph.items_to_users, graph.users_to_items = graph.items_to_users.double(), graph.users_to_items.double()
    return made


@pytest.mark.parametrize("lookups", [0, 100])  # few: only what is asked for is prepared
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scorer", ["gmf", "mlp-0", "mlp-1", "mlp-2", "mlp-3", "lightgcn"])
def test_gradients_against_finite_differences(scorer: str, loss: str, lookups: int) -> None:
    """Through view, loss and L2, of every parameter, by central differences in float64."""
    module = modules()[scorer]
    draw = np.random.default_rng(4)
    users, items = torch.tensor(draw.integers(0, 7, 5)), torch.tensor(draw.integers(0, 6, (5, 4)))
    log_q = torch.tensor(np.log(draw.uniform(0.1, 0.9, (5, 3)))) if loss == "softmax" else None
    options = {} if log_q is None else {"log_q": log_q}

    def value() -> torch.Tensor:
        with torch.no_grad():
            scores = module.view(lookups)(users, items)
            of_users, of_items = module.squares(users, items)
            return LOSSES[loss](scores[:, 0], scores[:, 1:], **options)[0].sum() + 0.05 * (of_users.sum() + of_items.sum())

    scores = module.view(lookups)(users, items)
    _, to_positive, to_negative = LOSSES[loss](scores.detach()[:, 0], scores.detach()[:, 1:], **options)
    of_users, of_items = module.squares(users, items)
    penalty = 0.05 * (of_users.sum() + of_items.sum())
    torch.autograd.backward(
        [scores, penalty], [torch.cat([to_positive[:, None], to_negative], dim=1), torch.ones((), dtype=torch.float64)]
    )
    for name, parameter in module.named_parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.reshape(-1)
        for place in range(0, len(flat), max(1, len(flat) // 12)):
            before, numeric = flat[place].item(), []
            for step in (1e-6, -1e-6):
                flat[place] = before + step
                numeric.append(value().item())
            flat[place] = before
            expected = (numeric[0] - numeric[1]) / 2e-6
            assert gradient[place].item() == pytest.approx(expected, rel=1e-5, abs=1e-7), (name, place)


@pytest.mark.parametrize("scorer", ["gmf", "mlp-0", "mlp-3", "lightgcn"])
def test_what_is_trained_scores_as_what_is_saved(scorer: str) -> None:
    module = modules()[scorer]
    users, items = np.array([0, 3, 6]), np.tile(np.arange(6), (3, 1))
    model = module.model()
    for lookups in (0, 100):  # with and without all items prepared
        with torch.no_grad():
            scores = module.view(lookups)(torch.tensor(users), torch.tensor(items)).numpy()
        np.testing.assert_allclose(model(users, items), scores, rtol=1e-5)
    np.testing.assert_allclose(model.score_all(users), scores, rtol=1e-5)
    again = model.from_tensors(model.tensors())
    np.testing.assert_array_equal(again(users, items), model(users, items))


def test_lightgcn_by_a_dense_matrix() -> None:
    """The whole normalised adjacency, raised to its powers."""
    train = interactions(7, 6, 20)
    model = GMF.init(7, 6, 3, std=0.5, learn_beta=False, seed=0)
    adjacency = np.zeros((13, 13))
    adjacency[train.users, 7 + train.items] = adjacency[7 + train.items, train.users] = 1
    root = 1 / np.sqrt(np.maximum(adjacency.sum(axis=0), 1))
    step = root[:, None] * adjacency * root
    rows = np.concatenate([model.users, model.items])
    expected = sum(np.linalg.matrix_power(step, power) @ rows for power in range(4)) / 4
    found = LightGCNModule(model, Graph(train), 3, lambda rows: rows).model()
    np.testing.assert_allclose(np.concatenate([found.users, found.items]), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "values", [{}, {"scorer": "mlp", "hidden_layers": 2}, {"scorer": "lightgcn"}], ids=["gmf", "mlp", "lightgcn"]
)
def test_a_restored_engine_goes_on_bit_for_bit(world: Interactions, values: dict[str, Any]) -> None:
    config = make_config({**SMALL, "engine": "torch", **values})
    whole, first = (TorchEngine(config, world) for _ in range(2))
    for epoch in range(4):
        whole.run_epoch(epoch)
    for epoch in range(2):
        first.run_epoch(epoch)
    second = TorchEngine(config, world)
    second.load_state_dict(first.state_dict())
    for epoch in range(2, 4):
        second.run_epoch(epoch)
    expected, found = whole.state_dict(), second.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tensor, found[name], err_msg=name)


@pytest.mark.parametrize("scorer", ["gmf", "mlp", "lightgcn"])
def test_a_model_of_the_torch_engine_is_saved_and_loaded_like_any(world: Interactions, scorer: str, tmp_path: Path) -> None:
    split = srns.make_split(world)
    model = srns.Recommender(**SMALL, scorer=scorer, engine="torch", epochs=2).fit(split)
    model.save(tmp_path / "model")
    user = world.user_ids.label(0)
    ids, scores = srns.Recommender.load(tmp_path / "model").recommend(user, k=5)
    expected = model.recommend(user, k=5)
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_array_equal(scores, expected[1])
    assert len(model.similar_items(ids[0], k=3)[0]) == 3


def test_a_saved_mlp_needs_no_torch_to_recommend(world: Interactions, tmp_path: Path) -> None:
    srns.Recommender(**SMALL, scorer="mlp", epochs=1).fit(world).save(tmp_path / "model")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import srns; print(srns.Recommender.load({str(tmp_path / 'model')!r}).recommend({world.user_ids.label(0)!r}, k=3)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_messages_of_what_cannot_be(world: Interactions) -> None:
    with pytest.raises(ConfigError, match="engine 'fused' cannot train scorer 'mlp'"):
        make_engine(make_config({"engine": "fused", "scorer": "mlp"}), world)
    with pytest.raises(ConfigError, match="device = 'nonsense'"):
        make_engine(make_config({"engine": "torch", "device": "nonsense"}), world)
    with pytest.raises(ConfigError, match="expected a multiple of 4"):
        make_engine(make_config({"scorer": "mlp", "dim": 6, "hidden_layers": 3}), world)
    with pytest.raises(ConfigError, match="log_q corrects the loss softmax"):
        make_config({"log_q": True, "sampler": "srns"})


class TwoTower(torch.nn.Module):
    """Users by their row, items by their features."""

    def __init__(self, n_users: int, features: torch.Tensor, dim: int = 8) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(n_users, dim)
        self.features = torch.nn.Buffer(features)
        self.tower = torch.nn.Sequential(torch.nn.Linear(features.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, dim))

    def score(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bf,bkf->bk", self.users(users), self.tower(self.features[items]))


def test_any_module_with_a_score_is_trained_saved_and_loaded(world: Interactions, tmp_path: Path) -> None:
    features = torch.randn(world.n_items, 5, generator=torch.Generator().manual_seed(0))

    def make(train: Interactions) -> TwoTower:
        return TwoTower(train.n_users, features)

    split = srns.make_split(world)
    trainer = srns.Trainer(make_config({**SMALL, "negatives": 1, "epochs": 4, "patience": 0}), split, scorer=make)
    losses = [record.loss for record in trainer.run().history]
    assert losses[-1] < losses[0]
    model = srns.Recommender(**SMALL, epochs=2, scorer=make).fit(split)
    model.save(tmp_path / "own")
    with pytest.raises(srns.ArtifactError, match="needs scorer="):
        srns.Recommender.load(tmp_path / "own")
    again = srns.Recommender.load(tmp_path / "own", scorer=make)
    user = world.user_ids.label(3)
    np.testing.assert_array_equal(again.recommend(user)[0], model.recommend(user)[0])


def test_l2_without_squares_to_pull_on_is_said_to_have_no_effect(world: Interactions) -> None:
    class Pulled(WithDropout):
        def squares(self, users: torch.Tensor, items: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.users(users).square().sum(-1), self.items(items).square().sum(-1)

    split = srns.make_split(world)

    def trainer(module: type[WithDropout], l2: Any) -> srns.Trainer:
        config = make_config({**SMALL, "l2": l2, "epochs": 2})
        return srns.Trainer(config, split, scorer=lambda train: module(train.n_users, train.n_items))

    for l2 in ("auto", 0.1):
        notes = str(trainer(WithDropout, l2).notes)
        assert "without effect: l2, since your module has no method squares" in notes
        assert "l2 auto" not in notes
    assert "l2" not in str(trainer(WithDropout, 0.0).notes)
    assert "l2 auto: 0." in str(trainer(Pulled, "auto").notes)
    free, pulled = (trainer(Pulled, l2).run().history[1].loss for l2 in (0.0, 0.5))
    assert free != pulled


@pytest.mark.parametrize("scorer", ["mlp", "lightgcn"])
def test_mixed_precision_changes_the_loss_a_little(world: Interactions, scorer: str) -> None:
    config = {**SMALL, "scorer": scorer, "init_std": 0.5, "l2": 0.0}
    losses = [make_engine(make_config({**config, "amp": amp}), world).run_epoch(0) for amp in (False, True)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    assert (losses[0] != losses[1]) == (scorer == "mlp")  # the other has no product of matrices that may be rounded


COMPILERS = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason=f"no C++ compiler for torch.compile: {', '.join(COMPILERS)}")
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns itself of, and hides from users
def test_a_compiled_run_follows_the_same_curve(world: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the perceptron, whose scores have products of matrices, sigmoids and sums to fuse. Nearly all of it is compilation."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    values = {**SMALL, "scorer": "mlp", "init_std": 0.5, "learning_rate": 0.01}
    plain, compiled = (make_engine(make_config({**values, "compile": each}), world) for each in (False, True))
    # No pool of processes that outlives the test; and no compilations to find out which vector instructions there are, which
    # took longer than the loops themselves.
    with torch._inductor.config.patch({"compile_threads": 1, "cpp.simdlen": 1}):
        losses = [[engine.run_epoch(epoch) for epoch in range(2)] for engine in (plain, compiled)]
    torch._dynamo.reset()
    assert list(tmp_path.rglob("*.cpp"))  # it was not merely run as it is
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_a_module_with_nothing_to_train_is_refused(world: Interactions) -> None:
    class Fixed(torch.nn.Module):
        def score(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            return items.float()

    with pytest.raises(ConfigError, match="your module has no parameters to train"):
        TorchEngine(make_config({**SMALL, "engine": "torch"}), world, factory=lambda train: Fixed())


class WithDropout(torch.nn.Module):
    """Everything that is not a trained parameter: dropout, running statistics, a mask of -inf."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.users, self.items = torch.nn.Embedding(n_users, 8), torch.nn.Embedding(n_items, 8)
        self.normal, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
        self.mask = torch.nn.Buffer(torch.tensor([0.0, -torch.inf]))

    def score(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        rows = self.normal(self.items(items).flatten(0, 1)).view(*items.shape, 8)
        return torch.einsum("bf,bkf->bk", self.users(users), self.drop(rows))


def test_buffers_are_kept_and_only_what_is_a_number_is_averaged(world: Interactions) -> None:
    def make(train: Interactions) -> WithDropout:
        return WithDropout(train.n_users, train.n_items)

    config = make_config({**SMALL, "epochs": 2, "moving_average": 0.5})
    training = srns.Trainer(config, srns.make_split(world), scorer=make).run()
    users, items = np.array([0, 1]), np.array([[0, 1], [2, 3]])
    np.testing.assert_array_equal(training.model(users, items), training.model(users, items))  # no dropout in use
    engine = TorchEngine(config, world, factory=make)
    engine.run_epoch(0)
    other = TorchEngine(config, world, factory=make)
    other.load_state_dict(engine.state_dict())
    np.testing.assert_array_equal(other.model.tensors()["normal.running_mean"], engine.model.tensors()["normal.running_mean"])
    np.testing.assert_array_equal(other.model(users, items), engine.model(users, items))


def test_dropout_is_resumed_bit_for_bit_and_leaves_the_generator_of_the_caller_alone(world: Interactions) -> None:
    config = make_config({**SMALL, "engine": "torch"})

    def run(epochs: range, state: Any = None) -> dict[str, Any]:
        engine = TorchEngine(config, world, factory=lambda train: WithDropout(train.n_users, train.n_items))
        if state is not None:
            engine.load_state_dict(state)
        for epoch in epochs:
            engine.run_epoch(epoch)
        return engine.state_dict()

    before = torch.random.get_rng_state()
    expected = run(range(4))
    assert torch.equal(torch.random.get_rng_state(), before)
    first = run(range(2))
    torch.rand(7)  # whatever the caller drew meanwhile
    found = run(range(2, 4), first)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tensor, found[name], err_msg=name)


def test_samplers_never_see_dropout_and_threads_are_given_back(world: Interactions) -> None:
    asked: list[bool] = []

    class Watched(WithDropout):
        def score(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            if not torch.is_grad_enabled():
                asked.append(self.training)
            return super().score(users, items)

    before = torch.get_num_threads()
    logged = {"sampler": "srns", "negatives": 1, "history": "candidates", "threads": before + 1}
    engine = TorchEngine(make_config({**SMALL, **logged}), world, factory=lambda train: Watched(train.n_users, train.n_items))
    for epoch in range(2):
        engine.run_epoch(epoch)
    assert asked
    assert not any(asked)
    assert torch.get_num_threads() == before


def test_threads_are_those_there_were_when_the_engine_was_made(world: Interactions) -> None:
    """Numba sets the number of OpenMP's threads, which are torch's, when its own start, as they do at the first validation."""
    seen: list[int] = []

    class Watched(WithDropout):
        def score(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return super().score(users, items)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        engine = TorchEngine(make_config({**SMALL, "engine": "torch"}), world, factory=lambda train: Watched(120, 90))
        torch.set_num_threads(3)
        engine.run_epoch(0)
        assert set(seen) == {2}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_embeddings_whose_gradients_are_sparse_train_as_others_do(world: Interactions) -> None:
    class Rows(torch.nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.users, self.items = (torch.nn.Embedding(n, 4, sparse=sparse) for n in (world.n_users, world.n_items))

        def score(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bf,bkf->bk", self.users(users), self.items(items))

    config = make_config({**SMALL, "engine": "torch"})
    sparse, dense = (TorchEngine(config, world, factory=lambda train, kind=kind: Rows(kind)) for kind in (True, False))
    for epoch in range(2):
        assert sparse.run_epoch(epoch) == pytest.approx(dense.run_epoch(epoch), rel=1e-5)


def test_adam_is_that_of_torch_with_an_epsilon_of_the_papers() -> None:
    """Ten steps on the same gradients as `torch.optim.Adam`, whose epsilon is set anew before each."""
    draw = torch.Generator().manual_seed(0)
    theirs = [torch.randn(shape, generator=draw).requires_grad_() for shape in ((5, 3), (7,))]
    ours = [each.detach().clone() for each in theirs]
    adam = TorchAdam({"rows": ours[0], "biases": ours[1]})
    optimizer = torch.optim.Adam(theirs, lr=0.01)
    for step in range(1, 11):
        gradients = [torch.randn(each.shape, generator=draw) * 1e-6 for each in theirs]
        optimizer.param_groups[0]["eps"] = 1e-8 / (1 - 0.999**step) ** 0.5
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        adam.step(gradients, 0.01)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_label_errors_and_observations_are_those_of_the_plain_engine(world: Interactions) -> None:
    split = srns.make_split(world)
    found = []
    for name in ("torch", "plain"):
        training = srns.Trainer(make_config({**SMALL, "epochs": 3, "engine": name}), split).run()
        found.append([record.sampler for record in training.history])
    for ours, theirs in zip(*found, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, rel=0.02, abs=2e-3)
