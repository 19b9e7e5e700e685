"""The training loop: choosing, stopping, averaging, checkpoints, callbacks and what breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srns import artifacts
from srns.config import RunConfig
from srns.errors import ArtifactError, ConfigError, TrainingError
from srns.evaluation import evaluate
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import train_run
from srns.splits import Split, hide_positives
from srns.trainer import COMPILING, COMPILING_RANKING, Callback, EpochRecord, Trainer, Training

QUICK: dict[str, Any] = {"dim": 4, "epochs": 12, "engine": "plain", "batch_size": 256, "learning_rate": 0.02, "patience": 0}


class Recorder(Callback):
    def __init__(self, stop_at: int = 0) -> None:
        self.records: list[EpochRecord] = []
        self.messages: list[str] = []
        self.ends: list[Training] = []
        self.stop_at = stop_at

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    def on_epoch(self, record: EpochRecord) -> bool:
        self.records.append(record)
        return record.epoch == self.stop_at

    def on_end(self, training: Training) -> None:
        self.ends.append(training)


VARIANCE = {"memory_size": 8, "expansion_size": 8, "negatives": 2, "warmup_epochs": 3, "history_epochs": 3}


def same(one: Training, other: Training) -> bool:
    return all(np.array_equal(tensor, other.model.tensors()[name]) for name, tensor in one.model.tensors().items())


def untimed(history: Sequence[EpochRecord]) -> list[EpochRecord]:
    return [replace(record, seconds=0.0) for record in history]


def test_the_best_validation_epoch_is_kept(world: Split) -> None:
    recorder = Recorder()
    training = Trainer(RunConfig(**QUICK, moving_average=0), world, callbacks=[recorder]).run()
    values = [record.valid["ndcg@10"] for record in training.history]
    assert training.best_epoch == int(np.argmax(values)) + 1
    assert list(training.history) == recorder.records
    assert recorder.ends == [training]
    again = evaluate(training.model, world, on="valid")
    assert again["ndcg@10"] == pytest.approx(max(values), abs=1e-12)
    assert [record.epoch for record in training.history if record.best][-1] == training.best_epoch


def test_validation_and_training_never_look_at_test(world: Split) -> None:
    blind = Split(world.name, world.train, world.valid, None)
    assert same(Trainer(RunConfig(**QUICK), world).run(), Trainer(RunConfig(**QUICK), blind).run())


def test_patience_counts_epochs_in_a_row_and_resets(world: Split) -> None:
    long = Trainer(RunConfig(**{**QUICK, "epochs": 60}), world).run()
    best_so_far, waits, expected = -1.0, 0, 60
    for record in long.history:  # what stopping after 3 in a row means, written out
        waits = 0 if record.valid["ndcg@10"] > best_so_far else waits + 1
        best_so_far = max(best_so_far, record.valid["ndcg@10"])
        if waits == 3:
            expected = record.epoch
            break
    stopped = Trainer(RunConfig(**{**QUICK, "epochs": 60, "patience": 3}), world).run()
    assert len(stopped.history) == expected < 60
    assert stopped.history == tuple(
        EpochRecord(**{**vars(record), "seconds": own.seconds})
        for record, own in zip(long.history, stopped.history, strict=False)
    )


def test_patience_is_judged_only_where_there_was_a_validation(world: Split) -> None:
    training = Trainer(RunConfig(**{**QUICK, "epochs": 40, "patience": 5, "validate_every": 10}), world).run()
    assert len(training.history) % 10 == 0
    assert len(training.history) >= training.best_epoch + 5 or len(training.history) == 40


@pytest.mark.parametrize(("engine", "ranking"), [(True, True), (True, False), (False, True), (False, False)])
def test_compilation_is_announced(world: Split, monkeypatch: pytest.MonkeyPatch, engine: bool, ranking: bool) -> None:
    recorder = Recorder()
    trainer = Trainer(RunConfig(**{**QUICK, "epochs": 1}), world, callbacks=[recorder])
    monkeypatch.setattr(type(trainer.engine), "needs_compiling", lambda *_: engine)
    monkeypatch.setattr("srns.kernels.ranking.needs_compiling", lambda: ranking)
    trainer.run()
    said = [message for message in recorder.messages if "compiling" in message]
    assert said == ([COMPILING] if engine else [COMPILING_RANKING] if ranking else [])


def test_without_validation_the_last_epoch_is_the_result(world: Split) -> None:
    alone = Split("alone", world.train, None, None)
    training = Trainer(RunConfig(**{**QUICK, "epochs": 3, "moving_average": 0}), alone).run()
    assert training.best_epoch == 3
    other = Trainer(RunConfig(**{**QUICK, "epochs": 3, "moving_average": 0, "validate_every": 3}), world).run()
    assert same(training, other)


def test_moving_average_is_the_weighted_mean_of_epoch_ends(world: Split) -> None:
    alone = Split("alone", world.train, None, None)
    weight = 0.7
    config = RunConfig(**{**QUICK, "epochs": 4, "moving_average": 0})
    ends = [Trainer(config, alone, callbacks=[Recorder(stop_at=n)]).run().model.users for n in (1, 2, 3, 4)]
    weights = weight ** np.arange(3, -1, -1.0)
    expected = np.tensordot(weights / weights.sum(), np.stack(ends), axes=1)
    averaged = Trainer(RunConfig(**{**QUICK, "epochs": 4, "moving_average": weight}), alone).run()
    np.testing.assert_allclose(averaged.model.users, expected, rtol=1e-4, atol=1e-7)


def test_a_callback_can_stop_training(world: Split) -> None:
    assert len(Trainer(RunConfig(**QUICK), world, callbacks=[Recorder(stop_at=5)]).run().history) == 5


@pytest.mark.parametrize(
    "values",
    [
        {},
        VARIANCE,
        {**VARIANCE, "criterion": "stale_scores", "lazy_epochs": 3, "noise": 0.5},
        {"moving_average": 0.9, "sampler": "uniform"},
    ],
    ids=["default", "variance", "noise", "uniform"],
)
@pytest.mark.parametrize("engine", ["plain", "fused"])
def test_resumed_training_ends_with_the_same_bits(world: Split, tmp_path: Path, engine: str, values: dict[str, Any]) -> None:
    world = hide_positives(world, 0.5)
    config = RunConfig(**{**QUICK, "engine": engine, "checkpoint_epochs": 1, **values})
    whole = Trainer(config, world, checkpoint=tmp_path / "whole.safetensors").run()
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(config, world, callbacks=[Recorder(stop_at=4)], checkpoint=checkpoint).run()
    recorder = Recorder()
    resumed = Trainer(config, world, callbacks=[recorder], checkpoint=checkpoint).run(resume=True)
    assert recorder.records[0].epoch == 5
    assert any("resumed after epoch 4" in message for message in recorder.messages)
    assert same(whole, resumed)
    assert resumed.best_epoch == whole.best_epoch
    assert untimed(resumed.history) == untimed(whole.history)
    ends = [artifacts.read_tensors(path)[0] for path in (tmp_path / "whole.safetensors", checkpoint)]
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(tensor, ends[1][name]) for name, tensor in ends[0].items()), "memories and all else"


def test_resuming_with_other_settings_or_data_is_refused(world: Split, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(RunConfig(**QUICK), world, callbacks=[Recorder(stop_at=2)], checkpoint=checkpoint).run()
    with pytest.raises(ConfigError, match="was started with dim = 4, not 5"):
        Trainer(RunConfig(**{**QUICK, "dim": 5}), world, checkpoint=checkpoint).run(resume=True)
    other = Split("other", world.train.select(np.arange(len(world.train)) > 0), world.valid, world.test)
    with pytest.raises(ConfigError, match="other data"):
        Trainer(RunConfig(**QUICK), other, checkpoint=checkpoint).run(resume=True)
    swapped = Split("swapped", world.train, world.test, world.valid)
    with pytest.raises(ConfigError, match="other data"):
        Trainer(RunConfig(**QUICK), swapped, checkpoint=checkpoint).run(resume=True)
    noisy = hide_positives(world, 0.5)
    with pytest.raises(ConfigError, match="other data"):
        Trainer(RunConfig(**QUICK), noisy, checkpoint=checkpoint).run(resume=True)
    shorter = Trainer(RunConfig(**{**QUICK, "threads": 1, "patience": 1}), world, checkpoint=checkpoint).run(resume=True)
    assert 2 < len(shorter.history) < 12


def test_a_run_of_constant_step_size_may_be_resumed_for_longer(world: Split, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    config = RunConfig(**QUICK, schedule="constant")
    Trainer(config, world, callbacks=[Recorder(stop_at=2)], checkpoint=checkpoint).run()
    config = RunConfig(**{**QUICK, "epochs": 14, "threads": 1}, schedule="constant")
    longer = Trainer(config, world, checkpoint=checkpoint).run(resume=True)
    assert len(longer.history) == 14
    assert same(longer, Trainer(config, world).run())


def test_a_schedule_over_other_epochs_is_refused_with_the_reason(world: Split, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(RunConfig(**QUICK), world, callbacks=[Recorder(stop_at=2)], checkpoint=checkpoint).run()
    reason = r"with epochs = 12, not 14; resume with the same values: schedule 'cosine' is laid out over all epochs$"
    with pytest.raises(ConfigError, match=reason):
        Trainer(RunConfig(**{**QUICK, "epochs": 14}), world, checkpoint=checkpoint).run(resume=True)
    with pytest.raises(
        ConfigError, match=r"was started with schedule = 'cosine', not 'constant'; resume with the same values$"
    ):
        Trainer(RunConfig(**{**QUICK, "epochs": 14}, schedule="constant"), world, checkpoint=checkpoint).run(resume=True)


def test_another_sampler_is_named_itself_and_not_by_its_fields(world: Split, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(RunConfig(**QUICK), world, callbacks=[Recorder(stop_at=1)], checkpoint=checkpoint).run()
    with pytest.raises(ConfigError, match="was started with sampler = 'srns', not 'uniform'"):
        Trainer(RunConfig(**QUICK, sampler="uniform"), world, checkpoint=checkpoint).run(resume=True)
    with pytest.raises(ConfigError, match=r"was started with temperature = 2\.0, not 3\.0"):
        Trainer(RunConfig(**QUICK, temperature=3), world, checkpoint=checkpoint).run(resume=True)


def test_noise_needs_a_sampler_with_memories(world: Split) -> None:
    with pytest.raises(ConfigError, match="noise is fed to the memories of sampler 'srns'; sampler 'uniform' has none"):
        Trainer(RunConfig(**QUICK, noise=0.5, sampler="uniform"), hide_positives(world, 0.5))


def test_noise_that_the_data_do_not_bring_is_refused_naming_what_there_is(world: Split, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"bring no hidden positives for noise = 0\.5; sigmas they bring: none; `srns\.hide_positives` makes some$",
    ):
        Trainer(RunConfig(**QUICK, noise=0.5), world)
    noisy = hide_positives(hide_positives(world, 1), 0.25)
    with pytest.raises(ConfigError, match=r"bring no hidden positives for noise = 0\.5; sigmas they bring: 0\.25, 1$"):
        Trainer(RunConfig(**QUICK, noise=0.5), noisy)
    for sigma in (0, 0.25, 1):
        training = Trainer(RunConfig(**{**QUICK, "epochs": 1}, **VARIANCE, noise=sigma), noisy).run()
        assert ("label_error_ratio" in training.history[0].sampler) == (sigma > 0)
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n" + "".join(f"{u},{i}\n" for u in range(20) for i in range(u % 5, 12, 2)))
    with pytest.raises(ConfigError, match=r"for noise = 1; sigmas they bring: none"):
        train_run(path, make_config({**QUICK, "noise": 1}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["plain", "fused"])
def test_what_the_sampler_drew_is_in_the_record_of_each_epoch(world: Split, engine: str) -> None:
    """Of the default sampler, whose drawn negatives are the whole memory: no std selects, so none is taken."""
    values = {**QUICK, "epochs": 3, "engine": engine}
    expected = {"label_error_ratio", "p_pos_05", "p_pos_50", "p_pos_95", "turnover"}
    for record in Trainer(RunConfig(**values), world).run().history:
        found = record.sampler
        assert found.keys() == expected
        assert all(0 < value < 1 for value in found.values()), found
        assert found["p_pos_05"] <= found["p_pos_50"] <= found["p_pos_95"]
    varied = Trainer(RunConfig(**values, **VARIANCE), world).run().history
    assert [record.sampler.keys() - expected for record in varied] == [set(), {"std_over_mean"}, {"std_over_mean"}]
    alone = Split("alone", world.train, None, world.test)  # nothing is known of what test holds
    assert Trainer(RunConfig(**values), alone).run().history[0].sampler.keys() == expected - {"label_error_ratio"}
    uniform = Trainer(RunConfig(**values, sampler="uniform", negatives=16), world).run().history
    unseen = world.train.n_items - world.train.user_counts
    chance = (world.valid.user_counts / unseen)[world.train.users].mean()  # type: ignore[union-attr]
    for record in uniform:
        assert record.sampler.keys() == {"label_error_ratio"}
        assert record.sampler["label_error_ratio"] == pytest.approx(chance, rel=0.15)


def test_a_checkpoint_that_cannot_be_written_does_not_stop_training(world: Split, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    recorder = Recorder()
    config = RunConfig(**{**QUICK, "checkpoint_epochs": 5})
    training = Trainer(config, world, callbacks=[recorder], checkpoint=tmp_path / "file" / "checkpoint.safetensors").run()
    assert len(training.history) == 12
    assert any("checkpoint not written" in message for message in recorder.messages)


def test_a_damaged_checkpoint_is_named(world: Split, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    Trainer(RunConfig(**QUICK), world, callbacks=[Recorder(stop_at=2)], checkpoint=checkpoint).run()
    content = bytearray(checkpoint.read_bytes())
    content[-5] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"checkpoint\.safetensors is damaged"):
        Trainer(RunConfig(**QUICK), world, checkpoint=checkpoint).run(resume=True)


def test_numbers_that_are_not_finite_end_training_with_advice(world: Split) -> None:
    with pytest.raises(TrainingError, match="lower learning_rate"), np.errstate(all="ignore"):
        Trainer(RunConfig(**{**QUICK, "learning_rate": 1e30}), world).run()


def test_users_who_have_seen_everything_are_left_out_and_said() -> None:
    ids = {"user_ids": IdMap.dense(3, "user"), "item_ids": IdMap.dense(3, "item")}
    train = Interactions.from_pairs([0, 0, 0, 1], [0, 1, 2, 1], **ids)
    recorder = Recorder()
    Trainer(RunConfig(**QUICK), Split("tiny", train, None, None), callbacks=[recorder]).run()
    assert any("left out 1 users" in message for message in recorder.messages)
    full = Interactions.from_pairs([0, 0, 0], [0, 1, 2], **ids)
    with pytest.raises(ConfigError, match="nothing to learn from"):
        Trainer(RunConfig(**QUICK), Split("full", full, None, None))


def test_training_beats_popularity_on_simulated_taste() -> None:
    from srns.simulation import simulate
    from srns.splits import make_split

    split = make_split(simulate(n_users=400, n_items=300, n_interactions=14_000, seed=1).interactions)
    training = Trainer(RunConfig(epochs=120, dim=16, batch_size=256, learning_rate=0.003, patience=30), split).run()
    popularity = split.train.item_counts.astype(np.float32)
    chance = evaluate(lambda users, items: popularity[items], split)["ndcg@10"]
    assert evaluate(training.model, split)["ndcg@10"] > 1.2 * chance


def test_paper_settings_reach_the_published_range(shared_data: Path) -> None:
    """Part of the full run, which benchmarks/accuracy.py makes: far past popularity's .0989 .1781 .2367 already."""
    from srns.datasets import load

    split = load("ml-1m-paper")
    assert isinstance(split, Split)
    config = make_config({"sampler": "uniform", "epochs": 30, "validate_every": 10}, preset="paper-ml-1m")
    training = Trainer(config, split).run()
    found = evaluate(training.model, split, protocol="paper", ks=(1, 3))
    assert found["ndcg@1"] > 0.155
    assert found["ndcg@3"] > 0.26
    assert found["recall@3"] > 0.34
