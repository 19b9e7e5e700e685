"""The terms of a run, settled before it trains: what it may be resumed with, how it is validated, which settings decide
nothing, what it may know of false negatives, and whom it can learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from srns.config import LEARNING, MODEL, RunConfig
from srns.errors import ConfigError
from srns.evaluation import Protocol
from srns.interactions import Interactions
from srns.ranks import Ranks
from srns.samplers import SAMPLERS, SRNS, Noise, Truth
from srns.samplers.advir import AdvIR
from srns.samplers.dns import Softmax
from srns.samplers.in_batch import InBatch
from srns.scorers import GMF, WITHOUT_NEGATIVES
from srns.splits import Split

# A run may be resumed with other values of these: they decide how long it goes on and how it is run, not what it computes.
RESUMABLE = ("epochs", "patience", "threads", "checkpoint_epochs", "checkpoint_minutes", "device")

# Fields that matter with one value of another.
ONLY_WITH = {
    "hidden_layers": ("scorer", "mlp"),
    "propagation_layers": ("scorer", "lightgcn"),
    "confidence": ("scorer", "als"),
    "margin": ("loss", "hinge"),
}
RECIPE = ("loss", "negatives", "memory_size", "temperature")  # of SRNS, what its best temperature was measured with
FEW_POSITIVES = 40  # per user: with 33 temperature 1 was better than the default, with 93 it was not (docs/results.md)
OF_VARIANCE = ("variance_weight", "warmup", "warmup_epochs")  # what decides nothing where SRNS does not select by variance
OF_PAST = ("history", "history_epochs", "candidates_size")  # what decides nothing where it looks at no earlier epoch


def check_resumable(config: RunConfig, saved: dict[str, Any], where: Path) -> None:
    """Refuse to go on with a run under another configuration, naming the first field that differs."""
    now = config.model_dump(mode="json")
    fixed = () if config.schedule == "constant" else ("epochs",)
    own = type(config).model_fields  # before those of the sampler, all of which differ where the sampler does
    kinds = ("scorer", "sampler", "loss")
    for name in sorted(
        now.keys() | saved.keys(), key=lambda name: (name not in kinds, name not in own, name in RESUMABLE, name)
    ):
        if name == "engine" and "auto" in (now.get(name), saved.get(name)):
            continue  # the checkpoint says which it was
        if (name not in RESUMABLE or name in fixed) and now.get(name) != saved.get(name):
            reason = f": schedule {config.schedule!r} is laid out over all epochs" if name in fixed else ""
            raise ConfigError(
                f"{where} was started with {name} = {saved.get(name)!r}, not {now.get(name)!r}; "
                f"resume with the same values{reason}"
            )


def resolve_protocol(config: RunConfig, split: Split) -> Protocol:
    """What "auto" means for this split."""
    if config.protocol != "auto":
        return config.protocol
    return "full" if split.negatives is None else "paper"


def idle(config: RunConfig) -> dict[str, str]:
    """The fields of model and learning that decide nothing in this run, and why."""
    if (fields := WITHOUT_NEGATIVES.get(config.scorer)) is not None:
        used = ("scorer", "seed", "epochs", *fields)
        reason = f"scorer {config.scorer!r} has no use for it"
        return {name: reason for name in config.fields(MODEL, LEARNING) if name not in used}
    found = {
        name: f"{field} is {getattr(config, field)!r}"
        for name, (field, value) in ONLY_WITH.items()
        if getattr(config, field) != value
    }
    if not config.draws_negatives:
        return found | dict.fromkeys(("loss", "margin", "perturbation"), f"sampler {config.sampler!r} draws no negatives")
    sampler = config.make_sampler()
    if isinstance(sampler, SRNS) and sampler.n_negatives >= sampler.memory_size:
        reason = f"all of a memory is used; set negatives below memory_size ({sampler.memory_size}) to select from it"
        found |= dict.fromkeys(("strategy", *OF_VARIANCE, *(() if sampler.needs_past else OF_PAST)), reason)
    elif isinstance(sampler, SRNS) and not sampler.uses_variance:
        found |= dict.fromkeys(OF_VARIANCE, f"strategy is {sampler.strategy!r}")
    elif isinstance(sampler, Softmax) and sampler.hardness:
        found["temperature"] = "hardness takes its place"
    return found


def advice(config: RunConfig, started: bool) -> list[str]:
    """Say so where settings were changed that decide nothing, and where what makes a method is left out: for some that is a
    trained model to have `started` from."""
    changed, unused = config.changed(MODEL, LEARNING), dict[str, list[str]]()
    for name, reason in idle(config).items():
        if name in changed:
            unused.setdefault(reason, []).append(name)
    notes = [f"without effect: {', '.join(names)}, since {reason}" for reason, names in unused.items()]
    if not config.draws_negatives:
        return notes
    if SAMPLERS[config.sampler].learns and not started:
        notes.append(
            f"sampler {config.sampler!r} starts at random; as published, from a model of uniform negatives: --init RUN"
        )
    if config.sampler == AdvIR.name and not config.perturbation:
        alone = "sampler 'advir' without perturbation is 'rns_as' by other random numbers"
        notes.append(f"{alone}; the paper perturbs by .01: --perturbation 0.01")
    if config.sampler == InBatch.name and config.loss == "softmax" and not config.log_q:
        notes.append("sampler 'in_batch' without its correction takes popular items for worse than they are: --log-q")
    return notes


def temperature_advice(config: RunConfig, positives: float) -> list[str]:
    """Say so where users have so few `positives` each that the default recipe was mostly better at a lower temperature."""
    recipe = config.scorer == GMF.name and config.sampler == SRNS.name and not {*RECIPE} & {*config.changed(MODEL, LEARNING)}
    if not recipe or positives >= FEW_POSITIVES:
        return []
    return [
        f"users have {positives:.1f} positives each; on most such data temperature 1 was better than 2: try --temperature 1"
    ]


def truth_of(config: RunConfig, split: Split) -> Truth:
    """The positives outside train that the run may know of: those of a noise experiment, else those of valid; never those of
    test."""
    if config.noise is None:
        return Truth(split.valid)
    if config.sampler != SRNS.name:
        raise ConfigError(f"noise is fed to the memories of sampler {SRNS.name!r}; sampler {config.sampler!r} has none")
    nobody = split.train.select(np.zeros(len(split.train), np.bool_))
    hidden = {0.0: nobody, **split.hidden}
    if config.noise not in hidden:
        known = ", ".join(f"{sigma:g}" for sigma in sorted(split.hidden)) or "none; `srns.hide_positives` makes some"
        raise ConfigError(f"the data bring no hidden positives for noise = {config.noise:g}; sigmas they bring: {known}")
    return Truth(hidden[config.noise], Noise(hidden[config.noise], split.test or nobody))


def learnable(train: Interactions, ranks: Ranks, draws_negatives: bool) -> tuple[Interactions, list[str]]:
    """Leave out users who have touched every item, where negatives are drawn: none exists for them."""
    saturated = (train.user_counts >= train.n_items) & draws_negatives
    left, users = ranks.sum(np.array([np.count_nonzero(~saturated[train.users]), saturated.sum()]))
    if left == 0:
        raise ConfigError("nothing to learn from: no training interaction of a user who has left any item untouched")
    if users == 0:
        return train, []
    note = f"left out {int(users):,} users who have interacted with every item: no negative exists for them"
    return ranks.placed(train.select(~saturated[train.users])), [note]
