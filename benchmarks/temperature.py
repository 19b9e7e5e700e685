"""Which temperature suits the default recipe, by how many positives users have: ml-1m-paper, thinned.

    SRNS_DATA=../shared/data python benchmarks/temperature.py [--positives 5 10 20 40 0] [--temperatures 0.5 1 2 4] [--seeds 2]

Keeps so many random training positives of each user at the most (0: all), and prints validation NDCG@10 by full ranking,
means over seeds. Test is not looked at.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

import srns
from srns.presets import make_config
from srns.trainer import Trainer


def thinned(split: srns.Split, most: int) -> srns.Split:
    """The split with no more than so many training positives of each user."""
    if not most:
        return split
    users = split.train.users
    order = np.lexsort((np.random.default_rng(0).random(len(users)), users))
    place = np.empty(len(users), np.int64)  # of a row among those of its user
    place[order] = np.arange(len(users)) - np.searchsorted(users[order], users[order])
    return replace(split, train=split.train.select(place < most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positives", type=int, nargs="+", default=[5, 10, 20, 40, 0])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    split = srns.load("ml-1m-paper")
    assert isinstance(split, srns.Split)
    print("positives per user" + "".join(f"{f'temperature {each:g}':>18}" for each in options.temperatures))
    for most in options.positives:
        data = thinned(split, most)
        print(f"{len(data.train) / data.train.n_users:18.1f}", end="", flush=True)
        for temperature in options.temperatures:
            found = []
            for seed in range(options.seeds):
                config = make_config({"temperature": temperature, "protocol": "full", "seed": seed})
                model = Trainer(config, data).run().model
                found.append(srns.evaluate(model, data, on="valid", protocol="full", ks=(10,))["ndcg@10"])
            print(f"{np.mean(found):18.4f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
