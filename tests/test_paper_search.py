"""The paper's search, against appendix B.4 written out as loops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srns.errors import ConfigError
from srns.experiments.paper_search import PaperSearch, Scores, Setting, paper_stages
from srns.presets import make_config

# Tables 4 and 5 of the paper, as printed there.
LR, REG = [5e-4, 10e-4, 50e-4, 100e-4], [0, 1e-4, 10e-4, 100e-4]
TAU, S1, RATIO = [0.5, 1.0, 2.0, 10.0], [2, 4, 8, 16, 32], [1, 2, 4, 8]
ALPHA, T0 = [0.1, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [25, 50, 100]
Score = Callable[[dict[str, Any]], float]


def random_score(seed: int) -> Score:
    """A score of each setting that is as good as random, and the same each time."""

    def score(fields: dict[str, Any]) -> float:
        alike = {name: value if isinstance(value, str) else float(value) for name, value in fields.items()}
        return random.Random(f"{seed} {sorted(alike.items())}").random()

    return score


def uniform(lr: float, reg: float, **more: Any) -> dict[str, Any]:
    return {"sampler": "uniform", "learning_rate": lr, "l2": reg, **more}


def srns(lr: float, reg: float, tau: float, s1: int, ratio: int, alpha: float, t0: int, **more: Any) -> dict[str, Any]:
    memory = {
        "temperature": tau,
        "memory_size": s1,
        "expansion_size": ratio * s1,
        "variance_weight": alpha,
        "warmup_epochs": t0,
    }
    return {"sampler": "srns", "learning_rate": lr, "l2": reg, **memory, **more}


def real_by_hand(score: Score) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Appendix B.4, second part: all settings in groups that may be tried in any order, and the best."""
    tried, best = [], (-math.inf, 0.0, 0.0)
    for lr in LR:
        for reg in REG:
            tried.append(uniform(lr, reg))
            best = max(best, (score(tried[-1]), lr, reg))
    _, lr, reg = best
    winner: tuple[float, dict[str, Any]] = (-math.inf, {})
    memory: tuple[float, float, int, int] = (-math.inf, 0.0, 0, 0)
    for tau in TAU:
        for s1 in S1:
            for ratio in RATIO:
                tried.append(srns(lr, reg, tau, s1, ratio, 0, 0))
                found = score(tried[-1])
                memory = max(memory, (found, tau, s1, ratio))
                winner = max(winner, (found, tried[-1]), key=lambda each: each[0])
    _, tau, s1, ratio = memory
    sizes = [s1]
    if s1 > 2:
        sizes.append(s1 // 2)  # the previous value
    if s1 < 32:
        sizes.append(s1 * 2)  # the next
    for size in sizes:
        for alpha in ALPHA:
            for t0 in T0:
                tried.append(srns(lr, reg, tau, size, ratio, alpha, t0))
                winner = max(winner, (score(tried[-1]), tried[-1]), key=lambda each: each[0])
    return tried, winner[1]


def search_all(search: PaperSearch, score: Score) -> dict[Setting, float]:
    scores: dict[Setting, float] = {}
    while settings := search.next(scores):
        assert len(set(settings)) == len(settings)
        assert not set(settings) & scores.keys()
        scores |= {setting: score(dict(setting)) for setting in settings}
    return scores


def as_sets(settings: list[dict[str, Any]]) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset(each.items()) for each in settings}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_real_search_tries_what_the_appendix_says_and_finds_its_best(seed: int) -> None:
    score, search = random_score(seed), paper_stages("real")
    by_hand, winner = real_by_hand(score)
    scores = search_all(search, score)
    assert {frozenset(each) for each in scores} == as_sets(by_hand)
    assert len(scores) == len(by_hand) <= search.most
    assert dict(search.best(scores) or ()) == winner


def test_stages_come_one_after_the_other() -> None:
    search, scores = paper_stages("real"), {}
    sizes = []
    while found := search.next(scores):
        sizes.append(len(found))
        assert {dict(each)["sampler"] for each in found} == ({"srns"} if scores else {"uniform"})
        scores |= {each: 1.0 if dict(each).get("memory_size") == 16 else 0.5 for each in found}
    assert sizes == [16, 80, 21, 21, 21], "S1 16 is best: 8 and 32 are tried further"
    tried = {dict(each)["memory_size"] for each in scores if dict(each).get("variance_weight")}
    assert tried == {8, 16, 32}
    assert search.most == sum(sizes)


@pytest.mark.parametrize(("edge", "further"), [(2, {4}), (32, {16})])
def test_at_the_ends_of_the_range_there_is_one_neighbour(edge: int, further: set[int]) -> None:
    scores = search_all(paper_stages("real"), lambda fields: float(fields.get("memory_size") == edge))
    assert {dict(each)["memory_size"] for each in scores if dict(each).get("variance_weight")} == {edge, *further}


def test_scores_found_in_any_order_or_known_before_lead_to_the_same() -> None:
    score, search = random_score(1), paper_stages("real")
    whole = search_all(search, score)
    scores: dict[Setting, float] = {}
    while settings := search.next(scores):
        one = random.Random(len(scores)).choice(settings)  # a search that is interrupted after every trial
        scores[one] = score(dict(one))
    assert scores == whole
    assert search.best(scores) == search.best(whole)
    assert search.next(whole) == []


def test_synthetic_search_is_two_grids() -> None:
    score, search = random_score(5), paper_stages("synthetic", noise=0.5)
    first = [uniform(lr, reg, dim=dim) for dim in (8, 16, 32) for lr in (5e-4, 1e-3, 5e-3) for reg in (0, 1e-3, 1e-2)]
    best = max(first, key=score)
    fixed = {**best, "sampler": "srns", "memory_size": 20, "expansion_size": 20, "temperature": 1.0, "noise": 0.5}
    second = [{**fixed, "variance_weight": alpha, "warmup_epochs": t0} for alpha in (5.0, 10.0, 20.0, 50.0) for t0 in (50, 100)]
    scores = search_all(search, score)
    assert [dict(each) for each in scores] == first + second
    assert dict(search.best(scores) or ()) == max(second, key=score)
    assert search.most == len(scores) == 35


def test_mlp_takes_its_sampler_from_gmf() -> None:
    score, search = random_score(2), paper_stages("real", "mlp")
    by_hand, gmf = real_by_hand(score)
    grid = [uniform(lr, reg, scorer="mlp", hidden_layers=h) for lr in LR[:3] for reg in REG for h in (0, 1, 2, 3)]
    best = max(grid, key=score)
    last = {**gmf, **best, "sampler": "srns"}
    scores = search_all(search, score)
    assert {frozenset(each) for each in scores} == as_sets([*by_hand, *grid, last])
    assert dict(search.best(scores) or ()) == last
    sampling = {"temperature": 10.0, "memory_size": 8, "expansion_size": 64, "variance_weight": 5.0, "warmup_epochs": 50}
    known = paper_stages("real", "mlp", sampling=sampling)
    assert len(search_all(known, score)) == len(grid) + 1 == known.most
    assert dict(known.best(search_all(known, score)) or ()) == {**best, **sampling, "sampler": "srns"}


@pytest.mark.parametrize(
    ("sampler", "size"),
    [("uniform", 16), ("nncf", 16 * 21), ("enmf", 128), ("aobpr", 144), ("irgan", 48), ("rns_as", 256), ("advir", 768)],
)
def test_other_methods_are_one_grid_of_runs_that_there_are(sampler: str, size: int) -> None:
    search = paper_stages("real", sampler=sampler)
    found = search.next({})
    assert len(set(found)) == len(found) == size == search.most
    for setting in (found[0], found[-1]):
        config = make_config(dict(setting), preset="paper-ml-1m")
        assert all(getattr(config, name) == value for name, value in setting)
    assert search.next(dict.fromkeys(found, 0.0)) == []
    assert search.best(dict.fromkeys(found, 0.0)) == found[0], "the first of equals"


def test_settings_that_broke_down_are_never_best() -> None:
    search = paper_stages("real")
    first = search.next({})
    broken: dict[Setting, float] = dict.fromkeys(first, -math.inf)
    assert search.next(broken) == []
    assert search.best(broken) is None
    mostly: Scores = broken | {first[0]: math.nan, first[5]: 0.1}
    assert {dict(each)["learning_rate"] for each in search.next(mostly)} == {dict(first[5])["learning_rate"]}


def test_ranges_can_be_replaced_and_unknown_ones_are_refused() -> None:
    search = paper_stages(ranges={"learning_rate": [0.01], "l2": [0.1, 0.2], "memory_size": [8], "temperature": [1.0]})
    assert len(search_all(search, random_score(3))) == 2 + 4 + 21 == search.most
    with pytest.raises(ConfigError, match="no range of 'dim'; it has learning_rate, l2"):
        paper_stages(ranges={"dim": [8]})
    with pytest.raises(ConfigError, match="did not search sampler 'dns'"):
        paper_stages(sampler="dns")
    with pytest.raises(ConfigError, match="did not search scorer 'lightgcn'"):
        paper_stages(scorer="lightgcn")
