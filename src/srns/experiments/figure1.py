"""Figure 1: what false and hard negatives look like to a model that learns from uniform ones.

GMF learns from uniform negatives, as the paper's appendix C.2 has it, and is looked at as it does (`srns.negatives`): (a) how
P_pos is spread over all pairs that are not in train, at five epochs; (b) the median P_pos of false, uniform and hard negatives;
(c) how many of the hard ones are false; (d) how much P_pos wavers over the last five epochs, std / mean. False negatives are
the test records, which training never sees.

Steadiness is worth something only where scores do not tell as much already: an item of high P_pos has a small std / mean
whatever it is. So false negatives are compared with hard ones of the same median P_pos: at each epoch, the std / mean of hard
negatives is interpolated between the two difficulties whose medians enclose that of the false ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from srns.drawing import curve, new_figure
from srns.experiments.figure1_runs import AT, look
from srns.experiments.noise import SETUPS
from srns.experiments.outcome import PAPER_EPOCHS, Asked, Check, Outcome, Table
from srns.experiments.store import Found, Job
from srns.negatives import DIFFICULTIES, matched

TITLE = "Figure 1: false and hard negatives: scores, label errors and how much P_pos wavers"
DEFAULT = "ml-100k-paper"
QUICK_EPOCHS = 40
SHOWN = (1, 4, 16, 64)  # difficulties that are drawn; all are measured


def names(asked: Asked) -> dict[str, str]:
    """The data sets asked for, and what people call them."""
    return {name: SETUPS[name].title if name in SETUPS else asked.title(name) for name in asked.datasets or (DEFAULT,)}


def runs_of(asked: Asked, dataset: str) -> list[Job]:
    epochs = asked.epochs or (QUICK_EPOCHS if asked.quick else PAPER_EPOCHS)
    seeds = range(asked.n_seeds)
    title = names(asked)[dataset]
    preset = SETUPS[dataset if dataset in SETUPS else DEFAULT].preset
    how: dict[str, Any] = {"preset": preset, "epochs": epochs, **({"reading": dict(asked.reading)} if asked.reading else {})}
    return [Job.of(look, f"{title} uniform seed {seed}", dataset=dataset, seed=seed, **how) for seed in seeds]


def jobs(asked: Asked, found: Found) -> list[Job]:
    return [job for name in names(asked) for job in runs_of(asked, name)]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    for name, title in names(asked).items():
        runs = [found[job] for job in runs_of(asked, name)]
        epochs = np.array([each["epoch"] for each in runs[0]["looks"]])
        series = {key: np.array([[each[key] for each in run["looks"]] for run in runs], float)
                  for key in ("p_pos", "wavering", "label_error_ratio")}  # fmt: skip  # (runs, epochs, kinds)
        late, peers = epochs > epochs[-1] / 2, _peers(series)
        figure = "figure1" if len(names(asked)) == 1 else f"figure1-{asked.stems[name]}"
        result.figures[figure] = _draw(title, runs, epochs, series, peers)
        result.tables.append(_table(title, series, peers, late))
        result.checks += [_steadier(title, series, peers, late), _more_errors(title, series, late)]
        result.data[name] = runs
    result.notes.append(
        "False negatives are the test records; hard ones of difficulty D are the best by score of D uniform candidates, drawn "
        "anew at each look." + f" Shades are one standard deviation over {len(runs)} seeds." * (len(runs) > 1)
    )
    return result


def _peers(series: dict[str, Any]) -> Any:
    """(runs, epochs) the std / mean of hard negatives that are as hard as the false ones."""
    return np.array([
        [matched(p[0], p[1:], w[1:]) for p, w in zip(*both, strict=True)]
        for both in zip(series["p_pos"], series["wavering"], strict=True)
    ])  # fmt: skip


def _draw(title: str, runs: list[dict[str, Any]], epochs: Any, series: dict[str, Any], peers: Any) -> Any:
    figure, panels = new_figure(2, 2)
    spread, median, errors, steady = panels.flat
    for number, (epoch, _) in enumerate(runs[0]["shares"]):
        curve(spread, AT, [run["shares"][number][1] for run in runs], f"epoch {epoch}", number)
    spread.set(xlabel="P_pos", ylabel="share of pairs above", ylim=(0, 1), title=f"(a) {title}: all negatives")
    spread.legend()
    waited = epochs > 1  # one epoch alone cannot waver
    for number, (kind, column) in enumerate([("false", 0), *((_kind(d), 1 + DIFFICULTIES.index(d)) for d in SHOWN)]):
        curve(median, epochs, series["p_pos"][:, :, column], kind, number)
        curve(steady, epochs[waited], series["wavering"][:, waited, column], kind, number)
        if column:
            curve(errors, epochs, series["label_error_ratio"][:, :, column - 1], kind, number)
    curve(steady, epochs[waited], peers[:, waited], "hard, as hard as the false", len(SHOWN) + 2)
    median.set(xlabel="epoch", ylabel="median P_pos", title="(b) how hard", ylim=(0, None))
    errors.set(xlabel="epoch", ylabel="label error ratio", title="(c) how many are false", ylim=(0, None))
    steady.set(xlabel="epoch", ylabel="median std / mean", title="(d) how much P_pos wavers", yscale="log")
    handles, labels = steady.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _kind(difficulty: int) -> str:
    return "uniform" if difficulty == 1 else f"hard, D = {difficulty}"


def _table(title: str, series: dict[str, Any], peers: Any, late: Any) -> Table:
    rows = []
    for column, kind in enumerate(["false", *map(_kind, DIFFICULTIES)]):
        cells = [series[key][:, late, column].mean() for key in ("p_pos", "wavering")]
        ratio = "" if not column else f"{series['label_error_ratio'][:, late, column - 1].mean():.4f}"
        rows.append([kind, *(f"{cell:.4f}" for cell in cells), ratio])
    told = peers[:, late][np.isfinite(peers[:, late])]
    rows.append(["hard, as hard as the false", rows[0][1], f"{told.mean():.4f}" if len(told) else "none is", ""])
    return Table(f"{title}: means over the second half of training", ["negatives", "P_pos", "std / mean", "label errors"], rows)


def _steadier(title: str, series: dict[str, Any], peers: Any, late: Any) -> Check:
    """Whether false negatives waver less than hard ones of the same median P_pos, over the second half of training."""
    claim = f"{title}: false negatives waver less than hard ones of the same median P_pos in the second half of training"
    more = peers[:, late] - series["wavering"][:, late, 0]
    told = np.isfinite(more)
    if not told.any(axis=1).all():
        return Check(claim, None, "no difficulty is as hard as the false ones")
    by_seed = np.nanmean(more, axis=1)
    mine, theirs = series["wavering"][:, late, 0].mean(), float(np.nanmean(peers[:, late]))
    if theirs == 0:
        return Check(claim, None, "nothing wavers in so few epochs")
    detail = f"std / mean {mine:.4f} against {theirs:.4f}, {abs(1 - mine / theirs):.1%} {'less' if mine < theirs else 'more'}"
    if len(by_seed) > 1:
        low, high = stats.t.interval(0.95, len(by_seed) - 1, by_seed.mean(), stats.sem(by_seed) or 1e-12)
        detail += f", difference {by_seed.mean():+.4f} (95% over seeds {low:+.4f} to {high:+.4f})"
        if low <= 0 <= high:
            return Check(claim, None, detail)
    if not told.all():
        detail += f"; at {told.mean():.0%} of the epochs, the others having no equal"
    return Check(claim, bool(by_seed.mean() > 0), detail)


def _more_errors(title: str, series: dict[str, Any], late: Any) -> Check:
    ratios = series["label_error_ratio"][:, late].mean(axis=(0, 1))
    detail = ", ".join(f"D = {d}: {ratio:.2%}" for d, ratio in zip(DIFFICULTIES, ratios, strict=True))
    return Check(f"{title}: the label error ratio grows with difficulty", bool(np.all(np.diff(ratios) > 0)), detail)
