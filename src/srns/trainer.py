"""The one training loop: epochs, validation, early stopping, averaging, checkpoints, callbacks."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns import checkpoints, starts
from srns.config import RunConfig
from srns.engines import Engine, Factory, make_engine
from srns.errors import ArtifactError, ConfigError, TrainingError
from srns.evaluation import compile_aside, evaluate
from srns.interruptions import interruptions
from srns.kernels import ranking
from srns.ranks import ALONE, Ranks
from srns.samplers import Truth
from srns.scorers import Model
from srns.splits import Split
from srns.terms import advice, check_resumable, learnable, resolve_protocol, temperature_advice, truth_of

Tensors = dict[str, NDArray[Any]]
COMPILING = "compiling kernels, once for each kind of method; takes about half a minute ..."
COMPILING_RANKING = "compiling the ranking, once; takes some seconds ..."


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch gave: mean training loss, validation metrics (empty where not validated), seconds of training."""

    epoch: int
    loss: float
    seconds: float
    valid: dict[str, float] = field(default_factory=dict)
    best: bool = False
    sampler: dict[str, float] = field(default_factory=dict)  # what it drew, see `srns.samplers.observations`


@dataclass(frozen=True)
class Training:
    """The outcome: the best model, the epoch it is from (counted from 1; 0: the model that training started from), and the
    record of all epochs. `start` has the validation metrics of a trained model that training started from, `memories` what the
    sampler remembers at the end, for a run that goes on with more data."""

    model: Model
    best_epoch: int
    history: tuple[EpochRecord, ...]
    engine: str
    notes: tuple[str, ...] = ()
    start: dict[str, float] = field(default_factory=dict)
    memories: Tensors = field(default_factory=dict)

    @property
    def seconds_per_epoch(self) -> float:
        """Median over epochs, which leaves out the compilation within the first."""
        return float(np.median([record.seconds for record in self.history])) if self.history else 0.0


class Callback:
    """Override what you need; returning True from `on_epoch` ends training after that epoch."""

    def on_start(self, config: RunConfig, split: Split) -> None: ...

    def on_message(self, message: str) -> None: ...

    def on_epoch(self, record: EpochRecord) -> bool | None: ...

    def on_end(self, training: Training) -> None: ...


class _Average:
    """Exponential moving average of epoch-end parameters, unbiased from the first epoch on; weight 0: no average."""

    def __init__(self, weight: float, like: Model) -> None:
        self.weight = weight
        self.count = 0
        averaged = like.tensors() if weight else {}
        self.sums: Tensors = {name: np.zeros_like(tensor) for name, tensor in averaged.items() if tensor.dtype.kind == "f"}

    def add(self, model: Model) -> None:
        self.count += 1
        current = model.tensors() if self.weight else {}
        for name, mean in self.sums.items():
            mean *= np.float32(self.weight)
            mean += np.float32(1 - self.weight) * current[name]

    def model(self, current: Model) -> Model:
        if not self.weight or not self.count:
            return current.from_tensors({name: tensor.copy() for name, tensor in current.tensors().items()})
        scale = np.float32(1 / (1 - self.weight**self.count))
        return current.from_tensors({**current.tensors(), **{name: mean * scale for name, mean in self.sums.items()}})


class Trainer:
    """Trains on `split.train`, chooses the epoch on `split.valid`, never looks at `split.test`.

    `scorer` makes a torch module of your own from the training data (docs/torch.md). With several `ranks`, `split` holds the
    users of this one, and callbacks are called on the first. Training starts from the parameters of `init`, a trained model in
    memory, or of the run that `config.init` names, which is validated too: what is worse is not chosen; else from random ones.
    With `init`, the sampler may begin with `memories` of the run before, as `Engine.memories` gives them.
    `truth` is what an experimenter knows of positives outside train; without it, those of valid count as label errors.

    >>> from srns.simulation import simulate
    >>> from srns.splits import make_split
    >>> split = make_split(simulate(n_users=50, n_items=40, n_interactions=500).interactions)
    >>> training = Trainer(RunConfig(epochs=2, engine="plain"), split).run()
    >>> len(training.history)
    2
    """

    def __init__(
        self,
        config: RunConfig,
        split: Split,
        *,
        callbacks: Sequence[Callback] = (),
        checkpoint: Path | None = None,
        ranks: Ranks = ALONE,
        scorer: Factory | None = None,
        init: Model | None = None,
        memories: Mapping[str, NDArray[Any]] | None = None,
        truth: Truth | None = None,
    ) -> None:
        self.config = config
        self.split = split
        self.callbacks = callbacks if ranks.rank == 0 else ()
        self.checkpoint = checkpoint
        self.ranks = ranks
        train, self.notes = learnable(split.train, ranks, config.draws_negatives)
        n, n_users = train.whole.n, train.whole.n_active
        started = config.init is not None or init is not None
        self.notes += advice(config, started)
        if scorer is None and not started:
            self.notes += temperature_advice(config, n / n_users)
        self.protocol = resolve_protocol(config, split)
        self.engine: Engine = make_engine(config, train, truth or truth_of(config, split), ranks=ranks, factory=scorer)
        if config.l2 == "auto" and self.engine.uses_l2:
            self.notes.append(f"l2 auto: {config.l2_for(n, n_users):.3g}, for {n / n_users:.1f} positives per user")
        elif config.l2 and scorer is not None and not self.engine.uses_l2:
            self.notes.append("without effect: l2, since your module has no method squares(users, items) for it to pull on")
        self.init = init
        self.memories = memories
        if started:
            starts.check(config, init, own=scorer is not None)
        elif config.epochs == 0:
            raise ConfigError("epochs = 0 trains nothing; expected at least 1, or a trained model to start from")
        unused = [name for name in ("amp", "compile") if getattr(config, name)] if self.engine.name != "torch" else []
        if unused:
            self.notes.append(
                f"without effect: {', '.join(unused)}, which are for the torch engine; this run uses {self.engine.name}"
            )
        if self.engine.name == "torch" and config.engine == "auto":
            self.notes.append(f"engine torch, on {ranks.size} ranks" if ranks.size > 1 else "engine torch")
        self.average = _Average(config.moving_average, self.engine.model)
        self.history: list[EpochRecord] = []
        self.best: Tensors = {}
        self.start: dict[str, float] = {}
        self._fingerprint = split.fingerprint(ranks.sum) if checkpoint is not None else ""
        self._saved_at = time.monotonic()
        self._aside: subprocess.Popen[bytes] | None = None  # compiles what the first validation needs

    def run(self, *, resume: bool = False) -> Training:
        """Train to the end; with `resume`, go on from the checkpoint if there is one."""
        for callback in self.callbacks:
            callback.on_start(self.config, self.split)
        for note in self.notes:
            self._say(note)
        if resume and self.checkpoint is not None and checkpoints.exists(self.checkpoint):
            self._load()
            self._say(f"resumed after epoch {len(self.history)}")
        elif self.config.init is not None or self.init is not None:
            self._begin_from_trained()
        if self.engine.needs_compiling():
            self._say(COMPILING)
        elif ranking.needs_compiling():
            self._say(COMPILING_RANKING)
        if self.engine.needs_compiling() and self._validates():
            self._aside = compile_aside()
        stop = self._finished()
        with interruptions() as interrupted:
            while not stop:
                record = self._epoch(len(self.history))
                self.history.append(record)
                asked = [callback.on_epoch(record) for callback in self.callbacks]
                stop, interruption = self._agreed(any(asked) or self._finished(), bool(interrupted))
                self._save_if_due(force=stop or interruption)
                if interruption and not stop:  # the reason is what a run with a checkpoint can go on from
                    raise KeyboardInterrupt(*[f"stopped after epoch {record.epoch}"] * (self.checkpoint is not None))
        # Without validation there is nothing to choose by: the last epoch is the result.
        current = self.engine.model
        model = current.from_tensors(self.best) if self.best else self.average.model(current)
        best_epoch = self._best_epoch() if self.best else len(self.history)
        left = self.engine.memories() if self.ranks.size == 1 else {}
        training = Training(model, best_epoch, tuple(self.history), self.engine.name, tuple(self.notes), self.start, left)
        for callback in self.callbacks:
            callback.on_end(training)
        return training

    def _begin_from_trained(self) -> None:
        self.engine.start_from(starts.parameters(self.config, self.split, self.init, self.ranks))
        if self.memories:
            self.engine.take_over(self.memories)
        if self._validates():
            model = self.engine.model
            self.start, self.best = self._validated(model), {name: tensor.copy() for name, tensor in model.tensors().items()}
            self._say(f"start: valid {self.config.metric} {self.start[self.config.metric]:.4f}")

    def _epoch(self, epoch: int) -> EpochRecord:
        start = time.perf_counter()
        loss = self.engine.run_epoch(epoch)
        seconds = time.perf_counter() - start
        if self._aside is not None:
            self._aside.wait()
            self._aside = None
        current = self.engine.model
        finite = np.isfinite(loss) and not any(np.isnan(tensor).any() for tensor in current.tensors().values())
        if self.ranks.any(not finite):
            raise TrainingError(
                f"epoch {epoch + 1}: loss {loss:g}, parameters not finite; "
                f"lower learning_rate ({self.config.learning_rate:g}) or raise l2 ({self.config.l2})"
            )
        self.average.add(current)
        valid: dict[str, float] = {}
        best = False
        if self._validates() and (epoch + 1) % self.config.validate_every == 0:
            model = self.average.model(current)
            valid = self._validated(model)
            best = valid[self.config.metric] > self._best_value()
            if best:
                self.best = dict(model.tensors())
        return EpochRecord(epoch + 1, loss, seconds, valid, best, self.engine.observations())

    def _validated(self, model: Model) -> dict[str, float]:
        ks = sorted({int(self.config.metric.split("@")[1]), *self.config.ks})
        return dict(evaluate(model, self.split, on="valid", protocol=self.protocol, ks=tuple(ks), ranks=self.ranks))

    def _validates(self) -> bool:
        return self.split.valid is not None and self.split.valid.whole.n > 0

    def _agreed(self, *flags: bool) -> tuple[bool, ...]:
        """Flags that any rank has raised: all stop together."""
        return tuple(any(each) for each in zip(*self.ranks.gather(flags), strict=True))

    def _best_value(self) -> float:
        start = self.start.get(self.config.metric, -np.inf)
        return max([start, *(record.valid[self.config.metric] for record in self.history if record.valid)])

    def _best_epoch(self) -> int:
        return max((record.epoch for record in self.history if record.best), default=0)

    def _finished(self) -> bool:
        done, patience = len(self.history), self.config.patience
        just_validated = bool(self.history) and bool(self.history[-1].valid)
        return done >= self.config.epochs or (just_validated and 0 < patience <= done - self._best_epoch())

    def _say(self, message: str) -> None:
        for callback in self.callbacks:
            callback.on_message(message)

    def _save_if_due(self, force: bool) -> None:
        if self.checkpoint is None:
            return
        every = self.config.checkpoint_epochs
        due = every and len(self.history) % every == 0
        late = time.monotonic() - self._saved_at >= 60 * self.config.checkpoint_minutes
        if not self.ranks.any(bool(force or due or late)):
            return
        try:
            self._save(self.checkpoint)
        except ArtifactError as error:  # a full disk must not cost the run: the older checkpoint is still whole
            self._say(f"checkpoint not written, training goes on: {error}")
        self._saved_at = time.monotonic()

    def _save(self, path: Path) -> None:
        tensors = {f"engine.{name}": tensor for name, tensor in self.engine.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.sums.items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        note = {
            "config": self.config.model_dump(mode="json"),
            "data": self._fingerprint,
            "engine": self.engine.name,
            "start": self.start,
            "history": [dataclasses.asdict(record) for record in self.history],
        }
        checkpoints.write(path, tensors, note, self.ranks, self._users(), {name for name in tensors if self._by_user(name)})

    def _users(self) -> tuple[int, int]:
        """The first user of this rank, and how many it has."""
        return self.split.train.whole.first_user, self.split.train.n_users

    def _by_user(self, name: str) -> bool:
        """Whether a tensor of the checkpoint has a row per user of this rank."""
        kind, _, rest = name.partition(".")
        return self.engine.by_user(rest) if kind == "engine" else rest in self.engine.user_tensors

    def _load(self) -> None:
        assert self.checkpoint is not None
        tensors, note = checkpoints.read(self.checkpoint, self._users())
        if not {"config", "data", "engine", "history"} <= note.keys():
            raise ArtifactError(f"{self.checkpoint} is not a checkpoint of a training run")
        check_resumable(self.config, note["config"], self.checkpoint)
        if note["data"] != self._fingerprint:
            raise ConfigError(f"{self.checkpoint} was made from other data than {self.split.name!r}")
        if note["engine"] != self.engine.name:
            raise ConfigError(
                f"{self.checkpoint} was made by engine {note['engine']!r}, this run uses {self.engine.name!r}; resume with "
                f"engine {note['engine']!r}"
            )

        def part(prefix: str) -> Tensors:
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        try:
            self.engine.load_state_dict(part("engine."))
            self.average.sums = {name: np.array(tensor) for name, tensor in part("average.").items()}
            self.best = part("best.")
            self.history = [EpochRecord(**record) for record in note["history"]]
            self.start = note.get("start", {})
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ArtifactError(f"{self.checkpoint} was made by another version of srns: {error}; train anew") from None
        self.average.count = len(self.history)
