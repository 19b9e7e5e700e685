"""In-batch negatives with their correction (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
Recommendations", RecSys 2019).

The positives of a batch are the negatives of each other: all B of them are shared, and those that a user has interacted with,
the positive itself among them, count nothing for that user (removal of accidental hits, weight 0). An item is drawn as often as
it occurs: q_j is its share of all interactions, and `log_q` lets the loss softmax correct for it (`--log-q`), with r_uj -
log((B - 1) q_j) in place of r_uj: the positive of its own is no draw.

Cost per positive: B scores, of rows that the batch has read anyway.

Departures: negatives alone are corrected, the positive is not, which the original corrects too; shares are counted over the
training data, where the original estimates them from a stream; all items of a user are removed, not the one positive alone; a
positive whose user has interacted with all of its batch teaches nothing but the pull of L2. Batches of the last few
interactions of an epoch have fewer negatives.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import ClassVar

import numpy
import numpy as np

from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.seen import Seen
from srns.samplers.unseen import require_unseen


class InBatch(Sampler):
    """The other positives of the batch, without those the user has interacted with. How many there are is `batch_size`.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> drawn = InBatch().start(train, seed=0).sample(train.users, train.items, score=lambda users, items: items, step=0)
    >>> drawn.ids.tolist(), drawn.weight[0].tolist()
    ([[0, 1, 1, 2, 0]], [0.0, 0.0, 0.0, 1.0, 0.0])
    """

    name: ClassVar[str] = "in_batch"
    cost: ClassVar[str] = "B T"
    knows_log_q: ClassVar[bool] = True
    one_rank: ClassVar[bool] = True

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> InBatchState:
        return InBatchState(train, xp)


class InBatchState(SamplerState):
    def __init__(self, train: Interactions, xp: ModuleType) -> None:
        require_unseen(train)
        self._seen = Seen(train, xp)
        counts = np.maximum(train.whole.item_counts, 1)  # an item without interactions is in no batch
        self._log_q = xp.asarray(np.log(counts / max(1, train.whole.n)).astype(np.float32))

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp = self._seen.xp
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        n = positives.shape[0]
        log_q = xp.take(self._log_q, positives, axis=0) + math.log(max(n - 1, 1) / n)  # all but one's own are draws
        return Negatives(positives[None, :], log_q[None, :], self._seen.unseen_weight(users, positives))
