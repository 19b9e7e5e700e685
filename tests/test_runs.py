"""From the name of the data to what is trained on."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import srns
from srns.display import result_tables
from srns.errors import ConfigError
from srns.presets import make_config
from srns.runs import prepare, train_run


def fixed_split(path: Path, *, valid: bool) -> Path:
    rng = np.random.default_rng(0)
    pairs = np.unique(np.stack([rng.integers(0, 30, 400), rng.integers(0, 25, 400)], axis=1), axis=0)
    rng.shuffle(pairs)
    arrays = {"train": pairs[:200], "test": pairs[200:230], **({"val": pairs[230:260]} if valid else {})}
    np.savez(path, **arrays)
    return path


def test_a_fixed_split_is_taken_as_it_is_unless_another_is_asked_for(tmp_path: Path) -> None:
    path = fixed_split(tmp_path / "fixed.npz", valid=True)
    split = prepare(path, make_config())
    assert split.valid is not None
    assert (len(split.train), len(split.valid)) == (200, 30)
    again = prepare(path, make_config({"split": "leave-one-out-random"}))
    assert again.test is not None
    assert again.valid is not None
    assert again.test.user_counts.max() == again.valid.user_counts.max() == 1
    arrays = np.load(path)
    everything = {tuple(pair) for name in ("train", "val", "test") for pair in arrays[name].tolist()}
    parts = (again.train, again.valid, again.test)
    ids = [(list(part.user_ids.take(part.users)), list(part.item_ids.take(part.items))) for part in parts]
    assert {pair for users, items in ids for pair in zip(users, items, strict=True)} == everything
    assert any("--split leave-one-out-random replaces" in note for note in again.notes)


def test_a_fixed_split_without_valid_part_gets_one_from_train_and_says_so(tmp_path: Path) -> None:
    path = fixed_split(tmp_path / "fixed.npz", valid=False)
    split = prepare(path, make_config())
    assert split.valid is not None
    assert len(split.train) + len(split.valid) == 200
    assert any("held out 10% of train" in note for note in split.notes)
    assert prepare(path, make_config({"valid_share": 0})).valid is None


def test_a_threshold_of_zero_is_a_threshold(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    rows = [f"u{u},i{i},{rating}" for u in range(12) for i, rating in enumerate((-1, 0, 3, 5, 4))]
    path.write_text("\n".join(["user,item,rating", *rows]) + "\n")
    split = prepare(path, make_config({"min_weight": "0", "split": "random"}))
    parts = [part for part in (split.train, split.valid, split.test) if part is not None]
    assert sum(map(len, parts)) == 12 * 4
    assert any("weight >= 0" in note for note in split.notes), "what reading did reaches the run"


def test_the_seed_of_training_does_not_change_the_split(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    rows = [f"{u},{i}" for u in range(40) for i in range(u % 7, 30, 2)]
    path.write_text("\n".join(["user,item", *rows]) + "\n")
    prints = [prepare(path, make_config(values)).fingerprint() for values in ({}, {"seed": 5}, {"split_seed": 5})]
    assert prints[0] == prints[1] != prints[2]


def test_everything_trains_where_the_model_goes_to_work(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(["user,item", *(f"{u},{i}" for u in range(20) for i in range(u % 5, 12, 2))]) + "\n")
    config = make_config({"split": "none", "epochs": 2, "dim": 4, "engine": "plain"})
    run = train_run(path, config, out=tmp_path / "run")
    assert run["metrics"] == {}
    assert run["data"]["train"] == len(srns.read(path))
    assert run["best_epoch"] == run["epochs"] == 2


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(["user,item", *(f"{u},{i}" for u in range(20) for i in range(60) if (u + i) % 3)]) + "\n")
    config = make_config({"split": "random", "protocol": "paper", "epochs": 2, "dim": 4, "engine": "plain"})
    with pytest.raises(srns.SrnsError, match="leave-one-out"):
        train_run(path, config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_says_what_popularity_would_give(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    data = srns.simulate(n_users=60, n_items=40, n_interactions=900).interactions
    users, items = data.user_ids.take(data.users), data.item_ids.take(data.items)
    path.write_text("\n".join(["user,item,time", *(f"{u},{i},{t}" for u, i, t in zip(users, items, data.time, strict=True))]))
    config = make_config({"epochs": 2, "dim": 4, "engine": "plain"})
    run = train_run(path, config, out=tmp_path / "run")
    split = prepare(path, config)
    counts = np.bincount(split.train.items, minlength=40)
    expected = srns.evaluate(lambda users, items: counts[items], split)
    assert run["metrics_popularity"]["ndcg@10"] == pytest.approx(expected["ndcg@10"])
    assert run["test_users"] == len(expected.users)


def test_resuming_needs_to_know_which_run() -> None:
    with pytest.raises(ConfigError, match="--resume needs --out"):
        train_run("synthetic", make_config(), resume=True)


def test_results_that_lack_what_newer_runs_have_are_still_shown() -> None:
    run = {"metrics": {"ndcg@10": 0.5}, "config": {"ks": [10], "metric": "ndcg@10"}, "protocol": "full"}
    assert len(result_tables(run)) == 1
    assert len(result_tables({**run, "test_users": 7, "metrics_popularity": {"ndcg@10": 0.4}})) == 2


@pytest.mark.parametrize(("popularity", "said"), [(0.6, True), (0.4, False)])
def test_a_run_that_is_worse_than_popularity_is_told_so(popularity: float, said: bool) -> None:
    run = {"metrics": {"ndcg@10": 0.5}, "config": {"ks": [10], "metric": "ndcg@10"}, "protocol": "full"}
    console = Console(record=True, width=200)
    console.print(*result_tables({**run, "metrics_popularity": {"ndcg@10": popularity}}))
    assert ("which is better" in console.export_text()) == said


def test_an_interruption_promises_to_go_on_only_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    class Interrupt(srns.Callback):
        def on_epoch(self, record: srns.EpochRecord) -> None:
            signal.raise_signal(signal.SIGINT)

    split = srns.make_split(srns.simulate(n_users=50, n_items=40, n_interactions=500).interactions)
    config = make_config({"epochs": 5, "engine": "plain", "dim": 4})
    for checkpoint, reason in ((None, ()), (tmp_path / "checkpoint.safetensors", ("stopped after epoch 1",))):
        with pytest.raises(KeyboardInterrupt) as caught:
            srns.Trainer(config, split, callbacks=[Interrupt()], checkpoint=checkpoint).run()
        assert caught.value.args == reason
