"""The counts of `srns.experiments.table2`, apart from what it makes of them, so that changing that does not discard them."""

from __future__ import annotations

from typing import Any

from srns.errors import DataError
from srns.presets import make_config
from srns.runs import prepare


def count(dataset: str, values: dict[str, Any]) -> dict[str, Any]:
    """How many users, items and interactions; null with a reason where the data are not at hand."""
    try:
        split = prepare(dataset, make_config(values))
    except DataError as error:
        return {"dataset": dataset, "missing": str(error)}
    noise = len(split.hidden[max(split.hidden)]) if split.hidden else None
    sizes = [None if part is None else len(part) for part in (split.train, split.valid, split.test)]
    return {"dataset": dataset, "counts": [split.train.n_users, split.train.n_items, *sizes, noise]}
