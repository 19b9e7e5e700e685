"""Adversarial training: the gradient is that of the loss here plus the loss at embeddings moved against the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from srns.config import RunConfig
from srns.engines import PlainEngine, make_engine
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers import Negatives


def config(**fields: Any) -> RunConfig:
    base = {
        "sampler": "uniform",
        "negatives": 3,
        "loss": "bpr",
        "dim": 5,
        "batch_size": 128,
        "learn_beta": True,
        "init_std": 0.3,
    }
    return RunConfig(**{**base, **fields})


def loss_at(p: Any, q_i: Any, q_j: Any, beta: Any) -> float:
    """BPR of one positive with K negatives (K, F), in float64."""
    return float(np.mean(np.log1p(np.exp((q_j - q_i) @ (beta * p)))))


def numeric(function: Any, at: Any, step: float = 1e-6) -> Any:
    slope = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        for each, sign in zip(moved, (1, -1), strict=True):
            each[place] += sign * step
        slope[place] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return slope


def moved(row: Any, slope: Any, epsilon: float) -> Any:
    return row + epsilon * slope / np.linalg.norm(slope, axis=-1, keepdims=True)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("engine", ["plain", "torch"])
def test_step_is_along_the_gradient_of_both_losses(epsilon: float, engine: str, train: Interactions) -> None:
    """One positive of one user: the first moment of Adam is a tenth of the gradient, here by finite differences."""
    if engine == "torch":
        pytest.importorskip("torch")
    made: Any = make_engine(config(engine=engine, perturbation=epsilon, l2=0.0), train)
    values = {name: tensor.astype(np.float64) for name, tensor in made.model.tensors().items()}
    user, positive = int(train.users[0]), int(train.items[0])
    negatives = np.setdiff1d(np.arange(train.n_items), train.items_of(user))[:3]
    p, q_i, q_j, beta = values["users"][user], values["items"][positive], values["items"][negatives], values["beta"]

    slopes = (
        numeric(lambda x: loss_at(x, q_i, q_j, beta), p),
        numeric(lambda x: loss_at(p, x, q_j, beta), q_i),
        numeric(lambda x: loss_at(p, q_i, x, beta), q_j),
    )
    away = [moved(row, slope, epsilon) - row for row, slope in zip((p, q_i, q_j), slopes, strict=True)]

    def both(p: Any, q_i: Any, q_j: Any, beta: Any) -> float:
        there = loss_at(p + away[0], q_i + away[1], q_j + away[2], beta) if epsilon else 0.0
        return loss_at(p, q_i, q_j, beta) + there

    expected = {
        "users": numeric(lambda x: both(x, q_i, q_j, beta), p),
        "positive": numeric(lambda x: both(p, x, q_j, beta), q_i),
        "negatives": numeric(lambda x: both(p, q_i, x, beta), q_j),
        "beta": numeric(lambda x: both(p, q_i, q_j, x), beta),
    }
    if engine == "plain":
        loss = made._step(np.array([user]), np.array([positive]), Negatives(negatives[None]))
    else:
        import torch

        from srns.engines.torch import Batch

        made.sampler.sample = lambda *_: Negatives(torch.tensor(negatives)[None])
        loss = float(made._step(0, Batch(torch.tensor([user]), torch.tensor([positive]), 1)))
    assert loss == pytest.approx(both(p, q_i, q_j, beta), rel=1e-5)
    state = made.state_dict()
    found = {
        "users": state["first.users"][user],
        "positive": state["first.items"][positive],
        "negatives": state["first.items"][negatives],
        "beta": state["first.beta"],
    }
    for name, slope in expected.items():
        np.testing.assert_allclose(found[name], 0.1 * slope, atol=1e-6, err_msg=name)


def test_moved_embeddings_raise_the_loss(train: Interactions) -> None:
    here, there = (PlainEngine(config(perturbation=epsilon), train).run_epoch(0) for epsilon in (0.0, 0.2))
    assert there > 2 * here


@pytest.mark.parametrize("scorer", ["gmf", "mlp"])
def test_engines_follow_one_curve(scorer: str, train: Interactions) -> None:
    pytest.importorskip("torch")
    fields = {"perturbation": 0.1, "scorer": scorer, "dim": 6}
    other = make_engine(config(engine="torch", **fields), train)
    losses = [other.run_epoch(epoch) for epoch in range(3)]
    assert losses[-1] < losses[0]
    if scorer == "gmf":
        plain = make_engine(config(engine="auto", **fields), train)
        assert plain.name == "plain"
        np.testing.assert_allclose(losses, [plain.run_epoch(epoch) for epoch in range(3)], rtol=1e-4)


def test_mlp_scores_of_rows_are_its_scores(train: Interactions) -> None:
    torch = pytest.importorskip("torch")
    module: Any = make_engine(config(scorer="mlp", dim=6, engine="torch"), train).module  # type: ignore[attr-defined]
    users, items = torch.tensor([0, 3, 3]), torch.tensor([[1, 2], [4, 4], [0, 7]])
    torch.testing.assert_close(module.score_rows(*module.rows(users, items)), module.view(0)(users, items))


def test_what_cannot_be_perturbed_is_refused(train: Interactions) -> None:
    with pytest.raises(ConfigError, match="'uniform' as set with loss 'bpr' and a perturbation"):
        make_engine(config(engine="fused", perturbation=0.1), train)
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="perturbation moves the embeddings"):
        make_engine(config(scorer="lightgcn", learn_beta=False, perturbation=0.1), train)
