"""The trainings of an audit: which there are, and what they say together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srns.audit import DIFFICULTY, VARIANCE, Plan
from srns.audit.findings import Contestant, Findings, conclude
from srns.audit.hiding import hide, observed, read_answers
from srns.audit.trial import trial
from srns.config import RunConfig, sampler_fields
from srns.errors import ConfigError
from srns.experiments.study import Job, Store, Watcher
from srns.presets import make_config
from srns.samplers import SAMPLERS, SRNS

# The default recipe of SRNS learns from all of a memory, which leaves nothing to select. Here twice as many are remembered, and
# half of them taken, so that every contestant has 16 negatives per positive.
_HALF = {"sampler": SRNS.name, "memory_size": 32, "negatives": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    DIFFICULTY: {**_HALF, "strategy": "difficulty"},
    VARIANCE: {**_HALF, "strategy": "variance"},
}


def contestants(plan: Plan) -> list[Contestant]:
    """Every way to draw negatives that the plan compares, each checked."""
    if not plan.samplers:
        raise ConfigError("no sampler to audit")
    if plan.seeds < 1:
        raise ConfigError(f"seeds = {plan.seeds}: expected at least 1")
    of_samplers = sampler_fields()
    unknown = [name for name in plan.settings if name not in RunConfig.model_fields and name not in of_samplers]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not a field of a run")
    own = [name for name in ("sampler", "seed", "threads", "init", "noise") if name in plan.settings]
    if own:
        raise ConfigError(f"{own[0]!r} is decided by the audit itself; leave it out")
    found = []
    for name in dict.fromkeys(plan.samplers):
        values = VARIANTS.get(name, {"sampler": name})
        sampler = SAMPLERS.get(values["sampler"])
        if sampler is None:
            raise ConfigError(f"no sampler {name!r}; there are: {', '.join([*SAMPLERS, *VARIANTS])}")
        if not sampler.draws:
            raise ConfigError(f"sampler {name!r} draws no negatives: there is nothing to audit")
        common = {key: each for key, each in plan.settings.items() if key in {*RunConfig.model_fields, *sampler.model_fields}}
        values = {**common, **values}
        if name == VARIANCE:
            found += [
                Contestant(f"{name} {weight:g}", {**values, "variance_weight": weight}, weight)
                for weight in plan.variance_weights
            ]
        else:
            found.append(Contestant(name, values, 0.0 if name == DIFFICULTY else None))
    for contestant in found:
        config = make_config(dict(contestant.values))
        if not config.draws_negatives:
            raise ConfigError(f"scorer {config.scorer!r} draws no negatives: there is nothing to audit")
    return found


def audit(plan: Plan, store: Store, workers: int, watcher: Watcher) -> Findings:
    """Train what is not in `store` yet, so many side by side, and say what was found."""
    each = contestants(plan)
    config = make_config(dict(each[0].values))
    data = observed(plan.dataset, config)
    hide(data, plan.hide, 0)  # whatever is wrong with the data is said before any training
    digest = ""
    if plan.answers is not None:
        read_answers(Path(plan.answers), data, config)
        digest = hashlib.sha256(Path(plan.answers).read_bytes()).hexdigest()[:16]
    jobs = {contestant.name: _jobs(plan, contestant, digest) for contestant in each}
    found = store.complete([job for mine in jobs.values() for job in mine], workers, watcher)
    return conclude(each, {name: [found[job] for job in mine] for name, mine in jobs.items()})


def _jobs(plan: Plan, contestant: Contestant, digest: str) -> Sequence[Job]:
    return [
        Job.of(
            trial,
            f"{contestant.name} seed {seed}",
            dataset=plan.dataset,
            values=dict(contestant.values),
            share=plan.hide,
            seed=seed,
            answers=plan.answers,
            digest=digest,
        )
        for seed in range(plan.seeds)
    ]
