"""From a model and a question to what is sent, in plain dicts and without HTTP; a RefusalError says why there is no answer."""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from srns.best import allowed_items, best_of, nearest
from srns.errors import ConfigError
from srns.ids import IdMap, Int64
from srns.serving.guard import RefusalError
from srns.serving.listing import Answer
from srns.serving.messages import Batch, Label, Unknown
from srns.serving.state import Served

Allowed = NDArray[np.bool_] | None  # (n_items,)


def known(ids: IdMap, given: Sequence[Label]) -> Int64:
    """The dense ids (n,) of ids that came as text or numbers; -1 for what the model has none of."""
    places = ids.indices(list(given), missing="-1")
    if ids.labels.dtype == pl.String:
        return places
    same = [str(ids.label(place)) == str(each) for place, each in zip(places.tolist(), given, strict=True)]
    return np.where(same, places, -1)  # int() also reads " 7" and "0_7"


def known_items(model: Served, given: Sequence[Label]) -> Int64:
    places = known(model.recommender.split_.train.item_ids, given)
    if (missing := np.flatnonzero(places < 0)).size:
        raise RefusalError(404, f"item {shown(given[missing[0]])} is not among the items of the model")
    return places


def shown(given: Label) -> str:
    text = str(given)
    return repr(text if len(text) <= 60 else text[:60] + "...")


def recommend(
    model: Served, users: Sequence[Label], k: int, *, exclude_seen: bool, unknown: Unknown, why: int, allowed: Allowed = None
) -> list[Answer]:
    """A list for each user, of the items that are `allowed`."""
    recommender, train = model.recommender, model.recommender.split_.train
    places = known(train.user_ids, users)
    trained = (places >= 0) & recommender.trained_users_[places]
    if unknown == "raise" and not trained.all():
        first = int(np.argmin(trained))
        problem = "is not among the users of the model" if places[first] < 0 else "has no training interactions"
        raise RefusalError(404, f"user {shown(users[first])} {problem}; unknown=popular serves anybody")
    ids, scores = recommender.best_.items(places, k, recommender.block, exclude_seen=exclude_seen, allowed=allowed)
    found = []
    for row, place in enumerate(places.tolist()):
        best = ids[row][ids[row] >= 0]
        items = model.catalogue.listed(best, scores[row][: len(best)], "score")
        if why and trained[row] and items:
            _give_reasons(model, items, train.items_of(place), best, why)
        about = {"user": users[row] if place < 0 else train.user_ids.label(place)} | ({} if trained[row] else {"unknown": True})
        found.append(about | {"items": items})
    return found


def recommend_for(
    model: Served, given: Sequence[Label], k: int, *, exclude_seen: bool, why: int, allowed: Allowed = None
) -> Answer:
    """A list for somebody who touched `given`."""
    touched = np.unique(known_items(model, given))
    ids, scores = best_of(model.recommender.newcomers_.scores(touched), k, touched if exclude_seen else None, allowed)
    items = model.catalogue.listed(ids, scores, "score")
    if why and items:
        _give_reasons(model, items, touched, ids, why)
    return {"user": None, "items": items}


def batch(model: Served, asked: Batch) -> Answer:
    """Lists for several users, or for somebody unknown."""
    exclude, candidates = (known_items(model, given) if given else None for given in (asked.exclude, asked.candidates))
    allowed = allowed_items(len(model.catalogue.labels), exclude, candidates)
    options: dict[str, Any] = {"exclude_seen": asked.exclude_seen, "why": asked.why, "allowed": allowed}
    if asked.users:
        return {"recommendations": recommend(model, asked.users, asked.k, unknown=asked.unknown, **options)}
    try:
        return {"recommendations": [recommend_for(model, asked.items, asked.k, **options)]}
    except ConfigError as error:
        raise RefusalError(400, str(error)) from None


def similar(model: Served, item: Label, k: int) -> Answer:
    """Items near one item."""
    place = known_items(model, [item])
    ids, scores = nearest(model.recommender.unit_factors_, place, k, model.recommender.block)
    return {**model.catalogue.described(place)[0], "similar": model.catalogue.listed(ids[0], scores[0], "similarity")}


def history(model: Served, user: Label, limit: int) -> Answer:
    """What a user is known to have touched: the latest first where times are known, else the most popular first."""
    train = model.recommender.split_.train
    place = int(known(train.user_ids, [user])[0])
    if place < 0:
        raise RefusalError(404, f"user {shown(user)} is not among the users of the model")
    items = model.recommender.seen_.items_of(place)
    times = _times(model, place, items)
    order = np.argsort(-train.item_counts[items] if times is None else -times, kind="stable")
    return {
        "user": train.user_ids.label(place),
        "total": len(items),
        "order": "popularity" if times is None else "time",
        "items": model.catalogue.described(items[order][:limit]),
    }


def search(model: Served, prefix: str, limit: int) -> Answer:
    """Users whose id begins with `prefix`, by binary search: sorted, at most `limit`."""
    found: list[Label] = []
    for low, high in _ranges(model.users, prefix):
        found += model.users[low : min(high, low + limit + 1 - len(found))].to_list()
        if len(found) > limit:
            break
    return {"users": found[:limit], "more": len(found) > limit}


def anybody(model: Served) -> Answer:
    return {"user": model.users[random.randrange(len(model.users))]}


def _ranges(users: pl.Series, prefix: str) -> Iterable[tuple[int, int]]:
    """Where in the sorted ids those are that begin with `prefix`."""
    if not prefix:
        yield 0, len(users)
    elif users.dtype == pl.String:
        yield bisect_left(users, prefix), bisect_right(users, prefix, key=lambda label: label[: len(prefix)])
    else:
        sign, digits = (-1, prefix[1:]) if prefix.startswith("-") else (1, prefix)
        if not re.fullmatch("-|0|-?[1-9][0-9]{0,18}", prefix):
            return
        if prefix == "-":
            yield 0, bisect_left(users, 0)
            return
        number = int(digits)
        for zeros in range(20 - len(digits) if number else 1):  # 12, 120-129, 1200-1299, ...
            low, high = number * 10**zeros, (number + 1) * 10**zeros
            ends = (low, high) if sign > 0 else (1 - high, 1 - low)
            first, last = (bisect_left(users, end) for end in ends)
            if last > first:
                yield first, last


def _times(model: Served, user: int, items: Any) -> Any:
    """When a user touched each of `items`, from the parts that know; None where any does not."""
    split = model.recommender.split_
    parts = [part for part in (split.train, split.valid, split.test) if part is not None]
    if any(part.time is None for part in parts):
        return None
    of: dict[int, float] = {}
    for part in parts:
        low, high = part.indptr[user], part.indptr[user + 1]
        of.update(zip(part.items[low:high].tolist(), part.time[low:high].tolist(), strict=True))  # type: ignore[index]
    return np.array([of[item] for item in items.tolist()], np.float64)


def _give_reasons(
    model: Served, items: list[Answer], touched: NDArray[np.integer], wanted: NDArray[np.integer], why: int
) -> None:
    """Beside each item, those of the user's own that speak for it."""
    ids, shares = model.recommender.newcomers_.reasons(touched, wanted, why)
    for row, item in enumerate(items):
        item["why"] = [each for each in model.catalogue.listed(ids[row], shares[row], "share") if each["share"] > 0]
