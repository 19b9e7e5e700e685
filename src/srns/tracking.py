"""Callbacks that send what the trainer reports to an experiment tracker: TensorBoard, MLflow.

`on_end` is not called when training raises, so all is written epoch by epoch, and what is left open is closed when the
callback is garbage or Python exits.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import finalize

from srns import __version__
from srns.config import RunConfig
from srns.errors import ConfigError
from srns.splits import Split
from srns.trainer import Callback, EpochRecord, Training


def _needed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"tracking with {extra} needs more packages: pip install 'srns[{extra}]' ({error})") from None


def _fields(config: RunConfig) -> dict[str, bool | int | float | str]:
    """The fields of a run, those of its sampler too; what is no number or text as text."""
    fields = config.model_dump(mode="json")
    return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in fields.items()}


def _of_epoch(record: EpochRecord) -> dict[str, float]:
    valid = {f"valid/{name}": value for name, value in record.valid.items()}
    sampler = {f"sampler/{name}": value for name, value in record.sampler.items()}
    return {"loss": record.loss, "seconds": record.seconds, **valid, **sampler}


def _of_best(training: Training) -> dict[str, float]:
    """The best epoch and what validation gave there, which trackers, that show the last value, would not show."""
    valid = next((record.valid for record in training.history if record.epoch == training.best_epoch), {})
    return {"best_epoch": training.best_epoch, **{f"best/{name}": value for name, value in valid.items()}}


class TensorBoard(Callback):
    """Logs a run to `folder`, one folder per run, for `tensorboard --logdir`; a resumed run goes on in its folder.

    Scalars by epoch are loss, seconds, valid/ndcg@10 and so on, and sampler/...; at the end best_epoch and best/ndcg@10 and so
    on; the fields of the run are a text and hyper-parameters.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; TensorBoard needs a folder to log to")
        self._tensorboard = _needed("torch.utils.tensorboard", "tensorboard")
        self._close: Any = lambda: None

    def on_start(self, config: RunConfig, split: Split) -> None:
        self._close()
        try:
            self._writer = self._tensorboard.SummaryWriter(str(self.folder))
        except OSError as error:
            raise ConfigError(f"TensorBoard cannot log to {self.folder}: {error}") from None
        self._close = finalize(self, self._writer.close)
        fields = _fields(config)
        self._writer.add_text("data", split.name)
        self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in fields.items()))
        shown = dict.fromkeys(("loss", f"valid/{config.metric}", f"best/{config.metric}"))
        experiment, session, self._finished = self._tensorboard.summary.hparams(fields, shown)
        self._writer.file_writer.add_summary(experiment)
        self._writer.file_writer.add_summary(session)
        self._writer.flush()

    def on_epoch(self, record: EpochRecord) -> None:
        self._add(_of_epoch(record), record.epoch)
        self._writer.flush()

    def on_end(self, training: Training) -> None:
        self._add(_of_best(training), training.best_epoch)
        self._writer.file_writer.add_summary(self._finished)
        self._close()

    def _add(self, scalars: Mapping[str, float], epoch: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, epoch)


class MLflow(Callback):
    """Logs a run as an MLflow run of its own, without touching the one that is active; a resumed run is a new one.

    Params are the fields of the run. Metrics by epoch are loss, seconds, valid/ndcg_at_10 and so on (MLflow refuses "@"), and
    sampler/...; at the end best_epoch and best/ndcg_at_10 and so on. Tags name the data, the version of srns and the engine.
    Without a tracking URI it goes where MLflow is set to log; without a name, to the experiment that MLFLOW_EXPERIMENT_NAME or
    MLFLOW_EXPERIMENT_ID names, or else to "Default".
    """

    def __init__(self, experiment: str | None = None, run_name: str | None = None, tracking_uri: str | None = None) -> None:
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self._mlflow = _needed("mlflow", "mlflow")
        self._fail: Any = lambda: None

    def on_start(self, config: RunConfig, split: Split) -> None:
        self._fail()
        with warnings.catch_warnings():  # MLflow's tables use what SQLAlchemy 2.1 deprecates
            warnings.filterwarnings("ignore", "The ``noload`` loader strategy", DeprecationWarning)
            self._client = self._mlflow.MlflowClient(self.tracking_uri)
        tags = {"data": split.name, "srns": __version__}
        self._run = self._client.create_run(self._experiment_id(), tags=tags, run_name=self.run_name).info.run_id
        self._fail = finalize(self, self._client.set_terminated, self._run, "FAILED")
        params = [self._mlflow.entities.Param(name, str(value)) for name, value in _fields(config).items()]
        self._client.log_batch(self._run, params=params)

    def on_epoch(self, record: EpochRecord) -> None:
        self._log(_of_epoch(record), record.epoch)

    def on_end(self, training: Training) -> None:
        self._log(_of_best(training), training.best_epoch)
        self._client.set_tag(self._run, "engine", training.engine)
        self._client.set_terminated(self._run, "FINISHED")
        self._fail.detach()

    def _experiment_id(self) -> str:
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"  # which is Default
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self._client.create_experiment(name))

    def _log(self, metrics: Mapping[str, float], epoch: int) -> None:
        now = int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        named = [metric(mlflow_name(name), value, now, epoch) for name, value in metrics.items()]
        self._client.log_batch(self._run, metrics=named)


def mlflow_name(name: str) -> str:
    """A metric's name in letters that MLflow accepts.

    >>> mlflow_name("valid/ndcg@10")
    'valid/ndcg_at_10'
    """
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))
