"""What an experimenter knows and the model does not: positives that are missing from the training data."""

from __future__ import annotations

from typing import NamedTuple

from srns.interactions import Interactions


class Noise(NamedTuple):
    """False negatives to inject (paper, appendix C.3): one slot of a user's memory always holds one of the user's `hidden`
    positives, drawn at random; no other slot ever holds one, nor one of `excluded`."""

    hidden: Interactions
    excluded: Interactions


class Truth(NamedTuple):
    """Known `positives` outside train, whose choice as negatives is a label error, and the `noise` to inject, if any."""

    positives: Interactions | None = None
    noise: Noise | None = None
