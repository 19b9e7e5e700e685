"""A pool of uniform candidates, from which a sampler then chooses."""

from __future__ import annotations

from srns import rng
from srns.samplers.base import Array
from srns.samplers.unseen import Unseen


def uniform_pool(unseen: Unseen, users: Array, rows: tuple[Array, Array], size: int, first_draw: int = 0) -> Array:
    """`size` unseen items of each of `users` (B,), uniform and with replacement, by the draws of `rows` from `first_draw` on:
    (B, size)."""
    xp = unseen.xp
    draws = first_draw + xp.arange(size, dtype=xp.int64)[None, :]
    counts = xp.take(unseen.counts, users, axis=0)[:, None]
    return unseen.at(users[:, None], rng.below(rng.bits((rows[0][:, None], rows[1][:, None]), draws), counts))
