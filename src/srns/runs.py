"""A whole run, from the name of the data to a folder with the trained, measured model; what `srns train` does."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numba
import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from srns import __version__, artifacts, checkpoints
from srns.config import FILTERS, ROLES, RunConfig
from srns.databases import is_url, shown
from srns.datasets import load
from srns.errors import ArtifactError, ConfigError, SrnsError
from srns.evaluation import evaluate
from srns.interactions import Interactions
from srns.ranks import ALONE, Ranks, launch, restarted, restarts
from srns.scorers import GMF, SCORERS, WITHOUT_NEGATIVES, Model
from srns.shards import read_sharded, split_sharded
from srns.splits import Split, make_split, split_random
from srns.storage import save_model, saved_config
from srns.terms import check_resumable, resolve_protocol
from srns.trainer import Callback, Trainer, Training


@dataclass(frozen=True)
class Beginning:
    """What a run begins with: its split; where it goes on from another, that one's model and memories for it; and what run.json
    says of this."""

    split: Split
    init: Model | None = None
    memories: Mapping[str, NDArray[Any]] | None = None
    record: Mapping[str, Any] = field(default_factory=dict)


def prepare(name_or_path: str | Path, config: RunConfig, ranks: Ranks = ALONE) -> Split:
    """Data by name or path, divided as `config` says; of a fixed split, one without a valid part gets one from train.

    Of several ranks, each gets the part of its users.
    """
    columns, filters = reading(config)
    database = [name for name in ("table", "query") if name in filters]
    if database and not is_url(name_or_path):
        raise ConfigError(f"--{database[0]} is for databases, named by a URL; {name_or_path} is none")
    if is_url(name_or_path) and ranks.size > 1:
        raise ConfigError("several ranks cannot read one moment of a database: write its rows to a folder of Parquet first")
    if ranks.size > 1 and config.drop_bad_rows:
        raise ConfigError("several ranks do not drop bad rows: clean the data first, or read them with one process")
    if ranks.size > 1 and Path(name_or_path).is_dir():
        return split_sharded(read_sharded(Path(name_or_path), ranks, columns, filters), config.split, config.split_seed, ranks)
    return ranks.share_of_split(_whole_split(load_as(name_or_path, config), config))


def load_as(name_or_path: str | Path, config: RunConfig) -> Interactions | Split:
    """Data by name or path, read as `config` says and not divided."""
    columns, filters = reading(config)
    return load(name_or_path, **columns, **filters)


def reading(config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a run reads its data: columns by role; filters, table and query, as options of `srns.load`."""
    columns = {
        role: False if name.lower() == "none" else name
        for role in ROLES
        if (name := getattr(config, f"{role}_column")) is not None
    }
    filters = {name: value for name in FILTERS if (value := getattr(config, name)) != RunConfig.model_fields[name].default}
    source = {name: value for name in ("table", "query") if (value := getattr(config, name)) is not None}
    return columns, filters | source


def _whole_split(data: Interactions | Split, config: RunConfig) -> Split:
    if isinstance(data, Interactions):
        return make_split(data, config.split, seed=config.split_seed)
    if config.split != "auto":
        parts = [part for part in (data.valid, data.test) if part is not None]
        note = f"{data.name} brings a split of its own, which --split {config.split} replaces"
        again = make_split(data.train.union(*parts), config.split, seed=config.split_seed)
        return replace(again, notes=(*data.notes, note, *again.notes))
    if data.valid is None and config.valid_share > 0:
        share = config.valid_share
        inner = split_random(data.train, ratio=(1 - share, share, 0.0), seed=config.split_seed)
        note = f"held out {share:.0%} of train as valid, since the data bring no valid part"
        return Split(data.name, inner.train, inner.valid, data.test, data.negatives, data.hidden, (*data.notes, note))
    return data


def train_run(
    data: str | Path,
    config: RunConfig,
    *,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Train, measure on test and save; returns the content of run.json with the folder as `run`."""
    if out is None and (resume or restarts()):
        raise ConfigError(f"{'--resume' if resume else '--max-restarts'} needs --out: the folder of the run to go on with")
    name = shown(data)  # without a password, for everything that is printed or kept
    with ranks.together():
        return make_run(name, config, lambda config: Beginning(prepare(data, config, ranks)), out, resume, callbacks, ranks)


def make_run(
    name: str,
    config: RunConfig,
    begin: Callable[[RunConfig], Beginning],
    out: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    ranks: Ranks = ALONE,
    called: str | None = None,
) -> dict[str, Any]:
    """A run on the data called `name`, from what `begin` gives to its folder: `out`, or a new one in runs that is `called` so,
    by default after data, method and seed."""
    callbacks = callbacks if ranks.rank == 0 else ()
    called = called or f"{short_name(name, config)}-seed{config.seed}"
    folder = ranks.gather(out or (_folder(called) if ranks.rank == 0 else None))[0]
    resume = resume or ranks.any(restarted() and _begun_by_this_launch(folder))
    saved = _saved(folder, name, config, resume)
    checkpoint = folder / artifacts.CHECKPOINT
    ranks.gather(None)  # all have seen the folder as it was
    if ranks.rank == 0:
        artifacts.remove_leftovers(folder)
    if saved.get("status") == "finished":
        if ranks.rank == 0:
            checkpoints.remove(checkpoint)  # there still if the run was killed in its last moment
        for callback in callbacks:
            callback.on_message(f"{folder} is finished already; nothing to resume")
        return {**saved, "run": str(folder)}
    if resume and config.engine == "auto" and checkpoints.engine_of(checkpoint) == "torch":
        config = config.model_copy(update={"engine": "torch"})  # as it began, on several ranks perhaps
    try:
        begun_with = begin(config)
        split = begun_with.split
        trainer = Trainer(
            config if begun_with.init is None else config.model_copy(update={"init": None}),  # which names what init is from
            split,
            callbacks=callbacks,
            checkpoint=checkpoint,
            ranks=ranks,
            init=begun_with.init,
            memories=begun_with.memories,
        )
    except BaseException:  # a run that cannot begin leaves no folder behind to stand in the way of the next
        if out is None and not saved:
            _forget(folder)
        raise
    config_saved = config.model_dump(mode="json")
    if not saved and ranks.rank == 0:
        begun = {"status": "running", "config": config_saved, "data": {"name": name}, "files": {}}
        artifacts.write_run(folder, begun | ({"launch": launch()} if launch() else {}))
    if resume and not checkpoints.exists(checkpoint):
        for callback in callbacks:
            callback.on_message(f"no checkpoint in {folder}; starting from the first epoch")
    try:
        training = trainer.run(resume=resume)
    except SrnsError:
        if not saved and not checkpoints.exists(checkpoint):  # nothing to go on from: as if it had not begun
            _forget(folder)
        raise
    run = {
        "status": "finished",
        "config": config_saved,
        "data": _describe(name, split, ranks),
        "protocol": trainer.protocol,
        **measure(training.model, split, config, ranks),
        **_summary(training),
        **begun_with.record,
        "environment": environment(),
        "peak_rss_mb": peak_rss_mb(),
    }
    if ranks.size > 1:
        run["user_tensors"] = list(trainer.engine.user_tensors)
    save_model(folder, training.model, split, run, ranks, training.memories)
    if ranks.rank == 0:
        checkpoints.remove(checkpoint)
    return {**artifacts.read_run(folder), "run": str(folder)}


def _begun_by_this_launch(folder: Path) -> bool:
    """Whether the folder holds an unfinished run of the torchrun that started this process, which may go on by itself."""
    if not (folder / artifacts.RUN).exists():
        return False
    run = artifacts.read_run(folder)
    return run["status"] == "running" and run.get("launch") == launch()


def _forget(folder: Path) -> None:
    """Remove a run that holds nothing yet; a folder with anything else in it stays."""
    (folder / artifacts.RUN).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _folder(called: str) -> Path:
    """A new folder in runs, made here, and numbered where the name is taken."""
    base = Path("runs") / called
    for number in count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            folder.mkdir(parents=True)  # fails for all but one of several runs that start at once
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ArtifactError(f"cannot make {folder}: {error.strerror}; name another folder with --out") from None
    return folder


def data_name(data: str | Path, config: RunConfig) -> str:
    """What stands for data in names of folders: that of the file or database, with the table."""
    stem = Path(shown(data)).stem
    known = stem if config.table is None else f"{stem}-{config.table}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", known).strip("-.")[:80] or "data"


def short_name(data: str | Path, config: RunConfig) -> str:
    """<data>-<method>, for folders. The method is the scorer where it draws no negatives, the sampler with GMF, else both; both
    too where a scorer has the sampler's name."""
    name = data_name(data, config)
    if config.scorer in WITHOUT_NEGATIVES:
        return f"{name}-{config.scorer}"
    alone = config.scorer == GMF.name and config.sampler not in SCORERS
    return f"{name}-{config.sampler}" if alone else f"{name}-{config.scorer}-{config.sampler}"


def _saved(folder: Path, data: str, config: RunConfig, resume: bool) -> dict[str, Any]:
    """The run that the folder holds, if it is the one to resume; empty where there is none."""
    if not (folder / artifacts.RUN).exists():
        return {}
    if not resume:
        raise ConfigError(f"{folder} already holds a run; add --resume to go on with it, or choose another --out")
    run = artifacts.read_run(folder)
    if run["data"]["name"] != data:
        raise ConfigError(f"{folder} was trained on {run['data']['name']!r}, not {data!r}")
    check_resumable(config, run["config"], folder)
    if run["status"] == "finished":
        if "metrics" not in run:
            raise ConfigError(f"{folder} holds a saved model, not a run of `srns train`: there is nothing to resume")
        if config.epochs > saved_config(folder, run).epochs:
            raise ConfigError(
                f"{folder} is finished after {run['epochs']} epochs and cannot be lengthened; train anew with another --out"
            )
    return run


def measure(model: Model, split: Split, config: RunConfig, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Test metrics: `metrics` and `metrics_popularity` under the run's protocol and, where that is "paper", `metrics_full`."""
    if split.test is None or split.test.whole.n == 0:
        return {"metrics": {}}
    protocol = resolve_protocol(config, split)
    asked: dict[str, Any] = {"split": split, "on": "test", "ks": config.ks, "ranks": ranks}
    found = evaluate(model, protocol=protocol, **asked)
    popularity = split.train.whole.item_counts.astype(np.float32)
    baseline = evaluate(lambda users, items: popularity[items], protocol=protocol, **asked)
    result = {"metrics": dict(found), "metrics_popularity": dict(baseline), "test_users": len(found.users)}
    if protocol == "paper":
        result["metrics_full"] = dict(evaluate(model, protocol="full", **asked))
    return result


def _describe(name: str, split: Split, ranks: Ranks) -> dict[str, Any]:
    sizes = {part: getattr(split, part).whole.n for part in ("train", "valid", "test") if getattr(split, part) is not None}
    return {
        "name": name,
        "users": split.train.whole.n_users,
        "items": split.train.n_items,
        **sizes,
        "notes": list(split.notes),
        "fingerprint": split.train.fingerprint(ranks.sum),
    }


def _summary(training: Training) -> dict[str, Any]:
    return {
        "best_epoch": training.best_epoch,
        "epochs": len(training.history),
        "seconds_per_epoch": training.seconds_per_epoch,
        "engine": training.engine,
        "notes": list(training.notes),
        "history": [asdict(record) for record in training.history],
    } | ({"start": training.start} if training.start else {})


def environment() -> dict[str, Any]:
    """What ran it: versions and machine, for anyone who wants to repeat the number."""
    packages = {"srns": __version__} | {module.__name__: module.__version__ for module in (np, numba, scipy, pl)}
    packages |= {name: version(name) for name in ("torch", "implicit", "optuna") if name in sys.modules}  # where it took part
    return {
        "python": platform.python_version(),
        "packages": packages,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def peak_rss_mb() -> float:
    """The most memory this process has held."""
    if sys.platform == "win32":
        return float("nan")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(np.round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1))
