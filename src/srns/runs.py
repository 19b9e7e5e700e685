"""A whole run, from the name of the data to a folder with the trained, measured model; what `srns train` does."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from srns import artifacts
from srns.config import RunConfig
from srns.datasets import load
from srns.errors import ConfigError
from srns.evaluation import evaluate
from srns.interactions import Interactions
from srns.recommender import Recommender, save_model
from srns.scorers import GMF
from srns.splits import Split, make_split, split_random
from srns.trainer import Callback, Trainer, Training, check_resumable, resolve_protocol


def prepare(data: str | Path | Interactions | Split, config: RunConfig) -> Split:
    """Data by name, path or in memory, divided as `config` says; a fixed split without a valid part gets one from train."""
    if isinstance(data, str | Path):
        columns = {
            role: name for role in ("user", "item", "weight", "time") if (name := getattr(config, f"{role}_column")) is not None
        }
        filters = {"min_weight": config.min_weight, "min_user": config.min_user, "min_item": config.min_item}
        data = load(data, **columns, **{name: value for name, value in filters.items() if value})
    if isinstance(data, Interactions):
        return make_split(data, config.split, seed=config.seed)
    if data.valid is None and config.valid_share > 0:
        share = config.valid_share
        inner = split_random(data.train, ratio=(1 - share, share, 0.0), seed=config.seed)
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
) -> dict[str, Any]:
    """Train, measure on test and save; returns the content of run.json with the folder as `run`."""
    folder = _folder(data, config, out, resume)
    started = _begin(folder, data, config, resume)
    if started.get("status") == "finished":
        for callback in callbacks:
            callback.on_message(f"{folder} is finished already; nothing to resume")
        return {**started, "run": str(folder)}
    split = prepare(data, config)
    checkpoint = folder / artifacts.CHECKPOINT
    trainer = Trainer(config, split, callbacks=callbacks, checkpoint=checkpoint)
    training = trainer.run(resume=resume)
    run = {
        "status": "finished",
        "config": config.model_dump(mode="json"),
        "data": _describe(str(data), split),
        "protocol": trainer.protocol,
        **measure(training.model, split, config),
        **_summary(training),
        "environment": environment(),
        "peak_rss_mb": peak_rss_mb(),
    }
    save_model(folder, training.model, split, run)
    checkpoint.unlink(missing_ok=True)
    return {**artifacts.read_run(folder), "run": str(folder)}


def _folder(data: str | Path, config: RunConfig, out: Path | None, resume: bool) -> Path:
    """Where the run goes: `out`, or runs/<data>-<sampler>-seed<seed>, numbered where that is taken."""
    if out is not None:
        return out
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(str(data)).stem).strip("-.") or "data"
    base = Path("runs") / f"{name}-{config.sampler}-seed{config.seed}"
    folder, number = base, 1
    while not resume and (folder / artifacts.RUN).exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _begin(folder: Path, data: str | Path, config: RunConfig, resume: bool) -> dict[str, Any]:
    """Mark the folder as a running run, or check that the run it holds is the one to resume."""
    if (folder / artifacts.RUN).exists():
        run = artifacts.read_run(folder)
        if not resume:
            raise ConfigError(f"{folder} already holds a run; add --resume to go on with it, or choose another --out")
        if run["data"]["name"] != str(data):
            raise ConfigError(f"{folder} was trained on {run['data']['name']!r}, not {str(data)!r}")
        check_resumable(config, run["config"], folder)
        longer = run.get("status") == "finished" and config.epochs > run["config"]["epochs"]
        if longer:
            raise ConfigError(
                f"{folder} is finished after {run['epochs']} epochs and cannot be lengthened; train anew with another --out"
            )
        return run
    run = {"status": "running", "config": config.model_dump(mode="json"), "data": {"name": str(data)}, "files": {}}
    artifacts.write_run(folder, run)
    return run


def measure(model: GMF, split: Split, config: RunConfig) -> dict[str, Any]:
    """Test metrics: `metrics` under the run's protocol and, where that is the paper's, `metrics_full` beside it."""
    if split.test is None or len(split.test) == 0:
        return {"metrics": {}}
    protocol = resolve_protocol(config, split)
    result = {"metrics": dict(evaluate(model, split, on="test", protocol=protocol, ks=config.ks))}
    if protocol == "paper":
        result["metrics_full"] = dict(evaluate(model, split, on="test", protocol="full", ks=config.ks))
    return result


def load_run(folder: str | Path) -> tuple[Recommender, dict[str, Any]]:
    """The trained recommender of a finished run and the content of its run.json."""
    recommender = Recommender.load(folder)
    return recommender, artifacts.read_run(Path(folder))


def _describe(name: str, split: Split) -> dict[str, Any]:
    sizes = {part: len(getattr(split, part)) for part in ("train", "valid", "test") if getattr(split, part) is not None}
    return {
        "name": name,
        "users": split.train.n_users,
        "items": split.train.n_items,
        **sizes,
        "notes": list(split.notes),
        "fingerprint": split.train.fingerprint(),
    }


def _summary(training: Training) -> dict[str, Any]:
    return {
        "best_epoch": training.best_epoch,
        "epochs": len(training.history),
        "seconds_per_epoch": training.seconds_per_epoch,
        "engine": training.engine,
        "notes": list(training.notes),
        "history": [asdict(record) for record in training.history],
    }


def environment() -> dict[str, Any]:
    """What ran it: versions and machine, for anyone who wants to repeat the number."""
    packages = {name: version(name) for name in ("srns", "numpy", "numba", "scipy", "polars")}
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
