"""The runs of `srns.experiments.table1`, apart from what it makes of them, so that changing that does not discard them."""

from __future__ import annotations

from typing import Any

from srns.experiments.sampler_costs import cells


def measure(sampler: str) -> dict[str, Any]:
    return {"cells": [list(cell) for cell in cells([sampler])]}
