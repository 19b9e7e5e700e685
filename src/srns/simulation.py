"""Data whose truth is known, beside the readers at the head of the pipeline: what users did, and what they would have liked.

A sampler of negatives should be judged by the false negatives it avoids, and real data do not name them. Here they do:

    affinity(u, i) = taste(u, i) + whim(u, i) + appeal(i) - bar(u)      above 0: the user would like the item
    shown(u, i)   ~  popularity(i) * sigmoid(tilt * affinity(u, i))
    observed       = shown and liked, or shown and clicked by mistake (`noise`)

`taste` is an inner product of latent factors, which a model can learn; `whim` is the part of liking that nobody can. Each
user is shown items until their share of the interactions is reached.
Nothing of size users x items is ever held: users are handled in blocks, each with random numbers of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtri

from srns.errors import ConfigError
from srns.ids import MAX_IDS, IdMap
from srns.interactions import Int32, Int64, Interactions

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

BLOCK = 1_000_000  # pairs proposed to the users handled together: fixed, since each block has its own random stream
ROUNDS = 6  # of proposals, before the users who are still short choose from the whole catalogue
TICKETS = 32  # entries of an item of mean popularity in the table from which items are shown
FEWEST = 10  # interactions of the least active user, where the mean is at least twice that
APPEAL = 0.25  # share of the variance of affinity across items that is the same for all users
START, SPAN = 874_724_710, 215 * 86_400  # first second and length of the period, those of MovieLens-100k


@dataclass(frozen=True, eq=False)
class Taste:
    """Who likes what. Shapes: `users` (dim, n_users), `items` (dim, n_items), `appeal` (n_items,), `bar` (n_users,).

    `user_keys` (n_users,) and `item_keys` (n_items,), odd and random, make the whim of a pair without storing it.
    """

    users: Float32
    items: Float32
    appeal: Float32
    bar: Float32
    user_keys: NDArray[np.uint64]
    item_keys: NDArray[np.uint64]
    whim: np.float32

    def affinity(self, users: ArrayLike, items: ArrayLike) -> Float32:
        """How much each user likes each item, 0 being indifference; dense ids, shapes broadcast."""
        user, item = np.asarray(users), np.asarray(items)
        score = self.appeal[item] - self.bar[user]
        # Factor by factor: the same bits for any shape and number of threads, which a BLAS product does not promise.
        for of_user, of_item in zip(self.users, self.items, strict=True):
            score = score + of_user[user] * of_item[item]
        # The upper half of the product of two random odd numbers is as good as random; the sum of its two 16-bit parts has
        # a triangular distribution, which is near enough to a normal one.
        mixed = np.multiply(self.user_keys[user], self.item_keys[item])
        triangular = ((mixed >> np.uint64(48)) + ((mixed >> np.uint64(32)) & np.uint64(0xFFFF))).astype(np.float32)
        return np.asarray(score + self.whim * (triangular / np.float32(65535) - 1))


@dataclass(frozen=True, eq=False)
class World:
    """Simulated interactions together with the taste that made them; all ids are the dense ids of `interactions`.

    >>> world = simulate(20, 30, 100)
    >>> world
    World(Interactions(20 users x 30 items, 100 interactions, with time), dim=8)
    >>> world.affinity([[0], [1]], [3, 4, 5]).shape
    (2, 3)
    >>> bool(world.interactions.contains(7, world.false_negatives(7)).any())
    False
    """

    interactions: Interactions
    taste: Taste

    def __repr__(self) -> str:
        return f"World({self.interactions!r}, dim={len(self.taste.users)})"

    def affinity(self, users: ArrayLike, items: ArrayLike) -> Float32:
        """How much each user likes each item, 0 being indifference; shapes broadcast."""
        return self.taste.affinity(users, items)

    def would_like(self, users: ArrayLike, items: ArrayLike) -> NDArray[np.bool_]:
        """Whether each user would like each item, seen or not; shapes broadcast."""
        return np.asarray(self.affinity(users, items) > 0)

    def false_negatives(self, user: int) -> Int64:
        """The items that one user would like and did not interact with, ascending."""
        liked = self.would_like(user, np.arange(self.interactions.n_items))
        liked[self.interactions.items_of(user)] = False
        return np.flatnonzero(liked)


def simulate(
    n_users: int = 943,
    n_items: int = 1682,
    n_interactions: int = 55_000,
    *,
    dim: int = 8,
    liked: float = 0.1,
    skew: float = 1.7,
    tilt: float = 2.0,
    noise: float = 0.02,
    whim: float = 0.35,
    seed: int = 0,
) -> World:
    """A world of exactly `n_interactions` observed pairs with times; the default resembles MovieLens-100k, ratings >= 4.

    `liked` is the share of the catalogue that a user would like (more for a user who interacts with more than that),
    `skew` the standard deviation of log popularity, `tilt` how far exposure follows affinity, `noise` the chance that an item
    shown is clicked though not liked, `whim` the share of affinity that no model can learn. No user interacts with more than
    half of the catalogue.

    >>> world = simulate(100, 200, 1_500)
    >>> world.interactions
    Interactions(100 users x 200 items, 1,500 interactions, with time)
    >>> world.interactions.item_ids.label(0)
    'i001'
    """
    _check_sizes(n_users=n_users, n_items=n_items, n_interactions=n_interactions, dim=dim)
    _check_ranges(liked=(liked, 0.01, 0.75), skew=(skew, 0, 5), tilt=(tilt, 0, 100), noise=(noise, 0, 1), whim=(whim, 0, 0.7))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be an integer of at least 0, found {seed!r}")
    rng = np.random.default_rng([seed, 0])
    counts = _activity(rng, n_users, n_items, n_interactions)
    share = np.clip(2 * counts / n_items, liked, 0.75)
    quality, fame = rng.standard_normal((2, n_items))
    taste = _taste(rng, dim, share, quality, whim)
    popularity = np.exp(skew * (0.5 * quality + math.sqrt(0.75) * fame))  # good items tend to be popular, but not always
    tickets = np.maximum(1, np.rint(TICKETS * popularity / popularity.mean())).astype(np.int64)
    crowd = _Crowd(taste, counts, share, tickets, np.repeat(np.arange(n_items, dtype=np.int32), tickets), tilt, noise)

    indptr = np.concatenate([[0], np.cumsum(counts)])
    items, time = np.empty(n_interactions, np.int32), np.empty(n_interactions, np.int64)
    for block, (first, last) in enumerate(crowd.blocks()):
        rows = slice(indptr[first], indptr[last])
        items[rows], time[rows] = crowd.observe(first, last, np.random.default_rng([seed, 1, block]))
    return World(Interactions(indptr, items, _names("u", n_users, "user"), _names("i", n_items, "item"), time=time), taste)


def _taste(rng: np.random.Generator, dim: int, share: Float64, quality: Float64, whim: float) -> Taste:
    """Random factors, scaled so that user u likes about `share[u]` of all items.

    Across the items, a user's taste and appeal are normal, the whim nearly so, and their variances add up to 1.
    """
    users = rng.standard_normal((dim, len(share)), dtype=np.float32)
    users *= np.float32(math.sqrt(1 - APPEAL - whim)) / np.sqrt(np.square(users).sum(0))
    return Taste(
        users=users,
        items=rng.standard_normal((dim, len(quality)), dtype=np.float32),
        appeal=(math.sqrt(APPEAL) * quality).astype(np.float32),
        bar=ndtri(1 - share).astype(np.float32),
        user_keys=rng.integers(2**63, size=len(share), dtype=np.uint64) * 2 + 1,
        item_keys=rng.integers(2**63, size=len(quality), dtype=np.uint64) * 2 + 1,
        whim=np.float32(math.sqrt(6 * whim)),
    )


@dataclass(frozen=True, eq=False)
class _Crowd:
    """What is needed to show items to users; `table` holds each item as often as `tickets` says."""

    taste: Taste
    counts: Int64
    share: Float64
    tickets: Int64
    table: Int32
    tilt: float
    noise: float

    def blocks(self) -> list[tuple[int, int]]:
        """Users first..last-1 to handle together, cut where about BLOCK pairs have been proposed."""
        work = np.concatenate([[0], np.cumsum(np.minimum(np.ceil(self.counts / self.share), len(self.tickets)))])
        edges = np.append(np.searchsorted(work, np.arange(0, work[-1], BLOCK)), len(self.counts)).tolist()
        return [(first, last) for first, last in pairwise(edges) if first < last]

    def observe(self, first: int, last: int, rng: np.random.Generator) -> tuple[Int32, Int64]:
        """Items, ascending within a user, and times of all interactions of users first..last-1."""
        owner, item = self._propose(first, last, rng)
        owner, item = self._race(first, last, owner, item, rng)
        time = _times(rng, self.counts[first:last])  # ascending within a user, and so are the items in order of showing
        order = np.lexsort((item, owner))
        return item[order], time[order]

    def _chance(self, users: Int64, items: NDArray[np.integer]) -> Float32:
        """The chance that a user observes an item that popularity proposes; shapes broadcast."""
        affinity = self.taste.affinity(users, items)
        return np.asarray(
            expit(np.float32(self.tilt) * affinity) * np.where(affinity > 0, np.float32(1), np.float32(self.noise))
        )

    def _propose(self, first: int, last: int, rng: np.random.Generator) -> tuple[Int64, Int32]:
        """Show items by popularity, observe by chance, drop repeats; users may be left short of their count."""
        n_items = len(self.tickets)
        owner, item = np.empty(0, np.int64), np.empty(0, np.int32)
        for _ in range(ROUNDS):
            short = np.maximum(self.counts[first:last] - np.bincount(owner, minlength=last - first), 0)
            shows = np.ceil(short / self.share[first:last]).astype(np.int64)
            shows[shows >= n_items] = 0  # weighing the whole catalogue once is cheaper: left to the race
            shown_to = np.repeat(np.arange(last - first), shows)
            shown = self.table[rng.integers(len(self.table), size=len(shown_to))]
            seen = rng.random(len(shown), np.float32) < self._chance(first + shown_to, shown)
            owner, item = np.concatenate([owner, shown_to[seen]]), np.concatenate([item, shown[seen]])
            earliest = np.sort(np.unique(owner * n_items + item, return_index=True)[1])
            owner, item = owner[earliest], item[earliest]
        return _leading(owner, item, self.counts[first:last])

    def _race(self, first: int, last: int, owner: Int64, item: Int32, rng: np.random.Generator) -> tuple[Int64, Int32]:
        """Complete the users who are short, by an exponential race over the whole catalogue.

        Proposing until enough distinct items are observed is sampling without replacement, and taking the first arrivals
        of Poisson processes with the same rates is another way to do the same: a user may change over half-way.
        """
        n_items, short = len(self.tickets), self.counts[first:last] - np.bincount(owner, minlength=last - first)
        racing = np.flatnonzero(short)
        owners, items = [owner], [item]
        for rows in np.array_split(racing, math.ceil(len(racing) * n_items / BLOCK)) if len(racing) else []:
            # A rate of almost nothing for what is never clicked lets a user who likes too few items reach their count.
            rate = self.tickets * np.maximum(self._chance(first + rows[:, None], np.arange(n_items)), 1e-9)
            arrival = rng.standard_exponential(rate.shape) / rate
            arrived = np.isin(owner, rows)
            arrival[np.searchsorted(rows, owner[arrived]), item[arrived]] = np.inf
            longest = int(short[rows].max())
            soonest = np.argpartition(arrival, longest - 1, axis=1)[:, :longest]
            order = np.argsort(np.take_along_axis(arrival, soonest, 1), axis=1)
            owners.append(np.repeat(rows, longest))
            items.append(np.take_along_axis(soonest, order, 1).astype(np.int32).ravel())
        return _leading(np.concatenate(owners), np.concatenate(items), self.counts[first:last])


def _leading(owner: Int64, item: Int32, counts: Int64) -> tuple[Int64, Int32]:
    """The first `counts[u]` entries of each owner u, grouped by owner and otherwise in the order given."""
    order = np.argsort(owner, kind="stable")
    owner, item = owner[order], item[order]
    sizes = np.bincount(owner, minlength=len(counts))
    place = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
    keep = place < counts[owner]
    return owner[keep], item[keep]


def _times(rng: np.random.Generator, counts: Int64) -> Int64:
    """Seconds, ascending within a user: a user joins at any time and is then active for a while."""
    joined = rng.random(len(counts))
    active = np.minimum(1 - joined, rng.exponential(0.1, len(counts)))
    owner = np.repeat(np.arange(len(counts)), counts)
    progress = np.sort(owner + rng.random(len(owner))) - owner
    return START + (SPAN * (joined[owner] + active[owner] * progress)).astype(np.int64)


def _activity(rng: np.random.Generator, n_users: int, n_items: int, n_interactions: int) -> Int64:
    """(n_users,) interactions of each user: a minimum plus a log-normal, at most half the catalogue, of the exact sum."""
    mean, most = n_interactions / n_users, max(1, n_items // 2)
    fewest = min(FEWEST, int(mean / 2))
    excess = rng.lognormal(sigma=1.0, size=n_users)
    low, high = 0.0, 1.0
    while np.minimum(fewest + high * excess, most).sum() < n_interactions and high < 1e12:
        high *= 2
    for _ in range(60):  # bisection for the factor that gives the wanted sum
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(fewest + middle * excess, most).sum() < n_interactions else (low, middle)
    exact = np.minimum(fewest + high * excess, most)
    counts = np.floor(exact).astype(np.int64)
    spare = np.argsort(counts - exact, kind="stable")  # the largest remainders first
    spare = spare[counts[spare] < most]
    counts[spare[: n_interactions - int(counts.sum())]] += 1
    return counts


def _names(letter: str, n: int, kind: str) -> IdMap:
    """Labels such as u0001, padded so that their order is that of the dense ids."""
    numbers = pl.Series(kind, np.arange(1, n + 1)).cast(pl.String).str.zfill(len(str(n)))
    return IdMap(letter + numbers, kind)


def _check_sizes(n_users: int, n_items: int, n_interactions: int, dim: int) -> None:
    sizes = {"n_users": n_users, "n_items": n_items, "n_interactions": n_interactions, "dim": dim}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ConfigError(f"{name} must be an integer of at least 1, found {size!r}")
        if name != "n_interactions" and size > MAX_IDS:
            raise ConfigError(f"{name} must be at most {MAX_IDS:,}, found {size:,}")
    if n_interactions > n_users * max(1, n_items // 2):
        raise ConfigError(
            f"n_interactions must be at most {n_users * max(1, n_items // 2):,}, half of what {n_users:,} users and "
            f"{n_items:,} items allow, found {n_interactions:,}"
        )


def _check_ranges(**ranges: tuple[float, float, float]) -> None:
    for name, (value, least, most) in ranges.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value <= most:
            raise ConfigError(f"{name} must be a number from {least:g} to {most:g}, found {value!r}")
