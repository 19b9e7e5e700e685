"""What tests share: a small world, the folder of real data, where there is one, and how two engines are compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srns.interactions import Interactions
from srns.simulation import simulate
from srns.splits import Split, make_split


@pytest.fixture(scope="session")
def world() -> Split:
    """A small simulated world, split leave-one-out."""
    return make_split(simulate(n_users=120, n_items=90, n_interactions=2_400, seed=3).interactions)


@pytest.fixture(scope="session")
def train(world: Split) -> Interactions:
    return world.train


@pytest.fixture
def shared_data() -> Path:
    """The folder named by SRNS_DATA; tests that need it are skipped, saying so, where it is missing."""
    folder = Path(os.environ.get("SRNS_DATA", "") or "absent")
    if not (folder / "ml-1m-paper.npz").exists():
        pytest.skip("SRNS_DATA does not name a folder with ml-1m-paper.npz")
    return folder


TrainAlike = Callable[[Any, Any, float], dict[str, Any]]


@pytest.fixture(scope="session")
def train_alike() -> TrainAlike:
    """A check that the fused and the plain engine lose the same over three epochs and reach the same parameters; returns those
    they started from."""

    def check(fused: Any, plain: Any, tolerance: float) -> dict[str, Any]:
        start = {name: tensor.copy() for name, tensor in plain.model.tensors().items()}
        for epoch in range(3):
            assert fused.run_epoch(epoch) == pytest.approx(plain.run_epoch(epoch), rel=tolerance)
        for name, tensor in plain.model.tensors().items():
            moved = float(np.abs(tensor - start[name]).max())
            error = np.abs(fused.model.tensors()[name] - tensor)
            assert np.median(error) <= 1e-4 * moved, name
            assert error.max() <= 0.02 * moved, name
        return start

    return check
