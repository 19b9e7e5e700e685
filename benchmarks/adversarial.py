"""Time of a step of training with the adversarial samplers against that of its bare arithmetic, in one run.

    SRNS_DATA=../shared/data python benchmarks/adversarial.py [--dataset ml-1m-paper] [--steps 30] [--out FILE]

A step is all that the plain engine does with a batch by the paper's settings: negatives, the loss, for AdvIR also that at
perturbed embeddings, what the generator learns from it, and dense Adam over both models. The arithmetic is the same written out
in NumPy and SciPy, with nothing of this package, for negatives and candidates that are given: of IRGAN's generator three
products of (B, F), (F, |I|) and the exponentials of (B, |I|); of one with candidates the gathering of (B, N, F) and three
products with it; sums of rows by user and item as products with sparse matrices of ones. So drawing, what users have seen, and
all that surrounds the arithmetic count in the first alone. Prints processor time per step of both, and their ratio (limit: 3).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits
from train_data import train_part

from srns.engines import make_engine
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import environment

BATCH, LIMIT, WARM = 1024, 3, 2
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
Tables = dict[str, NDArray[np.float32]]


def training(engine: Any) -> Callable[[Batch], None]:
    """A step of the package."""
    engine.sampler.begin_epoch(0, engine.model)

    def step(batch: Batch) -> None:
        engine._step(*batch, engine.sampler.sample(*batch, engine.model, 0))

    return step


class Adam:
    """Over whole tables, by array expressions."""

    def __init__(self, tables: Tables, rate: float) -> None:
        self.tables, self.rate, self.steps = tables, rate, 0
        self.first, self.second = ({name: np.zeros_like(table) for name, table in tables.items()} for _ in range(2))

    def step(self, slopes: Tables) -> None:
        self.steps += 1
        rate = np.float32(self.rate * math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps))
        for name, slope in slopes.items():
            first, second = self.first[name], self.second[name]
            first += np.float32(0.1) * (slope - first)
            second += np.float32(0.001) * (slope * slope - second)
            self.tables[name] -= rate * first / (np.sqrt(second) + np.float32(1e-8))


def summed(rows: NDArray[np.float32], ids: NDArray[np.int64], n: int) -> NDArray[np.float32]:
    """(n, F): the sum of the rows (B, F) of each of `ids` (B,)."""
    ones = np.ones(len(ids), np.float32)
    return np.asarray(sparse.csr_array((ones, (ids, np.arange(len(ids)))), shape=(n, len(ids))) @ rows)


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-30))


def arithmetic(engine: Any, train: Interactions) -> Callable[[Batch], None]:
    """A step without the package, from the parameters that it begins with."""
    config, sampler = engine.config, engine.config.make_sampler()
    size, temperature = getattr(sampler, "candidates", 0), np.float32(sampler.temperature)
    l2, epsilon = np.float32(config.l2_for(train.whole.n, train.whole.n_active)), np.float32(config.perturbation)
    start = {name: np.array(tensor) for name, tensor in engine.model.tensors().items()}
    model = Adam(start, config.learning_rate)
    generator = Adam({"users": start["users"] * start["beta"], "items": start["items"].copy()}, sampler.generator_learning_rate)
    given = np.random.default_rng(0).integers(0, train.n_items, (BATCH, max(1, size)))  # the first of them is the negative

    def slopes_at(p_u: Any, q_i: Any, q_j: Any) -> tuple[Any, Any, tuple[Any, Any, Any], Any]:
        """P_pos, and slopes of BPR by the rows and by beta."""
        beta = model.tables["beta"]
        gap = ((q_j - q_i) * p_u) @ beta
        p_pos = 1 / (1 + np.exp(-gap))
        loss, pull = np.logaddexp(np.float32(0), gap), p_pos[:, None] * (q_j - q_i)
        push = p_pos[:, None] * (beta * p_u)
        return loss, p_pos, (beta * pull, -push, push), np.sum(p_u * pull, axis=0)

    def among_all(users: Any, negatives: Any, advantage: Any) -> Tables:
        vectors, items = generator.tables["users"][users], generator.tables["items"]
        scores = (vectors / temperature) @ items.T
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        share = (advantage / weights.sum(axis=1))[:, None]
        to_users = advantage[:, None] * items[negatives] - share * (weights @ items)
        to_items = summed(advantage[:, None] * vectors, negatives, len(items)) - weights.T @ (share * vectors)
        return {"users": -summed(to_users, users, train.n_users), "items": -to_items}

    def among_candidates(users: Any, candidates: Any, advantage: Any) -> Tables:
        vectors, factors = generator.tables["users"][users], generator.tables["items"][candidates]
        scores = np.einsum("bf,bnf->bn", vectors, factors) / temperature
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        pull = -weights * (advantage / weights.sum(axis=1))[:, None]
        pull[:, 0] += advantage
        to_items = (pull[:, :, None] * vectors[:, None]).reshape(-1, vectors.shape[1])
        to_users = np.einsum("bn,bnf->bf", pull, factors)
        items = summed(to_items, candidates.ravel(), train.n_items)
        return {"users": -summed(to_users, users, train.n_users), "items": -items}

    def step(batch: Batch) -> None:
        users, positives = batch
        candidates = given[: len(users)]
        negatives = candidates[:, 0]
        rows = model.tables["users"][users], model.tables["items"][positives], model.tables["items"][negatives]
        loss, p_pos, slopes, to_beta = slopes_at(*rows)
        advantage = (p_pos - p_pos.mean()) / temperature
        generator.step((among_candidates if size else among_all)(users, candidates if size else negatives, advantage))
        if epsilon:
            loss_there, _, there, to_beta_there = slopes_at(*(r + epsilon * unit(s) for r, s in zip(rows, slopes, strict=True)))
            loss, to_beta = loss + loss_there, to_beta + to_beta_there
            slopes = slopes[0] + there[0], slopes[1] + there[1], slopes[2] + there[2]
        to_user, to_positive, to_negative = (slope + l2 * row for slope, row in zip(slopes, rows, strict=True))
        of_items, ids = np.concatenate([to_positive, to_negative]), np.concatenate([positives, negatives])
        by_row = {"users": summed(to_user, users, train.n_users), "items": summed(of_items, ids, train.n_items)}
        model.step({**by_row, "beta": to_beta})
        float(loss.sum())

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    train = train_part(options.dataset)
    order = np.random.default_rng(0).permutation(len(train))
    rows = []
    for name in ("irgan", "rns_as", "advir"):
        engine = make_engine(make_config({"sampler": name}, preset="paper-ml-1m"), train)
        steps = {"arithmetic": arithmetic(engine, train), "training": training(engine)}
        times: dict[str, list[float]] = {kind: [] for kind in steps}
        for number in range(options.steps + WARM):
            batch = order[number * BATCH % (len(order) - BATCH) :][:BATCH]
            pair = train.users[batch].astype(np.int64), train.items[batch].astype(np.int64)
            for kind, step in steps.items():  # in turn, so that a busy moment of the machine hits both
                start = time.process_time()
                with threadpool_limits(1, "blas"):  # as engines have it
                    step(pair)
                times[kind].append(time.process_time() - start)
        ours, bare = (1e3 * float(np.median(times[kind][WARM:])) for kind in ("training", "arithmetic"))
        print(f"{name}: training {ours:.2f} ms, its arithmetic {bare:.2f} ms per step: ratio {ours / bare:.2f} (limit {LIMIT})")
        rows.append({"sampler": name, "training_ms": ours, "arithmetic_ms": bare, "ratio": ours / bare})
    if options.out is not None:
        record = {"dataset": options.dataset, "steps": options.steps, "batch": BATCH, "limit": LIMIT}
        options.out.write_text(json.dumps({**record, "environment": environment(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
