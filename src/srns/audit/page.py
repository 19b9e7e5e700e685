"""The page of an audit: the answer, what it rests on, how it was measured, and what it cannot tell."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.audit.findings import WORTH, Findings
from srns.audit.words import answer, described, equal_numbers, explained, glossary, headline, short, to_train, weight_of
from srns.negatives import DIFFICULTIES, matched
from srns.page import Cell, Curve, Page, Row

HARDEST = f"the highest-scored of {DIFFICULTIES[-1]} untouched items"
LIKELY, WAVERING = "likelihood of being liked", "how much it wavers"


def make_page(found: Findings, dataset: str, command: str, following: str | None = None) -> Page:
    """The page of an audit of `dataset`, made by `command`; `following` is the command to go on with, by default training with
    the sampler to use."""
    page = Page(f"Audit of negatives: {dataset}", headline(found))
    _answer(page, found, following or to_train(found, dataset))
    _mistakes(page, found)
    _accuracy(page, found)
    _telling(page, found)
    _weights(page, found)
    _method(page, found, command)
    _limits(page, found)
    return page


def _answer(page: Page, found: Findings, following: str) -> None:
    page.section(
        "The answer",
        "Data of clicks, purchases and watches hold only what people took: positives. To learn what they do not want, a "
        "recommender picks items they did not touch and treats them as disliked: negatives. Some of these they would have "
        "liked: false negatives. A sampler decides which items are picked; one that picks what the model scores high teaches "
        "it more, and hits more of what people like. Which suits these data?",
    )
    page.points(answer(found))
    chosen, facts = found.recommendation.chosen, found.facts
    cards = [
        ("looked at", chosen.contestant.kind, "alone: no other sampler was compared with it")
        if found.alone
        else ("use", chosen.contestant.name, "the plainest that no other is measurably better than"),
        (facts["metric"], f"{chosen.metric.value:.4f}", "how well its model finds what was hidden"),
        ("mistakes", f"{chosen.to_chance.value:.1f} times chance", "how often it takes a hidden positive for a negative"),
    ]
    if chosen.errors is not None:
        cards.append(("false negatives", f"{chosen.errors.value:.1%}", "of its negatives are liked, by the answers"))
    page.cards(cards)
    page.code(following, "Compare it with others" if found.alone else "Train with it")
    with page.details("Words on this page"):
        page.points(glossary(found))


def _mistakes(page: Page, found: Findings) -> None:
    page.section(
        "How often each sampler takes for a negative what a user likes",
        f"{found.facts['hidden']:,} positives of these data were hidden before training. A sampler does not know them from "
        "other untouched items, but we do: each time one is drawn as a negative is a mistake that can be counted.",
    )
    each = found.each
    value, low, high = ([round(number, 2) for number in part] for part in zip(*(one.to_chance for one in each), strict=True))
    page.bars(
        [one.contestant.name for one in each],
        value,
        low,
        high,
        caption="Hidden positives drawn as negatives, as a multiple of chance (1: as often as if items were drawn blindly)",
    )
    columns = ["sampler", "hidden positives among its negatives", "times chance", "95% interval"]
    with_answers = each[0].errors is not None
    columns += ["false negatives, by the answers", "95% interval"] * with_answers
    rows: list[Row] = []
    for one in each:
        cells: list[str | float | Cell] = [
            one.contestant.name,
            Cell(f"{one.hidden.value:.2%}", one.hidden.value),
            Cell(f"{one.to_chance.value:.2f}", one.to_chance.value),
            f"{one.to_chance.low:.2f} to {one.to_chance.high:.2f}",
        ]
        if one.errors is not None:
            cells += [Cell(f"{one.errors.value:.1%}", one.errors.value), f"{one.errors.low:.1%} to {one.errors.high:.1%}"]
        rows.append(cells)
    page.table(columns, rows)
    if with_answers:
        page.text(
            "False negatives are the drawn negatives, hidden ones aside, that users like; the paper calls their share the "
            f"label error ratio. It is measured by {found.facts['answers']:,} answers about items that users had not touched: "
            "each counts as often as the sampler drew it."
        )
    else:
        page.text(
            "The share of hidden ones among the drawn depends on how many were hidden, and is not the share of all negatives "
            "that users would like, which is larger by an unknown factor. The multiple of chance does not depend on it."
        )
    drawn = {one.contestant.name: _even([run["by_epoch"] for run in one.runs]) for one in each}
    page.curves(
        [_curve(name, 1 + np.arange(runs.shape[1]), runs) for name, runs in drawn.items()],
        "epoch",
        "share of drawn negatives that are hidden positives",
        "As the model learns what users like, a sampler that goes by its scores finds more of it." + _bands(found),
    )


def _accuracy(page: Page, found: Findings) -> None:
    metric = found.facts["metric"]
    page.section(
        "How good the models became",
        "Half of the hidden positives chose when to stop each training, the other half judged it: how high does the model rank "
        "them among all items that the user did not touch? Mistakes matter only in so far as they show here. "
        f"{explained(metric)}.",
    )
    rows: list[Row] = []
    chosen = found.recommendation.chosen
    for each in found.each:
        mark = "best" if each is chosen and not found.alone else "faint" if each.worse else ""
        verdict = (
            "recommended"
            if each is chosen
            else f"behind {found.recommendation.best.contestant.name}"
            if each.worse
            else "not measurably different"
        )
        rows.append(
            [
                each.contestant.name,
                Cell(f"{each.metric.value:.4f}", each.metric.value, mark),
                f"{each.metric.low:.4f} to {each.metric.high:.4f}",
                *([] if found.alone else ["" if each.to_uniform is None else short(each.to_uniform, "+.4f"), verdict]),
            ]
        )
    compared = [] if found.alone else ["more than with uniform negatives (95%)", "verdict"]
    page.table(["sampler", metric, "95% interval", *compared], rows)
    if found.alone:
        page.text("The interval says how much a number depends on which users there are.")
        return
    page.text(
        "Intervals of the first kind say how much a number depends on which users there are; all samplers share that luck. "
        "The interval of a difference is smaller. The verdict goes by differences from the best, as the answer above does, "
        "whose intervals are wider than 95%: among many samplers some look better by luck."
    )
    if said := _above(found):
        page.text(said)


def _above(found: Findings) -> str:
    """Why one that is behind may have a higher number than the one that is recommended, where that is so."""
    chosen = found.recommendation.chosen
    if not any(each.worse and each.metric.value > chosen.metric.value for each in found.each):
        return ""
    return (
        f"That a sampler is behind {found.recommendation.best.contestant.name} although its number is above that of "
        f"{chosen.contestant.name} is no mistake: models that were trained more alike err more alike, and even a small "
        "difference between them is sure."
    )


def _telling(page: Page, found: Findings) -> None:
    reference = found.named("uniform") or found.each[0]
    page.section(
        "Can hidden positives be told from negatives?",
        "The idea of SRNS: what a user likes scores high and steadily while the model learns, a hard negative scores high but "
        f"wavers. Here is whether that holds for these data, while learning from {reference.contestant.name} negatives, in the "
        "second half of training.",
    )
    page.text(
        "The score of an item, beside that of one the user did take, is read as a likelihood of being liked (P_pos in the "
        "paper): 50% if both score the same, less if it scores lower. How much it wavers is its standard deviation over the "
        "ends of the last five epochs, as a share of its mean. Of each kind of item the table has the median."
    )
    medians, wavers = reference.late("p_pos").mean(axis=0), reference.late("wavering").mean(axis=0)
    peers = matched(float(medians[0]), medians[1:], wavers[1:])
    rows: list[Row] = [
        ["hidden positives", _percent(medians[0]), _percent(wavers[0])],
        ["any untouched item", _percent(medians[1]), _percent(wavers[1])],
        ["hard negatives as likely as hidden positives", _percent(medians[0]),
         _percent(peers) if np.isfinite(peers) else "none is as hard"],
        [HARDEST, _percent(medians[-1]), _percent(wavers[-1])],
    ]  # fmt: skip
    page.table(["items", LIKELY, WAVERING], rows)
    told = {name: float(reference.late("detection", name).mean()) for name in ("score", "steady", "score_hard", "steady_hard")}
    page.table(
        ["a hidden positive is told from", "by its likelihood", "by how little it wavers"],
        [
            ["any untouched item", _percent(told["score"]), _percent(told["steady"])],
            ["a hard negative as likely", _percent(told["score_hard"]), _percent(told["steady_hard"])],
        ],
        "Of a hidden positive and another item: how often the one that is likelier, or wavers less, is the hidden positive. A "
        "guess has 50%.",
    )
    series = _even([[look["wavering"] for look in run["looks"]] for run in reference.runs])[:, 1:]  # one epoch cannot waver
    epochs = 2 + np.arange(series.shape[1])
    kinds = {"hidden positives": 0, "any untouched item": 1, HARDEST: len(DIFFICULTIES)}
    page.curves(
        [_curve(kind, epochs, series[:, :, column]) for kind, column in kinds.items()],
        "epoch",
        f"{WAVERING}, as a share",
        "How much the likelihood of being liked wavers over the last five epochs." + _bands(found),
        log_y=True,
    )


def _weights(page: Page, found: Findings) -> None:
    family = sorted(
        (each for each in found.each if each.contestant.variance_weight is not None),
        key=lambda each: each.contestant.variance_weight or 0.0,
    )
    if len(family) < 2:
        return
    page.section(
        "The variance weight",
        "SRNS remembers some hard negatives for each user, and learns from those that score high and, by this weight, waver "
        "(are of high variance); 0 goes by score alone. If hidden positives waver less, a weight avoids them.",
    )
    if said := weight_of(found):
        page.text(said)
    metric = found.facts["metric"]
    page.table(
        ["weight", metric, "95% interval", "hidden positives drawn, times chance"],
        [
            [
                Cell(f"{each.contestant.variance_weight:g}", each.contestant.variance_weight),
                Cell(f"{each.metric.value:.4f}", each.metric.value),
                f"{each.metric.low:.4f} to {each.metric.high:.4f}",
                Cell(f"{each.to_chance.value:.2f}", each.to_chance.value),
            ]
            for each in family
        ],
    )


def _method(page: Page, found: Findings, command: str) -> None:
    facts = found.facts
    page.section("How this was measured")
    page.points(
        [
            f"The data: {facts['positives']:,} positives of {facts['users']:,} users and {facts['items']:,} items.",
            f"{facts['hidden']:,} of them, chosen at random, were hidden from training; every user kept at least one. "
            + (
                "This was done once."
                if facts["seeds"] == 1
                else f"This was done {facts['seeds']} times, each time with other hidden ones and another seed of training."
            ),
            f"With each sampler a model was trained on the rest, everything else equal. {equal_numbers(found)} Every negative "
            "that was drawn in any epoch was looked up among the hidden positives of its user.",
            "Chance is what uniform negatives give, worked out exactly: a user with n positives in training and m untouched "
            "items meets each of these n / m times in an epoch, per negative.",
            "Intervals are 95%, by drawing groups of users with replacement, the same for all samplers; those of "
            "false negatives by drawing answers.",
            "A sampler is called better only if the interval of the difference excludes 0, widened for the number of samplers "
            f"compared, every seed agrees, and the difference is at least {WORTH:.0%}.",
        ]
    )
    page.code(command, "Do it again: finished trainings are kept and reused")
    with page.details("The samplers and their settings"):
        page.table(["sampler", "what it does", "settings"], [described(each.contestant) for each in found.each])
    if found.notes:
        with page.details("Notes"):
            page.points(list(found.notes))


def _limits(page: Page, found: Findings) -> None:
    page.section("What this cannot tell")
    points = [
        "Hidden positives are of the kind that gets observed: more popular, and better liked, than the average item that "
        "somebody would like and never saw. Multiples of chance are for that kind, and are lower for the rest.",
        "With a part of the positives hidden, training had less to learn from than yours will have.",
        "A click is taken for a like. Where people click on what they then dislike, so does the audit.",
    ]
    if found.each[0].errors is None:
        points.insert(
            0,
            "How many of all drawn negatives are false. Interactions alone cannot say: an item that nobody was shown and one "
            "that nobody likes leave the same trace. Users can, if they are asked: srns audit --ask writes the questions.",
        )
    else:
        points.insert(
            0, "The share of false negatives is as good as the answers are random: pairs picked in another way will bias it."
        )
    page.points(points)


def _percent(share: float) -> Cell:
    return Cell(f"{share:.1%}", float(share))


def _even(runs: list[list[Any]]) -> NDArray[np.float64]:
    """Values by seed and epoch, as far as all seeds went."""
    shortest = min(map(len, runs))
    return np.array([run[:shortest] for run in runs], np.float64)


def _curve(name: str, x: NDArray[Any], runs: NDArray[np.float64]) -> Curve:
    """The mean over seeds, with the least and the most."""
    band = (runs.min(axis=0), runs.max(axis=0)) if len(runs) > 1 else (None, None)
    return Curve(name, x.tolist(), runs.mean(axis=0).tolist(), *(None if each is None else each.tolist() for each in band))


def _bands(found: Findings) -> str:
    return f" Bands reach from the least to the most of {found.facts['seeds']} seeds." if found.facts["seeds"] > 1 else ""
