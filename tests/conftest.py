"""What tests share: the folder of real data, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

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
