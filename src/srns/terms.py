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
from srns.samplers import SRNS, Noise, Truth
from srns.scorers import WITHOUT_NEGATIVES
from srns.splits import Split

# A run may be resumed with other values of these: they decide how long it goes on and how it is run, not what it computes.
RESUMABLE = ("epochs", "patience", "threads", "checkpoint_epochs", "checkpoint_minutes", "device")


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


def idle(config: RunConfig) -> list[str]:
    """The fields of model and learning that decide nothing, since the method draws no negatives."""
    if (fields := WITHOUT_NEGATIVES.get(config.scorer)) is not None:
        return [name for name in config.fields(MODEL, LEARNING) if name not in ("scorer", "seed", "epochs", *fields)]
    return [] if config.draws_negatives else ["loss", "margin", "perturbation"]


def without_effect(config: RunConfig) -> list[str]:
    """Say so where settings were changed that decide nothing: of a sampler that is not used, or that has nothing to select."""
    sampler = config.make_sampler()
    if not config.draws_negatives:
        kind = "scorer" if config.scorer in WITHOUT_NEGATIVES else "sampler"
        unused = [name for name in config.changed(MODEL, LEARNING) if name in idle(config)]
        why = f"since {kind} {getattr(config, kind)!r} draws no negatives"
        return [f"without effect: {', '.join(unused)}, {why}"] if unused else []
    if sampler.name == "advir" and not config.perturbation:
        return ["sampler 'advir' without perturbation is 'rns_as'; the paper perturbs by .01: --perturbation 0.01"]
    if not isinstance(sampler, SRNS) or sampler.n_negatives < sampler.memory_size:
        return []
    names = ("strategy", "variance_weight", "warmup", "warmup_epochs")
    changed = [name for name in names if getattr(sampler, name) != SRNS.model_fields[name].default]
    advice = f"all of a memory is used; set negatives below memory_size ({sampler.memory_size}) to select from it"
    return [f"without effect: {', '.join(changed)}, since {advice}"] if changed else []


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
