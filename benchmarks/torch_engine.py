"""Epoch time of the torch engine, GMF with SRNS at the paper's ML-1m settings, against RecBole's BPR with 72 dynamic
candidates; same data, same process, epochs in turn. Before that, uniform negatives against RecBole's plain BPR.

    SRNS_DATA=../shared/data python benchmarks/torch_engine.py [--dataset ml-1m-paper] [--epochs 3] [--threads 1] [--out FILE]

RecBole 1.2.1 asks for older packages than it needs, hence in an environment of its own:

    pip install torch==2.13.0
    pip install --no-deps recbole==1.2.1
    pip install numpy "pandas<3" scipy tqdm colorlog==4.7.2 colorama==0.4.4 scikit-learn pyyaml tensorboard thop \\
        tabulate plotly texttable psutil
    pip install -e .

Without RecBole srns is measured alone. Both run on the CPU with F = 32, batches of 1,024, one negative per positive and Adam.
Prints the seconds of each epoch and how many times as long RecBole takes (aim: at least 3 with SRNS).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_data import train_part

from srns.engines import make_engine
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import environment

# What is done for one positive:
# - RecBole draws 72 candidates, with replacement, from the items that occur in train, asks of each in a Python loop whether it
#   is in the set of the user's positives, draws those anew, and takes the one with the highest score.
# - SRNS scores 72 candidates, the 8 of the memory and 64 fresh ones out of all unseen items, without replacement; scores the
#   positive and the memory, 9 items, with the parameters of each of 5 past epochs; takes the best of the memory by score and
#   variance, and draws the memory anew out of the 72.
CANDIDATES = {"uniform": 0, "srns": 72}  # of RecBole, by our sampler; 0: one uniform negative, no score
AIM = {"srns": 3}
PAST = {"uniform": 1, "srns": 6}  # epochs before those timed; with SRNS until five are there to take the variance over


def peer(train: Interactions, candidates: int, config: Any, folder: Path) -> Callable[[int], object]:
    """A call with the number of an epoch runs it with RecBole's own trainer, sampler and loader."""
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    warnings.filterwarnings("ignore", category=FutureWarning, module="recbole")  # from pandas and torch
    for name, now in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
        if not hasattr(np, name):  # gone from NumPy 2, and looked up by RecBole's Config
            setattr(np, name, now)
    (folder / "train").mkdir(parents=True)
    pairs = np.column_stack([train.users, train.items])
    np.savetxt(folder / "train/train.inter", pairs, "%d", "\t", header="user_id:token\titem_id:token", comments="")
    values = {
        "data_path": str(folder),
        "checkpoint_dir": str(folder / "saved"),
        "load_col": {"inter": ["user_id", "item_id"]},
        "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "group_by": "none", "order": "RO", "mode": "full"},  # all is train
        "use_gpu": False,
        "show_progress": False,
        "embedding_size": config.dim,
        "train_batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "train_neg_sample_args": {
            "distribution": "uniform",
            "sample_num": 1,
            "dynamic": candidates > 0,
            "candidate_num": candidates,
        },
    }
    here, arguments = Path.cwd(), sys.argv
    os.chdir(folder)  # the trainer makes a folder for its log where it is
    sys.argv = arguments[:1]  # Config would take our options for its own
    try:
        settings = Config(model="BPR", dataset="train", config_dict=values)
        init_seed(settings["seed"], settings["reproducibility"])
        loader, _, _ = data_preparation(settings, create_dataset(settings))
        model = get_model("BPR")(settings, loader._dataset)
        trainer = get_trainer(settings["MODEL_TYPE"], "BPR")(settings, model)
    finally:
        os.chdir(here)
        sys.argv = arguments
    if len(loader._dataset) != len(train):
        raise RuntimeError(f"RecBole trains on {len(loader._dataset)} of {len(train)} positives")
    if candidates:
        loader.get_model(model)  # which scores the candidates
    return functools.partial(trainer._train_epoch, loader)


def seconds(run: Callable[[int], object], epoch: int) -> float:
    start = time.perf_counter()
    run(epoch)
    return time.perf_counter() - start


def remember(engine: Any, epochs: int) -> None:
    """The history after so many epochs without running them. What is remembered is alike, but looking at it costs the same."""
    with torch.no_grad():
        for epoch in range(epochs):
            engine.sampler.begin_epoch(epoch, engine.module.view(engine.train.n_items))


def measure(sampler: str, train: Interactions, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    values = {"engine": "torch", "device": "cpu", "sampler": sampler, "threads": options.threads}
    config = make_config(values, preset="paper-ml-1m")
    engine = make_engine(config, train)  # sets the threads of torch, RecBole's too
    candidates, past = CANDIDATES[sampler], PAST[sampler]
    print(f"{sampler}, RecBole with {candidates} dynamic candidates" if candidates else f"{sampler}, RecBole likewise")
    try:
        other: Callable[[int], object] | None = peer(train, candidates, config, folder)
    except ModuleNotFoundError as error:
        print(f"  RecBole is not installed ({error}): srns alone")
        other = None
    if sampler == "srns" and not options.full:
        remember(engine, past)
    else:
        for epoch in range(past):
            engine.run_epoch(epoch)
        if other:
            other(0)
    times: dict[str, list[float]] = {"srns": [], "RecBole": []}
    for epoch in range(past, past + options.epochs):  # in turn, so that a busy moment of the machine hits both
        times["srns"].append(seconds(engine.run_epoch, epoch))
        if other:
            times["RecBole"].append(seconds(other, epoch))
        last = ", ".join(f"{name} {found[-1]:.2f} s" for name, found in times.items() if found)
        print(f"  epoch {epoch}: {last}", flush=True)
    for name, found in times.items():
        if found:
            print(f"  {name}: {min(found):.2f} s fastest, {np.median(found):.2f} s median")
    row: dict[str, Any] = {"candidates": candidates, "seconds": times}
    if other:
        fastest, usual = (float(of(times["RecBole"]) / of(times["srns"])) for of in (min, np.median))
        aim = f" (aim: at least {AIM[sampler]}x faster)" if sampler in AIM else ""
        print(f"  RecBole / srns: {fastest:.2f} fastest, {usual:.2f} median{aim}")
        row |= {"fastest": fastest, "median": usual, "recbole": version("recbole")}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--epochs", type=int, default=3, help="epochs timed, of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="run the epochs before those timed, rather than only their history")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    train = train_part(options.dataset)
    print(train, f"{options.threads} threads, {os.cpu_count()} cores, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:  # uniform first: it leaves torch warm
        rows = {sampler: measure(sampler, train, options, Path(folder, sampler)) for sampler in CANDIDATES}
    if options.out is not None:
        record = {"dataset": options.dataset, "threads": options.threads, "full": options.full, "environment": environment()}
        options.out.write_text(json.dumps({**record, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
