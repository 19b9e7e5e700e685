"""Runs side by side, between a run and a report: which can be compared, seeds of one configuration together, and which of the
differences are more than the luck of which users were there.

Runs are compared within a group: same data, same split, same protocol. A configuration is all runs of a group whose settings
are equal but for `seed` and what has no effect; per user, the mean over its seeds is what is compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from srns import artifacts
from srns.config import RunConfig
from srns.errors import ArtifactError, ConfigError, SrnsError
from srns.evaluation import Comparison, evaluate, paired_difference
from srns.options import as_text
from srns.recommender import Recommender
from srns.scorers import GMF, WITHOUT_NEGATIVES
from srns.significance import CONFIDENCE, holm, interval, resampled_means, standard_error
from srns.splits import NO_TIMES, Split
from srns.storage import saved_config
from srns.terms import idle
from srns.trainer import EpochRecord

Float64 = NDArray[np.float64]
WITH_INTERVALS = ("ndcg", "recall")  # beside the metric that chooses epochs
WITHOUT_EFFECT = ("threads", "checkpoint_epochs", "checkpoint_minutes")  # on what a run computes
SAME = 1e-4  # by which a metric may differ when it is measured again, perhaps on another machine
OWN_SPLIT = "its own split"  # of data that come divided
Result = TypeVar("Result")


@dataclass(frozen=True)
class Run:
    """A finished run: the content of its run.json, and how it does on test where it has such a part."""

    folder: Path
    record: dict[str, Any]
    config: RunConfig
    history: tuple[EpochRecord, ...]
    fingerprint: str  # of its split
    metrics: dict[str, float]
    per_user: dict[str, Float64]
    split: str = ""  # how the data were divided, by name

    @property
    def seconds(self) -> float:
        """Of training alone, without validation."""
        return sum(record.seconds for record in self.history)

    @property
    def changed(self) -> str:
        """Which metric came out otherwise than the record of the run has it; empty where none did."""
        saved = self.record["metrics"]
        names = [name for name, value in self.metrics.items() if abs(saved.get(name, value) - value) > SAME]
        return "".join(f"{name} is {self.metrics[name]:.4f} now, {saved[name]:.4f} in its record" for name in names[:1])

    def validation(self, metric: str) -> float:
        """What validation gave where the model was taken from; NaN where it was not validated."""
        best = self.record["best_epoch"]
        found = self.history[best - 1].valid if best else self.record.get("start", {})
        return float(found.get(metric, np.nan))


class Problem(NamedTuple):
    """A folder that is not in the comparison, and why."""

    folder: str
    reason: str


@dataclass(frozen=True)
class Estimate:
    """A metric of a configuration: mean over seeds and users, its interval over users, its standard error over seeds."""

    mean: float
    low: float = np.nan
    high: float = np.nan
    error: float = np.nan


@dataclass(eq=False)
class Configuration:
    """Runs that are equal but for the seed; `estimates` by metric, and how it differs from the group's reference."""

    config: RunConfig
    runs: list[Run]
    label: str = ""
    estimates: dict[str, Estimate] = field(default_factory=dict)
    difference: Comparison | None = None
    p_holm: float = np.nan

    def validation(self, metric: str) -> float:
        return float(np.mean([run.validation(metric) for run in self.runs]))

    @property
    def verdict(self) -> str:
        """What the test says, after Holm's correction."""
        if self.difference is None or not np.isfinite(self.p_holm):
            return ""
        if self.p_holm >= 1 - CONFIDENCE:
            return "no difference shown"
        return "better" if self.difference.difference > 0 else "worse"


@dataclass
class Group:
    """Configurations that were trained and measured on the same data in the same way, by their `metric`."""

    data: str
    protocol: str
    fingerprint: str
    metric: str
    configurations: list[Configuration]
    reference: Configuration
    asked: bool  # whether the reference was named
    repeated: list[tuple[Run, Run]]  # a run, and the one of the same settings and seed that stands for both

    @property
    def runs(self) -> list[Run]:
        return [run for each in self.configurations for run in each.runs]

    @property
    def split(self) -> str:
        """How the data were divided; all names, where runs came to the same split by several."""
        return " = ".join(dict.fromkeys(run.split for run in self.runs))

    @property
    def interval_metrics(self) -> list[str]:
        """Those that get intervals: the one that is tested, NDCG and recall."""
        ranked = [name for name in self.runs[0].per_user if name.split("@")[0] in WITH_INTERVALS]
        return list(dict.fromkeys([self.metric, *ranked]))


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders meant: a folder of runs stands for those in it, and each is taken once."""
    found: dict[Path, Path] = {}
    for path in paths:
        within = [] if (path / artifacts.RUN).exists() else sorted(each.parent for each in path.glob(f"*/{artifacts.RUN}"))
        for folder in within or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def read_runs(folders: Sequence[Path], say: Callable[[str], None] = lambda text: None) -> tuple[list[Run], list[Problem]]:
    """Read and measure runs; those that cannot be are named with the reason instead."""
    problems: dict[Path, str] = {}

    def attempt(folder: Path, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        try:
            return [function(folder, *arguments)]
        except SrnsError as error:
            problems[folder] = str(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # not written by srns, whatever its checksum says
            problems[folder] = f"{folder / artifacts.RUN} is not a whole run: {error!r}"
        return []

    found = {folder: read for folder in folders for read in attempt(folder, _finished)}
    wanted: dict[str, set[str]] = {}  # metrics user by user: those of all runs on the same training data
    for record, config in found.values():
        names = {config.metric, *(f"{name}@{k}" for name in WITH_INTERVALS for k in config.ks)}
        wanted.setdefault(_trained_on(record), set()).update(names)
    runs = []
    for number, (folder, (record, config)) in enumerate(found.items(), 1):
        say(f"measuring {folder}, {number} of {len(found)}")
        runs += attempt(folder, _measured, record, config, wanted[_trained_on(record)])
    return runs, [Problem(str(folder), problems[folder]) for folder in folders if folder in problems]


def _trained_on(record: dict[str, Any]) -> str:
    return str(record["data"].get("fingerprint"))


def _finished(folder: Path) -> tuple[dict[str, Any], RunConfig]:
    record = artifacts.read_run(folder)
    if record["status"] != "finished":
        raise ArtifactError(f"unfinished; `srns train ... --out {folder} --resume` goes on with it, if nothing does already")
    missing = [name for name in ("history", "metrics", "protocol", "best_epoch", "environment") if name not in record]
    if missing:
        raise ArtifactError(f"a saved model, not a run of `srns train`: its {artifacts.RUN} has no {missing[0]!r}")
    return record, saved_config(folder, record)


def _measured(folder: Path, record: dict[str, Any], config: RunConfig, wanted: set[str]) -> Run:
    """A run with its test metrics at all list lengths that its peers have; those in `wanted` user by user."""
    history = tuple(EpochRecord(**each) for each in record["history"])
    if record["best_epoch"] > len(history):
        raise ArtifactError(f"best_epoch is {record['best_epoch']}, but there are records of {len(history)} epochs")
    recommender = Recommender.load(folder)
    split = recommender.split_
    metrics: dict[str, float] = {}
    per_user: dict[str, Float64] = {}
    if record["metrics"]:
        ks = sorted({int(name.split("@")[1]) for name in wanted})
        found = evaluate(recommender.model_, split, on="test", protocol=record["protocol"], ks=ks)
        metrics, per_user = dict(found), {name: values for name, values in found.per_user.items() if name in wanted}
    return Run(folder, record, config, history, split.fingerprint(), metrics, per_user, _split_name(record, config, split))


def _split_name(record: dict[str, Any], config: RunConfig, split: Split) -> str:
    """How the data were divided. A run that left it open does not say what came of it: that there were no times is in its
    notes, and leaving one out shows in the parts; what is neither came divided."""
    if config.split != "auto":
        return config.split
    if NO_TIMES in record["data"].get("notes", []):
        return "random"
    parts = [part for part in (split.valid, split.test) if part is not None]
    one_each = len(parts) == 2 and all(part.user_counts.max(initial=0) <= 1 for part in parts)
    return "leave-one-out" if one_each and split.train.time is not None and split.negatives is None else OWN_SPLIT


def compare(runs: Sequence[Run], reference: Path | None = None) -> list[Group]:
    """Groups of runs that can be compared, each with its estimates and tests.

    In each group, all are compared with the configuration that is best on validation data, which says nothing about the test
    data yet; with `reference`, a run, its group is compared with that run's configuration.
    """
    chosen = None if reference is None else reference.resolve()
    if chosen is not None and chosen not in {run.folder.resolve() for run in runs}:
        raise ConfigError(f"--reference {reference} is not among the runs that can be compared")
    kinds: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        kinds.setdefault((run.fingerprint, run.record["protocol"]), []).append(run)
    return [_group(each, chosen) for each in kinds.values()]


def _kind(config: dict[str, Any]) -> str:
    """What runs of one configuration share, whatever their seed and how they were run; those that began with trained models are
    alike where these are."""
    kept = {name: value for name, value in config.items() if name not in ("seed", *WITHOUT_EFFECT)}
    if kept.get("init") is not None:
        with suppress(SrnsError):  # a start that is no longer there is told by its name
            kept["init"] = _kind(artifacts.read_run(Path(kept["init"]))["config"])
    return json.dumps(kept, sort_keys=True)


def _group(runs: list[Run], chosen: Path | None) -> Group:
    metric = Counter(run.config.metric for run in runs).most_common(1)[0][0]
    configurations: dict[str, Configuration] = {}
    repeated = []
    for run in runs:
        own = configurations.setdefault(_kind(run.config.model_dump(mode="json")), Configuration(run.config, []))
        same = next((other for other in own.runs if other.config.seed == run.config.seed), None)
        if same is not None:
            repeated.append((run, same))
        else:
            own.runs.append(run)
    each = list(configurations.values())
    for configuration, label in zip(each, labels([configuration.config for configuration in each]), strict=True):
        configuration.label = label
    folders = {first.folder.resolve(): second for first, second in repeated}
    if chosen in folders:
        chosen = folders[chosen].folder.resolve()
    named = [c for c in each if chosen in {run.folder.resolve() for run in c.runs}]
    best = max(each, key=lambda c: np.nan_to_num(c.validation(metric), nan=-np.inf))
    data = " = ".join(dict.fromkeys(run.record["data"]["name"] for run in runs))
    group = Group(
        data, runs[0].record["protocol"], runs[0].fingerprint, metric, each, (named or [best])[0], bool(named), repeated
    )
    if all(run.per_user for run in group.runs):
        _estimate(group)
    return group


def _estimate(group: Group) -> None:
    """Fill in estimates and tests: the same resamples of users for all configurations, so that differences are paired."""
    names, each = group.interval_metrics, group.configurations
    tables = [np.stack([np.mean([run.per_user[name] for run in c.runs], axis=0) for name in names], axis=1) for c in each]
    m, of_reference = names.index(group.metric), tables[each.index(group.reference)]
    differences = np.stack([table[:, m] - of_reference[:, m] for table in tables], axis=1)  # equal models: 0 to the last bit
    means = resampled_means(np.concatenate([*tables, differences], axis=1))
    low, high = (ends[: -len(each)].reshape(len(each), len(names)) for ends in interval(means))
    for n, configuration in enumerate(each):
        seeds = {name: [run.metrics[name] for run in configuration.runs] for name in configuration.runs[0].metrics}
        intervals = {name: (float(low[n, m]), float(high[n, m])) for m, name in enumerate(names)}
        configuration.estimates = {
            name: Estimate(float(np.mean(values)), *intervals.get(name, (np.nan, np.nan)), standard_error(values))
            for name, values in seeds.items()
        }
    found = {
        n: paired_difference(differences[:, n], means[:, n - len(each)])
        for n in range(len(each))
        if each[n] is not group.reference
    }
    for (n, difference), p in zip(found.items(), holm([difference.p_value for difference in found.values()]), strict=True):
        each[n].difference, each[n].p_holm = difference, p


def differing(configs: Sequence[RunConfig]) -> dict[str, list[Any]]:
    """The fields in which some configurations differ, the seed aside: their values, None where one has no such field."""
    dumps = [_of_effect(config) for config in configs]
    names = [name for name in dict.fromkeys(name for dump in dumps for name in dump) if name != "seed"]
    values = {name: [dump.get(name) for dump in dumps] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def _of_effect(config: RunConfig) -> dict[str, Any]:
    """The fields of a run, without those that decide nothing."""
    unused = idle(config)
    return {name: value for name, value in config.model_dump().items() if name not in unused}


def method(config: RunConfig) -> str:
    """The short name of what was trained: the sampler, and the scorer where it is not GMF."""
    if config.scorer in WITHOUT_NEGATIVES:
        return config.scorer
    return config.sampler if config.scorer == GMF.name else f"{config.scorer} + {config.sampler}"


def short(value: Any) -> str:
    """The value of a field for people; commands have all its digits.

    >>> short(0.009000000000000001), short((1, 3))
    ('0.009', '1,3')
    """
    return f"{value:g}" if isinstance(value, float) else as_text(value)


def labels(configs: Sequence[RunConfig]) -> list[str]:
    """A name for each configuration: its method, and what tells it from others of that method; all different."""
    found: list[str] = []
    methods = [method(config) for config in configs]
    for config, name in zip(configs, methods, strict=True):
        alike = [other for other, its in zip(configs, methods, strict=True) if its == name]
        facts = [f"{key} {short(getattr(config, key))}" for key in differing(alike)]
        rest = f" and {len(facts) - 3} more" if len(facts) > 3 else ""
        label = ", ".join([name, *facts[:3]]) + rest
        taken = sum(other == label or other.startswith(f"{label} #") for other in found)
        found.append(f"{label} #{taken + 1}" if taken else label)
    return found
