"""Items as they are sent: from dense ids to ids and titles, and to JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.serving.titles import Titles

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


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What is said of items, all by dense id: the model's own ids (n_items,), and titles where a table has them."""

    labels: NDArray[Any]
    titles: Titles | None

    def described(self, items: NDArray[np.integer]) -> list[Answer]:
        """Each of dense ids (n,) for itself."""
        labels = self.labels[items].tolist()
        if self.titles is None:
            return [{"item": label} for label in labels]
        titles, about = self.titles.titles, self.titles.about
        return [
            {"item": label, "title": titles[place], "about": about[place]}
            if about[place]
            else {"item": label, "title": titles[place]}
            for label, place in zip(labels, items.tolist(), strict=True)
        ]

    def listed(self, items: NDArray[np.integer], values: NDArray[np.floating], what: str) -> list[Answer]:
        """Each with its value."""
        found = self.described(items)
        for each, value in zip(found, values.tolist(), strict=True):
            each[what] = round(value, DIGITS)
        return found
