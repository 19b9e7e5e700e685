"""What benchmarks train on: a named data set or, where it is not here, a simulated one of the size of ML-1m."""

from __future__ import annotations

import srns
from srns.interactions import Interactions


def train_part(name: str) -> Interactions:
    try:
        loaded = srns.load(name)
        return loaded if isinstance(loaded, Interactions) else loaded.train
    except srns.DataError:
        print(f"no data set {name!r} here (SRNS_DATA?): simulating one of the size of ml-1m")
        return srns.simulate(6028, 3533, 563_186).interactions
