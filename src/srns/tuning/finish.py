"""The end of a search: its winner and the recipe it started from are trained in full, and compared on test data, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srns.artifacts import RUN
from srns.config import RunConfig
from srns.evaluation import Evaluation, evaluate, paired_bootstrap
from srns.interruptions import interruptions
from srns.recommender import Recommender
from srns.runs import train_run
from srns.terms import resolve_protocol
from srns.trainer import Callback


@dataclass(frozen=True)
class Finalist:
    """A configuration to be measured on test, and the name of its folders."""

    name: str
    config: RunConfig


def compare(
    data: str, folder: Path, winner: Finalist, default: Finalist, seeds: int, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Train both with so many seeds, each a run folder of its own, and what the winner is ahead of the default user by user.

    With several seeds, a user counts with the mean over them. Where the winner is the default, there is nothing to compare.
    """
    finalists = {each.name: each for each in (winner, default)}
    runs = {name: _train(data, folder, each, seeds, callbacks) for name, each in finalists.items()}
    first = winner.config
    found = {name: _measured(folders, first) for name, folders in runs.items()}
    answer: dict[str, Any] = {
        "winner": winner.name,
        "runs": {name: [str(path) for path in folders] for name, folders in runs.items()},
        "seeds": [first.seed + number for number in range(seeds)],
    }
    one, other = found[winner.name], found[default.name]
    if one is None or other is None:  # data without a test part
        return answer
    answer |= {"protocol": one.protocol, "users": len(one.users), "metrics": dict(one), "default": dict(other)}
    if winner.name != default.name:
        answer["difference"] = {name: vars(paired_bootstrap(one, other, name)) for name in one.per_user}
    return answer


def _train(data: str, folder: Path, finalist: Finalist, seeds: int, callbacks: Sequence[Callback]) -> list[Path]:
    folders = []
    for seed in range(finalist.config.seed, finalist.config.seed + seeds):
        out = folder / f"{finalist.name}-seed{seed}"
        config = finalist.config.model_copy(update={"seed": seed})
        for callback in callbacks:
            callback.on_message(f"training {finalist.name} with seed {seed}, for test data")
        with interruptions() as interrupted:
            train_run(data, config, out=out, resume=(out / RUN).exists(), callbacks=callbacks)
        if interrupted:  # in the last epoch
            raise KeyboardInterrupt
        folders.append(out)
    return folders


def _measured(folders: Sequence[Path], asked: RunConfig) -> Evaluation | None:
    """Test metrics of the models in some folders, user by user the mean over them, as the searched recipe measures."""
    found: list[Evaluation] = []
    for folder in folders:
        model = Recommender.load(folder)
        split = model.split_
        if split.test is None or not len(split.test):
            return None
        ks = tuple(sorted({*asked.ks, int(asked.metric.partition("@")[2])}))
        found.append(evaluate(model.model_, split, on="test", protocol=resolve_protocol(asked, split), ks=ks))
    per_user = {name: np.mean([each.per_user[name] for each in found], axis=0) for name in found[0].per_user}
    means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
    return Evaluation(means, per_user=per_user, users=found[0].users, protocol=found[0].protocol, on="test")
