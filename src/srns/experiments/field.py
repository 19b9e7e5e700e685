"""Beyond the paper: every method of this package on the same data, ranked against the whole catalogue and by the paper's
protocol.

Each method tries a few settings with seed 0, stage by stage: the one with the highest validation NDCG@10 under full ranking is
where the next stage goes on, and the last one is run with the other seeds. Test data are looked at by the runs that are
reported, and choose nothing. What a setting does not name is the default recipe, which was found with SRNS. Adversarial methods
go on from a model trained with uniform negatives, in the setting chosen for these and with the same seed, in small steps. Of a
method that cannot run (EASE with too large a catalogue, a package that is not installed) a note says why.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from srns.config import RunConfig
from srns.drawing import COLOURS, new_figure
from srns.errors import ConfigError, ScoreError, TrainingError
from srns.evaluation import Comparison
from srns.experiments import real
from srns.experiments.field_runs import COMPARED, FULL, PAPER, train
from srns.experiments.outcome import Asked, Outcome, Table, below_popularity, difference_over_users, seconds_told, told
from srns.experiments.store import FAILED, Found, Job
from srns.scorers import CLOSED_FORM
from srns.significance import holm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "The field: every method, its setting chosen on validation data"
QUICK_TITLE = "The field: every method, one setting of each"
# A method that the data or the machine rule out is part of the outcome; missing data, a full disk or a bug are not.
BEARS = (ConfigError, TrainingError, ScoreError, MemoryError)
DATASETS = ("ml-1m-paper", "pinterest", "beauty", "sports-outdoors")
QUICK_EPOCHS = 10
VALIDATIONS = 5  # of a run; ranking whole catalogues takes longer than many an epoch
OURS, UNIFORM = "srns", "uniform"

ALL_START = " (no epoch was better than its uniform start)"

Setting = dict[str, Any]


def _each(field: str, *values: Any) -> list[Setting]:
    return [{field: value} for value in values]


def _adversarial(sampler: str, epochs: int, **values: Any) -> Setting:
    return {"sampler": sampler, "loss": "bpr", "epochs": epochs, "learning_rate": 0.0005, **values}


def _whole(setting: Setting) -> int:
    """The epochs of a run that nothing keeps short."""
    return int(setting.get("epochs", RunConfig.model_fields["epochs"].default))


FEW = _each("l2", "auto", 0.02, 0.005)  # for methods with few negatives, the default is strong
# Where each method's search begins, and its stages: what changes there of the best setting so far.
METHODS: dict[str, tuple[Setting, list[list[Setting]]]] = {
    "popularity": ({"scorer": "popularity"}, []),
    "ease": ({"scorer": "ease", "l2": 200}, [_each("l2", 50, 1000)]),
    "als": (
        {"scorer": "als", "dim": 128, "l2": 30, "confidence": 10},
        [_each("confidence", 4, 40), _each("l2", 1, 100), _each("dim", 64, 256)],
    ),
    OURS: (  # learns from its whole memory: nothing is left to select
        {"sampler": "srns", "temperature": 2.0},
        [_each("temperature", 0.5, 1.0, 4.0), [{"memory_size": 32, "expansion_size": 96}]],
    ),
    "srns by variance": (
        {"sampler": "srns", "negatives": 4, "variance_weight": 5.0, "l2": "auto"},
        [FEW, _each("variance_weight", 1.0, 20.0), _each("negatives", 8)],
    ),
    UNIFORM: ({"sampler": "uniform", "negatives": 16}, [_each("negatives", 64, 128)]),
    "popular negatives": (
        {"sampler": "popularity", "power": 0.75, "log_q": True},
        [_each("log_q", False), _each("power", 0.5), _each("negatives", 64)],
    ),
    "aobpr": (
        {"sampler": "aobpr", "negatives": 4, "rank_scale": 200.0},
        [_each("rank_scale", 50.0, 1000.0), _each("negatives", 16), _each("l2", 0.02)],
    ),
    "dns": (
        {"sampler": "dns", "candidates": 32, "negatives": 4, "l2": 0.02},
        [[{"candidates": 8}, {"candidates": 64, "negatives": 16, "l2": "auto"}], FEW],
    ),
    "dns_mn": (
        {"sampler": "dns_mn", "candidates": 32, "top": 16, "negatives": 8},
        [_each("candidates", 64, 128), [{"candidates": 128, "top": 32, "negatives": 16}], _each("l2", 0.02)],
    ),
    "softmax": (
        {"sampler": "softmax", "candidates": 64, "negatives": 16, "temperature": 1.0},
        [_each("temperature", 0.5, 2.0), [{"candidates": 128, "negatives": 32}]],
    ),
    "bns": (
        {"sampler": "bns", "candidates": 8, "negatives": 4, "risk_weight": 1.0, "l2": 0.02},
        [[{"candidates": 32, "negatives": 16, "l2": "auto"}], _each("risk_weight", 5.0), FEW],
    ),
    "ahns": (
        {"sampler": "ahns", "candidates": 16, "negatives": 4, "hardness_scale": 2.0},
        [_each("hardness_scale", 0.5, 8.0), [{"candidates": 64, "negatives": 16}], _each("l2", 0.02)],
    ),
    "enmf": (
        {"sampler": "enmf", "learning_rate": 0.01, "l2": 1e-4, "learn_beta": True, "epochs": 100, "negative_weight": 0.05},
        [_each("negative_weight", 0.01, 0.3), _each("l2", 0.01)],
    ),
    "nncf": ({"sampler": "nncf", "shared_negatives": 256, "l2": "auto"}, [_each("log_q", True), _each("l2", 0.02)]),
    "adasir": ({"sampler": "adasir", "l2": "auto"}, [_each("l2", 0.02)]),
    "mixgcf": ({"sampler": "mixgcf", "candidates": 16, "l2": 0.02}, [FEW]),
    "in_batch": ({"sampler": "in_batch", "log_q": True, "l2": "auto"}, [_each("l2", 0.02)]),
    "dens": ({"sampler": "dens", "dim": 64, "epochs": 10, "warmup_epochs": 10, "l2": 0.02}, [FEW]),
    "rns_as": (_adversarial("rns_as", 10, l2="auto"), [_each("learning_rate", 0.0001), _each("l2", 0.02)]),
    "advir": (
        _adversarial("advir", 10, l2="auto", perturbation=0.01),
        [_each("learning_rate", 0.0001), _each("l2", 0.02)],
    ),
    "irgan": (_adversarial("irgan", 3, temperature=0.5), [_each("temperature", 1.0)]),
}
MOST_EPOCHS = max(_whole(base) for base, _ in METHODS.values())


def _setups(asked: Asked) -> dict[str, real.Setup]:
    return real.setups(asked if asked.datasets or asked.quick else replace(asked, datasets=DATASETS))


def _limit(asked: Asked) -> int:
    """The most epochs of a run."""
    return asked.epochs or (QUICK_EPOCHS if asked.quick else MOST_EPOCHS)


def _epochs(asked: Asked, setting: Setting) -> int:
    return min(_whole(setting), _limit(asked))


def _values(asked: Asked, dataset: str, setting: Setting, seed: int) -> Setting:
    """All that a run is made of beyond the defaults."""
    epochs = _epochs(asked, setting)
    measured = {"epochs": epochs, "validate_every": max(1, epochs // VALIDATIONS), "protocol": "full"}
    return {**_setups(asked)[dataset].values, **setting, **measured, "seed": seed, "threads": 1}


def _job(asked: Asked, found: Found, dataset: str, method: str, setting: Setting, seed: int) -> Job | None:
    """A run; None as long as what it starts from is not there: adversarial methods go on from uniform negatives at their
    best."""
    label = f"{asked.title(dataset)} {method} {_shown(setting)} seed {seed}"
    arguments: dict[str, Any] = {"dataset": dataset, "values": _values(asked, dataset, setting, seed)}
    if method == UNIFORM:
        arguments["saved"] = True
    if method in real.ADVERSARIAL:
        best = _best(asked, found, dataset, UNIFORM)
        start = None if best is None else _job(asked, found, dataset, UNIFORM, best, seed)
        if start is None or start not in found:
            return None
        if FAILED in found[start]:  # the reason is that of this run, too
            return start
        arguments["start"] = start.key()
    return Job.of(train, label, keeps=True, **arguments)


def _shown(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items() if name not in ("sampler", "scorer")) or "default"


def _tried(asked: Asked, found: Found, dataset: str, method: str) -> tuple[dict[Job, Setting], Setting | None]:
    """The runs that choose among settings, as far as they can be named, and the best setting; None as long as it is not known.

    Each stage changes something of the best so far; a quick look tries where the search begins.
    """
    base, stages = METHODS[method]
    tried: dict[Job, Setting] = {}
    best = base
    start: list[list[Setting]] = [[{}]]
    for changes in start if asked.quick else start + stages:
        for change in changes:
            setting = {**best, **change}
            if (job := _job(asked, found, dataset, method, setting, 0)) is not None:
                tried.setdefault(job, setting)
        if not tried or any(job not in found for job in tried):
            return tried, None
        best = tried[max(tried, key=lambda job: found[job].get("valid", -1.0))]
    return tried, best


def _best(asked: Asked, found: Found, dataset: str, method: str) -> Setting | None:
    """The best setting by validation; None as long as it is not known."""
    return _tried(asked, found, dataset, method)[1]


def _chosen(asked: Asked, found: Found, dataset: str, method: str) -> list[Job]:
    """The runs with the best setting; none as long as they cannot be named."""
    best = _best(asked, found, dataset, method)
    seeds = range(1 if method in CLOSED_FORM else asked.n_seeds)  # nothing is random about a closed form
    runs = [] if best is None else [_job(asked, found, dataset, method, best, seed) for seed in seeds]
    return [job for job in runs if job is not None]


def jobs(asked: Asked, found: Found) -> list[Job]:
    needed: list[Job] = []
    for dataset in _setups(asked):
        for method in METHODS:
            needed += [*_tried(asked, found, dataset, method)[0], *_chosen(asked, found, dataset, method)]
    return needed


def _cells(runs: list[dict[str, Any]], metrics: tuple[str, ...]) -> list[str]:
    return [real.number(*pair) for pair in zip(*real.means(runs, metrics), strict=True)]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    names = list(_setups(asked))
    figure, grid = new_figure(min(2, len(names)), -(-len(names) // 2), height=3.5)
    panels = list(grid.flat)
    for unused in panels[len(names) :]:
        unused.remove()
    told_why = (_of_dataset(asked, found, dataset, panel, result) for dataset, panel in zip(names, panels, strict=False))
    refused = [why for why in told_why if why is not None]
    if len(refused) == len(names):
        raise ConfigError("; ".join(refused))
    result.figures["field"] = figure
    if len(result.tables) > 1:
        titles = {dataset: asked.title(dataset) for dataset in names}
        result.tables.insert(0, _overview(result, titles, sure=not asked.short(MOST_EPOCHS)))
    result.notes = [
        *result.notes,
        *refused,
        *[f"One setting of each method is tried, not several, for {_limit(asked)} epochs at most."] * asked.quick,
        *_divided(asked),
        *_columns(result),
        "± is the standard error of the mean over seeds; intervals are over users, paired."
        + " A full dot is a difference that holds for all methods together (Holm, .05)." * (not asked.short(MOST_EPOCHS)),
        "best epochs: 0 is the model that an adversarial method started from, `uniform` in its best setting. seconds: of "
        "training, without that start.",
        "Settings are flags of srns train: log_q=True is --log-q. popular negatives are --sampler popularity, srns by variance "
        "is --sampler srns; popularity, ease and als are scorers.",
    ]
    return result


def _divided(asked: Asked) -> list[str]:
    """How these data were divided, of several told by their names."""
    setups = _setups(asked)
    if len(ways := {setup.divided for setup in setups.values()}) == 1:
        return [f"{ways.pop().capitalize()}."]
    return [f"{asked.title(name)}: {setup.divided}." for name, setup in setups.items()]


def _columns(result: Outcome) -> list[str]:
    """Which columns are of which protocol: headings are short, and a narrow terminal sets them apart from each other."""
    full = "N@10, R@10, N@20 and R@20 (NDCG, recall) rank all items"
    both = any("N@3" in table.columns for table in result.tables)
    return [f"{full}; N@1, N@3 and R@3 rank each test item among 100 others, as the paper does." if both else f"{full}."]


def _of_dataset(asked: Asked, found: Found, dataset: str, panel: Axes, result: Outcome) -> str | None:
    """Table and panel of one data set; or, where no method can run, why."""
    title = asked.title(dataset)
    runs = {method: [found[job] for job in _chosen(asked, found, dataset, method)] for method in METHODS}
    refused = {method: next((run[FAILED] for run in mine if FAILED in run), None) for method, mine in runs.items()}
    runs = {method: mine for method, mine in runs.items() if refused[method] is None}
    if not runs:
        panel.set_axis_off()
        return f"{title}: no method can run; {OURS}: {refused[OURS]}"
    parts = [part for part in COMPARED if all(part in run["users"] for mine in runs.values() for run in mine)]
    others = [method for method in runs if method != OURS] if OURS in runs else []
    ahead = {
        (method, part): difference_over_users(*([run["users"][part] for run in mine] for mine in (runs[method], runs[OURS])))
        for method, part in product(others, parts)
    }
    order = sorted(runs, key=lambda method: -real.means(runs[method], FULL[:1])[0][0])
    columns = ["method", "N@10", "R@10", "N@20", "R@20", "N@10 less SRNS's (95%)"]
    columns += ["N@1, 1 + 100", "N@3", "R@3", "N@3 less SRNS's (95%)"] if "paper" in parts else []
    rows = []
    for method in order:
        mine = runs[method]
        full, *paper = (
            [*_cells(mine, metrics), told(ahead[method, part]) if method in others else ""]
            for part, metrics in (("full", FULL), ("paper", PAPER))
            if part in parts
        )
        best = ", ".join(str(run["best_epoch"]) for run in mine)
        seconds = seconds_told(float(np.median([run["seconds"] for run in mine])))
        setting = _best(asked, found, dataset, method) or {}
        if "epochs" in setting:
            setting = {**setting, "epochs": _epochs(asked, setting)}
        told_by = _shown(setting) + ALL_START * all(run["best_epoch"] == 0 for run in mine)
        rows.append([method, *full, *(cell for each in paper for cell in each), best, seconds, told_by])
        result.data[f"{dataset} {method}"] = {
            "setting": setting,
            "runs": [{name: value for name, value in run.items() if name != "users"} for run in mine],
            "ahead_of_srns": {part: asdict(ahead[method, part]) for part in parts if (method, part) in ahead},
            "tried": [[setting, found[job].get("valid")] for job, setting in _tried(asked, found, dataset, method)[0].items()],
        }
    result.notes += [f"{title}: {method} cannot run: {why}" for method, why in refused.items() if why is not None]
    behind = order[order.index("popularity") + 1 :] if "popularity" in order else []
    result.notes += below_popularity(title, behind, asked.short(MOST_EPOCHS))
    how = "setting" if asked.quick else "chosen on validation"
    result.tables.append(Table(f"{title}, test", [*columns, "best epochs", "seconds", how], rows))
    sure = not asked.short(MOST_EPOCHS)
    _draw(panel, title, order, {method: ahead[method, "full"] for method in others}, sure)
    return None


def _overview(result: Outcome, titles: dict[str, str], sure: bool) -> Table:
    """All data sets side by side, by `titles`: NDCG@10, and of methods trained to the end (`sure`), whether they are ahead of
    SRNS or behind it for all methods together. The best come first, by the mean of what they are beside the mean of all."""
    cells: dict[str, dict[str, str]] = {}
    relative: dict[str, list[float]] = {}
    for dataset in titles:
        found = {method: result.data[key] for method in METHODS if (key := f"{dataset} {method}") in result.data}
        means = {method: real.means(each["runs"], FULL[:1])[0][0] for method, each in found.items()}
        ahead = {method: full for method, each in found.items() if (full := each["ahead_of_srns"].get("full"))}
        corrected = dict(zip(ahead, holm([each["p_value"] for each in ahead.values()]), strict=True))
        for method, mean in means.items():
            certain = sure and corrected.get(method, 1.0) < 0.05
            mark = "" if not certain else " ▲" if ahead[method]["difference"] > 0 else " ▼"
            cells.setdefault(method, {})[dataset] = real.number(mean) + mark
            relative.setdefault(method, []).append(mean / (float(np.mean(list(means.values()))) or 1.0))
    order = sorted(cells, key=lambda method: -float(np.mean(relative[method])))
    rows = [[method, *(cells[method].get(dataset, "") for dataset in titles)] for method in order]
    told_by = f"; ▲ ahead of {OURS}, ▼ behind, beyond luck (Holm, .05)" if sure else ""
    return Table(f"All data sets: test NDCG@10{told_by}", ["method", *titles.values()], rows)


def _draw(panel: Axes, title: str, order: list[str], ahead: dict[str, Comparison], sure: bool) -> None:
    """How far each method is ahead of SRNS, with its interval; the best on top. Of methods trained to the end (`sure`),
    full dots tell which differences are more than luck."""
    corrected = dict(zip(ahead, holm([each.p_value for each in ahead.values()]), strict=True))
    panel.axvline(0, color=COLOURS[6], linewidth=0.8)
    for place, method in enumerate(reversed(order)):
        if found := ahead.get(method):
            panel.plot([found.low, found.high], [place, place], color=COLOURS[0])
            filled = COLOURS[0] if sure and corrected[method] < 0.05 else "white"
            panel.plot(found.difference, place, "o", color=COLOURS[0], markerfacecolor=filled)
        elif method == OURS:
            panel.plot(0, place, "D", color=COLOURS[1])
    panel.set_yticks(range(len(order)), list(reversed(order)))
    panel.set(title=title, xlabel="NDCG@10 less that of SRNS")
