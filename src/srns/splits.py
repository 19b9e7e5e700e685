"""Second stage of the pipeline: which interactions train, which choose the model, which judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from srns.interactions import Int64, Interactions


@dataclass(frozen=True, eq=False)
class Split:
    """Train, valid and test interactions over one set of users and items.

    `negatives` (n_users, k) are the protocol's fixed negatives where the data bring some: row u holds the items that user
    u's valid and test item are ranked against. `hidden` maps a share sigma to the test positives that a noise experiment
    may draw as negatives. `notes` say what splitting had to decide (ties, missing times, users too short to split).
    """

    name: str
    train: Interactions
    valid: Interactions | None
    test: Interactions | None
    negatives: Int64 | None = None
    hidden: Mapping[float, Interactions] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
