"""What trackers were sent, read back with the trackers' own readers, is what the trainer recorded."""

from __future__ import annotations

import csv
import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import srns
from srns.cli import app
from srns.tracking import MLflow, TensorBoard

CONFIG = srns.RunConfig(engine="plain", epochs=3, dim=8, ks=(5, 10), validate_every=2, memory_size=4, negatives=1)


@pytest.fixture(scope="module")
def split() -> srns.Split:
    return srns.make_split(srns.simulate(n_users=50, n_items=40, n_interactions=600).interactions)


def expected(record: srns.EpochRecord) -> dict[str, float]:
    valid = {f"valid/{name}": value for name, value in record.valid.items()}
    return {"loss": record.loss, "seconds": record.seconds, **valid, **{f"sampler/{n}": v for n, v in record.sampler.items()}}


class Failing(srns.Callback):
    """Stands for whatever may go wrong after the first epoch."""

    def on_epoch(self, record: srns.EpochRecord) -> None:
        raise OSError("no space left")


def events(folder: Path) -> Any:
    """All of an event folder."""
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def scalars(found: Any) -> dict[tuple[str, int], float]:
    return {(name, event.step): event.value for name in found.Tags()["scalars"] for event in found.Scalars(name)}


def text(found: Any, name: str) -> str:
    (event,) = found.Tensors(f"{name}/text_summary")
    return str(event.tensor_proto.string_val[0].decode())


class TestTensorBoard:
    def test_event_files_hold_the_history(self, split: srns.Split, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        training = srns.Trainer(CONFIG, split, callbacks=[TensorBoard(tmp_path / "logs")]).run()
        found = events(tmp_path / "logs")
        want = {(name, record.epoch): value for record in training.history for name, value in expected(record).items()}
        best = training.best_epoch
        want |= {("best_epoch", best): best}
        want |= {(f"best/{name}", best): value for name, value in training.history[best - 1].valid.items()}
        assert scalars(found) == {key: np.float32(value) for key, value in want.items()}
        assert {("valid/ndcg@10", 2), ("best/ndcg@10", 2), ("sampler/turnover", 1)} <= want.keys()
        assert ("valid/ndcg@10", 1) not in want

    def test_the_config_is_a_text_and_hyper_parameters(self, split: srns.Split, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        srns.Trainer(CONFIG, split, callbacks=[TensorBoard(tmp_path)]).run()
        found = events(tmp_path)
        assert text(found, "data") == split.name
        fields = CONFIG.model_dump(mode="json")
        assert text(found, "config").splitlines() == [f"    {name} = {value}" for name, value in fields.items()]
        logged = {name: HParamsPluginData.FromString(data) for name, data in found.PluginTagToContent("hparams").items()}
        session = logged["_hparams_/session_start_info"].session_start_info.hparams
        assert session.keys() == fields.keys()
        assert (session["dim"].number_value, session["sampler"].string_value) == (8, "srns")
        shown = [each.name.tag for each in logged["_hparams_/experiment"].experiment.metric_infos]
        assert shown == ["loss", "valid/ndcg@10", "best/ndcg@10"]
        assert "_hparams_/session_end_info" in logged

    def test_what_was_logged_before_a_failure_is_there_and_the_writer_is_closed(
        self, split: srns.Split, tmp_path: Path
    ) -> None:
        pytest.importorskip("torch")
        callback = TensorBoard(tmp_path)
        with pytest.raises(OSError, match="no space"):
            srns.Trainer(CONFIG, split, callbacks=[callback, Failing()]).run()
        assert ("loss", 1) in scalars(events(tmp_path))
        writer = callback._writer
        del callback
        gc.collect()
        assert writer.file_writer is None  # SummaryWriter.close has been called
        assert "_hparams_/session_end_info" not in events(tmp_path).PluginTagToContent("hparams")

    def test_a_resumed_run_goes_on_in_its_folder(self, split: srns.Split, tmp_path: Path) -> None:
        pytest.importorskip("torch")

        class Stop(srns.Callback):
            def on_epoch(self, record: srns.EpochRecord) -> bool:
                return record.epoch == 2

        callback = TensorBoard(tmp_path / "logs")
        checkpoint = tmp_path / "checkpoint"
        srns.Trainer(CONFIG, split, callbacks=[callback, Stop()], checkpoint=checkpoint).run()
        srns.Trainer(CONFIG, split, callbacks=[callback], checkpoint=checkpoint).run(resume=True)
        assert [step for name, step in scalars(events(tmp_path / "logs")) if name == "loss"] == [1, 2, 3]

    @pytest.mark.parametrize("missing", ["torch", "tensorboard"])
    def test_a_missing_package_is_named_with_the_remedy(
        self, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if missing == "tensorboard":
            pytest.importorskip("torch")
        for cached in ("torch.utils.tensorboard", *["torch.utils"] * (missing == "torch")):
            monkeypatch.delitem(sys.modules, cached, raising=False)
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(srns.ConfigError, match=rf"pip install 'srns\[tensorboard\]' .*{missing}"):
            TensorBoard(tmp_path)

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "logs").write_text("")
        with pytest.raises(srns.ConfigError, match=r"logs is a file; TensorBoard needs a folder"):
            TensorBoard(tmp_path / "logs")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a SQLite store; tests share it, since its tables take seconds to make."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def runs(store: str, experiment: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


class TestMLflow:
    @pytest.fixture(autouse=True)
    def nothing_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
            monkeypatch.delenv(name, raising=False)

    def test_the_store_holds_the_run(self, split: srns.Split, store: str) -> None:
        from mlflow import MlflowClient

        training = srns.Trainer(CONFIG, split, callbacks=[MLflow("clicks", "first", store)]).run()
        (run,) = runs(store, "clicks")
        assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
        assert run.data.params == {name: str(value) for name, value in CONFIG.model_dump(mode="json").items()}
        tags = {name: run.data.tags[name] for name in ("data", "srns", "engine")}
        assert tags == {"data": split.name, "srns": srns.__version__, "engine": "plain"}
        want = {(name, record.epoch): value for record in training.history for name, value in expected(record).items()}
        best = training.best_epoch
        want |= {("best_epoch", best): best}
        want |= {(f"best/{name}", best): value for name, value in training.history[best - 1].valid.items()}
        client = MlflowClient(store)
        found = {
            (name, each.step): each.value
            for name in run.data.metrics
            for each in client.get_metric_history(run.info.run_id, name)
        }
        assert found == {(name.replace("@", "_at_"), step): value for (name, step), value in want.items()}
        assert {("valid/ndcg_at_10", 2), ("best/ndcg_at_10", 2), ("sampler/turnover", 1)} <= found.keys()

    def test_runs_of_one_experiment_share_it_and_the_environment_may_name_it(
        self, split: srns.Split, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        callback = MLflow(tracking_uri=store)
        short = CONFIG.model_copy(update={"epochs": 1})
        srns.Trainer(short, split, callbacks=[callback]).run()
        assert len(runs(store, "Default")) == 1
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "named")
        srns.Trainer(short, split, callbacks=[callback]).run()
        srns.Trainer(short, split, callbacks=[MLflow("named", tracking_uri=store)]).run()
        monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
        monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", runs(store, "named")[0].info.experiment_id)
        srns.Trainer(short, split, callbacks=[callback]).run()
        assert len(runs(store, "named")) == 3
        assert len(runs(store, "Default")) == 1

    def test_a_run_that_raised_keeps_its_epochs_and_is_failed(self, split: srns.Split, store: str) -> None:
        callback = MLflow("failing", tracking_uri=store)
        with pytest.raises(OSError, match="no space"):
            srns.Trainer(CONFIG, split, callbacks=[callback, Failing()]).run()
        assert [run.info.status for run in runs(store, "failing")] == ["RUNNING"]
        del callback
        gc.collect()
        (run,) = runs(store, "failing")
        assert run.info.status == "FAILED"
        assert "loss" in run.data.metrics
        assert "best_epoch" not in run.data.metrics

    def test_a_missing_package_is_named_with_the_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mlflow", None)
        with pytest.raises(srns.ConfigError, match=r"pip install 'srns\[mlflow\]' .*mlflow"):
            MLflow()


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    world = srns.simulate(n_users=50, n_items=40, n_interactions=600).interactions
    with (tmp_path / "clicks.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "item"), *zip(world.users.tolist(), world.items.tolist(), strict=True)])
    return tmp_path / "clicks.csv"


def call(clicks: Path, *args: str) -> Any:
    return CliRunner().invoke(app, ["train", str(clicks), "--engine", "plain", "--epochs", "2", "--dim", "8", *args])


def test_the_command_logs_where_it_is_told(clicks: Path) -> None:
    pytest.importorskip("torch")
    result = call(clicks, "--tensorboard", "logs/first", "--out", "run", "--json")
    assert result.exit_code == 0, result.stderr
    history = json.loads(Path("run/run.json").read_text(encoding="utf-8"))["history"]
    found = scalars(events(Path("logs/first")))
    assert [found["loss", epoch] for epoch in (1, 2)] == [np.float32(record["loss"]) for record in history]
    assert found["best_epoch", json.loads(result.stdout)["best_epoch"]] == json.loads(result.stdout)["best_epoch"]


def test_the_command_without_the_packages_says_so_and_leaves_nothing(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = call(clicks, "--tensorboard", "logs")
    assert result.exit_code == 2
    assert "pip install 'srns[tensorboard]'" in result.stderr
    assert [path.name for path in clicks.parent.iterdir()] == ["clicks.csv"]


def test_the_command_leaves_no_run_where_it_cannot_log(clicks: Path) -> None:
    pytest.importorskip("torch")
    Path("taken").write_text("")
    result = call(clicks, "--tensorboard", "taken/logs")
    assert result.exit_code == 2
    assert "TensorBoard cannot log to taken/logs" in result.stderr
    assert not list(Path("runs").glob("*"))
