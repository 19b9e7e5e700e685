"""What is left of a step beside products of matrices and Adam where positives share their negatives: the loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srns.kernels.compiler import compiled
from srns.kernels.elementary import ONE, exp_of_lanes, float32, log_of_lanes
from srns.kernels.lanes import LANES, fabs, larger, load, spread, store, total, where

Floats = NDArray[np.float32]


@compiled()
def shared_bpr(positive: Floats, scores: Floats, weight: Floats, counts: Floats, loss: Floats, to_positive: Floats) -> None:
    """`srns.losses.bpr` with weights weight (B, K) * counts (1, K), K a multiple of LANES: writes loss (B,) and its slope by
    the positives' scores (B,), and replaces the negatives' scores (B, K) by the slopes by them."""
    zero, one = spread(float32(0)), spread(ONE)
    for b in range(scores.shape[0]):
        together = zero
        for k in range(0, scores.shape[1], LANES):
            together = together + load(weight, b, k) * load(counts, 0, k)
        weights = total(together)
        unit, here = spread(ONE / weights if weights > 0 else float32(0)), spread(positive[b])
        lost, pulled = zero, zero
        for k in range(0, scores.shape[1], LANES):
            margin, share = load(scores, b, k) - here, load(weight, b, k) * load(counts, 0, k) * unit
            small = exp_of_lanes(zero - fabs(margin))
            slope = share * (where(margin > zero, one, small) / (one + small))
            lost = lost + share * (larger(margin, zero) + log_of_lanes(one + small))
            pulled = pulled + slope
            store(scores, b, k, slope)
        loss[b], to_positive[b] = total(lost), -total(pulled)
