"""The paper's search for settings (its appendix B.4): the ranges of its tables 4, 5 and 6, and the order they are tried in.

The settings without variance (alpha = 0) of the second stage stand for election beside those with an alpha of the table, which
has no 0: the paper's own choice for Ecom is 0.

Nothing is trained here. A search is asked which settings to try next, given the scores found so far, until there are none:

>>> search = paper_stages("synthetic", noise=1.0)
>>> scores = {}
>>> while settings := search.next(scores):
...     scores |= {each: -abs(dict(each).get("variance_weight", 0) - 20) for each in settings}
>>> len(scores), dict(search.best(scores))["variance_weight"]
(35, 20.0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple

from srns.errors import ConfigError

Kind = Literal["real", "synthetic"]
Setting = tuple[tuple[str, Any], ...]  # fields of a run and their values
Scores = Mapping[Setting, float]  # what was found on validation data, higher is better; -inf or NaN: training broke down
Ranges = Mapping[str, Sequence[Any]]

_RATES, _L2 = (5e-4, 1e-3, 5e-3, 1e-2), (0.0, 1e-4, 1e-3, 1e-2)
_OPTIMISER = {"learning_rate": _RATES, "l2": _L2}
# Table 4: synthetic noise experiments.
SYNTHETIC: Ranges = {
    "dim": (8, 16, 32), "learning_rate": (5e-4, 1e-3, 5e-3), "l2": (0.0, 1e-3, 1e-2),
    "variance_weight": (5.0, 10.0, 20.0, 50.0), "warmup_epochs": (50, 100),
}  # fmt: skip
# Table 5: SRNS on real data. `expansion_ratio` is S2/S1.
REAL: Ranges = {
    **_OPTIMISER,
    "temperature": (0.5, 1.0, 2.0, 10.0), "memory_size": (2, 4, 8, 16, 32), "expansion_ratio": (1, 2, 4, 8),
    "variance_weight": (0.1, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0), "warmup_epochs": (25, 50, 100),
}  # fmt: skip
MLP: Ranges = {"learning_rate": (5e-4, 1e-3, 5e-3), "l2": _L2, "hidden_layers": (0, 1, 2, 3)}
# Table 6: the other methods on real data.
BASELINES: dict[str, Ranges] = {
    "uniform": _OPTIMISER,
    "nncf": {**_OPTIMISER, "shared_negatives": (32, 64, 128, 256, 512, 1024, 2048), "positives_per_item": (1, 2, 4)},
    "enmf": {**_OPTIMISER, "negative_weight": (0.01, 0.03, 0.05, 0.07, 0.1, 0.3, 0.5, 0.7)},
    "aobpr": {**_OPTIMISER, "rank_scale": (5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)},
    "irgan": {**_OPTIMISER, "temperature": (0.5, 1.0, 2.0)},
    "rns_as": {**_OPTIMISER, "temperature": (0.5, 1.0, 2.0, 10.0), "candidates": (10, 20, 30, 40)},
    "advir": {**_OPTIMISER, "perturbation": (0.01, 0.1, 1.0),
              "temperature": (0.5, 1.0, 2.0, 10.0), "candidates": (10, 20, 30, 40)},
}  # fmt: skip
METRIC = "ndcg@1"  # what real data are tuned by, best epoch on validation; synthetic: NDCG@3, mean of the last 50 epochs


class Stage(NamedTuple):
    """One step of a search: settings that can be tried in any order."""

    name: str
    settings: list[Setting]


@dataclass(frozen=True)
class PaperSearch:
    """See `paper_stages`."""

    kind: Kind
    scorer: str
    sampler: str
    ranges: dict[str, tuple[Any, ...]]
    mlp: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    sampling: Mapping[str, Any] | None = None
    noise: float | None = None

    def stages(self, scores: Scores) -> list[Stage]:
        """The stages whose settings are known from the scores so far, in the order they are tried."""
        known = []
        for stage in self._stages(scores):
            known.append(stage)
            if any(setting not in scores for setting in stage.settings):
                break
        return known

    def next(self, scores: Scores) -> list[Setting]:
        """The settings to try next; none: the search is done, or all of a stage broke down."""
        return [setting for stage in self.stages(scores) for setting in stage.settings if setting not in scores]

    def best(self, scores: Scores) -> Setting | None:
        """The best setting of the method that is searched for, the first of equals; None: none has been found."""
        tried = [setting for stage in self.stages(scores) for setting in stage.settings]
        method = {"sampler": self.sampler, "scorer": self.scorer}
        return _best([each for each in tried if {"scorer": "gmf", **dict(each)}.items() >= method.items()], scores)

    @property
    def most(self) -> int:
        """How many settings are tried at most."""
        size = {
            name: len(values) for name, values in {**self.ranges, "hidden_layers": self.mlp.get("hidden_layers", ())}.items()
        }
        if self.sampler != "srns":
            return math.prod(len(values) for values in (self.mlp or self.ranges).values())
        last = size["variance_weight"] * size["warmup_epochs"]
        optimiser = size["learning_rate"] * size["l2"]
        if self.kind == "synthetic":
            return size["dim"] * optimiser + last
        gmf = optimiser + size["temperature"] * size["memory_size"] * size["expansion_ratio"]
        gmf += last * min(3, size["memory_size"])
        mlp = math.prod(len(values) for values in self.mlp.values())
        return gmf if not self.mlp else mlp + 1 + (gmf if self.sampling is None else 0)

    def _stages(self, scores: Scores) -> Iterator[Stage]:
        if self.sampler != "srns":
            yield _grid(self.sampler, {"sampler": self.sampler, **self._scorer()}, self.mlp or self.ranges)
        elif self.kind == "synthetic":
            yield from self._synthetic(scores)
        elif not self.mlp:
            yield from self._gmf(scores)
        else:
            yield from self._mlp(scores)

    def _scorer(self) -> dict[str, str]:
        return {"scorer": "mlp"} if self.mlp else {}

    def _range(self, *names: str) -> dict[str, tuple[Any, ...]]:
        return {name: self.ranges[name] for name in names}

    def _synthetic(self, scores: Scores) -> Iterator[Stage]:
        first = _grid("uniform", {"sampler": "uniform"}, self._range("dim", "learning_rate", "l2"))
        yield first
        if (learning := _best(first.settings, scores)) is not None:
            memory = {"memory_size": 20, "expansion_size": 20, "temperature": 1.0}
            fixed = {**dict(learning), "sampler": "srns", **memory, **({} if self.noise is None else {"noise": self.noise})}
            yield _grid("alpha, T0", fixed, self._range("variance_weight", "warmup_epochs"))

    def _gmf(self, scores: Scores) -> Iterator[Stage]:
        first = _grid("uniform", {"sampler": "uniform"}, self._range("learning_rate", "l2"))
        yield first
        if (learning := _best(first.settings, scores)) is None:
            return
        fixed = {**dict(learning), "sampler": "srns", "variance_weight": 0.0, "warmup_epochs": 0}
        memories = _grid("tau, S1, S2/S1", fixed, self._range("temperature", "memory_size", "expansion_ratio"))
        yield memories
        if (memory := _best(memories.settings, scores)) is None:
            return
        chosen, weights = dict(memory), self._range("variance_weight", "warmup_epochs")
        yield _grid("alpha, T0", chosen, weights)
        ratio, sizes = chosen["expansion_size"] // chosen["memory_size"], self.ranges["memory_size"]
        place = sizes.index(chosen["memory_size"])
        for size in (*sizes[max(0, place - 1) : place], *sizes[place + 1 : place + 2]):
            near = {**chosen, "memory_size": size, "expansion_size": ratio * size}
            yield _grid(f"alpha, T0 with S1 {size}", near, weights)

    def _mlp(self, scores: Scores) -> Iterator[Stage]:
        """What samples for GMF samples for MLP too: only the rest is searched."""
        sampling = self.sampling
        if sampling is None:
            gmf = PaperSearch("real", "gmf", "srns", self.ranges)
            yield from gmf._stages(scores)
            best = gmf.best(scores)
            if best is None:
                return
            sampling = {name: value for name, value in best if name not in self.mlp}
        first = _grid("uniform with MLP", {"sampler": "uniform", "scorer": "mlp"}, self.mlp)
        yield first
        if (learning := _best(first.settings, scores)) is not None:
            yield Stage("SRNS with MLP", [tuple({**dict(learning), **sampling, "sampler": "srns"}.items())])


def paper_stages(
    kind: Kind = "real",
    scorer: str = "gmf",
    sampler: str = "srns",
    *,
    ranges: Ranges | None = None,
    sampling: Mapping[str, Any] | None = None,
    noise: float | None = None,
) -> PaperSearch:
    """The paper's search on real data or in its synthetic noise experiments; `ranges` replace those of the tables.

    SRNS with GMF on real data: (learning_rate, l2) with uniform negatives; with those and without variance (temperature,
    memory_size, expansion_size / memory_size); with those (variance_weight, warmup_epochs), and again with the memory size
    before and the one after. With MLP, `hidden_layers` too is found with uniform negatives, and the sampler is as it was best
    for GMF, or has the fields given as `sampling`. Synthetic: (dim, learning_rate, l2) with uniform negatives, then
    (variance_weight, warmup_epochs), with the false negatives of share `noise` where it is given. Other samplers: the grid of
    table 6.
    """
    if scorer not in ("gmf", "mlp") or (scorer == "mlp" and (sampler not in ("srns", "uniform") or kind == "synthetic")):
        raise ConfigError(f"the paper did not search scorer {scorer!r} with sampler {sampler!r}; it did gmf, and mlp with srns")
    if sampler != "srns" and sampler not in BASELINES:
        raise ConfigError(f"the paper did not search sampler {sampler!r}; it did srns, {', '.join(BASELINES)}")
    table = SYNTHETIC if kind == "synthetic" else REAL if sampler == "srns" else BASELINES[sampler]
    hidden = MLP if scorer == "mlp" else {}
    given = {name: tuple(values) for name, values in (ranges or {}).items()}
    if unknown := [name for name in given if name not in {**table, **hidden}]:
        raise ConfigError(f"the paper's search has no range of {unknown[0]!r}; it has {', '.join({**table, **hidden})}")
    chosen, mlp = ({name: tuple(given.get(name, values)) for name, values in each.items()} for each in (table, hidden))
    return PaperSearch(kind, scorer, sampler, chosen, mlp, sampling, noise)


def _grid(name: str, fixed: Mapping[str, Any], ranges: Ranges) -> Stage:
    """All combinations, the last range running fastest; a ratio becomes the size it stands for."""
    settings = []
    for values in product(*ranges.values()):
        fields = {**fixed, **dict(zip(ranges, values, strict=True))}
        if "expansion_ratio" in fields:
            fields["expansion_size"] = fields.pop("expansion_ratio") * fields["memory_size"]
        settings.append(tuple(fields.items()))
    return Stage(name, settings)


def _best(settings: Sequence[Setting], scores: Scores) -> Setting | None:
    found = [setting for setting in settings if scores.get(setting, -math.inf) > -math.inf]
    return max(found, key=lambda setting: scores[setting], default=None)
