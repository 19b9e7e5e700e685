"""Beyond the paper: every method at its best, on the same data, ranked against the whole catalogue and by the paper's protocol.

Each method tries a few settings with seed 0, the highest validation NDCG@10 under full ranking chooses one, and the other seeds
run with that. Test data are looked at by the runs that are reported, and choose nothing. What a setting does not name is the
default recipe. Adversarial methods go on from a model trained with uniform negatives and the same seed, in small steps.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srns.drawing import COLOURS, new_figure
from srns.evaluation import Comparison, Evaluation, evaluate, paired_bootstrap
from srns.experiments import real
from srns.experiments.study import Asked, Found, Job, Outcome, Table
from srns.presets import make_config
from srns.runs import prepare
from srns.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "The field: every method at its best"
DATASETS = ("ml-1m-paper", "pinterest", "beauty", "sports-outdoors")
QUICK_EPOCHS = 2
OURS, CHOOSES = "srns", "ndcg@10"
FULL, PAPER = ("ndcg@10", "recall@10", "ndcg@20", "recall@20"), real.METRICS
COMPARED = {"full": "ndcg@10", "paper": "ndcg@3"}  # the metric of each protocol whose difference to SRNS is told

Setting = dict[str, Any]


def _grid(**values: list[Any]) -> list[Setting]:
    """All combinations."""
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


def _adversarial(sampler: str, **values: list[Any]) -> list[Setting]:
    return _grid(sampler=[sampler], loss=["bpr"], learning_rate=[0.0005], epochs=[3], **values)


L2: dict[str, list[Any]] = {"l2": ["auto", 0.02]}
METHODS: dict[str, list[Setting]] = {
    "popularity": [{"scorer": "popularity"}],
    "ease": _grid(scorer=["ease"], l2=[50, 200, 1000]),
    "als": _grid(scorer=["als"], dim=[64, 128], l2=[1, 30], confidence=[10, 40]),
    OURS: _grid(sampler=["srns"], temperature=[1.0, 2.0, 4.0]),
    "uniform": _grid(sampler=["uniform"], negatives=[16, 64]),
    "popular negatives": _grid(sampler=["popularity"], power=[0.5, 0.75]),
    "aobpr": _grid(sampler=["aobpr"], negatives=[4], rank_scale=[200.0, 1000.0]),
    "dns": _grid(sampler=["dns"], candidates=[8, 32], negatives=[4]),
    "dns_mn": _grid(sampler=["dns_mn"], candidates=[32, 64], top=[16], negatives=[8]),
    "softmax": _grid(sampler=["softmax"], candidates=[64], negatives=[16], temperature=[1.0, 2.0]),
    "bns": _grid(sampler=["bns"], candidates=[8], negatives=[1], risk_weight=[1.0, 5.0], **L2),
    "ahns": _grid(sampler=["ahns"], candidates=[16], negatives=[4], hardness_scale=[0.5, 2.0]),
    "enmf": _grid(sampler=["enmf"], learning_rate=[0.01], l2=[1e-4], learn_beta=[True], negative_weight=[0.05, 0.3]),
    "nncf": _grid(sampler=["nncf"], shared_negatives=[256], **L2),
    "adasir": _grid(sampler=["adasir"], **L2),
    "mixgcf": _grid(sampler=["mixgcf"], candidates=[16], **L2),
    "in_batch": _grid(sampler=["in_batch"], log_q=[True], **L2),
    "dens": _grid(sampler=["dens"], dim=[64], epochs=[10], warmup_epochs=[10], **L2),
    "rns_as": _adversarial("rns_as", **L2),
    "advir": _adversarial("advir", perturbation=[0.01], **L2),
    "irgan": _adversarial("irgan"),
}
CERTAIN = ("popularity", "ease")  # nothing random about them: one seed is all there is


def _setups(asked: Asked) -> dict[str, real.Setup]:
    return real.setups(asked if asked.datasets or asked.quick else replace(asked, datasets=DATASETS))


def _job(asked: Asked, dataset: str, method: str, setting: Setting, seed: int) -> Job:
    shared = {**_setups(asked)[dataset].values, "protocol": "full", "seed": seed, "threads": 1}
    limit = asked.epochs or (QUICK_EPOCHS if asked.quick else None)

    def limited(values: Setting) -> Setting:
        return {**shared, **values, **({"epochs": min(limit, values.get("epochs", limit))} if limit else {})}

    start: dict[str, Any] = {"start": limited({"sampler": "uniform"})} if method in real.ADVERSARIAL else {}
    label = f"{_title(dataset)} {method} {_shown(setting)} seed {seed}"
    return Job.of(train, label, dataset=dataset, values=limited(setting), **start)


def _title(dataset: str) -> str:
    return Path(dataset).stem


def _shown(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items() if name not in ("sampler", "scorer")) or "default"


def _tried(asked: Asked, dataset: str, method: str) -> dict[Job, Setting]:
    """The runs that choose among settings; a quick look tries one."""
    settings = METHODS[method][:1] if asked.quick else METHODS[method]
    return {_job(asked, dataset, method, setting, 0): setting for setting in settings}


def _chosen(asked: Asked, found: Found, dataset: str, method: str) -> tuple[Setting, list[Job]]:
    """The best setting by validation, and its runs."""
    tried = _tried(asked, dataset, method)
    best = tried[max(tried, key=lambda job: found[job]["valid"])]
    seeds = 1 if asked.quick or method in CERTAIN else asked.seeds
    return best, [_job(asked, dataset, method, best, seed) for seed in range(seeds)]


def jobs(asked: Asked, found: Found) -> list[Job]:
    needed = []
    for dataset, method in product(_setups(asked), METHODS):
        tried = list(_tried(asked, dataset, method))
        needed += tried
        if all(job in found for job in tried):
            needed += _chosen(asked, found, dataset, method)[1]
    return needed


def train(dataset: str, values: Setting, start: Setting | None = None) -> dict[str, Any]:
    """One run, from the model of another if there is a `start`: validation NDCG@10, and test metrics under both protocols, of
    each user too."""
    config = make_config(values)
    split = prepare(dataset, config)
    init = Trainer(make_config(start), split).run().model if start else None
    trained = Trainer(config, split, init=init).run()
    valid = evaluate(trained.model, split, on="valid", protocol="full", ks=(10,))
    assert split.test is not None
    test = {"full": evaluate(trained.model, split, on="test", protocol="full", ks=(10, 20))}
    if np.all(np.diff(split.test.indptr) <= 1):  # the paper's protocol is for one item per user
        test["paper"] = evaluate(trained.model, split, on="test", protocol="paper", ks=(1, 3))
    return {
        "valid": valid[CHOOSES],
        "test": {name: each[name] for each in test.values() for name in (*FULL, *PAPER) if name in each},
        "users": {part: np.round(each.per_user[COMPARED[part]], 4).tolist() for part, each in test.items()},
        "best_epoch": trained.best_epoch,
        "epochs": len(trained.history),
        "seconds": trained.seconds_per_epoch * len(trained.history),
    }


def _difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], part: str) -> Comparison:
    """How far a method is ahead of another over users, each user's metric averaged over the seeds."""

    def of(runs: list[dict[str, Any]]) -> Evaluation:
        mean = np.mean([run["users"][part] for run in runs], axis=0)
        return Evaluation({}, per_user={"mean": mean}, users=np.arange(len(mean)), protocol="full", on="test")

    return paired_bootstrap(of(ours), of(theirs), "mean", resamples=2000)


def _cells(runs: list[dict[str, Any]], metrics: tuple[str, ...]) -> list[str]:
    return [real.number(*pair) for pair in zip(*real.means(runs, metrics), strict=True)]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    names = list(_setups(asked))
    figure, panels = new_figure(len(names), panel=(2.6, 3.4))
    for dataset, panel in zip(names, panels[0], strict=True):
        chosen = {method: _chosen(asked, found, dataset, method) for method in METHODS}
        runs = {method: [found[job] for job in mine] for method, (_, mine) in chosen.items()}
        parts = [part for part in COMPARED if part in runs[OURS][0]["users"]]
        others = [method for method in runs if method != OURS]
        ahead = {(method, part): _difference(runs[method], runs[OURS], part) for method, part in product(others, parts)}
        order = sorted(runs, key=lambda method: -real.means(runs[method], (CHOOSES,))[0][0])
        rows = []
        for method in order:
            mine = runs[method]
            told = [_told(ahead.get((method, part))) for part in parts]
            full, paper = _cells(mine, FULL), _cells(mine, PAPER) if "paper" in parts else []
            seconds = f"{np.median([run['seconds'] for run in mine]):.0f}"
            rows.append([method, *full, told[0], *paper, *told[1:], str(len(mine)), seconds, _shown(chosen[method][0])])
            result.data[f"{dataset} {method}"] = {
                "setting": chosen[method][0],
                "runs": [{name: value for name, value in run.items() if name != "users"} for run in mine],
                "ahead_of_srns": {part: asdict(ahead[method, part]) for part in parts if method != OURS},
                "tried": [[setting, found[job]["valid"]] for job, setting in _tried(asked, dataset, method).items()],
            }
        columns = ["method", "N@10", "R@10", "N@20", "R@20", "N@10 less SRNS's (95%)"]
        columns += ["N@1, 1 + 100", "N@3", "R@3", "N@3 less SRNS's (95%)"] if "paper" in parts else []
        result.tables.append(Table(f"{_title(dataset)}, test", [*columns, "seeds", "seconds", "chosen on validation"], rows))
        _draw(panel, _title(dataset), order, {method: ahead.get((method, "full")) for method in order})
    result.figures["field"] = figure
    result.notes = [setup.note for setup in _setups(asked).values()] if asked.quick else []
    result.notes += [
        "Each user's last item is left out for test, the one before for validation; random ones where the data have no times.",
        "± is the standard error of the mean over seeds; intervals are over users, paired, 2,000 resamples.",
    ]
    return result


def _told(found: Comparison | None) -> str:
    return f"{found.difference:+.4f} ({found.low:+.4f} to {found.high:+.4f})" if found else ""


def _draw(panel: Axes, title: str, order: list[str], ahead: dict[str, Comparison | None]) -> None:
    """How far each method is ahead of SRNS, with its interval; the best on top."""
    panel.axvline(0, color=COLOURS[6], linewidth=0.8)
    for place, method in enumerate(reversed(order)):
        if found := ahead[method]:
            clear = found.low > 0 or found.high < 0
            panel.plot([found.low, found.high], [place, place], color=COLOURS[0])
            panel.plot(found.difference, place, "o", color=COLOURS[0], markerfacecolor=COLOURS[0] if clear else "white")
        else:
            panel.plot(0, place, "D", color=COLOURS[1])
    panel.set_yticks(range(len(order)), list(reversed(order)))
    panel.set(title=title, xlabel="NDCG@10 less that of SRNS")
