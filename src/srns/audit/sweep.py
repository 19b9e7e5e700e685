"""The trainings of an audit: which there are, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from srns.artifacts import file_digest
from srns.audit import DIFFICULTY, VARIANCE, Plan
from srns.audit.findings import Contestant, Findings, conclude
from srns.audit.hiding import hide, observed, read_answers
from srns.audit.trial import trial
from srns.config import RunConfig, sampler_fields
from srns.errors import ConfigError
from srns.experiments.store import Job, Store, Watcher
from srns.presets import make_config
from srns.samplers import SAMPLERS, SRNS, Uniform
from srns.samplers.pool import PoolSampler

# The default recipe of SRNS learns from all of a memory, which leaves nothing to select. Here twice as many are remembered as
# are taken.
VARIANTS = {DIFFICULTY: "difficulty", VARIANCE: "variance"}
SHARE_TAKEN = 4  # of so many candidates one is taken, as samplers that take the best of candidates do unless told otherwise
DECIDED = {  # fields that --set cannot change, and why
    **dict.fromkeys(("sampler", "seed", "threads", "init", "noise"), "the audit itself decides it"),
    **dict.fromkeys(("memory_size", "strategy"), "the audit itself decides it, so that all samplers have as many negatives"),
    "variance_weight": "the audit compares several: name them with --variance-weight",
    **dict.fromkeys(("split", "split_seed", "valid_share"), "an audit hides positives instead: see --hide"),
    "protocol": "an audit ranks all items",
    "ks": "an audit measures nothing but `metric`",
    **dict.fromkeys(("checkpoint_epochs", "checkpoint_minutes"), "an audit keeps finished trainings alone"),
}


def contestants(plan: Plan) -> list[Contestant]:
    """Every way to draw negatives that the plan compares, each checked, from plain to elaborate whatever their order there."""
    if not plan.samplers:
        raise ConfigError("no sampler to audit")
    if plan.seeds < 1:
        raise ConfigError(f"seeds = {plan.seeds}: expected at least 1")
    found = []
    for name in dict.fromkeys(plan.samplers):
        sampler = SRNS if name in VARIANTS else SAMPLERS.get(name)
        if sampler is None:
            raise ConfigError(f"no sampler {name!r}; there are: {', '.join([*SAMPLERS, *VARIANTS])}")
        if not sampler.draws:
            raise ConfigError(f"sampler {name!r} draws no negatives: there is nothing to audit")
        found += [
            Contestant(
                name if weight is None or name == DIFFICULTY else f"{name} {weight:g}", {"sampler": sampler.name}, weight
            )
            for weight in {DIFFICULTY: (0.0,), VARIANCE: plan.variance_weights}.get(name, (None,))
        ]
    _check_settings(plan.settings, found)
    found = [replace(each, values={**_settings(plan.settings, each), **each.values}) for each in found]
    for each in found:
        try:
            config = make_config(dict(each.values))
        except ConfigError as error:
            raise ConfigError(f"{each.name}: {error}") from None
        if not config.draws_negatives:
            raise ConfigError(f"scorer {config.scorer!r} draws no negatives: there is nothing to audit")
    return sorted(found, key=_elaborateness)


def _check_settings(settings: Mapping[str, Any], found: Sequence[Contestant]) -> None:
    of_samplers = sampler_fields()
    for name in settings:
        if name not in RunConfig.model_fields and name not in of_samplers:
            raise ConfigError(f"{name!r} is not a field of a run")
        if name in DECIDED:
            raise ConfigError(f"{name!r} cannot be set in an audit: {DECIDED[name]}")
        if name not in RunConfig.model_fields and not {each.values["sampler"] for each in found} & of_samplers[name].keys():
            raise ConfigError(
                f"{name!r} is a field of none of the samplers that are audited, but of {', '.join(of_samplers[name])}"
            )


def _settings(settings: Mapping[str, Any], contestant: Contestant) -> dict[str, Any]:
    """What is set for all, and as many negatives for every sampler that lets one choose: else the number would be compared."""
    sampler = SAMPLERS[contestant.values["sampler"]]
    asked = {name: settings[name] for name in ("negatives",) if name in settings}
    negatives = make_config({"sampler": Uniform.name, **asked}).make_sampler().n_negatives
    values: dict[str, Any] = {"negatives": negatives}
    if contestant.variance_weight is not None:
        strategy = DIFFICULTY if contestant.name == DIFFICULTY else VARIANCE
        values |= {"memory_size": 2 * negatives, "strategy": VARIANTS[strategy]}
        values |= {"variance_weight": contestant.variance_weight} if strategy == VARIANCE else {}
    elif sampler is SRNS:
        values |= {"memory_size": negatives}
    elif issubclass(sampler, PoolSampler):
        values |= {"candidates": SHARE_TAKEN * negatives}
    values |= {name: value for name, value in settings.items() if name != "negatives"}
    return {name: value for name, value in values.items() if name in {*RunConfig.model_fields, *sampler.model_fields}}


def _elaborateness(contestant: Contestant) -> tuple[int, int, float]:
    """Samplers are sorted by this: first those without a memory and a model of their own, as `SAMPLERS` lists them; then SRNS,
    by what is weighed; then those that learn."""
    sampler = SAMPLERS[contestant.values["sampler"]]
    kind = 2 if sampler.learns else 1 if sampler is SRNS else 0
    return kind, list(SAMPLERS).index(sampler.name), -1.0 if contestant.variance_weight is None else contestant.variance_weight


def audit(plan: Plan, store: Store, workers: int, watcher: Watcher) -> Findings:
    """Train what is not in `store` yet, so many side by side, and say what was found."""
    each = contestants(plan)
    config = make_config(dict(each[0].values))
    data = observed(plan.dataset, config)
    hide(data, plan.hide, 0)  # whatever is wrong with the data is said before any training
    digest = ""
    if plan.answers is not None:
        read_answers(Path(plan.answers), data, config)
        digest = file_digest(Path(plan.answers))[:16]
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
