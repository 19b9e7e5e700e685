"""Appendix B.4: the paper's search for settings, and whether it finds the paper's.

Synthetic experiments are tuned on splits of their own (`ml-100k-paper-tuning`): first the size of embeddings, step size and L2
with uniform negatives, then alpha and T0 of SRNS under noise, both by NDCG@3 over the last epochs. With --dataset and other
data, the search is that for real data: step size and L2, then temperature and memories without variance, then alpha and T0, all
by validation NDCG@1; some 150 runs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from srns.drawing import look, new_figure
from srns.errors import ScoreError, TrainingError
from srns.experiments import noise, real
from srns.experiments.outcome import Asked, Check, Outcome, Table
from srns.experiments.paper_search import PaperSearch, Setting, paper_stages
from srns.experiments.store import FAILED, Found, Job
from srns.presets import PRESETS

TITLE = "Appendix B.4: the search for settings"
BEARS = (TrainingError, ScoreError)  # a search goes on without the settings that break down
SEARCHED = {  # what the paper's tables say was found
    "synthetic": ("learning_rate", "l2", "dim", "variance_weight", "warmup_epochs"),
    "real": ("learning_rate", "l2", "temperature", "memory_size", "expansion_size", "variance_weight", "warmup_epochs"),
}
QUICK_RANGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "synthetic": {
        "dim": (8, 32), "learning_rate": (1e-3, 5e-3), "l2": (1e-3,), "variance_weight": (5.0, 20.0), "warmup_epochs": (50,),
    },
    "real": {
        "learning_rate": (1e-3, 5e-3), "l2": (1e-3,), "temperature": (2.0,), "memory_size": (8, 16), "expansion_ratio": (4,),
        "variance_weight": (1.0, 5.0), "warmup_epochs": (25,),
    },
}  # fmt: skip


def _published(dataset: str) -> dict[str, Any]:
    """What the paper found on these very data (tables 4 and 5, and the best cells of appendix C.3)."""
    if dataset in noise.SETUPS:
        preset, searched = noise.SETUPS[dataset].preset, SEARCHED["synthetic"]
    elif dataset in real.SETUPS and not real.SETUPS[dataset].note:  # a note says that others stand in for the paper's
        preset, searched = real.SETUPS[dataset].preset, SEARCHED["real"]
    else:
        return {}
    return {field: PRESETS[preset][field] for field in searched}


def _searches(asked: Asked) -> dict[str, PaperSearch]:
    ranges = QUICK_RANGES if asked.quick else {}
    return {
        name: paper_stages("synthetic", noise=noise.SETUPS[name].warmup_sigma, ranges=ranges.get("synthetic"))
        if name in noise.SETUPS
        else paper_stages("real", ranges=ranges.get("real"))
        for name in asked.datasets or noise.SETUPS
    }


def _job(asked: Asked, dataset: str, setting: Setting) -> Job:
    """One seed of a setting, as the search for real data too takes one."""
    values = dict(setting)
    one = replace(asked, seeds=1)
    if dataset in noise.SETUPS:
        (job,) = noise.jobs_of(one, dataset, values.pop("noise", None), values, tuning=True)
    else:
        (job,) = real.jobs_of(one, dataset, values)
    return job


def _scores(asked: Asked, found: Found, dataset: str, search: PaperSearch) -> dict[Setting, float]:
    """What is known by now; `search.next` names what is not."""
    scores: dict[Setting, float] = {}
    while True:
        known = {each: found[job] for each in search.next(scores) if (job := _job(asked, dataset, each)) in found}
        if not known:
            return scores
        scores |= {each: _score(result) for each, result in known.items()}


def _score(result: dict[str, Any]) -> float:
    """NDCG@3 over the last epochs, or the best validation NDCG@1; -inf where training broke down."""
    if FAILED in result:
        return -math.inf
    return float(result["last"]["ndcg@3"] if "last" in result else max(point[1] for point in result["curve"]))


def jobs(asked: Asked, found: Found) -> list[Job]:
    needed = []
    for name, search in _searches(asked).items():
        scores = _scores(asked, found, name, search)
        needed += [_job(asked, name, each) for each in (*scores, *search.next(scores))]
    return needed


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    searches = _searches(asked)
    figure, panels = new_figure(len(searches), 1)
    for (name, search), panel in zip(searches.items(), panels[0], strict=True):
        scores = _scores(asked, found, name, search)
        best = search.best(scores)
        done = 0
        for number, stage in enumerate(search.stages(scores)):
            values = [scores[each] if scores[each] > -math.inf else math.nan for each in stage.settings]
            panel.plot(range(done, done + len(values)), values, label=stage.name, **look(number) | {"linestyle": ""})
            done += len(values)
        tuned_by = "NDCG@3, last epochs" if name in noise.SETUPS else "validation NDCG@1"
        panel.set(xlabel="setting, in the order tried", ylabel=tuned_by, title=name)
        panel.legend(fontsize=6)
        rows = [[stage.name, str(len(stage.settings)), *_best_of(stage.settings, scores)] for stage in search.stages(scores)]
        result.tables.append(Table(f"{name}: stages of the search", ["stage", "settings", "best", "with"], rows))
        if best is not None and (theirs := _published(name)):
            ours = dict(best)
            same = [field for field, value in theirs.items() if math.isclose(float(ours.get(field, math.nan)), value)]
            shown = ", ".join(f"{field} {ours.get(field)} (paper {value})" for field, value in theirs.items())
            claim = f"{name}: the search finds the paper's settings"
            result.checks.append(Check(claim, len(same) == len(theirs), f"{len(same)} of {len(theirs)}: {shown}"))
        result.data[name] = [{"setting": dict(each), "score": score} for each, score in scores.items()]
        broken = [job for each in scores if FAILED in found[job := _job(asked, name, each)]]
        result.notes += [f"{job.label} broke down, and is not chosen: {found[job][FAILED]}" for job in broken]
    result.figures["tuning"] = figure
    result.notes += ["One seed for each setting: near-equal settings may change places with another seed."]
    result.notes += [] if asked.datasets else ["For real data: srns reproduce tuning --dataset ml-1m-paper (some 150 runs)."]
    return result


def _best_of(settings: list[Setting], scores: dict[Setting, float]) -> tuple[str, str]:
    best = max(settings, key=lambda each: scores[each])
    if scores[best] == -math.inf:
        return "all broke down", ""
    return f"{scores[best]:.4f}", ", ".join(f"{field} {value}" for field, value in best if field != "sampler")
