"""Which pairs of a user and an item to ask about, so that few answers tell much about what every sampler draws.

Of pairs picked blindly most are never drawn: samplers draw for active users, who have more positives to draw beside, and many
prefer popular items. So users are picked by their number of positives; half of their items blindly, half by popularity. How
likely a pair was is known, and its answer is weighed by one over that (Horvitz and Thompson 1952), so that any sampler can be
judged by it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from srns.config import RunConfig
from srns.interactions import Interactions
from srns.runs import reading
from srns.samplers.popularity import PopularItems, Popularity, lengths_of
from srns.samplers.unseen import Unseen


def questions(data: Interactions, size: int, config: RunConfig, seed: int = 0) -> pl.DataFrame:
    """Up to `size` pairs that are not in `data`, in its ids, with what each stands for as `weight`, 1 in the mean.

    A pair that is picked twice is asked once, and stands for twice as much.
    """
    generator, power = np.random.default_rng([seed, 3]), Popularity().power
    users = data.users[generator.integers(len(data), size=size)].astype(np.int64)
    unseen, lengths = Unseen(data, np), lengths_of(data, power)
    blind = unseen.at(users, generator.integers(unseen.counts[users]))
    popular = PopularItems(data, power, np)(users[:, None], generator.integers(2**32, size=(size, 1))).ids[:, 0]
    items = np.where(np.arange(size) % 2 == 0, blind, popular)
    pairs, times = np.unique(users * data.n_items + items, return_counts=True)
    users, items = np.divmod(pairs, data.n_items)
    likely = data.user_counts[users] * (1 / unseen.counts[users] + np.diff(lengths.ends)[items] / lengths.unseen[users])
    weight = times / likely
    columns, _ = reading(config)
    return pl.DataFrame(
        {
            str(columns.get("user", "user")): data.user_ids.take(users),
            str(columns.get("item", "item")): data.item_ids.take(items),
            "weight": weight / weight.mean(),
        }
    )
