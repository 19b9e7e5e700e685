"""From a model and a question to what is sent, in plain dicts and without HTTP; a RefusalError says why there is no answer."""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from srns.errors import ConfigError
from srns.ids import IdMap
from srns.serving.guard import RefusalError
from srns.serving.messages import Batch, Label, Unknown
from srns.serving.state import Served

Answer = dict[str, Any]
DIGITS = 6  # of scores
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


LISTS = ("recommendations", "items", "similar")  # of answers, each the last field of its dict


def encoded(answer: Answer) -> bytes:
    """As JSON."""
    return ENCODER.encode(answer).encode()


def encoded_by_item(answer: Answer) -> bytes:
    """The same, item by item: a long answer in one go would keep all other threads from running."""
    name = next(reversed(answer))
    if name not in LISTS:
        return encoded(answer)
    return encoded(answer | {name: []})[:-2] + b",".join(map(encoded_by_item, answer[name])) + b"]}"


def known(ids: IdMap, given: Label) -> tuple[int, Label | None]:
    """The dense id and the model's own form of an id that came as text or number; -1 and None where it has none."""
    index = int(ids.indices([given], missing="-1")[0])
    label = ids.label(index) if index >= 0 else None
    return (index, label) if str(label) == str(given) and index >= 0 else (-1, None)  # int() also reads " 7" and "0_7"


def known_item(model: Served, given: Label) -> Label:
    _, label = known(model.recommender.split_.train.item_ids, given)
    if label is None:
        raise RefusalError(404, f"item {shown(given)} is not among the items of the model")
    return label


def shown(given: Label) -> str:
    text = str(given)
    return repr(text if len(text) <= 60 else text[:60] + "...")


def recommend(
    model: Served, users: Sequence[Label], k: int, *, exclude_seen: bool, unknown: Unknown, why: int, **limited: Any
) -> list[Answer]:
    """A list for each user; `limited` are `exclude` and `candidates` in the model's own ids."""
    places = [known(model.recommender.split_.train.user_ids, user) for user in users]
    labels = [label for _, label in places]
    trained = [index >= 0 and bool(model.recommender.trained_users_[index]) for index, _ in places]
    if unknown == "raise" and not all(trained):
        place = trained.index(False)
        problem = "is not among the users of the model" if labels[place] is None else "has no training interactions"
        raise RefusalError(404, f"user {shown(users[place])} {problem}; unknown=popular serves anybody")
    asked = [_nobody(model) if label is None else label for label in labels]
    ids, scores = model.recommender.recommend(asked, k, exclude_seen=exclude_seen, unknown=unknown, **limited)
    found = []
    for row, label in enumerate(labels):
        there = np.isfinite(scores[row])
        items = _listed(model, ids[row][there].tolist(), scores[row][there].tolist(), "score")
        if why and trained[row] and items:
            _give_reasons(model, items, model.recommender.explain(asked[row], ids[row][there], why))
        about = {"user": users[row] if label is None else label} | ({} if trained[row] else {"unknown": True})
        found.append(about | {"items": items})
    return found


def recommend_for(model: Served, given: Sequence[Label], k: int, *, exclude_seen: bool, why: int, **limited: Any) -> Answer:
    """A list for somebody who touched `given`."""
    touched = [known_item(model, item) for item in given]
    ids, scores = model.recommender.recommend_for(touched, k, exclude_seen=exclude_seen, **limited)
    items = _listed(model, ids.tolist(), scores.tolist(), "score")
    if why and items:
        _give_reasons(model, items, model.recommender.explain_for(touched, ids, why))
    return {"user": None, "items": items}


def batch(model: Served, asked: Batch) -> Answer:
    """Lists for several users, or for somebody unknown."""
    limited = {
        name: [known_item(model, item) for item in given]
        for name, given in (("exclude", asked.exclude), ("candidates", asked.candidates))
        if given
    }
    options: dict[str, Any] = {"exclude_seen": asked.exclude_seen, "why": asked.why, **limited}
    if asked.users:
        return {"recommendations": recommend(model, asked.users, asked.k, unknown=asked.unknown, **options)}
    try:
        return {"recommendations": [recommend_for(model, asked.items, asked.k, **options)]}
    except ConfigError as error:
        raise RefusalError(400, str(error)) from None


def similar(model: Served, item: Label, k: int) -> Answer:
    """Items near one item."""
    label = known_item(model, item)
    ids, scores = model.recommender.similar_items(label, k)
    return {**_described(model, label), "similar": _listed(model, ids.tolist(), scores.tolist(), "similarity")}


def history(model: Served, user: Label, limit: int) -> Answer:
    """What a user is known to have touched: the latest first where times are known, else the most popular first."""
    train = model.recommender.split_.train
    index, label = known(train.user_ids, user)
    if label is None:
        raise RefusalError(404, f"user {shown(user)} is not among the users of the model")
    items = model.recommender.seen_.items_of(index)
    times = _times(model, index, items)
    order = np.argsort(-train.item_counts[items] if times is None else -times, kind="stable")
    labels = train.item_ids.take(items[order][:limit]).to_list()
    return {
        "user": label,
        "total": len(items),
        "order": "popularity" if times is None else "time",
        "items": [_described(model, each) for each in labels],
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


def _nobody(model: Served) -> Label:
    """An id that no user has."""
    ids = model.recommender.split_.train.user_ids
    return "" if ids.labels.dtype == pl.Int64 else str(ids.label(len(ids) - 1)) + "\0"


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


def _described(model: Served, label: Label) -> Answer:
    if model.titles is None:
        return {"item": label}
    place = model.recommender.split_.train.item_ids.index(label)
    title, about = model.titles.titles[place], model.titles.about[place]
    return {"item": label, "title": title} | ({"about": about} if about else {})


def _listed(model: Served, labels: Sequence[Label], values: Sequence[float], what: str) -> list[Answer]:
    if model.titles is None:
        return [{"item": label, what: round(value, DIGITS)} for label, value in zip(labels, values, strict=True)]
    return [_described(model, label) | {what: round(value, DIGITS)} for label, value in zip(labels, values, strict=True)]


def _give_reasons(model: Served, items: list[Answer], reasons: tuple[Any, Any]) -> None:
    """Beside each item, those of the user's own that speak for it."""
    for item, labels, shares in zip(items, reasons[0].tolist(), reasons[1].tolist(), strict=True):
        item["why"] = [each for each in _listed(model, labels, shares, "share") if each["share"] > 0]
