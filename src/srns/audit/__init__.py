"""How often a sampler takes for a negative what a user likes, on data of one's own; what `srns audit` does.

    positives -> some are hidden -> train with each sampler on the rest -> how often were the hidden ones drawn as negatives?

Hidden positives are false negatives that somebody knows of. How often a sampler draws them, beside what chance would do, needs
no assumption. How many false negatives there are in all cannot be told from interactions alone (docs/audit.md): with `answers`
of users about items picked at random it can, and is measured too.

    questions   which pairs to ask users about
    hiding      what is hidden, and what users answered
    trial       one training, and what it drew
    findings    ratios with intervals, comparisons, a recommendation
    sweep       which trainings there are, and all of them together
    words, page what was found, for people
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DIFFICULTY, VARIANCE = "srns-difficulty", "srns-variance"


@dataclass(frozen=True)
class Plan:
    """What to audit. `samplers` are names of samplers or `srns-difficulty` and `srns-variance`, which select from a memory by
    score alone, and by score and variance with each of `variance_weights`. `hide` is the share of positives that is hidden,
    `settings` are fields of a run that hold for all, `answers` a table of user, item and liked."""

    dataset: str
    samplers: tuple[str, ...] = ("uniform", "popularity", "dns", DIFFICULTY, VARIANCE)
    variance_weights: tuple[float, ...] = (1.0, 5.0, 20.0)
    hide: float = 0.2
    seeds: int = 3
    answers: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
