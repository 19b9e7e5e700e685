"""Seventh stage of the pipeline: how well a scorer ranks what its users turned out to like.

Two protocols. `full` ranks every item the user has not seen; equal scores count as the exact mean over all orders of the tied
items, in every metric. `paper` is the experimental setting of the SRNS paper (section 4): the one held-out item against 100
fixed negatives, ties in favour of the held-out item. Numbers of the two cannot be compared.

Metrics at cut-off k, for a user with R relevant items: `recall` hits / R; `precision` hits / k; `hit` 1 if any; `ndcg` with
gain 1/log2(position + 1) over the best possible for min(k, R) items; `mrr` 1 / position of the first hit; `map` the mean
precision at the hits, over min(k, R). Where all users have one relevant item, `auc`: the share of other candidates below it. Of
the lists as a whole, in `full` only: `coverage`, the share of the catalogue shown to anyone, and `popularity`, how often the
items shown occur in train relative to the average item (1: no bias; 5: five times as popular).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from srns.config import KS
from srns.errors import ConfigError, DataError, ScoreError
from srns.interactions import Int64, Interactions
from srns.kernels import ranking
from srns.kernels.ranking import TieGroups, UnrankableError, exposure, mask_seen, tie_groups, top_k
from srns.ranks import ALONE, Ranks
from srns.samplers.base import Score
from srns.scorers import GMF, score_rows
from srns.splits import Split

Float64 = NDArray[np.float64]
PerUser = dict[str, Float64]
Part = Literal["valid", "test"]
Protocol = Literal["full", "paper"]

BLOCK_BYTES = 64 << 20  # what one block of users may take
PAIR_BYTES = 256  # a scorer of pairs gathers both factors of each; one of whole rows holds little more than the score
ROW_BYTES = 16
PAPER_NEGATIVES = 100


class Evaluation(dict[str, float]):
    """Metric name -> mean over the evaluated users, with what the means are made of.

    `users` (n,) dense ids of the evaluated users, `per_user` metric name -> (n,) beside them; `protocol` and `on` as asked for.
    """

    def __init__(self, metrics: Mapping[str, float], *, per_user: PerUser, users: Int64, protocol: Protocol, on: Part) -> None:
        super().__init__(metrics)
        self.per_user = per_user
        self.users = users
        self.protocol = protocol
        self.on = on


def evaluate(
    score: Score,
    split: Split,
    on: Part = "test",
    protocol: Protocol = "full",
    ks: Iterable[int] = KS,
    *,
    block: int | None = None,
    seed: int = 0,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Rank for each user with relevant items in `on`, and average the metrics of the module docstring over those users.

    `score` maps users (B,), items (B, K) to scores (B, K); -inf means "never recommend", NaN and +inf raise `ScoreError`. If it
    has a method `score_all`, users (B,) -> (B, n_items), `full` calls that instead. `block` is how many users to score at once.
    With `ranks`, `split` and `score` are of this rank's users, and the result is that over the users of all.

    `full`: candidates are all items but the user's train items and, on test, valid items. `paper`: negatives are
    `split.negatives`, where -1 stands for none; without them, 100 items per user (fewer where there are fewer) that are in no
    part of the split are drawn by `seed`.

    >>> from srns.ids import IdMap
    >>> ids = {"user_ids": IdMap.dense(2, "user"), "item_ids": IdMap.dense(4, "item")}
    >>> train, test = (Interactions.from_pairs([0, 1], items, **ids) for items in ([0, 1], [3, 2]))
    >>> split = Split("tiny", train, valid=None, test=test)
    >>> result = evaluate(lambda users, items: items, split, ks=[1, 2])  # the higher the id, the better
    >>> {name: round(result[name], 4) for name in ("recall@1", "recall@2", "ndcg@2", "auc")}
    {'recall@1': 0.5, 'recall@2': 1.0, 'ndcg@2': 0.8155, 'auc': 0.75}
    >>> result.per_user["recall@1"]
    array([1., 0.])
    """
    if on not in get_args(Part) or protocol not in get_args(Protocol):
        raise ConfigError(f"on={on!r}, protocol={protocol!r}: expected {get_args(Part)} and {get_args(Protocol)}")
    relevant = split.valid if on == "valid" else split.test
    if relevant is None:
        raise ConfigError(
            f"split {split.name!r} has no {on} part to evaluate on: a run with --split none learns from everything"
        )
    ks = list(ks)
    cuts = np.unique(np.asarray(ks))
    if cuts.dtype.kind not in "iu" or cuts[0] < 1:
        raise ConfigError(f"ks must be whole numbers from 1 up, found {ks}")
    cuts = cuts.astype(np.int64)
    if block is not None and block < 1:
        raise ConfigError(f"block must be at least 1 user, found {block}")
    users = np.flatnonzero(relevant.user_counts)
    several = ranks.any(bool(len(users)) and int(relevant.user_counts.max()) > 1)
    if protocol == "paper":
        if several:
            _refuse_several(relevant, split, on)
        found = _Found(users, _paper(score, split, relevant, users, cuts, block, seed))
    else:
        found = _full(score, split, relevant, users, on, cuts, block)
    found = _joined(ranks.gather(found._replace(users=users + split.train.whole.first_user)))
    if not len(found.users):
        raise DataError(f"no user has an item in {on} of split {split.name!r}; there is nothing to evaluate")
    if several:
        del found.per_user["auc"]
    means = {name: float(values.mean()) for name, values in found.per_user.items()}
    if found.missed is not None:
        means |= {f"coverage@{k}": float(np.mean(1 - found.missed[j])) for j, k in enumerate(cuts)}
    return Evaluation(means, per_user=found.per_user, users=found.users, protocol=protocol, on=on)


class _Found(NamedTuple):
    """What was measured of `users` (n,): metric -> (n,), and in `full` how likely each item is shown to none of them, (ks,
    n_items)."""

    users: Int64
    per_user: PerUser
    missed: Float64 | None = None


def _joined(parts: list[_Found]) -> _Found:
    """The same of the users of several ranks."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].per_user
    per_user = {name: np.concatenate([part.per_user[name] for part in parts]) for name in names}
    missed = [part.missed for part in parts if part.missed is not None]
    return _Found(np.concatenate([part.users for part in parts]), per_user, np.prod(missed, axis=0) if missed else None)


def compile_aside() -> subprocess.Popen[bytes] | None:
    """Compile the ranking kernels in a process of its own, which leaves them on disk, while this one compiles the engine's.

    Numba compiles one function at a time in a process; on two cores this takes 3 s off the first use.
    """
    if not ranking.needs_compiling() or not sys.executable or getattr(sys, "frozen", False):
        return None
    program = "from srns.evaluation import rank_something; rank_something()"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def rank_something() -> None:
    """The smallest evaluation that calls every ranking kernel as real ones do."""
    train = Interactions.from_pairs([0, 1], [0, 1])
    test = Interactions.from_pairs([0, 1], [1, 0], user_ids=train.user_ids, item_ids=train.item_ids)
    evaluate(
        GMF.init(train.n_users, train.n_items, 1, std=1.0, learn_beta=False, seed=0), Split("something", train, None, test)
    )


def _full(score: Score, split: Split, relevant: Interactions, users: Int64, on: Part, ks: Int64, block: int | None) -> _Found:
    train = split.train
    seen = [train] if on == "valid" or split.valid is None else [train, split.valid]
    depth = min(int(ks[-1]), train.n_items)
    popularity = train.whole.item_counts.astype(np.float64) * train.n_items / max(1, train.whole.n)
    missed = np.ones((len(ks), train.n_items))
    names = [*_rank_metrics(TieGroups(*np.zeros((3, 0, depth), np.int32)), np.zeros(0, np.int64), ks), "auc"]
    blocks: list[PerUser] = [dict.fromkeys([*names, *(f"popularity@{k}" for k in ks)], np.zeros(0))]
    for some, scores in _score_catalogue(score, users, train.n_items, block):
        for part in seen:
            mask_seen(scores, some, part.indptr, part.items)
        try:
            ids, values = top_k(scores, depth)
        except UnrankableError as error:
            raise _unrankable(split, some[error.row], error.item, error.value) from None
        groups, auc = tie_groups(scores, values, some, relevant.indptr, relevant.items)
        shown = exposure(scores, ids, groups, ks, popularity, missed)
        metrics = _rank_metrics(groups, relevant.user_counts[some], ks)
        blocks.append(metrics | {f"popularity@{k}": shown[:, j] for j, k in enumerate(ks)} | {"auc": auc})
    per_user = {name: np.concatenate([part[name] for part in blocks]) for name in blocks[0]}
    return _Found(users, per_user, missed)


def _refuse_several(relevant: Interactions, split: Split, on: Part) -> None:
    if not len(relevant) or relevant.user_counts.max() < 2:
        raise ConfigError(f'protocol "paper" needs a leave-one-out split: a user of another rank has several {on} items')
    user = int(relevant.user_counts.argmax())
    raise ConfigError(
        f'protocol "paper" needs a leave-one-out split: user {split.train.user_ids.label(user)!r} has '
        f'{relevant.user_counts[user]} {on} items; use protocol "full"'
    )


def _paper(
    score: Score, split: Split, relevant: Interactions, users: Int64, ks: Int64, block: int | None, seed: int
) -> PerUser:
    negatives = _fixed_negatives(split, users, seed)
    items = np.concatenate([relevant.items[relevant.indptr[users], None], negatives], axis=1)
    ranks = _strict_ranks(score, split, users, items, block)
    depth = min(int(ks[-1]), items.shape[1])
    groups = TieGroups(*np.zeros((3, len(users), depth), np.int32))
    groups.start[:] = np.arange(depth)
    groups.size[:] = 1
    groups.hits[ranks < depth, ranks[ranks < depth]] = 1
    opponents = np.sum(negatives >= 0, axis=1)
    auc = np.where(opponents > 0, 1 - ranks / np.maximum(opponents, 1), 0.5)
    return _rank_metrics(groups, np.ones(len(users), np.int64), ks) | {"auc": auc}


def _strict_ranks(score: Score, split: Split, users: Int64, items: Int64, block: int | None) -> Int64:
    """(n,) how many of the negatives items[:, 1:] score strictly higher than items[:, 0]; items (n, 1 + k), -1 for none."""
    ranks = np.empty(len(users), np.int64)
    size = block or max(1, BLOCK_BYTES // (PAIR_BYTES * items.shape[1]))
    for begin in range(0, len(users), size):
        some, mine = users[begin : begin + size], items[begin : begin + size]
        scores = _as_scores(score(some, np.maximum(mine, 0)), mine.shape)
        for row, column in np.argwhere(~(scores < np.inf) & (mine >= 0))[:1]:
            raise _unrankable(split, some[row], mine[row, column], scores[row, column])
        ranks[begin : begin + size] = np.sum((scores[:, 1:] > scores[:, :1]) & (mine[:, 1:] >= 0), axis=1)
    return ranks


def _score_catalogue(score: Score, users: Int64, n_items: int, block: int | None) -> Iterator[tuple[Int64, NDArray[Any]]]:
    """Blocks of users (B,) with their scores (B, n_items): a fresh array, which the caller may write to."""
    size = block or max(1, BLOCK_BYTES // ((ROW_BYTES if hasattr(score, "score_all") else PAIR_BYTES) * n_items))
    for begin in range(0, len(users), size):
        some = users[begin : begin + size]
        yield some, np.array(_as_scores(score_rows(score, some, n_items), (len(some), n_items)), order="C")


def _as_scores(scores: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Scores as float32 or float64, whichever holds them exactly, after a check of their shape."""
    array = np.asarray(scores)
    if array.shape != shape:
        raise DataError(f"the scorer returned scores of shape {array.shape}, expected {shape}: users x items")
    if array.dtype.kind not in "fiub":
        raise DataError(f"the scorer returned scores of type {array.dtype}, expected real numbers")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _unrankable(split: Split, user: int, item: int, value: float) -> ScoreError:
    who, what = split.train.user_ids.label(user), split.train.item_ids.label(item)
    return ScoreError(
        f"the score of user {who!r} for item {what!r} is {value}; expected a finite number, or -inf to exclude the item"
    )


def _fixed_negatives(split: Split, users: Int64, seed: int) -> Int64:
    """(len(users), k) the items each user's relevant item is ranked against, -1 where there are fewer than k."""
    n_items = split.train.n_items
    if split.negatives is not None:
        low, high = split.negatives.min(initial=0), split.negatives.max(initial=0)
        if low < -1 or high >= n_items:
            raise DataError(
                f"negatives of split {split.name!r} must be item ids 0..{n_items - 1}, or -1 for none; found {low}..{high}"
            )
        return split.negatives[users].astype(np.int64)
    known = split.train.union(*(part for part in (split.valid, split.test) if part is not None))
    negatives = np.full((len(users), PAPER_NEGATIVES), -1)
    for row, user in enumerate(users):
        mine = known.items_of(user)
        free = n_items - len(mine)
        rng = np.random.default_rng(
            [seed, user + split.train.whole.first_user]
        )  # its own stream: the draw does not depend on who else is evaluated
        ranks = rng.choice(free, min(free, PAPER_NEGATIVES), replace=False)
        # the r-th unknown item is r plus the number of known items before it
        negatives[row, : len(ranks)] = ranks + np.searchsorted(mine - np.arange(len(mine)), ranks, side="right")
    return negatives


def _rank_metrics(groups: TieGroups, n_relevant: Int64, ks: Int64) -> PerUser:
    """Metric name -> (B,) from the tie groups (B, K) of the first K positions: expectations over all orders of tied items.

    In a group of T items, R of them relevant, each position holds a relevant one with probability R/T, two given positions do
    with R(R-1) / T(T-1), and the first relevant one is met at offset j, if not before, with R/(T-j). So no binomials, and no
    sum over orders, however large T.
    """
    start, size, hits = groups
    position = np.arange(1, size.shape[1] + 1)
    offset = position - 1 - start
    gain = hits / size
    above = np.cumsum(np.where(offset == 0, hits, 0), axis=1) - hits  # relevant items in better groups
    precision_here = gain * (1 + above + offset * (hits - 1) / np.maximum(size - 1, 1)) / position
    no_hit = np.cumprod(1 - np.minimum(hits / (size - offset), 1), axis=1)
    first_hit = -np.diff(no_hit, axis=1, prepend=1)
    discount = 1 / np.log2(position + 1)

    last = np.minimum(ks, len(position)) - 1
    possible = np.minimum(ks, n_relevant[:, None])  # (B, len(ks))
    found = np.cumsum(gain, axis=1)[:, last]
    columns = {
        "recall": found / n_relevant[:, None],
        "precision": found / ks,
        "hit": 1 - no_hit[:, last],
        "ndcg": np.cumsum(gain * discount, axis=1)[:, last] / np.cumsum(discount)[possible - 1],
        "mrr": np.cumsum(first_hit / position, axis=1)[:, last],
        "map": np.cumsum(precision_here, axis=1)[:, last] / possible,
    }
    return {f"{name}@{k}": values[:, j] for name, values in columns.items() for j, k in enumerate(ks)}


@dataclass(frozen=True)
class Comparison:
    """How much better `a` is than `b`: the mean `difference` over `n_users`, its interval `low`..`high`, and `p_value`.

    `p_value` is two-sided: twice the share of resamples in which the difference is on the other side of zero, or zero.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n_users: int


def paired_bootstrap(
    a: Evaluation, b: Evaluation, metric: str, *, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Is `a` better than `b` in `metric`, beyond the luck of which users were there? Percentile bootstrap over users.

    >>> users = np.arange(4)
    >>> a, b = (
    ...     Evaluation({}, per_user={"hit@1": np.array(hits, float)}, users=users, protocol="full", on="test")
    ...     for hits in ([1, 1, 1, 1], [0, 1, 0, 0])
    ... )
    >>> paired_bootstrap(a, b, "hit@1", resamples=1000)
    Comparison(difference=0.75, low=0.25, high=1.0, p_value=0.00999000999000999, n_users=4)
    """
    for name in ("protocol", "on"):
        if getattr(a, name) != getattr(b, name):
            raise ConfigError(f"cannot compare {name} {getattr(a, name)!r} with {getattr(b, name)!r}")
    if not np.array_equal(a.users, b.users):
        raise ConfigError("cannot compare: the two evaluations are of different users")
    if metric not in a.per_user or metric not in b.per_user:
        raise ConfigError(f"no per-user values of {metric!r}; there are {', '.join(a.per_user)}")
    if not 0 < confidence < 1 or resamples < 1:
        raise ConfigError(f"confidence={confidence}, resamples={resamples}: expected between 0 and 1, and at least 1")
    difference = a.per_user[metric] - b.per_user[metric]
    return paired_difference(difference, _resampled_means(difference, resamples, np.random.default_rng(seed)), confidence)


def paired_difference(difference: Float64, means: Float64, confidence: float = 0.95) -> Comparison:
    """What differences per user (n,) and their resampled means (resamples,) say."""
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    beyond = min(np.sum(means <= 0), np.sum(means >= 0))
    p_value = min(1.0, 2 * (beyond + 1) / (len(means) + 1))  # + 1: the sample itself, so that p is never 0
    return Comparison(float(difference.mean()), float(low), float(high), float(p_value), len(difference))


def _resampled_means(sample: Float64, resamples: int, rng: np.random.Generator) -> Float64:
    """(resamples,) means of `sample` (n,) drawn with replacement.

    Metrics take few values, so counting how often each value is drawn is far cheaper than drawing users, and the same.
    """
    values, counts = np.unique(sample, return_counts=True)
    n = len(sample)
    if len(values) * 8 < n:
        return np.asarray(rng.multinomial(n, counts / n, resamples) @ values / n)
    rows = max(1, (1 << 22) // n)
    sizes = (min(rows, resamples - begin) for begin in range(0, resamples, rows))
    return np.concatenate([sample[rng.integers(n, size=(size, n))].mean(axis=1) for size in sizes])
